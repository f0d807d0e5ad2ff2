// SPDX-License-Identifier: Apache-2.0
//! `stn_format`: making a pool of drives.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use stanchion_engine::{FormatOptions, Redundancy, format_pool};

use super::ffi::{self, Sized32, call};
use super::pool::addresses;

/// See `stanchion.h`.
pub const STN_FORMAT_FORCE: u32 = 1;
/// See `stanchion.h`.
pub const STN_FORMAT_MIRROR: u32 = 2;

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
    pub metadata_bytes: u64,
}

// SAFETY: integers and pointers without padding, the size first.
unsafe impl Sized32 for stn_format_opts {
    const FIRST_SIZE: usize = 40;
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
            metadata_bytes: (opts.metadata_bytes != 0).then_some(opts.metadata_bytes),
            redundancy: if mirror { Redundancy::Mirror } else { Redundancy::None },
            create_bytes: (opts.create_bytes != 0).then_some(opts.create_bytes),
            force: opts.flags & STN_FORMAT_FORCE != 0,
            ..FormatOptions::new(drives)
        })?;
        Ok(0)
    })
}
