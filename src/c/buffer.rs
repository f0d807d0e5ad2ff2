// SPDX-License-Identifier: Apache-2.0
//! Buffers of a session: in its memory, or in the caller's.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use stanchion_engine::Region;

use super::error::{CallError, of_memory};
use super::ffi::{self, call};
use super::session::{HeldBuffer, OpenSession};

const IN_FLIGHT: CallError = CallError::new(
    libc::EBUSY,
    "the buffer is in flight: take the completions of the entries that name it first",
);

/// See `stanchion.h`.
///
/// # Safety
/// `address` and `key` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_buf_alloc(
    session: u64,
    len_bytes: u64,
    address: *mut *mut c_void,
    key: *mut u32,
) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        ffi::required(address, "address")?;
        ffi::required(key, "key")?;
        let buffer = held.session.alloc(len_bytes).map_err(of_memory)?;
        held.pool_regions.add(buffer.region());
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe {
            address.write(buffer.as_ptr().as_ptr().cast());
            key.write(buffer.key());
        }
        held.buffers.insert(buffer.key(), HeldBuffer { buffer, registered: false });
        Ok(0)
    })
}

/// Removes the buffer of a key, if it is of that kind and nothing in flight names it.
fn take(session: &mut OpenSession, key: u32, registered: bool) -> Result<HeldBuffer, CallError> {
    match session.buffers.get(&key) {
        Some(held) if held.registered != registered => {}
        Some(held) if !held.buffer.usage().is_idle() => return Err(IN_FLIGHT),
        Some(_) => return session.buffers.remove(&key).ok_or(IN_FLIGHT),
        None => {}
    }
    Err(CallError::with(libc::EBADF, format!("{key:#x} is not such a key of this session")))
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_buf_free(session: u64, key: u32) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        drop(take(&mut held, key, false)?);
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// The memory stays mapped until it is unregistered or the session is destroyed; `key` can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_mem_register(
    session: u64,
    address: *mut c_void,
    len_bytes: u64,
    key: *mut u32,
) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        ffi::required(key, "key")?;
        let base = NonNull::new(address.cast::<u8>())
            .ok_or(CallError::new(libc::EFAULT, "address is NULL"))?;
        // SAFETY: the caller's promise. What keeps the region for longer than the session has it
        // registered only owns it, and no Rust reference to its bytes is ever made.
        let region = unsafe { Region::foreign(base, len_bytes)? };
        let buffer = held.session.register(Arc::new(region))?;
        held.pool_regions.add(buffer.region());
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { key.write(buffer.key()) };
        held.buffers.insert(buffer.key(), HeldBuffer { buffer, registered: true });
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_mem_unregister(session: u64, key: u32) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        let taken = take(&mut held, key, true)?;
        held.session.unregister(taken.buffer).map_err(|buffer| {
            held.buffers.insert(key, HeldBuffer { buffer, registered: true });
            IN_FLIGHT
        })?;
        Ok(0)
    })
}
