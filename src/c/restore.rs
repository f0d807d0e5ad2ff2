//! Restoring in one call: a range of a segment, from all drives, into memory of the caller's.
//!
//! Drives move whole chunks. Those that lie whole in the range go straight to the destination, if it
//! has page alignment there; the others go through a few buffers and are copied.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use stanchion_engine::limits::BLOCK_BYTES;
use stanchion_engine::memory::Region;
use stanchion_engine::ring::{CompleteEntry, SubmitEntry, Transfer};
use stanchion_engine::{
    CheckpointName, OpenedSegment, Pool, Session, SessionBuffer, SessionOptions,
};

use super::checkpoint::checkpoint_name;
use super::engine::Engine;
use super::error::{Failure, STN_E_ENVIRONMENT};
use super::ffi::{self, Sized32, call64};

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

/// Buffers for chunks that are copied.
const BUFFERS: u64 = 8;
/// Chunks of one read that goes straight to the destination.
const CHUNKS_PER_READ: u64 = 4;
/// Reads in flight.
const ENTRIES: u32 = 32;
/// The user data of a read that needs no copy.
const DIRECT: u64 = u64::MAX;

/// See `stanchion.h`.
///
/// # Safety
/// `opts`, and what it points to, can be read; `destination` has `destination_bytes`, which nobody
/// else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_restore(
    engine: u64,
    opts: *const stn_restore_opts,
    destination: *mut c_void,
    destination_bytes: u64,
) -> i64 {
    call64(|| {
        let held = Engine::of(engine)?;
        let destination = NonNull::new(destination.cast::<u8>())
            .ok_or(Failure::new(libc::EFAULT, "destination is NULL"))?;
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
        let pool = &held.get()?.pool;
        let range = find_range(pool, &name, &opts, shard)?;
        let len_bytes = range.end - range.start;
        if len_bytes > destination_bytes {
            return Err(Failure::with(
                libc::ENOBUFS,
                format!("{len_bytes} bytes do not fit in {destination_bytes}"),
            ));
        }
        if len_bytes > 0 {
            let restore = Restore::new(pool, name, opts.participant, range, destination)?;
            restore.run()?;
        }
        Ok(len_bytes as i64)
    })
}

