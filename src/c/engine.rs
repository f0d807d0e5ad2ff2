//! `stn_engine`: an open pool.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stanchion_engine::address::DriveAddress;
use stanchion_engine::memory::HugePages;
use stanchion_engine::{Pool, PoolMode, PoolOptions};

use super::error::{Failure, STN_E_DRIVES, STN_E_PANIC, invalid};
use super::ffi::{self, Sized32, call};
use super::handle::{Shared, Table};
use super::log;

/// See `stanchion.h`.
pub const STN_OPEN_READ_ONLY: u32 = 1;
/// See `stanchion.h`.
pub const STN_OPEN_DEGRADED: u32 = 2;
/// See `stanchion.h`.
pub const STN_HUGE_REQUIRED: u32 = 0;
/// See `stanchion.h`.
pub const STN_HUGE_PREFERRED: u32 = 1;
/// See `stanchion.h`.
pub const STN_HUGE_OFF: u32 = 2;

/// Engines that one process may have.
const ENGINES: usize = 64;
/// More cores than a machine has.
const MAX_CORES: u32 = 65_536;
/// More drives than a pool may have: the engine itself says how many that is.
const MAX_DRIVES: u32 = 4096;

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_engine_opts {
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
unsafe impl Sized32 for stn_engine_opts {
    const FIRST_SIZE: usize = 48;
}

static ENGINE_TABLE: Table<Engine, ENGINES> = Table::new(1, "too many engines: close some first");

/// What an engine handle stands for.
pub(crate) struct Engine {
    pub(crate) pool: Pool,
    /// By drive: serial, address, model, back end, for programs to point to.
    pub(crate) drive_texts: Vec<[CString; 4]>,
    /// Its rings.
    rings: Arc<AtomicU32>,
}

impl Engine {
    /// The engine of a handle, which is not closed while the result lives.
    pub(crate) fn of(handle: u64) -> Result<Shared<Engine>, Failure> {
        ENGINE_TABLE.shared(handle)
    }

    /// To be held by a ring of the engine.
    pub(crate) fn count_ring(&self) -> RingCount {
        self.rings.fetch_add(1, Ordering::Relaxed);
        RingCount(Arc::clone(&self.rings))
    }
}

/// Counts one ring of an engine until it is dropped.
pub(crate) struct RingCount(Arc<AtomicU32>);

impl Drop for RingCount {
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
) -> Result<Vec<DriveAddress>, Failure> {
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
    let addresses = drives.iter().map(parse).collect::<Result<Vec<DriveAddress>, Failure>>()?;
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            return Err(Failure::with(STN_E_DRIVES, format!("drive {address} is named twice")));
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
/// What `opts` points to is there.
unsafe fn pool_options(opts: &stn_engine_opts) -> Result<PoolOptions, Failure> {
    ffi::known_flags(opts.flags, STN_OPEN_READ_ONLY | STN_OPEN_DEGRADED, "flags")?;
    // SAFETY: the caller's promise.
    let drives = unsafe { addresses(opts.drives, opts.drive_count)? };
    if opts.core_count > MAX_CORES {
        return Err(invalid(format!("{} cores", opts.core_count)));
    }
    // SAFETY: the caller's promise.
    let cores = unsafe { ffi::array(opts.cores, opts.core_count, "cores")? };
    let mut options = PoolOptions::new(drives);
    if opts.flags & STN_OPEN_READ_ONLY != 0 {
        options.mode = PoolMode::ReadOnly;
    }
    options.degraded = opts.flags & STN_OPEN_DEGRADED != 0;
    options.huge_pages = match opts.huge_pages {
        STN_HUGE_REQUIRED => HugePages::Required,
        STN_HUGE_PREFERRED => HugePages::Preferred,
        STN_HUGE_OFF => HugePages::Off,
        other => return Err(invalid(format!("huge_pages {other} is none of STN_HUGE_"))),
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
/// `opts`, and what it points to, can be read; `engine` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_engine_open(opts: *const stn_engine_opts, engine: *mut u64) -> c_int {
    call(|| {
        ffi::required(engine, "engine")?;
        // SAFETY: the caller's promise.
        let options = unsafe { pool_options(&ffi::options(opts, "opts")?)? };
        log::log_panics();
        let pool = with_signals_blocked(|| Pool::open(&options))?;
        for notice in pool.notices() {
            tracing::warn!("{notice}");
        }
        let drives = pool.info().drives;
        let drive_texts = drives.iter().map(|drive| {
            [&drive.serial, &drive.address, &drive.model, drive.back_end]
                .map(|text| CString::new(text.replace('\0', " ")).unwrap_or_default())
        });
        let drive_texts = drive_texts.collect();
        let handle = ENGINE_TABLE.insert(Engine { pool, drive_texts, rings: Arc::default() })?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { engine.write(handle) };
        Ok(0)
    })
}

/// Threads inherit the mask: signals of the program are for the program's threads.
fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: plain calls on local values.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
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
pub extern "C" fn stn_engine_close(engine: u64) -> c_int {
    call(|| {
        let held = ENGINE_TABLE.alone(engine)?;
        // Acquire: what its rings did is over.
        let rings = held.rings.load(Ordering::Acquire);
        if rings > 0 {
            let detail = format!("the engine has {rings} rings; destroy them first");
            return Err(Failure::with(libc::EBUSY, detail));
        }
        let closed = held.take();
        drop(closed.ok_or(Failure::new(STN_E_PANIC, "a live handle has no object"))?);
        Ok(0)
    })
}
