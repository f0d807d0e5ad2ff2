// SPDX-License-Identifier: Apache-2.0
//! The pass over the data: reads every copy of every chunk, and repairs bad copies from sound ones.

use std::collections::VecDeque;
use std::time::Duration;

use crate::drives::{DriveCommand, flush_all};
use crate::error::{Damage, Error};
use crate::format::{Label, SegmentTable};
use crate::limits::BLOCK_BYTES;
use crate::name::CheckpointName;
use crate::pool::explain::explain;
use crate::pool::handle::Pool;
use crate::pool::verify_report::VerifyReport;
use crate::ring::{CompleteEntry, SubmitEntry, Transfer};
use crate::session::{Session, SessionBuffer, SessionOptions};
use crate::units::{Copies, Location};

/// Chunks that are read at once.
const CHUNKS_IN_FLIGHT: u64 = 32;
/// The back end gives up a drive that does not answer long before this.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Called with the bytes of data checked so far.
type Advance<'a> = &'a mut dyn FnMut(u64);

/// The pass.
pub(super) struct DataPass<'a> {
    pool: &'a Pool,
    session: Session,
    buffer: SessionBuffer,
    label: Label,
    repair: bool,
    report: &'a mut VerifyReport,
    /// Copies that were rewritten and are not durable yet.
    repaired: Vec<Damage>,
}

