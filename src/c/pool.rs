//! Making a pool, and what is known of one.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use stanchion_engine::{DriveState, FormatOptions, Redundancy, format_pool};

use super::engine::{Engine, addresses};
use super::error::Failure;
use super::ffi::{self, Sized32, call};

/// See `stanchion.h`.
pub const STN_FORMAT_FORCE: u32 = 1;
/// See `stanchion.h`.
pub const STN_FORMAT_MIRROR: u32 = 2;
/// See `stanchion.h`.
pub const STN_DRIVE_MEMBER: u32 = DriveState::Member as u32;
/// See `stanchion.h`.
pub const STN_DRIVE_ABSENT: u32 = DriveState::Absent as u32;
/// See `stanchion.h`.
pub const STN_DRIVE_REBUILDING: u32 = DriveState::Rebuilding as u32;

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_format_opts {
    pub size: u32,
    pub flags: u32,
    pub drives: *const *const c_char,
    pub drive_count: u32,
    pub reserved: u32,
    pub chunk_bytes: u64,
    pub create_bytes: u64,
}

// SAFETY: integers and pointers without padding, the size first.
unsafe impl Sized32 for stn_format_opts {
    const FIRST_SIZE: usize = 40;
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

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_drive_info {
    pub size: u32,
    pub volatile_cache: i32,
    pub uuid: [u8; 16],
    pub capacity_bytes: u64,
    pub serial: *const c_char,
    pub address: *const c_char,
    pub model: *const c_char,
    pub back_end: *const c_char,
    pub state: u32,
    pub reserved: u32,
}

// SAFETY: integers and pointers without padding, the size first.
unsafe impl Sized32 for stn_drive_info {
    const FIRST_SIZE: usize = 64;
}

/// See `stanchion.h`.
///
/// # Safety
/// `opts`, and what it points to, can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_format(opts: *const stn_format_opts) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let opts = unsafe { ffi::options(opts, "opts")? };
        ffi::known_flags(opts.flags, STN_FORMAT_FORCE | STN_FORMAT_MIRROR, "flags")?;
        ffi::unused(opts.reserved, "reserved")?;
        // SAFETY: the caller's promise.
        let drives = unsafe { addresses(opts.drives, opts.drive_count)? };
        let mirror = opts.flags & STN_FORMAT_MIRROR != 0;
        format_pool(&FormatOptions {
            chunk_bytes: (opts.chunk_bytes != 0).then_some(opts.chunk_bytes),
            redundancy: if mirror { Redundancy::Mirror } else { Redundancy::None },
            create_bytes: (opts.create_bytes != 0).then_some(opts.create_bytes),
            force: opts.flags & STN_FORMAT_FORCE != 0,
            ..FormatOptions::new(drives)
        })?;
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_pool_info(engine: u64, info: *mut stn_pool_info) -> c_int {
    call(|| {
        let held = Engine::of(engine)?;
        // SAFETY: the caller's promise.
        unsafe { ffi::check_info(info, "info")? };
        let pool = held.get()?.pool.info();
        let value = stn_pool_info {
            size: 0,
            drives: pool.drives.len() as u32,
            pool: pool.pool.into_bytes(),
            generation: pool.generation.0,
            epoch: pool.epoch,
            created_unix_ns: pool.created_unix_ns,
            chunk_bytes: pool.chunk_bytes,
            max_checkpoints: pool.max_checkpoints as u64,
            capacity_bytes: pool.capacity_bytes,
            free_bytes: pool.free_bytes.unwrap_or(u64::MAX),
            copies: pool.redundancy.copies().into(),
            reserved: 0,
        };
        // SAFETY: checked above.
        unsafe { ffi::fill(info, &value) };
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_drive_info(
    engine: u64,
    index: u32,
    info: *mut stn_drive_info,
) -> c_int {
    call(|| {
        let held = Engine::of(engine)?;
        // SAFETY: the caller's promise.
        unsafe { ffi::check_info(info, "info")? };
        let engine = held.get()?;
        let (drives, index) = (engine.pool.info().drives, index as usize);
        let (Some(drive), Some(texts)) = (drives.get(index), engine.drive_texts.get(index)) else {
            let detail = format!("drive {index}: the pool has {}", drives.len());
            return Err(Failure::with(libc::ERANGE, detail));
        };
        let value = stn_drive_info {
            size: 0,
            volatile_cache: drive.volatile_cache.map_or(-1, i32::from),
            uuid: drive.uuid.into_bytes(),
            capacity_bytes: drive.capacity_bytes,
            serial: texts[0].as_ptr(),
            address: texts[1].as_ptr(),
            model: texts[2].as_ptr(),
            back_end: texts[3].as_ptr(),
            state: drive.state as u32,
            reserved: 0,
        };
        // SAFETY: checked above.
        unsafe { ffi::fill(info, &value) };
        Ok(0)
    })
}
