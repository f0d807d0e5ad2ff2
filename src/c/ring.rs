// SPDX-License-Identifier: Apache-2.0
//! The ring of a session: `stn_sqe` and `stn_cqe`, the entries and completions that go through it.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::time::Duration;

use stanchion_engine::Session;
use stanchion_engine::{CompleteEntry, Opcode, SubmitEntry};

use super::error::{CallError, STN_E_PANIC, invalid};
use super::ffi::{self, call};
use super::session::OpenSession;

/// See `stanchion.h`. The engine's own entry.
#[allow(non_camel_case_types)]
pub type stn_sqe = SubmitEntry;
/// See `stanchion.h`. The engine's own completion.
#[allow(non_camel_case_types)]
pub type stn_cqe = CompleteEntry;

/// See `stanchion.h`.
pub const STN_OP_NOP: u8 = Opcode::NOP;
/// See `stanchion.h`.
pub const STN_OP_WRITE: u8 = Opcode::WRITE;
/// See `stanchion.h`.
pub const STN_OP_READ: u8 = Opcode::READ;
/// See `stanchion.h`.
pub const STN_OP_COMMIT: u8 = Opcode::COMMIT;
/// See `stanchion.h`.
pub const STN_OP_ABORT: u8 = Opcode::ABORT;
/// See `stanchion.h`.
///
/// # Safety
/// `entries` is NULL or has `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_submit(session: u64, entries: *const stn_sqe, count: u32) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        // SAFETY: the caller's promise.
        let entries = unsafe { ffi::array(entries, count, "entries")? };
        Ok(held.session.submit(entries) as c_int)
    })
}

/// The caller's room for completions.
///
/// # Safety
/// `completions` is NULL or has room for `count`, and nothing else uses it.
unsafe fn room<'a>(
    completions: *mut stn_cqe,
    count: u32,
) -> Result<&'a mut [CompleteEntry], CallError> {
    if count == 0 {
        return Ok(&mut []);
    }
    ffi::required(completions, "completions")?;
    if !completions.is_aligned() {
        return Err(invalid("completions is not aligned"));
    }
    // SAFETY: not NULL, aligned, integers only; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(completions, count as usize) })
}

/// See `stanchion.h`.
///
/// # Safety
/// `completions` is NULL or has room for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_peek(session: u64, completions: *mut stn_cqe, count: u32) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        // SAFETY: the caller's promise.
        let out = unsafe { room(completions, count)? };
        let taken = held.session.peek(out);
        if taken == 0 && count > 0 {
            require_served(&held.session)?;
        }
        Ok(taken as c_int)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `completions` is NULL or has room for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_wait(
    session: u64,
    completions: *mut stn_cqe,
    min: u32,
    count: u32,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        // SAFETY: the caller's promise.
        let out = unsafe { room(completions, count)? };
        if min > count {
            return Err(invalid(format!("min {min} is larger than count {count}")));
        }
        let outstanding = held.session.outstanding();
        if min > outstanding {
            let detail =
                format!("{outstanding} entries are outstanding: {min} will never complete");
            return Err(CallError::with(libc::ENODATA, detail));
        }
        let timeout = u64::try_from(timeout_ns).map_or(Duration::MAX, Duration::from_nanos);
        let taken = held.session.wait(out, min as usize, timeout);
        if taken == 0 && min > 0 {
            require_served(&held.session)?;
            return Err(CallError::new(libc::ETIME, "no completion came in time"));
        }
        Ok(taken as c_int)
    })
}

/// It is a defect when a session's reactor has ended while the pool is open.
fn require_served(session: &Session) -> Result<(), CallError> {
    if session.is_served() {
        return Ok(());
    }
    Err(CallError::new(STN_E_PANIC, "a defect ended the session's reactor; see the log"))
}
