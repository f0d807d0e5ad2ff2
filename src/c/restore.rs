// SPDX-License-Identifier: Apache-2.0
//! Restoring in one call: a range of a segment, from all drives, into the caller's memory.
//!
//! Drives write whole chunks straight to the destination, if it has page alignment there; the bytes
//! before and after them are copied.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::ptr::NonNull;

use stanchion_engine::{BulkOptions, CheckpointName, Pool};

use super::error::{CallError, of_bulk, of_memory};
use super::ffi::{self, Sized32, call64};
use super::name::checkpoint_name;
use super::pool::OpenPool;

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_restore_opts {
    pub size: u32,
    pub flags: u32,
    pub name: *const c_char,
    pub shard: *const c_char,
    pub participant: u32,
    pub reserved: u32,
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

// SAFETY: integers and pointers without padding, the size first.
unsafe impl Sized32 for stn_restore_opts {
    const FIRST_SIZE: usize = 48;
}

/// Memory for bytes that are copied, in chunks.
const CHUNKS: u64 = 8;

/// See `stanchion.h`.
///
/// # Safety
/// `opts`, and what it points to, can be read; `destination` has `destination_bytes`, which
/// nothing else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_restore(
    pool: u64,
    opts: *const stn_restore_opts,
    destination: *mut c_void,
    destination_bytes: u64,
) -> i64 {
    call64(|| {
        let held = OpenPool::of(pool)?;
        let destination = NonNull::new(destination.cast::<u8>())
            .ok_or(CallError::new(libc::EFAULT, "destination is NULL"))?;
        // SAFETY: the caller's promise.
        let (opts, name, shard) = unsafe {
            let opts = ffi::options(opts, "opts")?;
            ffi::unused(opts.flags, "flags")?;
            ffi::unused(opts.reserved, "reserved")?;
            let shard = match opts.shard.is_null() {
                true => None,
                false => Some(ffi::text(opts.shard, "shard")?),
            };
            (opts, checkpoint_name(opts.name)?, shard)
        };
        let open = held.get()?;
        let range = find_range(&open.pool, &name, &opts, shard)?;
        let len_bytes = range.end - range.start;
        if len_bytes > destination_bytes {
            return Err(CallError::with(
                libc::ENOBUFS,
                format!("{len_bytes} bytes do not fit in {destination_bytes}"),
            ));
        }
        if len_bytes > 0 {
            // SAFETY: the destination has room for the range; the rest is the caller's promise.
            unsafe { restore(open, &name, opts.participant, range, destination)? };
        }
        Ok(len_bytes as i64)
    })
}

/// The requested bytes of the segment.
fn find_range(
    pool: &Pool,
    name: &CheckpointName,
    opts: &stn_restore_opts,
    shard: Option<&str>,
) -> Result<Range<u64>, CallError> {
    let segments = pool.segments(name)?;
    let segment = segments.get(opts.participant as usize).ok_or_else(|| {
        let noun = if segments.len() == 1 { "participant" } else { "participants" };
        let detail = format!("{name} has {} {noun}", segments.len());
        CallError::with(libc::EINVAL, detail)
    })?;
    let (start, all) = match shard {
        None => (0, segment.len_bytes),
        Some(shard) => {
            let found = segment.shards.iter().find(|known| known.name == shard);
            let found = found.ok_or_else(|| {
                CallError::with(libc::ENOENT, format!("{name} has no shard {shard}"))
            })?;
            (found.offset_bytes, found.len_bytes)
        }
    };
    let left = all.checked_sub(opts.offset_bytes);
    let len_bytes = left.and_then(|left| match opts.len_bytes {
        0 => Some(left),
        wanted => (wanted <= left).then_some(wanted),
    });
    let len_bytes = len_bytes.ok_or_else(|| {
        let (offset, wanted) = (opts.offset_bytes, opts.len_bytes);
        CallError::with(
            libc::ERANGE,
            format!("{wanted} bytes at {offset} leave the {all} there are"),
        )
    })?;
    let start = start + opts.offset_bytes;
    Ok(start..start + len_bytes)
}

/// Restores a range of a segment.
///
/// # Safety
/// `destination` has room for the range, and nothing else uses it.
unsafe fn restore(
    open: &OpenPool,
    name: &CheckpointName,
    participant: u32,
    range: Range<u64>,
    destination: NonNull<u8>,
) -> Result<(), CallError> {
    let chunk_bytes = open.pool.info().chunk_bytes;
    // SAFETY: the caller's promise; the bulk session no longer uses it when it returns.
    let lent = unsafe { open.regions.lend(destination, range.clone(), chunk_bytes) };
    let chunks = range.end.div_ceil(chunk_bytes) - range.start / chunk_bytes;
    let options = BulkOptions { memory_bytes: chunks.min(CHUNKS) * chunk_bytes };
    let mut bulk = open.pool.bulk_session(&options).map_err(of_memory)?;
    let mut copy = |bytes: &[u8], offset_bytes: u64| {
        // SAFETY: the bytes lie within the range, for which the destination has room; they are in a
        // buffer of the session's.
        unsafe {
            let to = destination.add((offset_bytes - range.start) as usize);
            to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Ok(())
    };
    let ranges = std::slice::from_ref(&range);
    let restored =
        bulk.restore(name, participant, ranges, lent.as_slice(), &mut copy, &mut |_| Ok(()));
    restored.map_err(|error| of_bulk(error, &bulk))
}
