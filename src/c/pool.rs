// SPDX-License-Identifier: Apache-2.0
//! `stn_pool`: an open pool.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stanchion_engine::DriveAddress;
use stanchion_engine::HugePages;
use stanchion_engine::{Pool, PoolMode, PoolOptions};

use super::error::{CallError, STN_E_DRIVES, STN_E_PANIC, invalid};
use super::ffi::{self, Sized32, call};
use super::handle::{SharedHold, Table};
use super::log;
use super::memory::KnownRegions;

/// See `stanchion.h`.
pub const STN_POOL_READ_ONLY: u32 = 1;
/// See `stanchion.h`.
pub const STN_POOL_DEGRADED: u32 = 2;
/// See `stanchion.h`.
pub const STN_POOL_FALL_BACK: u32 = 4;
/// See `stanchion.h`.
pub const STN_POOL_TAKE_OVER: u32 = 8;
/// See `stanchion.h`.
pub const STN_HUGE_REQUIRED: u32 = 0;
/// See `stanchion.h`.
pub const STN_HUGE_PREFERRED: u32 = 1;
/// See `stanchion.h`.
pub const STN_HUGE_OFF: u32 = 2;

/// Pools that one process may have open.
const POOLS: usize = 64;
/// More cores than a machine has.
const MAX_CORES: u32 = 65_536;
/// More drives than a pool may have: the engine itself says how many that is.
const MAX_DRIVES: u32 = 4096;

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_pool_opts {
    pub size: u32,
    pub flags: u32,
    pub drives: *const *const c_char,
    pub cores: *const u32,
    pub drive_count: u32,
    pub core_count: u32,
    pub huge_pages: u32,
    pub reactors: u32,
    pub queue_depth: u32,
    pub checksum_threads: u32,
}

// SAFETY: integers and pointers without padding, the size first.
unsafe impl Sized32 for stn_pool_opts {
    const FIRST_SIZE: usize = 48;
}

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_pool_info {
    pub size: u32,
    pub drives: u32,
    pub pool: [u8; 16],
    pub generation: u64,
    pub epoch: u64,
    pub created_unix_ns: u64,
    pub chunk_bytes: u64,
    pub max_checkpoints: u64,
    pub capacity_bytes: u64,
    pub free_bytes: u64,
    pub copies: u32,
    pub reserved: u32,
}

// SAFETY: integers without padding, the size first.
unsafe impl Sized32 for stn_pool_info {
    const FIRST_SIZE: usize = 80;
}

static POOL_TABLE: Table<OpenPool, POOLS> =
    Table::new(1, "too many pools are open: close some first");

/// The object of a pool's handle.
pub(crate) struct OpenPool {
    pub(crate) pool: Pool,
    /// By drive: serial, address, model, back end, for programs to point to.
    pub(crate) drive_texts: Vec<[CString; 4]>,
    /// Memory that its drives know.
    pub(crate) regions: Arc<KnownRegions>,
    /// How many sessions it has.
    sessions: Arc<AtomicU32>,
}

impl OpenPool {
    /// The pool of a handle, which is not closed while the result lives.
    pub(crate) fn of(handle: u64) -> Result<SharedHold<OpenPool>, CallError> {
        POOL_TABLE.shared(handle)
    }

    /// To be held by a session of the pool.
    pub(crate) fn count_session(&self) -> SessionCount {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        SessionCount(Arc::clone(&self.sessions))
    }
}

/// Counts one session of a pool until it is dropped.
pub(crate) struct SessionCount(Arc<AtomicU32>);

impl Drop for SessionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The addresses of drives.
///
/// # Safety
/// `drives` is NULL or has `count` strings.
pub(crate) unsafe fn addresses(
    drives: *const *const c_char,
    count: u32,
) -> Result<Vec<DriveAddress>, CallError> {
    ffi::required(drives, "drives")?;
    if count == 0 || count > MAX_DRIVES {
        return Err(invalid(format!("{count} drives; name each drive of the pool")));
    }
    // SAFETY: the caller's promise.
    let drives = unsafe { ffi::array(drives, count, "drives")? };
    let parse = |drive: &*const c_char| {
        // SAFETY: the caller's promise.
        let address = unsafe { ffi::text(*drive, "a drive")? };
        Ok(address.parse::<DriveAddress>()?)
    };
    let addresses = drives.iter().map(parse).collect::<Result<Vec<DriveAddress>, CallError>>()?;
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            return Err(CallError::with(STN_E_DRIVES, format!("drive {address} is named twice")));
        }
    }
    Ok(addresses)
}

fn zero_is_none(value: u32) -> Option<usize> {
    (value != 0).then_some(value as usize)
}