impl<'a> DataPass<'a> {
    pub(super) fn new(
        pool: &'a Pool,
        label: Label,
        repair: bool,
        report: &'a mut VerifyReport,
    ) -> Result<DataPass<'a>, Error> {
        let memory_bytes = label.layout.chunk_bytes() * CHUNKS_IN_FLIGHT;
        let mut session = pool.session(&SessionOptions { memory_bytes, ring_entries: 64 })?;
        let buffer = session.alloc(memory_bytes)?;
        Ok(DataPass { pool, session, buffer, label, repair, report, repaired: Vec::new() })
    }

    /// Checks every copy of one checkpoint's data, and repairs bad ones if it may.
    pub(super) fn check(
        &mut self,
        name: &CheckpointName,
        advance: Advance<'_>,
    ) -> Result<(), Error> {
        self.check_segments(name, advance)
    }

    fn check_segments(&mut self, name: &CheckpointName, advance: Advance<'_>) -> Result<(), Error> {
        let hold = self.pool.open.hold(name, crate::state::Use::Inspect)?;
        for participant in 0..hold.committed().entry.participants {
            let table = match self.pool.open.read_segment_table(&hold, participant) {
                Ok(table) => table,
                // The metadata pass has already reported it.
                Err(Error::Damaged(_)) => continue,
                Err(error) => return Err(error),
            };
            self.report.damages.extend(self.lost_chunks(name, &table));
            for copy in 0..usize::from(table.copies()) {
                let bad = self.check_copy(name, &table, copy, advance)?;
                if bad.is_empty() {
                    continue;
                }
                if self.repair && table.copies() > 1 {
                    self.repair_chunk(&table, copy, bad)?;
                } else {
                    self.report.damages.extend(bad.into_iter().map(|(_, damage)| damage));
                }
            }
        }
        Ok(())
    }

    fn is_live(&self, location: Location) -> bool {
        self.label.live().any(|drive| drive == location.drive)
    }

    /// Chunks on drives that do not take part.
    fn lost_chunks(&self, name: &CheckpointName, table: &SegmentTable) -> Option<Damage> {
        let is_lost = |copies: &Copies| !copies.iter().any(|location| self.is_live(location));
        let mut lost = table.chunks.iter().map(|chunk| chunk.copies).filter(is_lost);
        let first = lost.next()?;
        let participant = table.participant;
        Some(Damage {
            what: "data",
            serial: self.label.drives[first.first.drive.as_usize()].serial.clone(),
            offset_bytes: None,
            checkpoint: Some(name.to_string()),
            shard: None,
            generation: None,
            detail: format!(
                "{} chunks of participant {participant}'s segment lie on drives that are missing",
                1 + lost.count()
            ),
        })
    }

    /// Reads one copy of each chunk, except on drives that do not take part. Returns the bad
    /// chunks.
    fn check_copy(
        &mut self,
        name: &CheckpointName,
        table: &SegmentTable,
        copy: usize,
        advance: Advance<'_>,
    ) -> Result<Vec<(u64, Damage)>, Error> {
        let nth = |copies: Copies| copies.iter().nth(copy).unwrap_or(copies.first);
        let handle = self.session.add_table(table, |copies| Copies::one(nth(copies)))?;
        let mut chunks: VecDeque<u64> = (0..)
            .zip(&table.chunks)
            .filter(|(_, record)| self.is_live(nth(record.copies)))
            .map(|(chunk, _)| chunk)
            .collect();
        let mut places: VecDeque<u64> = (0..CHUNKS_IN_FLIGHT).collect();
        let mut left = chunks.len();
        let mut bad = Vec::new();
        let mut completions = [CompleteEntry::default(); CHUNKS_IN_FLIGHT as usize];
        while left > 0 {
            while let (Some(&chunk), Some(&place)) = (chunks.front(), places.front()) {
                // The completion returns the place.
                let read = SubmitEntry::read(self.transfer(table, handle, chunk, place), place);
                if self.session.submit(&[read]) == 0 {
                    break;
                }
                chunks.pop_front();
                places.pop_front();
            }
            let count = self.session.wait(&mut completions, 1, PATIENCE);
            for completion in &completions[..count] {
                left -= 1;
                places.push_back(completion.user_data);
                if completion.result >= 0 {
                    self.report.data_bytes += completion.result as u64;
                    continue;
                }
                match explain(self.pool, name, table, copy, completion) {
                    Error::Damaged(damage) => {
                        bad.push((completion.aux / table.chunk_bytes, *damage));
                    }
                    error => return Err(error),
                }
            }
            if count == 0 {
                return Err(Error::Closed("the pool"));
            }
            advance(self.report.data_bytes);
        }
        self.session.remove_table(handle)?;
        Ok(bad)
    }

    /// Rewrites bad copies of chunks from their other copies, which are verified when they are
    /// read.
    fn repair_chunk(
        &mut self,
        table: &SegmentTable,
        copy: usize,
        bad: Vec<(u64, Damage)>,
    ) -> Result<(), Error> {
        let other = |copies: Copies| copies.iter().nth(1 - copy).unwrap_or(copies.first);
        let handle = self.session.add_table(table, |copies| Copies::one(other(copies)))?;
        for (chunk, damage) in bad {
            let copies = table.chunks[chunk as usize].copies;
            let target = copies.iter().nth(copy).unwrap_or(copies.first);
            let bytes = self.read_sound(table, handle, chunk)?;
            let written = match bytes {
                Some(bytes) => self.write(target, bytes)?,
                None => false,
            };
            let list = if written { &mut self.repaired } else { &mut self.report.damages };
            list.push(damage);
        }
        self.session.remove_table(handle)
    }

    /// The bytes of a chunk in whole blocks, or `None` when this copy cannot be read either.
    fn read_sound(
        &mut self,
        table: &SegmentTable,
        handle: u64,
        chunk: u64,
    ) -> Result<Option<Vec<u8>>, Error> {
        let transfer = self.transfer(table, handle, chunk, 0);
        let padded_bytes = transfer.len_bytes.next_multiple_of(BLOCK_BYTES);
        let mut done = [CompleteEntry::default()];
        let submitted = self.session.submit(&[SubmitEntry::read(transfer, 0)]);
        if submitted == 0 || self.session.wait(&mut done, 1, PATIENCE) == 0 {
            return Err(Error::Closed("the pool"));
        }
        if done[0].result < 0 {
            return Ok(None);
        }
        Ok(Some(self.buffer.as_slice()?[..padded_bytes as usize].to_vec()))
    }

    /// Writes a chunk's bytes to one of its places; the next flush makes them durable.
    fn write(&self, target: Location, bytes: Vec<u8>) -> Result<bool, Error> {
        let offset_bytes = self.label.layout.slot_offset(target.slot);
        self.pool.open.on_keeper(move |keeper| {
            let (drive, data) = (target.drive, bytes.as_slice());
            let write = DriveCommand::Write { drive, offset_bytes, data, durable: false };
            keeper.drives().run(&mut [write]).iter().all(Result::is_ok)
        })
    }

    fn transfer(&self, table: &SegmentTable, handle: u64, chunk: u64, place: u64) -> Transfer {
        let segment_offset_bytes = chunk * table.chunk_bytes;
        Transfer {
            checkpoint: handle,
            buffer: self.buffer.key(),
            buffer_offset_bytes: place * table.chunk_bytes,
            len_bytes: table.chunk_bytes.min(table.len_bytes - segment_offset_bytes),
            segment_offset_bytes,
        }
    }

    /// Makes the repaired copies durable, and reports them as repaired only then.
    pub(super) fn finish(self) -> Result<(), Error> {
        if self.repaired.is_empty() {
            return Ok(());
        }
        let label = self.label;
        let flushed =
            self.pool.open.on_keeper(move |keeper| flush_all(keeper.drives(), label.live()))?;
        match flushed {
            Ok(()) => self.report.repaired.extend(self.repaired),
            Err(error) => {
                self.report.damages.extend(self.repaired);
                return Err(error);
            }
        }
        Ok(())
    }
}
