// SPDX-License-Identifier: Apache-2.0
//! Saving in one call: one participant's shards, from the caller's memory.
//!
//! Drives read whole chunks straight from the caller's memory, where its place in a page and its
//! kind allow it; the other bytes are copied once.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::ops::Range;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use stanchion_engine::{BulkOptions, CheckpointSpec, Lent};

use super::error::{CallError, of_bulk, of_memory};
use super::ffi::{self, Sized32, call64};
use super::memory::KnownRegions;
use super::name::checkpoint_name;
use super::pool::OpenPool;
use super::shard::{self, ShardInMemory, stn_save_shard};

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_save_opts {
    pub size: u32,
    pub flags: u32,
    pub name: *const c_char,
    pub participants: u32,
    pub participant: u32,
    pub shards: *const stn_save_shard,
    pub shard_count: u32,
    pub shard_size: u32,
    pub timeout_ns: u64,
}

// SAFETY: integers and pointers without padding, the size first.
unsafe impl Sized32 for stn_save_opts {
    const FIRST_SIZE: usize = 48;
}

/// At most this many runs of memory are registered with the drives; the rest is copied. Each costs
/// every reactor a message.
const MAX_LENT: usize = 64;

/// See `stanchion.h`.
///
/// # Safety
/// `opts`, and what it points to, can be read and does not change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_save(pool: u64, opts: *const stn_save_opts) -> i64 {
    call64(|| {
        let held = OpenPool::of(pool)?;
        // SAFETY: the caller's promise.
        let (opts, name, shards) = unsafe {
            let opts = ffi::options(opts, "opts")?;
            ffi::unused(opts.flags, "flags")?;
            let shards = shard::in_memory(opts.shards, opts.shard_count, opts.shard_size)?;
            (opts, checkpoint_name(opts.name)?, shards)
        };
        let runs = join(&shards);
        let spec = CheckpointSpec {
            name,
            participants: opts.participants.max(1),
            participant: opts.participant,
            len_bytes: runs.last().map_or(0, |run| run.segment.end),
            shards: shards.into_iter().map(|(shard, _)| shard).collect(),
        };
        let started = Instant::now();
        let deadline = match opts.timeout_ns {
            0 => None,
            timeout_ns => started.checked_add(Duration::from_nanos(timeout_ns)),
        };
        let open = held.get()?;
        let pool = &open.pool;
        // SAFETY: the caller's promise; the bulk session no longer uses it when it returns.
        let lent = unsafe { lend(&runs, &open.regions, pool.info().chunk_bytes) };
        let mut bulk =
            pool.bulk_session(&BulkOptions::for_bytes(spec.len_bytes)).map_err(of_memory)?;
        let mut fill = |into: &mut [u8], offset_bytes: u64| {
            // SAFETY: the caller's promise; `into` is memory of the session's.
            unsafe { copy(&runs, into, offset_bytes) };
            Ok(())
        };
        let mut check = |_| match deadline {
            Some(deadline) if Instant::now() >= deadline => Err(CallError::with(
                libc::ETIME,
                format!("{} was not saved within {} ns", spec.name, opts.timeout_ns),
            )),
            _ => Ok(()),
        };
        let saved = bulk.save(&spec, &lent, &mut fill, &mut check);
        saved.map_err(|error| of_bulk(error, &bulk))?;
        Ok(spec.len_bytes as i64)
    })
}

/// Bytes of the segment that lie in memory one after the other.
struct Run {
    segment: Range<u64>,
    address: NonNull<u8>,
}

impl Run {
    /// The address after the last byte; none where there is no such memory.
    fn end(&self) -> Option<u64> {
        (self.address.as_ptr() as u64).checked_add(self.segment.end - self.segment.start)
    }
}

/// The shards' memory; shards that follow each other there too are one run.
fn join(shards: &[ShardInMemory]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (shard, address) in shards {
        let Some(address) = *address else { continue };
        let end = shard.offset_bytes + shard.len_bytes;
        match runs.last_mut() {
            Some(run) if run.end() == Some(address.as_ptr() as u64) => run.segment.end = end,
            _ => runs.push(Run { segment: shard.offset_bytes..end, address }),
        }
    }
    runs
}

/// The memory that drives can read in place; the longest runs, if there are too many.
///
/// # Safety
/// As [`KnownRegions::lend`], for each run.
unsafe fn lend(runs: &[Run], known: &KnownRegions, chunk_bytes: u64) -> Vec<Lent> {
    let mut longest: Vec<&Run> = runs.iter().collect();
    longest.sort_by_key(|run| std::cmp::Reverse(run.segment.end - run.segment.start));
    longest.truncate(MAX_LENT);
    // SAFETY: the caller's promise.
    let lend = |run: &Run| unsafe { known.lend(run.address, run.segment.clone(), chunk_bytes) };
    longest.into_iter().filter_map(lend).collect()
}

/// Copies bytes of the segment from the runs that have them.
///
/// # Safety
/// Each run's memory is readable and does not change; it does not overlap `into`.
unsafe fn copy(runs: &[Run], into: &mut [u8], offset_bytes: u64) {
    let end = offset_bytes + into.len() as u64;
    let first = runs.partition_point(|run| run.segment.end <= offset_bytes);
    for run in &runs[first..] {
        let from = run.segment.start.max(offset_bytes);
        let to = run.segment.end.min(end);
        if from >= to {
            break;
        }
        let part = &mut into[(from - offset_bytes) as usize..(to - offset_bytes) as usize];
        // SAFETY: from..to lies within the run; the rest is the caller's promise.
        unsafe {
            let source = run.address.add((from - run.segment.start) as usize);
            part.as_mut_ptr().copy_from_nonoverlapping(source.as_ptr(), part.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use stanchion_engine::Shard;

    use super::*;

    fn shard(offset_bytes: u64, bytes: &[u8]) -> ShardInMemory {
        let len_bytes = bytes.len() as u64;
        let (name, dtype, shape) = (String::new(), String::new(), Vec::new());
        let address = (!bytes.is_empty()).then_some(NonNull::from(bytes).cast());
        (Shard { name, offset_bytes, len_bytes, dtype, shape, ..Shard::default() }, address)
    }

    #[test]
    fn shards_that_follow_each_other_in_memory_are_one_run() {
        let (one, other) = (*b"abcdefgh", *b"XYZ");
        let shards = [
            shard(0, &one[..3]),
            shard(3, &[]),
            shard(3, &one[3..8]),
            shard(8, &other),
            shard(11, &one[1..2]),
        ];
        let runs = join(&shards);
        let ranges: Vec<_> = runs.iter().map(|run| run.segment.clone()).collect();
        assert_eq!(ranges, [0..8, 8..11, 11..12]);
        for start in 0..12 {
            for end in start..=12 {
                let mut into = vec![b'.'; end - start];
                // SAFETY: the arrays outlive the runs.
                unsafe { copy(&runs, &mut into, start as u64) };
                assert_eq!(into, b"abcdefghXYZb"[start..end]);
            }
        }
    }
}
