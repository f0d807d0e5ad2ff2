// SPDX-License-Identifier: Apache-2.0
//! `stn_checkpoint`: what one committed checkpoint consists of, and how to remove one.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};

use stanchion_engine::{Availability, CheckpointInfo, SegmentInfo};

use super::error::{CallError, STN_E_PANIC};
use super::ffi::{self, Sized32, call};
use super::handle::{SharedHold, Table};
use super::name::checkpoint_name;
use super::pool::OpenPool;
use super::segment::stn_segment_info;
use super::shard::stn_shard_info;
use super::text::write_text;

/// See `stanchion.h`.
pub const STN_HEALTH_WHOLE: u32 = 0;
/// See `stanchion.h`.
pub const STN_HEALTH_ONE_COPY: u32 = 1;
/// See `stanchion.h`.
pub const STN_HEALTH_LOST: u32 = 2;
/// See `stanchion.h`.
pub const STN_HEALTH_UNKNOWN: u32 = 3;

/// See `stanchion.h`.
pub const STN_NAME_BYTES: usize = 160;

// NAME, @, 20 digits, NUL.
const _: () = assert!(stanchion_engine::limits::MAX_NAME_BYTES + 22 <= STN_NAME_BYTES);

/// Descriptions that one process may have.
const CHECKPOINTS: usize = 1024;

static CHECKPOINT_TABLE: Table<Checkpoint, CHECKPOINTS> =
    Table::new(4, "too many descriptions of checkpoints: free some first");

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_checkpoint_info {
    pub size: u32,
    pub participants: u32,
    pub id: [u8; 16],
    pub bytes: u64,
    pub step: u64,
    pub committed_unix_ns: u64,
    pub generation: u64,
    pub damaged: u32,
    pub health: u32,
    pub name: [c_char; STN_NAME_BYTES],
}

// SAFETY: integers without padding, the size first.
unsafe impl Sized32 for stn_checkpoint_info {
    const FIRST_SIZE: usize = 224;
}

/// What a handle stands for. Nothing in it moves or changes until it is freed.
struct Checkpoint {
    info: CheckpointInfo,
    chunk_bytes: u64,
    segments: Vec<SegmentInfo>,
    /// By segment and shard: name and dtype, for programs to point to.
    texts: Vec<Vec<[CString; 2]>>,
}

/// What a program sees of a checkpoint.
pub(crate) fn describe(checkpoint: &CheckpointInfo) -> stn_checkpoint_info {
    let mut info = stn_checkpoint_info {
        size: 0,
        participants: checkpoint.participants,
        id: checkpoint.id.into_bytes(),
        bytes: checkpoint.bytes,
        step: checkpoint.name.step,
        committed_unix_ns: checkpoint.committed_unix_ns,
        generation: checkpoint.generation.0,
        damaged: u32::from(checkpoint.damage.is_some()),
        health: match checkpoint.availability {
            Availability::Whole => STN_HEALTH_WHOLE,
            Availability::OneCopy => STN_HEALTH_ONE_COPY,
            Availability::Lost { .. } => STN_HEALTH_LOST,
            Availability::Unknown => STN_HEALTH_UNKNOWN,
        },
        name: [0; STN_NAME_BYTES],
    };
    // SAFETY: the array has this length.
    unsafe {
        write_text(info.name.as_mut_ptr(), STN_NAME_BYTES, &checkpoint.name.to_string());
    }
    info
}

/// The description of a handle. A thread that holds it alone is freeing it.
fn checkpoint_of(handle: u64) -> Result<SharedHold<Checkpoint>, CallError> {
    CHECKPOINT_TABLE.shared(handle).map_err(|failure| failure.instead(libc::EBUSY, libc::EBADF))
}

