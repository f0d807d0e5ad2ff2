// SPDX-License-Identifier: Apache-2.0
//! Open segments of a session: begun for a save, or opened for a restore.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use stanchion_engine::CheckpointSpec;

use super::error::CallError;
use super::ffi::{self, Sized32, call};
use super::name::checkpoint_name;
use super::session::OpenSession;
use super::shard::{self, stn_shard};

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_segment_info {
    pub size: u32,
    pub participant: u32,
    pub len_bytes: u64,
    pub chunk_bytes: u64,
    pub shards: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl Sized32 for stn_segment_info {
    const FIRST_SIZE: usize = 32;
}

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_begin_opts {
    pub size: u32,
    pub flags: u32,
    pub name: *const c_char,
    pub participants: u32,
    pub participant: u32,
    pub len_bytes: u64,
    pub shards: *const stn_shard,
    pub shard_count: u32,
    pub shard_size: u32,
}

// SAFETY: integers and pointers without padding, the size first.
unsafe impl Sized32 for stn_begin_opts {
    const FIRST_SIZE: usize = 48;
}

/// See `stanchion.h`.
///
/// # Safety
/// `opts`, and what it points to, can be read; `checkpoint` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_begin(
    session: u64,
    opts: *const stn_begin_opts,
    checkpoint: *mut u64,
) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        ffi::required(checkpoint, "checkpoint")?;
        // SAFETY: the caller's promise.
        let spec = unsafe {
            let opts = ffi::options(opts, "opts")?;
            ffi::unused(opts.flags, "flags")?;
            CheckpointSpec {
                name: checkpoint_name(opts.name)?,
                participants: opts.participants.max(1),
                participant: opts.participant,
                len_bytes: opts.len_bytes,
                shards: shard::declared(opts.shards, opts.shard_count, opts.shard_size)?,
            }
        };
        let handle = held.session.begin(&spec)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { checkpoint.write(handle) };
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `name` is a string; `checkpoint` can be written; `info` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_open(
    session: u64,
    name: *const c_char,
    participant: u32,
    checkpoint: *mut u64,
    info: *mut stn_segment_info,
) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        ffi::required(checkpoint, "checkpoint")?;
        // SAFETY: the caller's promise.
        let name = unsafe {
            if !info.is_null() {
                ffi::check_info(info, "info")?;
            }
            checkpoint_name(name)?
        };
        let opened = held.session.open(&name, participant)?;
        let value = stn_segment_info {
            size: 0,
            participant,
            len_bytes: opened.len_bytes,
            chunk_bytes: opened.chunk_bytes,
            shards: opened.shards.len() as u64,
        };
        // SAFETY: checked above.
        unsafe {
            checkpoint.write(opened.handle);
            if !info.is_null() {
                ffi::fill(info, &value);
            }
        }
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_close(session: u64, checkpoint: u64) -> c_int {
    call(|| {
        let mut held = OpenSession::of(session)?;
        // The only thing that can be wrong is the handle.
        let closed = held.session.close(checkpoint).map_err(CallError::from);
        closed.map_err(|failure| failure.instead(libc::EINVAL, libc::EBADF))?;
        Ok(0)
    })
}
