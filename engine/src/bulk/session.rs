// SPDX-License-Identifier: Apache-2.0
//! The session behind a call: its buffers, and the memory lent to it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::bulk::pieces::{Direct, Pieces};
use crate::error::Error;
use crate::limits::BLOCK_BYTES;
use crate::memory::Region;
use crate::pool::Pool;
use crate::ring::{CompleteEntry, SubmitEntry, Transfer};
use crate::session::{Session, SessionBuffer, SessionOptions};

/// Buffers, if each can hold a chunk: enough to keep drives busy while some are filled.
const WANTED_BUFFERS: u64 = 16;
/// With one buffer, filling and writing would take turns.
const MIN_BUFFERS: u64 = 2;
/// Chunks of one entry that names lent memory.
const CHUNKS_PER_DIRECT_ENTRY: u64 = 4;
/// Entries in flight that name lent memory.
pub(super) const MAX_DIRECT_ENTRIES: u32 = 32;
/// The longest time without a progress report while drives work.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Memory of a session that serves one call: 32 MiB. More takes longer to get than it saves.
const MAX_BYTES_FOR_ONE_CALL: u64 = 32 << 20;
/// User data of an entry that names lent memory; entries of buffers have the buffer's number.
pub(super) const DIRECT: u64 = u64::MAX - 1;

/// Called with the bytes done so far: before each piece, and at least ten times a second while
/// drives work. An error that it returns ends the save or the restore with that error.
pub type Progress<'a, E> = &'a mut dyn FnMut(u64) -> Result<(), E>;

/// Options of [`Pool::bulk_session`].
#[derive(Clone, Debug)]
pub struct BulkOptions {
    /// Memory for buffers, allocated at once; at least two chunks.
    pub memory_bytes: u64,
}

impl Default for BulkOptions {
    /// 64 MiB.
    fn default() -> BulkOptions {
        BulkOptions { memory_bytes: 64 << 20 }
    }
}

/// Memory of the caller that holds a range of a segment, or will hold it.
///
/// Drives access its whole chunks directly, if they start at a block there and every drive can use
/// the memory. No other thread may change it (during a save) or access it (during a restore).
#[derive(Clone, Debug)]
pub struct Lent {
    /// The range of the segment.
    pub segment: Range<u64>,
    /// The memory.
    pub region: Arc<Region>,
    /// Where the range starts in it.
    pub region_offset_bytes: u64,
}

/// A session that saves and restores whole segments, as often as the caller wants.
///
/// Errors of callbacks and of the engine have one type, which the caller chooses.
///
/// # Examples
/// A save that is aborted when it takes longer than a minute:
/// ```no_run
/// use std::time::{Duration, Instant};
///
/// use stanchion_engine::{BulkOptions, CheckpointSpec, Pool};
///
/// type Anything = Box<dyn std::error::Error>;
///
/// fn save(pool: &Pool, spec: &CheckpointSpec, weights: &[u8]) -> Result<(), Anything> {
///     let deadline = Instant::now() + Duration::from_secs(60);
///     let mut fill = |into: &mut [u8], offset: u64| {
///         let offset = offset as usize;
///         into.copy_from_slice(&weights[offset..offset + into.len()]);
///         Ok::<(), Anything>(())
///     };
///     let mut progress = |written_bytes| match Instant::now() < deadline {
///         true => Ok(()),
///         false => Err(format!("only {written_bytes} bytes in a minute").into()),
///     };
///     let mut bulk = pool.bulk_session(&BulkOptions::default())?;
///     bulk.save(spec, &[], &mut fill, &mut progress)?;
///     Ok(())
/// }
/// ```
pub struct BulkSession<'pool> {
    pub(super) pool: &'pool Pool,
    // Dropped before the session, which unregisters their keys.
    pub(super) buffers: Vec<SessionBuffer>,
    pub(super) session: Session,
    pub(super) buffer_bytes: u64,
    pub(super) failure: Option<CompleteEntry>,
}

impl BulkOptions {
    /// For one call that copies that many bytes: a short session needs less memory.
    pub fn for_bytes(len_bytes: u64) -> BulkOptions {
        BulkOptions { memory_bytes: len_bytes.min(MAX_BYTES_FOR_ONE_CALL) }
    }
}

