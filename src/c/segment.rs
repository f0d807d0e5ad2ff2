//! Segments of a ring: begun for a save, or opened for a restore.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use stanchion_engine::CheckpointSpec;
use stanchion_engine::format::Shard;

use super::checkpoint::checkpoint_name;
use super::error::{Failure, invalid};
use super::ffi::{self, Sized32, call};
use super::ring::Ring;

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
pub struct stn_shard {
    pub name: *const c_char,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub dtype: *const c_char,
    pub shape: *const u64,
    pub dimensions: u32,
    pub reserved: u32,
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

/// The size of `stn_shard` when it was first published.
const FIRST_SHARD_SIZE: usize = 48;
/// A size above this is garbage.
const LARGEST_SHARD_SIZE: usize = 4096;

/// One declared shard.
///
/// # Safety
/// What it points to is there.
unsafe fn shard(shard: &stn_shard) -> Result<Shard, Failure> {
    ffi::unused(shard.reserved, "a shard's reserved")?;
    if shard.dimensions as usize > stanchion_engine::limits::MAX_SHARD_DIMENSIONS {
        return Err(invalid(format!("a shard of {} dimensions", shard.dimensions)));
    }
    // SAFETY: the caller's promise.
    unsafe {
        let dtype = if shard.dtype.is_null() { "" } else { ffi::text(shard.dtype, "a dtype")? };
        Ok(Shard {
            name: ffi::text(shard.name, "a shard's name")?.to_owned(),
            offset_bytes: shard.offset_bytes,
            len_bytes: shard.len_bytes,
            dtype: dtype.to_owned(),
            shape: ffi::array(shard.shape, shard.dimensions, "a shape")?.to_vec(),
        })
    }
}

/// The declared shards, whose structure may be shorter or longer than ours.
///
/// # Safety
/// `opts.shards` is NULL or has `shard_count` structures of `shard_size` bytes.
unsafe fn shards(opts: &stn_begin_opts) -> Result<Vec<Shard>, Failure> {
    if opts.shard_count == 0 {
        return Ok(Vec::new());
    }
    let stride = opts.shard_size as usize;
    if !(FIRST_SHARD_SIZE..=LARGEST_SHARD_SIZE).contains(&stride) {
        return Err(invalid(format!("shard_size {stride}; set it to sizeof(struct stn_shard)")));
    }
    if opts.shard_count as usize > stanchion_engine::limits::MAX_SHARDS {
        return Err(invalid(format!("{} shards in one segment", opts.shard_count)));
    }
    ffi::required(opts.shards, "shards")?;
    let mut shards = Vec::with_capacity(opts.shard_count as usize);
    for index in 0..opts.shard_count as usize {
        // SAFETY: the caller's promise; zeroes are valid, and so is what is copied over them.
        let declared = unsafe {
            let place = opts.shards.cast::<u8>().add(index * stride);
            let bytes = std::slice::from_raw_parts(place, stride);
            let known = stride.min(size_of::<stn_shard>());
            if bytes[known..].iter().any(|byte| *byte != 0) {
                let detail = "a shard has something that this version of the library does not know";
                return Err(Failure::new(libc::E2BIG, detail));
            }
            let mut value: stn_shard = std::mem::zeroed();
            (&raw mut value).cast::<u8>().copy_from_nonoverlapping(place, known);
            value
        };
        // SAFETY: the caller's promise.
        shards.push(unsafe { shard(&declared)? });
    }
    Ok(shards)
}

/// See `stanchion.h`.
///
/// # Safety
/// `opts`, and what it points to, can be read; `checkpoint` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_begin(
    ring: u64,
    opts: *const stn_begin_opts,
    checkpoint: *mut u64,
) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
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
                shards: shards(&opts)?,
            }
        };
        let handle = ring.session.begin(&spec)?;
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
    ring: u64,
    name: *const c_char,
    participant: u32,
    checkpoint: *mut u64,
    info: *mut stn_segment_info,
) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
        ffi::required(checkpoint, "checkpoint")?;
        // SAFETY: the caller's promise.
        let name = unsafe {
            if !info.is_null() {
                ffi::check_info(info, "info")?;
            }
            checkpoint_name(name)?
        };
        let opened = ring.session.open(&name, participant)?;
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
pub extern "C" fn stn_close(ring: u64, checkpoint: u64) -> c_int {
    call(|| {
        let mut ring = Ring::of(ring)?;
        // The only thing that can be wrong is the handle.
        let closed = ring.session.close(checkpoint).map_err(Failure::from);
        closed.map_err(|failure| failure.instead(libc::EINVAL, libc::EBADF))?;
        Ok(0)
    })
}
