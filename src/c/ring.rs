//! `stn_ring`: a session, and the entries and completions that go through it.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use stanchion_engine::ring::{CompleteEntry, Opcode, SubmitEntry};
use stanchion_engine::{Session, SessionBuffer, SessionOptions};

use super::engine::{Engine, RingCount};
use super::error::{Failure, STN_E_ENVIRONMENT, STN_E_PANIC, invalid};
use super::ffi::{self, Sized32, call};
use super::handle::{Alone, Table};

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
pub const STN_RING_NO_MEMORY: u32 = 1;

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_ring_opts {
    pub size: u32,
    pub flags: u32,
    pub memory_bytes: u64,
    pub entries: u32,
    pub reserved: u32,
}

// SAFETY: integers without padding, the size first.
unsafe impl Sized32 for stn_ring_opts {
    const FIRST_SIZE: usize = 24;
}

/// Rings that one process may have.
const RINGS: usize = 1024;

static RING_TABLE: Table<Ring, RINGS> = Table::new(2, "too many rings: destroy some first");

/// A buffer, and where its memory is from.
pub(crate) struct Held {
    pub(crate) buffer: SessionBuffer,
    /// The caller's, by `stn_mem_register`.
    pub(crate) registered: bool,
}

/// What a ring handle stands for. The session goes first: it waits for what uses the buffers.
pub(crate) struct Ring {
    pub(crate) session: Session,
    pub(crate) buffers: HashMap<u32, Held>,
    _count: RingCount,
}

impl Ring {
    /// The ring of a handle, which no other thread uses while the result lives.
    #[inline]
    pub(crate) fn of(handle: u64) -> Result<Alone<Ring>, Failure> {
        RING_TABLE.alone(handle)
    }
}

/// What a ring is made with.
///
/// # Safety
/// `opts` is NULL or can be read.
unsafe fn session_options(opts: *const stn_ring_opts) -> Result<SessionOptions, Failure> {
    let mut options = SessionOptions::default();
    if opts.is_null() {
        return Ok(options);
    }
    // SAFETY: the caller's promise.
    let opts = unsafe { ffi::options(opts, "opts")? };
    ffi::known_flags(opts.flags, STN_RING_NO_MEMORY, "flags")?;
    ffi::unused(opts.reserved, "reserved")?;
    if opts.entries != 0 {
        options.ring_entries = opts.entries;
    }
    match (opts.flags & STN_RING_NO_MEMORY != 0, opts.memory_bytes) {
        (true, 0) => options.memory_bytes = 0,
        (true, _) => return Err(invalid("memory_bytes with STN_RING_NO_MEMORY")),
        (false, 0) => {}
        (false, bytes) => options.memory_bytes = bytes,
    }
    Ok(options)
}

/// See `stanchion.h`.
///
/// # Safety
/// `opts` is NULL or can be read; `ring` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_ring_create(
    engine: u64,
    opts: *const stn_ring_opts,
    ring: *mut u64,
) -> c_int {
    call(|| {
        let held = Engine::of(engine)?;
        ffi::required(ring, "ring")?;
        // SAFETY: the caller's promise.
        let options = unsafe { session_options(opts)? };
        let engine = held.get()?;
        let session = engine.pool.session(&options).map_err(|error| {
            // The one thing that a machine may lack here is memory.
            Failure::from(error).instead(STN_E_ENVIRONMENT, libc::ENOMEM)
        })?;
        let ring_object = Ring { session, buffers: HashMap::new(), _count: engine.count_ring() };
        let handle = RING_TABLE.insert(ring_object)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { ring.write(handle) };
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_ring_destroy(ring: u64) -> c_int {
    call(|| {
        let ended = Ring::of(ring)?.take();
        drop(ended.ok_or(Failure::new(STN_E_PANIC, "a live handle has no object"))?);
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_ring_eventfd(ring: u64) -> c_int {
    call(|| Ok(Ring::of(ring)?.session.event_fd()?.as_raw_fd()))
}

/// See `stanchion.h`.
///
/// # Safety
/// `entries` is NULL or has `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_submit(ring: u64, entries: *const stn_sqe, count: u32) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
        // SAFETY: the caller's promise.
        let entries = unsafe { ffi::array(entries, count, "entries")? };
        Ok(ring.session.submit(entries) as c_int)
    })
}

/// The caller's room for completions.
///
/// # Safety
/// `completions` is NULL or has room for `count`, and nobody else uses it.
unsafe fn room<'a>(
    completions: *mut stn_cqe,
    count: u32,
) -> Result<&'a mut [CompleteEntry], Failure> {
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
pub unsafe extern "C" fn stn_peek(ring: u64, completions: *mut stn_cqe, count: u32) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
        // SAFETY: the caller's promise.
        let out = unsafe { room(completions, count)? };
        let taken = ring.session.peek(out);
        if taken == 0 && count > 0 {
            require_served(&ring.session)?;
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
    ring: u64,
    completions: *mut stn_cqe,
    min: u32,
    count: u32,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
        // SAFETY: the caller's promise.
        let out = unsafe { room(completions, count)? };
        if min > count {
            return Err(invalid(format!("min {min} is larger than count {count}")));
        }
        let outstanding = ring.session.outstanding();
        if min > outstanding {
            let detail =
                format!("{outstanding} entries are outstanding: {min} will never complete");
            return Err(Failure::with(libc::ENODATA, detail));
        }
        let timeout = u64::try_from(timeout_ns).map_or(Duration::MAX, Duration::from_nanos);
        let taken = ring.session.wait(out, min as usize, timeout);
        if taken == 0 && min > 0 {
            require_served(&ring.session)?;
            return Err(Failure::new(libc::ETIME, "no completion came in time"));
        }
        Ok(taken as c_int)
    })
}

/// A ring whose reactor has ended, while the engine is open, is a defect.
fn require_served(session: &Session) -> Result<(), Failure> {
    if session.is_served() {
        return Ok(());
    }
    Err(Failure::new(STN_E_PANIC, "the ring's reactor has ended by a defect; see the log"))
}