/// The engine's options.
///
/// # Safety
/// What `opts` points to is readable.
unsafe fn pool_options(opts: &stn_pool_opts) -> Result<PoolOptions, CallError> {
    let known = STN_POOL_READ_ONLY | STN_POOL_DEGRADED | STN_POOL_FALL_BACK | STN_POOL_TAKE_OVER;
    ffi::known_flags(opts.flags, known, "flags")?;
    // SAFETY: the caller's promise.
    let drives = unsafe { addresses(opts.drives, opts.drive_count)? };
    if opts.core_count > MAX_CORES {
        return Err(invalid(format!("{} cores", opts.core_count)));
    }
    // SAFETY: the caller's promise.
    let cores = unsafe { ffi::array(opts.cores, opts.core_count, "cores")? };
    let mut options = PoolOptions::new(drives);
    if opts.flags & STN_POOL_READ_ONLY != 0 {
        options.mode = PoolMode::ReadOnly;
    }
    options.degraded = opts.flags & STN_POOL_DEGRADED != 0;
    options.fall_back = opts.flags & STN_POOL_FALL_BACK != 0;
    options.take_over = opts.flags & STN_POOL_TAKE_OVER != 0;
    options.huge_pages = match opts.huge_pages {
        STN_HUGE_REQUIRED => HugePages::Required,
        STN_HUGE_PREFERRED => HugePages::Preferred,
        STN_HUGE_OFF => HugePages::Off,
        other => return Err(invalid(format!("huge_pages {other} is not one of STN_HUGE_"))),
    };
    options.reactors = zero_is_none(opts.reactors);
    options.checksum_threads = zero_is_none(opts.checksum_threads);
    if !cores.is_empty() {
        options.cores = Some(cores.iter().map(|core| *core as usize).collect());
    }
    if opts.queue_depth != 0 {
        options.queue_depth = Some(opts.queue_depth);
    }
    Ok(options)
}

/// See `stanchion.h`.
///
/// # Safety
/// `opts`, and what it points to, can be read; `pool` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_pool_open(opts: *const stn_pool_opts, pool: *mut u64) -> c_int {
    call(|| {
        ffi::required(pool, "pool")?;
        // SAFETY: the caller's promise.
        let options = unsafe { pool_options(&ffi::options(opts, "opts")?)? };
        log::log_panics();
        let opened = with_signals_blocked(|| Pool::open(&options))?;
        for notice in opened.notices() {
            tracing::warn!("{notice}");
        }
        let drives = opened.info().drives;
        let drive_texts = drives.iter().map(|drive| {
            [&drive.serial, &drive.address, &drive.model, drive.back_end]
                .map(|text| CString::new(text.replace('\0', " ")).unwrap_or_default())
        });
        let drive_texts = drive_texts.collect();
        let handle = POOL_TABLE.insert(OpenPool {
            pool: opened,
            drive_texts,
            regions: Arc::default(),
            sessions: Arc::default(),
        })?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { pool.write(handle) };
        Ok(0)
    })
}

/// Blocks signals while threads are started, which inherit the mask: signals are for the program's
/// threads. Not those of a fault of the thread itself: blocked, they would end the process without
/// the program's handler, which may print where it was.
fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: plain calls on local values.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        for of_a_fault in [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&raw mut all, of_a_fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let result = work();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_pool_close(pool: u64) -> c_int {
    call(|| {
        let held = POOL_TABLE.alone(pool)?;
        // Acquire: what its sessions did happens before.
        let sessions = held.sessions.load(Ordering::Acquire);
        if sessions > 0 {
            let noun = if sessions == 1 { "session" } else { "sessions" };
            let detail = format!("the pool has {sessions} {noun}; destroy them first");
            return Err(CallError::with(libc::EBUSY, detail));
        }
        let closed = held.take();
        drop(closed.ok_or(CallError::new(STN_E_PANIC, "a live handle has no object"))?);
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_pool_info(pool: u64, info: *mut stn_pool_info) -> c_int {
    call(|| {
        let held = OpenPool::of(pool)?;
        // SAFETY: the caller's promise.
        unsafe { ffi::check_info(info, "info")? };
        let facts = held.get()?.pool.info();
        let value = stn_pool_info {
            size: 0,
            drives: facts.drives.len() as u32,
            pool: facts.pool.into_bytes(),
            generation: facts.generation.0,
            epoch: facts.epoch,
            created_unix_ns: facts.created_unix_ns,
            chunk_bytes: facts.chunk_bytes,
            max_checkpoints: facts.max_checkpoints as u64,
            capacity_bytes: facts.capacity_bytes,
            free_bytes: facts.free_bytes.unwrap_or(u64::MAX),
            copies: facts.redundancy.copies().into(),
            reserved: 0,
        };
        // SAFETY: checked above.
        unsafe { ffi::fill(info, &value) };
        Ok(0)
    })
}