/// The bytes of the segment that are asked for.
fn find_range(
    pool: &Pool,
    name: &CheckpointName,
    opts: &stn_restore_opts,
    shard: Option<&str>,
) -> Result<Range<u64>, Failure> {
    let segments = pool.segments(name)?;
    let segment = segments.get(opts.participant as usize).ok_or_else(|| {
        let detail = format!("{name} has {} participants", segments.len());
        Failure::with(libc::EINVAL, detail)
    })?;
    let (start, all) = match shard {
        None => (0, segment.len_bytes),
        Some(shard) => {
            let found = segment.shards.iter().find(|known| known.name == shard);
            let found = found.ok_or_else(|| {
                Failure::with(libc::ENOENT, format!("{name} has no shard {shard}"))
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
        Failure::with(libc::ERANGE, format!("{wanted} bytes at {offset} leave the {all} there are"))
    })?;
    let start = start + opts.offset_bytes;
    Ok(start..start + len_bytes)
}

/// One restore.
struct Restore<'a> {
    pool: &'a Pool,
    name: CheckpointName,
    /// Dropped before this returns to the caller: then no drive knows the destination any more.
    session: Session,
    opened: OpenedSegment,
    /// What is asked for, in the segment.
    range: Range<u64>,
    destination: NonNull<u8>,
    /// The part of the range that goes straight to the destination: whole chunks.
    direct: Range<u64>,
    direct_buffer: Option<SessionBuffer>,
    /// For chunks that are copied, and which chunk each holds.
    buffers: Vec<(SessionBuffer, u64)>,
    idle_buffers: Vec<usize>,
}

impl<'a> Restore<'a> {
    fn new(
        pool: &'a Pool,
        name: CheckpointName,
        participant: u32,
        range: Range<u64>,
        destination: NonNull<u8>,
    ) -> Result<Restore<'a>, Failure> {
        let chunk_bytes = pool.info().chunk_bytes;
        let chunks = range.end.div_ceil(chunk_bytes) - range.start / chunk_bytes;
        let buffers = chunks.min(BUFFERS);
        let options = SessionOptions { memory_bytes: buffers * chunk_bytes, ring_entries: ENTRIES };
        let no_memory = |error| Failure::from(error).instead(STN_E_ENVIRONMENT, libc::ENOMEM);
        let mut session = pool.session(&options).map_err(no_memory)?;
        let opened = session.open(&name, participant)?;
        let buffers = (0..buffers)
            .map(|_| Ok((session.alloc(chunk_bytes).map_err(no_memory)?, 0)))
            .collect::<Result<Vec<_>, Failure>>()?;
        let idle_buffers = (0..buffers.len()).collect();
        let direct = 0..0;
        let mut restore = Restore {
            pool,
            name,
            session,
            opened,
            range,
            destination,
            direct,
            direct_buffer: None,
            buffers,
            idle_buffers,
        };
        restore.register_destination();
        Ok(restore)
    }

    /// Lets drives write whole chunks to the destination, if they can.
    fn register_destination(&mut self) {
        let chunk = self.opened.chunk_bytes;
        let start = self.range.start.next_multiple_of(chunk);
        let end = self.range.end / chunk * chunk;
        if start >= end {
            return;
        }
        let address = self.address_of(start);
        if !(address.as_ptr() as u64).is_multiple_of(BLOCK_BYTES) {
            return;
        }
        // SAFETY: the range lies within the destination, which the caller keeps until we return;
        // the session, and with it every use of the region, ends before that.
        let Ok(region) = (unsafe { Region::foreign(address, end - start) }) else { return };
        // What a drive cannot use is copied.
        if let Ok(buffer) = self.session.register(Arc::new(region)) {
            self.direct = start..end;
            self.direct_buffer = Some(buffer);
        }
    }

    /// Where a byte of the segment goes.
    fn address_of(&self, segment_offset: u64) -> NonNull<u8> {
        // SAFETY: the offset lies within the range, whose length the destination has.
        unsafe { self.destination.add((segment_offset - self.range.start) as usize) }
    }

    fn run(mut self) -> Result<(), Failure> {
        let mut next = self.range.start / self.opened.chunk_bytes * self.opened.chunk_bytes;
        let mut out = [CompleteEntry::default(); ENTRIES as usize];
        let mut failed = None;
        loop {
            while failed.is_none()
                && next < self.range.end
                && let Some((entry, end)) = self.next_read(next)
                && self.session.submit(&[entry]) == 1
            {
                if entry.user_data != DIRECT {
                    self.idle_buffers.pop();
                }
                next = end;
            }
            if self.session.outstanding() == 0 {
                break;
            }
            let count = self.session.wait(&mut out, 1, Duration::from_secs(3600));
            if count == 0 && !self.session.is_served() {
                return Err(Failure::new(super::error::STN_E_PANIC, "a reactor has ended"));
            }
            for completion in &out[..count] {
                if completion.result < 0 {
                    failed = failed.or(Some(*completion));
                }
                if completion.user_data != DIRECT {
                    self.copy(completion.user_data as usize)?;
                }
            }
        }
        match failed {
            Some(completion) => Err(self.explain(&completion)),
            None => Ok(()),
        }
    }

    /// The read that starts with the chunk at `start`, and where it ends, if there is a buffer.
    fn next_read(&mut self, start: u64) -> Option<(SubmitEntry, u64)> {
        let opened = &self.opened;
        let mut transfer = Transfer {
            checkpoint: opened.handle,
            buffer: 0,
            buffer_offset_bytes: 0,
            len_bytes: 0,
            segment_offset_bytes: start,
        };
        if self.direct.contains(&start)
            && let Some(buffer) = &self.direct_buffer
        {
            let end = self.direct.end.min(start + CHUNKS_PER_READ * opened.chunk_bytes);
            transfer.buffer = buffer.key();
            transfer.buffer_offset_bytes = start - self.direct.start;
            transfer.len_bytes = end - start;
            return Some((SubmitEntry::read(transfer, DIRECT), end));
        }
        let place = *self.idle_buffers.last()?;
        let end = opened.len_bytes.min(start + opened.chunk_bytes);
        let (buffer, chunk) = &mut self.buffers[place];
        *chunk = start;
        transfer.buffer = buffer.key();
        transfer.len_bytes = end - start;
        Some((SubmitEntry::read(transfer, place as u64), end))
    }

    /// Copies what a buffer has of the range, and gives the buffer back.
    fn copy(&mut self, place: usize) -> Result<(), Failure> {
        let (buffer, chunk) = &self.buffers[place];
        let start = self.range.start.max(*chunk);
        let end = self.range.end.min(chunk + self.opened.chunk_bytes);
        let bytes = &buffer.as_slice()?[(start - chunk) as usize..(end - chunk) as usize];
        // SAFETY: start..end lies within the range, whose bytes the destination has; it is the
        // caller's memory and no part of a session's buffer.
        unsafe {
            self.address_of(start).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        self.idle_buffers.push(place);
        Ok(())
    }

    /// What a failed read means: its code, and the words of whoever knows the place.
    fn explain(&self, completion: &CompleteEntry) -> Failure {
        let code = i32::try_from(-completion.result).unwrap_or(libc::EIO);
        let error = self.pool.explain(&self.name, self.opened.participant, completion);
        Failure::with(code, error.to_string())
    }
}
