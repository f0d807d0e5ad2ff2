// SPDX-License-Identifier: Apache-2.0
//! `stn_drive_info`: information about a drive of an open pool.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use stanchion_engine::DriveState;

use super::error::CallError;
use super::ffi::{self, Sized32, call};
use super::pool::OpenPool;

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
/// `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_drive_info(pool: u64, index: u32, info: *mut stn_drive_info) -> c_int {
    call(|| {
        let held = OpenPool::of(pool)?;
        // SAFETY: the caller's promise.
        unsafe { ffi::check_info(info, "info")? };
        let pool = held.get()?;
        let (drives, index) = (pool.pool.info().drives, index as usize);
        let (Some(drive), Some(texts)) = (drives.get(index), pool.drive_texts.get(index)) else {
            let detail = format!("drive {index}: the pool has {}", drives.len());
            return Err(CallError::with(libc::ERANGE, detail));
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