impl<'pool> BulkSession<'pool> {
    pub(super) fn new(pool: &'pool Pool, memory_bytes: u64) -> Result<BulkSession<'pool>, Error> {
        let chunk_bytes = pool.info().chunk_bytes;
        let chunks = (memory_bytes / chunk_bytes).max(MIN_BUFFERS);
        let chunks_per_buffer = (chunks / WANTED_BUFFERS).max(1);
        let count = (chunks / chunks_per_buffer).min(2 * WANTED_BUFFERS);
        let buffer_bytes = chunks_per_buffer * chunk_bytes;
        let mut session = pool.session(&SessionOptions {
            memory_bytes: count * buffer_bytes,
            // Room for each buffer's entry, those of lent memory, and a commit.
            ring_entries: (count as u32 + MAX_DIRECT_ENTRIES + 1).next_power_of_two(),
        })?;
        let alloc = |_| session.alloc(buffer_bytes);
        let buffers = (0..count).map(alloc).collect::<Result<Vec<_>, Error>>()?;
        Ok(BulkSession { pool, buffers, session, buffer_bytes, failure: None })
    }

    /// The bytes of every buffer. They are saved as they are where a save's `fill` sets nothing.
    ///
    /// # Errors
    /// None while nothing is in flight, which holds between two calls.
    pub fn buffers(&mut self) -> impl Iterator<Item = Result<&mut [u8], Error>> {
        self.buffers.iter_mut().map(|buffer| buffer.as_mut_slice())
    }

    /// The completion that the last save or restore failed with, if it was one: its code and NVMe
    /// status, for callers that need numbers.
    pub fn failure(&self) -> Option<&CompleteEntry> {
        self.failure.as_ref()
    }

    /// Registers lent memory that the drives can use: ascending, in whole chunks.
    pub(super) fn register(
        &mut self,
        lent: &[Lent],
        chunk_bytes: u64,
    ) -> Result<LentBuffers, Error> {
        let mut known = LentBuffers::default();
        for lent in lent {
            let Some(mut direct) = Direct::of(lent, chunk_bytes) else { continue };
            // Memory that the drives cannot use is copied.
            if let Some(key) = known.add(&lent.region, &mut self.session) {
                direct.key = key;
                known.direct.push(direct);
            }
        }
        known.direct.sort_by_key(|direct| direct.segment.start);
        if known.direct.windows(2).any(|pair| pair[0].segment.end > pair[1].segment.start) {
            return Err(Error::Usage("memory was lent twice for the same bytes".into()));
        }
        Ok(known)
    }

    /// The pieces of ranges: each is one entry.
    pub(super) fn pieces<'a>(
        &self,
        ranges: &'a [Range<u64>],
        lent: &'a LentBuffers,
        chunk: u64,
    ) -> Pieces<'a> {
        Pieces::new(ranges, &lent.direct, self.buffer_bytes, chunk * CHUNKS_PER_DIRECT_ENTRY)
    }

    pub(super) fn transfer(
        &self,
        checkpoint: u64,
        buffer: usize,
        segment: &Range<u64>,
    ) -> Transfer {
        Transfer {
            checkpoint,
            buffer: self.buffers[buffer].key(),
            buffer_offset_bytes: 0,
            len_bytes: segment.end - segment.start,
            segment_offset_bytes: segment.start,
        }
    }

    pub(super) fn submit(&mut self, entry: SubmitEntry) -> Result<(), Error> {
        // The ring has room for every possible entry; one that ended takes none.
        match self.session.submit(&[entry]) {
            0 => Err(Error::Closed("the pool")),
            _ => Ok(()),
        }
    }

    /// Takes completions; waits for one, for a limited time, if there is nothing else to do.
    pub(super) fn wait(&mut self, out: &mut [CompleteEntry], idle: bool) -> Result<usize, Error> {
        let count = self.session.wait(out, usize::from(idle), REPORT_EVERY);
        if count == 0 && idle && !self.session.is_served() {
            return Err(Error::Closed("the pool"));
        }
        Ok(count)
    }

    /// Waits for every entry in flight, and passes each completion to `see`.
    pub(super) fn drain(&mut self, mut see: impl FnMut(&CompleteEntry)) {
        let mut out = [CompleteEntry::default(); 16];
        while self.session.outstanding() > 0 {
            let count = self.session.wait(&mut out, 1, REPORT_EVERY);
            out[..count].iter().for_each(&mut see);
            if count == 0 && !self.session.is_served() {
                return;
            }
        }
    }

    /// Unregisters lent memory.
    pub(super) fn unregister(&mut self, lent: LentBuffers) {
        for (_, buffer) in lent.buffers {
            // Nothing is in flight. If a buffer is refused, the session keeps its region registered
            // until it ends.
            let _ = self.session.unregister(buffer);
        }
    }
}

/// Lent memory that the drives know.
#[derive(Default)]
pub(super) struct LentBuffers {
    /// By region: the buffer for all of it.
    pub(super) buffers: Vec<(u64, SessionBuffer)>,
    /// Ascending, without overlap.
    pub(super) direct: Vec<Direct>,
}

impl LentBuffers {
    /// The key of a region, which is registered now if it was not; `None` if a drive cannot use it.
    fn add(&mut self, region: &Arc<Region>, session: &mut Session) -> Option<u32> {
        let known = self.buffers.iter().find(|(id, _)| *id == region.id());
        if let Some((_, buffer)) = known {
            return Some(buffer.key());
        }
        let buffer = session.register(Arc::clone(region)).ok()?;
        let key = buffer.key();
        self.buffers.push((region.id(), buffer));
        Some(key)
    }
}

impl Direct {
    /// The whole chunks of lent memory, if they start at a block there and lie within it.
    fn of(lent: &Lent, chunk_bytes: u64) -> Option<Direct> {
        let start = lent.segment.start.checked_next_multiple_of(chunk_bytes)?;
        let end = lent.segment.end / chunk_bytes * chunk_bytes;
        if start >= end {
            return None;
        }
        let buffer_offset_bytes =
            lent.region_offset_bytes.checked_add(start - lent.segment.start)?;
        lent.region.at(buffer_offset_bytes, end - start)?;
        buffer_offset_bytes.is_multiple_of(BLOCK_BYTES).then_some(Direct {
            segment: start..end,
            key: 0,
            buffer_offset_bytes,
        })
    }
}
