// SPDX-License-Identifier: Apache-2.0
//! A restore: verified bytes come from the drives piece by piece and are passed on in order.

use std::collections::VecDeque;
use std::ops::Range;

use crate::bulk::pieces::{Piece, chunks_of};
use crate::bulk::session::{BulkSession, DIRECT, Lent, LentBuffers, MAX_DIRECT_ENTRIES, Progress};
use crate::error::Error;
use crate::name::CheckpointName;
use crate::ring::{CompleteEntry, SubmitEntry, Transfer};
use crate::session::OpenedSegment;

/// Takes restored and verified bytes, with their offset in the segment.
pub type Consume<'a, E> = &'a mut dyn FnMut(&[u8], u64) -> Result<(), E>;

/// A read into a buffer that is in flight, or whose bytes wait for earlier ones.
struct Read {
    buffer: usize,
    segment: Range<u64>,
    done: bool,
}

/// The requested ranges of a segment, and the progress.
struct Wanted<'a> {
    ranges: &'a [Range<u64>],
    done_bytes: u64,
}

impl Wanted<'_> {
    /// Counts the requested bytes of a piece, and passes them on.
    fn take<E>(
        &mut self,
        piece: &Range<u64>,
        mut hand_on: impl FnMut(Range<u64>) -> Result<(), E>,
    ) -> Result<(), E> {
        let first = self.ranges.partition_point(|range| range.end <= piece.start);
        for range in &self.ranges[first..] {
            let part = range.start.max(piece.start)..range.end.min(piece.end);
            if range.start >= piece.end {
                break;
            }
            if part.start < part.end {
                self.done_bytes += part.end - part.start;
                hand_on(part)?;
            }
        }
        Ok(())
    }
}

impl BulkSession<'_> {
    /// Restores ranges of one participant's segment; they ascend and do not overlap. Calls
    /// `consume` with their bytes, verified, and the offset in the segment, in that order. Lent
    /// memory that the drives can write is filled directly, without `consume`.
    ///
    /// # Errors
    /// As [`crate::Session::open`]; [`Error::Usage`] for ranges that leave the segment or do not
    /// ascend; damage, or the failure of a drive; an error of `consume` or `progress`.
    pub fn restore<E: From<Error>>(
        &mut self,
        name: &CheckpointName,
        participant: u32,
        ranges: &[Range<u64>],
        lent: &[Lent],
        consume: Consume<'_, E>,
        progress: Progress<'_, E>,
    ) -> Result<(), E> {
        self.failure = None;
        let opened = self.session.open(name, participant)?;
        let mut known = LentBuffers::default();
        let result =
            match check(ranges, &opened).and_then(|()| self.register(lent, opened.chunk_bytes)) {
                Ok(registered) => {
                    known = registered;
                    let wanted = Wanted { ranges, done_bytes: 0 };
                    self.read_and_hand_on(name, &opened, wanted, &known, consume, progress)
                }
                Err(error) => Err(error.into()),
            };
        // Also after an error: an open checkpoint cannot be removed.
        let closed = self.session.close(opened.handle);
        self.drain(|_| ());
        self.unregister(known);
        result.and_then(|()| closed.map_err(E::from))
    }

    fn read_and_hand_on<E: From<Error>>(
        &mut self,
        name: &CheckpointName,
        opened: &OpenedSegment,
        mut wanted: Wanted<'_>,
        lent: &LentBuffers,
        consume: Consume<'_, E>,
        progress: Progress<'_, E>,
    ) -> Result<(), E> {
        let chunks = chunks_of(wanted.ranges, opened.chunk_bytes, opened.len_bytes);
        let mut pieces = self.pieces(&chunks, lent, opened.chunk_bytes);
        let mut free: Vec<usize> = (0..self.buffers.len()).collect();
        let mut reads: VecDeque<Read> = VecDeque::new();
        let mut direct_entries = 0;
        let mut out = [CompleteEntry::default(); 16];
        loop {
            progress(wanted.done_bytes)?;
            while let Some(piece) = pieces.peek() {
                if piece.direct.is_some() && direct_entries < MAX_DIRECT_ENTRIES {
                    self.read_direct(opened, &piece)?;
                    direct_entries += 1;
                } else if piece.direct.is_none()
                    && let Some(buffer) = free.pop()
                {
                    let transfer = self.transfer(opened.handle, buffer, &piece.segment);
                    self.submit(SubmitEntry::read(transfer, buffer as u64))?;
                    reads.push_back(Read { buffer, segment: piece.segment.clone(), done: false });
                } else {
                    break;
                }
                pieces.advance(&piece);
            }
            let first_is_done = reads.front().is_some_and(|read| read.done);
            if reads.is_empty() && direct_entries == 0 {
                return progress(wanted.done_bytes);
            }
            let count = self.wait(&mut out, !first_is_done)?;
            for completion in &out[..count] {
                if completion.result < 0 {
                    self.failure = Some(*completion);
                    return Err(self.pool.explain(name, opened.participant, completion).into());
                }
                match completion.user_data {
                    DIRECT => {
                        direct_entries -= 1;
                        wanted.done_bytes += completion.result as u64;
                    }
                    buffer => {
                        let its = reads.iter_mut().filter(|read| read.buffer as u64 == buffer);
                        its.for_each(|read| read.done = true);
                    }
                }
            }
            // One piece, then new reads into its buffer: the drives stay busy.
            if let Some(read) = reads.pop_front_if(|read| read.done) {
                let bytes = self.buffers[read.buffer].as_slice()?;
                let at = |offset: u64| (offset - read.segment.start) as usize;
                wanted.take(&read.segment, |part| {
                    consume(&bytes[at(part.start)..at(part.end)], part.start)
                })?;
                free.push(read.buffer);
            }
        }
    }

    fn read_direct(&mut self, opened: &OpenedSegment, piece: &Piece) -> Result<(), Error> {
        let Some((buffer, buffer_offset_bytes)) = piece.direct else { return Ok(()) };
        let transfer = Transfer {
            checkpoint: opened.handle,
            buffer,
            buffer_offset_bytes,
            len_bytes: piece.segment.end - piece.segment.start,
            segment_offset_bytes: piece.segment.start,
        };
        self.submit(SubmitEntry::read(transfer, DIRECT))
    }
}

/// Fails when ranges leave the segment, or do not ascend.
fn check(ranges: &[Range<u64>], opened: &OpenedSegment) -> Result<(), Error> {
    let mut at = 0;
    for range in ranges {
        if range.start < at || range.end < range.start {
            return Err(Error::Usage(format!("bytes {range:?} do not follow those before them")));
        }
        if range.end > opened.len_bytes {
            return Err(Error::Usage(format!(
                "bytes {range:?} leave the segment, which has {} bytes",
                opened.len_bytes
            )));
        }
        at = range.end;
    }
    Ok(())
}