/// See `stanchion.h`.
///
/// # Safety
/// `name` is a string; `checkpoint` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_checkpoint_show(
    pool: u64,
    name: *const c_char,
    checkpoint: *mut u64,
) -> c_int {
    call(|| {
        let held = OpenPool::of(pool)?;
        ffi::required(checkpoint, "checkpoint")?;
        // SAFETY: the caller's promise.
        let name = unsafe { checkpoint_name(name)? };
        let pool = &held.get()?.pool;
        let info = pool.find(&name)?;
        let segments = pool.segments(&name)?;
        let chunk_bytes = pool.info().chunk_bytes;
        // Names in a pool have no NUL, unless another library wrote them.
        let c_string = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let texts = segments.iter().map(|segment| {
            segment.shards.iter().map(|s| [c_string(&s.name), c_string(&s.dtype)]).collect()
        });
        let texts = texts.collect();
        let handle = CHECKPOINT_TABLE.insert(Checkpoint { info, chunk_bytes, segments, texts })?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { checkpoint.write(handle) };
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_checkpoint_get(
    checkpoint: u64,
    info: *mut stn_checkpoint_info,
) -> c_int {
    call(|| {
        let held = checkpoint_of(checkpoint)?;
        // SAFETY: the caller's promise, checked.
        unsafe {
            ffi::check_info(info, "info")?;
            ffi::fill(info, &describe(&held.get()?.info));
        }
        Ok(0)
    })
}

fn segment(held: &SharedHold<Checkpoint>, participant: u32) -> Result<&SegmentInfo, CallError> {
    let segments = &held.get()?.segments;
    segments.get(participant as usize).ok_or_else(|| {
        let detail = format!("participant {participant}: the checkpoint has {}", segments.len());
        CallError::with(libc::ERANGE, detail)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_checkpoint_segment(
    checkpoint: u64,
    participant: u32,
    info: *mut stn_segment_info,
) -> c_int {
    call(|| {
        let held = checkpoint_of(checkpoint)?;
        // SAFETY: the caller's promise.
        unsafe { ffi::check_info(info, "info")? };
        let segment = segment(&held, participant)?;
        let value = stn_segment_info {
            size: 0,
            participant,
            len_bytes: segment.len_bytes,
            chunk_bytes: held.get()?.chunk_bytes,
            shards: segment.shards.len() as u64,
        };
        // SAFETY: checked above.
        unsafe { ffi::fill(info, &value) };
        Ok(0)
    })
}

/// Describes the shard at a place, which exists.
fn describe_shard(
    held: &SharedHold<Checkpoint>,
    participant: u32,
    index: usize,
) -> Result<stn_shard_info, CallError> {
    let shard = &segment(held, participant)?.shards[index];
    let [name, dtype] = &held.get()?.texts[participant as usize][index];
    Ok(stn_shard_info {
        size: 0,
        dimensions: shard.shape.len() as u32,
        offset_bytes: shard.offset_bytes,
        len_bytes: shard.len_bytes,
        name: name.as_ptr(),
        dtype: dtype.as_ptr(),
        shape: shard.shape.as_ptr(),
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_checkpoint_shard(
    checkpoint: u64,
    participant: u32,
    index: u64,
    info: *mut stn_shard_info,
) -> c_int {
    call(|| {
        let held = checkpoint_of(checkpoint)?;
        // SAFETY: the caller's promise.
        unsafe { ffi::check_info(info, "info")? };
        let count = segment(&held, participant)?.shards.len();
        if index >= count as u64 {
            let detail = format!("shard {index}: the segment has {count}");
            return Err(CallError::with(libc::ERANGE, detail));
        }
        let value = describe_shard(&held, participant, index as usize)?;
        // SAFETY: checked above.
        unsafe { ffi::fill(info, &value) };
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `name` is a string; `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_checkpoint_find(
    checkpoint: u64,
    participant: u32,
    name: *const c_char,
    info: *mut stn_shard_info,
) -> c_int {
    call(|| {
        let held = checkpoint_of(checkpoint)?;
        // SAFETY: the caller's promise.
        let name = unsafe {
            ffi::check_info(info, "info")?;
            ffi::text(name, "name")?
        };
        let shards = &segment(&held, participant)?.shards;
        let index = shards.iter().position(|shard| shard.name == name).ok_or_else(|| {
            CallError::with(libc::ENOENT, format!("the segment has no shard {name}"))
        })?;
        let value = describe_shard(&held, participant, index)?;
        // SAFETY: checked above.
        unsafe { ffi::fill(info, &value) };
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_checkpoint_free(checkpoint: u64) -> c_int {
    call(|| {
        let freed = CHECKPOINT_TABLE.alone(checkpoint)?.take();
        drop(freed.ok_or(CallError::new(STN_E_PANIC, "a live handle has no object"))?);
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_remove(pool: u64, name: *const c_char) -> c_int {
    call(|| {
        let held = OpenPool::of(pool)?;
        // SAFETY: the caller's promise.
        let name = unsafe { checkpoint_name(name)? };
        held.get()?.pool.remove(&name)?;
        Ok(0)
    })
}
