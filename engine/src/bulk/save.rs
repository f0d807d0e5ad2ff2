// SPDX-License-Identifier: Apache-2.0
//! A save: bytes go to the drives piece by piece, then the checkpoint is committed.

use std::slice;
use std::time::{Duration, Instant};

use crate::bulk::pieces::Piece;
use crate::bulk::session::{BulkSession, DIRECT, Lent, LentBuffers, MAX_DIRECT_ENTRIES, Progress};
use crate::error::Error;
use crate::ring::{CompleteEntry, SubmitEntry, Transfer, codes};
use crate::state::CheckpointSpec;

/// User data of the commit.
const COMMIT: u64 = u64::MAX;

/// Fills in the bytes to save, given their offset in the segment.
pub type Fill<'a, E> = &'a mut dyn FnMut(&mut [u8], u64) -> Result<(), E>;

/// A checkpoint that is durable and visible, and the times that it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Saved {
    /// The generation that made the checkpoint visible.
    pub generation: u64,
    /// From the reservation of its space to the commit.
    pub time: Duration,
    /// From the end of the last write to the commit.
    pub commit_tail: Duration,
}

/// A save in progress.
struct Save {
    started: Instant,
    last_write: Instant,
    committing: bool,
}

impl Save {
    fn saved(&self, commit: &CompleteEntry) -> Saved {
        Saved {
            generation: commit.aux,
            time: self.started.elapsed(),
            commit_tail: self.last_write.elapsed(),
        }
    }
}

impl BulkSession<'_> {
    /// Saves one participant's segment and waits for the commit of the checkpoint, which waits for
    /// every participant. Calls `fill` with the place for the bytes at an offset of the segment, in
    /// ascending order; lent memory that the drives can read is skipped.
    ///
    /// An error of `progress` aborts the checkpoint, for every participant, and is the result. If
    /// the commit succeeded meanwhile, the checkpoint is saved, and that is the result.
    ///
    /// # Errors
    /// As [`crate::Session::begin`]; [`Error::NotCommitted`] when a write or the commit failed; an
    /// error of `fill` or `progress`. The checkpoint is not visible then. If the commit itself
    /// failed on a drive, open the pool again to know whether it is visible.
    pub fn save<E: From<Error>>(
        &mut self,
        spec: &CheckpointSpec,
        lent: &[Lent],
        fill: Fill<'_, E>,
        progress: Progress<'_, E>,
    ) -> Result<Saved, E> {
        self.failure = None;
        let checkpoint = self.session.begin(spec)?;
        let now = Instant::now();
        let mut save = Save { started: now, last_write: now, committing: false };
        let chunk_bytes = self.pool.info().chunk_bytes;
        let mut known = LentBuffers::default();
        let result = match self.register(lent, chunk_bytes) {
            Ok(registered) => {
                known = registered;
                self.write_and_commit(&mut save, checkpoint, spec, &known, fill, progress)
            }
            Err(error) => Err(error.into()),
        };
        // After a commit this only returns the handle; before, it aborts the checkpoint.
        let closed = self.session.close(checkpoint);
        let mut committed = None;
        self.drain(|completion| {
            if completion.user_data == COMMIT && completion.result >= 0 {
                committed = Some(*completion);
            }
        });
        self.unregister(known);
        match (result, committed) {
            (Err(_), Some(commit)) => Ok(save.saved(&commit)),
            (result, _) => result.and_then(|saved| closed.map(|()| saved).map_err(E::from)),
        }
    }

    fn write_and_commit<E: From<Error>>(
        &mut self,
        save: &mut Save,
        checkpoint: u64,
        spec: &CheckpointSpec,
        lent: &LentBuffers,
        fill: Fill<'_, E>,
        progress: Progress<'_, E>,
    ) -> Result<Saved, E> {
        let segment = 0..spec.len_bytes;
        let mut pieces = self.pieces(slice::from_ref(&segment), lent, self.pool.info().chunk_bytes);
        let mut free: Vec<usize> = (0..self.buffers.len()).collect();
        let (mut direct_entries, mut done) = (0, 0);
        let mut out = [CompleteEntry::default(); 16];
        loop {
            progress(done)?;
            let piece = pieces.peek();
            let can_go_on = match &piece {
                Some(Piece { direct: Some(_), .. }) => direct_entries < MAX_DIRECT_ENTRIES,
                Some(_) => !free.is_empty(),
                None => !save.committing,
            };
            match piece.filter(|_| can_go_on) {
                Some(piece) => {
                    if self.write(checkpoint, &piece, &mut free, fill)? {
                        direct_entries += 1;
                    }
                    pieces.advance(&piece);
                }
                None if can_go_on => {
                    // The engine delays it until all earlier writes have completed.
                    self.submit(SubmitEntry::commit(checkpoint, COMMIT))?;
                    save.committing = true;
                }
                None => {}
            }
            let count = self.wait(&mut out, !can_go_on)?;
            for completion in &out[..count] {
                if completion.result < 0 {
                    self.failure = Some(*completion);
                    return Err(not_saved(spec, completion).into());
                }
                match completion.user_data {
                    COMMIT => return Ok(save.saved(completion)),
                    DIRECT => direct_entries -= 1,
                    buffer => free.push(buffer as usize),
                }
                save.last_write = Instant::now();
                done += completion.result as u64;
            }
        }
    }

    /// Submits the write of a piece; returns whether it names lent memory.
    fn write<E: From<Error>>(
        &mut self,
        checkpoint: u64,
        piece: &Piece,
        free: &mut Vec<usize>,
        fill: Fill<'_, E>,
    ) -> Result<bool, E> {
        let segment = &piece.segment;
        let len_bytes = segment.end - segment.start;
        if let Some((buffer, buffer_offset_bytes)) = piece.direct {
            let segment_offset_bytes = segment.start;
            let transfer = Transfer {
                checkpoint,
                buffer,
                buffer_offset_bytes,
                len_bytes,
                segment_offset_bytes,
            };
            self.submit(SubmitEntry::write(transfer, DIRECT))?;
            return Ok(true);
        }
        let Some(buffer) = free.pop() else { return Ok(false) };
        fill(&mut self.buffers[buffer].as_mut_slice()?[..len_bytes as usize], segment.start)?;
        let transfer = self.transfer(checkpoint, buffer, segment);
        self.submit(SubmitEntry::write(transfer, buffer as u64))?;
        Ok(false)
    }
}

/// The error behind a write or a commit that failed.
fn not_saved(spec: &CheckpointSpec, completion: &CompleteEntry) -> Error {
    let what = codes::describe_with_status(completion.result, completion.detail);
    let reason = match completion.user_data {
        COMMIT => what,
        _ => format!("writing at byte {} of it: {what}", completion.aux),
    };
    Error::NotCommitted { checkpoint: spec.name.to_string(), reason }
}
