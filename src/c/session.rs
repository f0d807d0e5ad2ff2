// SPDX-License-Identifier: Apache-2.0
//! `stn_session`: what one thread saves and restores through.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use stanchion_engine::{Session, SessionBuffer, SessionOptions};

use super::error::{CallError, STN_E_PANIC, invalid, of_memory};
use super::ffi::{self, Sized32, call};
use super::handle::{ExclusiveHold, Table};
use super::memory::KnownRegions;
use super::pool::{OpenPool, SessionCount};

/// See `stanchion.h`.
pub const STN_SESSION_NO_MEMORY: u32 = 1;

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_session_opts {
    pub size: u32,
    pub flags: u32,
    pub memory_bytes: u64,
    pub entries: u32,
    pub reserved: u32,
}

// SAFETY: integers without padding, the size first.
unsafe impl Sized32 for stn_session_opts {
    const FIRST_SIZE: usize = 24;
}

/// Sessions that one process may have.
const SESSIONS: usize = 1024;

static SESSION_TABLE: Table<OpenSession, SESSIONS> =
    Table::new(2, "too many sessions: destroy some first");

/// A buffer, and where its memory is from.
pub(crate) struct HeldBuffer {
    pub(crate) buffer: SessionBuffer,
    /// The caller's, by `stn_mem_register`.
    pub(crate) registered: bool,
}

/// The object of a session's handle. The session goes first: it waits for what uses the buffers.
pub(crate) struct OpenSession {
    pub(crate) session: Session,
    pub(crate) buffers: HashMap<u32, HeldBuffer>,
    /// The pool's list of memory that its drives know.
    pub(crate) pool_regions: Arc<KnownRegions>,
    _count: SessionCount,
}

impl OpenSession {
    /// The session of a handle, which no other thread uses while the result lives.
    #[inline]
    pub(crate) fn of(handle: u64) -> Result<ExclusiveHold<OpenSession>, CallError> {
        SESSION_TABLE.alone(handle)
    }
}

/// The options of a new session.
///
/// # Safety
/// `opts` is NULL or can be read.
unsafe fn session_options(opts: *const stn_session_opts) -> Result<SessionOptions, CallError> {
    let mut options = SessionOptions::default();
    if opts.is_null() {
        return Ok(options);
    }
    // SAFETY: the caller's promise.
    let opts = unsafe { ffi::options(opts, "opts")? };
    ffi::known_flags(opts.flags, STN_SESSION_NO_MEMORY, "flags")?;
    ffi::unused(opts.reserved, "reserved")?;
    if opts.entries != 0 {
        options.ring_entries = opts.entries;
    }
    match (opts.flags & STN_SESSION_NO_MEMORY != 0, opts.memory_bytes) {
        (true, 0) => options.memory_bytes = 0,
        (true, _) => return Err(invalid("memory_bytes with STN_SESSION_NO_MEMORY")),
        (false, 0) => {}
        (false, bytes) => options.memory_bytes = bytes,
    }
    Ok(options)
}

/// See `stanchion.h`.
///
/// # Safety
/// `opts` is NULL or can be read; `session` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_session_create(
    pool: u64,
    opts: *const stn_session_opts,
    session: *mut u64,
) -> c_int {
    call(|| {
        let held = OpenPool::of(pool)?;
        ffi::required(session, "session")?;
        // SAFETY: the caller's promise.
        let options = unsafe { session_options(opts)? };
        let pool = held.get()?;
        let opened = pool.pool.session(&options).map_err(of_memory)?;
        let handle = SESSION_TABLE.insert(OpenSession {
            session: opened,
            buffers: HashMap::new(),
            pool_regions: Arc::clone(&pool.regions),
            _count: pool.count_session(),
        })?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { session.write(handle) };
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_session_destroy(session: u64) -> c_int {
    call(|| {
        let ended = OpenSession::of(session)?.take();
        drop(ended.ok_or(CallError::new(STN_E_PANIC, "a live handle has no object"))?);
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_session_eventfd(session: u64) -> c_int {
    call(|| Ok(OpenSession::of(session)?.session.event_fd()?.as_raw_fd()))
}
