//! Buffers of a ring: from its memory, or of the caller's.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use stanchion_engine::memory::Region;

use super::error::{Failure, STN_E_ENVIRONMENT};
use super::ffi::{self, call};
use super::ring::{Held, Ring};

const IN_FLIGHT: Failure = Failure::new(
    libc::EBUSY,
    "the buffer is in flight: take the completions of the entries that name it first",
);

/// See `stanchion.h`.
///
/// # Safety
/// `address` and `key` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_buf_alloc(
    ring: u64,
    len_bytes: u64,
    address: *mut *mut c_void,
    key: *mut u32,
) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
        ffi::required(address, "address")?;
        ffi::required(key, "key")?;
        let buffer = ring
            .session
            .alloc(len_bytes)
            .map_err(|error| Failure::from(error).instead(STN_E_ENVIRONMENT, libc::ENOMEM))?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe {
            address.write(buffer.as_ptr().as_ptr().cast());
            key.write(buffer.key());
        }
        ring.buffers.insert(buffer.key(), Held { buffer, registered: false });
        Ok(0)
    })
}

/// Takes the buffer of a key out, if it is of that kind and nothing in flight names it.
fn take(ring: &mut Ring, key: u32, registered: bool) -> Result<Held, Failure> {
    match ring.buffers.get(&key) {
        Some(held) if held.registered != registered => {}
        Some(held) if !held.buffer.usage().is_idle() => return Err(IN_FLIGHT),
        Some(_) => return ring.buffers.remove(&key).ok_or(IN_FLIGHT),
        None => {}
    }
    Err(Failure::with(libc::EBADF, format!("{key:#x} is no such key of this ring")))
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_buf_free(ring: u64, key: u32) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
        drop(take(&mut ring, key, false)?);
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// The memory stays mapped until it is unregistered or the ring is destroyed; `key` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_mem_register(
    ring: u64,
    address: *mut c_void,
    len_bytes: u64,
    key: *mut u32,
) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
        ffi::required(key, "key")?;
        let base = NonNull::new(address.cast::<u8>())
            .ok_or(Failure::new(libc::EFAULT, "address is NULL"))?;
        // SAFETY: the caller's promise. Whatever keeps the region for longer than the ring has it
        // registered only holds it, and no Rust reference to its bytes is ever made.
        let region = unsafe { Region::foreign(base, len_bytes)? };
        let buffer = ring.session.register(Arc::new(region))?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { key.write(buffer.key()) };
        ring.buffers.insert(buffer.key(), Held { buffer, registered: true });
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_mem_unregister(ring: u64, key: u32) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
        let held = take(&mut ring, key, true)?;
        ring.session.unregister(held.buffer).map_err(|buffer| {
            ring.buffers.insert(key, Held { buffer, registered: true });
            IN_FLIGHT
        })?;
        Ok(0)
    })
}
