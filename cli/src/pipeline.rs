//! Moves a segment between buffers and drives, in pieces, several of them under way at once.
//!
//! - The memory is bounded: a fixed number of equal buffers, cut from the session's memory.
//! - Saving: a buffer is filled while those before it are being written.
//! - Restoring: pieces are consumed in the order of the segment, whatever order they arrive in.
//! - An error in the middle leaves entries under way; dropping the pipeline waits for them and gives
//!   up what was not committed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use stanchion_engine::ring::{CompleteEntry, SubmitEntry, Transfer, codes};
use stanchion_engine::{
    CheckpointName, CheckpointSpec, Error, OpenedSegment, Pool, Session, SessionBuffer,
    SessionOptions,
};

use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// Buffers, if each can hold a chunk: enough to keep drives busy while some are filled.
const WANTED_PIECES: u64 = 16;
/// With one buffer, filling and writing would take turns.
const MIN_PIECES: u64 = 2;
/// How long a signal may go unseen while drives work.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Tag of a commit; pieces have the numbers of their buffers.
const COMMIT: u64 = u64::MAX;

/// Sets bytes that are to be saved, given their offset in the segment.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8], u64) -> Result<(), Failure>;
/// Takes bytes that were restored and verified, with their offset in the segment.
pub type Consume<'a> = &'a mut dyn FnMut(&[u8], u64) -> Result<(), Failure>;

/// What a save took.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    /// The generation that made the checkpoint visible.
    pub generation: u64,
    /// From the start to the commit.
    pub time: Duration,
    /// From the end of the last write to the commit.
    pub commit_tail: Duration,
}

/// A session with its buffers.
pub struct Pipeline<'pool> {
    pool: &'pool Pool,
    // Dropped before the session, which must still be there to take their keys back.
    buffers: Vec<SessionBuffer>,
    session: Session,
    piece_bytes: u64,
    interrupt: Interrupt,
}

/// A read that is under way.
struct Piece {
    place: usize,
    offset_bytes: u64,
    len_bytes: u64,
    done: bool,
}

impl<'pool> Pipeline<'pool> {
    /// Takes the memory: `memory_bytes`, or two chunks where that is more.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn new(
        pool: &'pool Pool,
        memory_bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<Pipeline<'pool>, Failure> {
        let chunk_bytes = pool.info().chunk_bytes;
        let chunks = (memory_bytes / chunk_bytes).max(MIN_PIECES);
        let chunks_per_piece = (chunks / WANTED_PIECES).max(1);
        let pieces = (chunks / chunks_per_piece).min(2 * WANTED_PIECES);
        let piece_bytes = chunks_per_piece * chunk_bytes;
        let mut session = pool.session(&SessionOptions {
            memory_bytes: pieces * piece_bytes,
            // Room for every buffer's entry and a commit.
            ring_entries: (pieces as u32 + 1).next_power_of_two(),
        })?;
        let alloc = |_| session.alloc(piece_bytes);
        let buffers = (0..pieces).map(alloc).collect::<Result<Vec<_>, Error>>()?;
        let interrupt = interrupt.clone();
        Ok(Pipeline { pool, buffers, session, piece_bytes, interrupt })
    }

    /// The bytes of every buffer, to be set before a save that needs no filling.
    ///
    /// # Errors
    /// While something is under way.
    pub fn buffers(&mut self) -> impl Iterator<Item = Result<&mut [u8], Error>> {
        self.buffers.iter_mut().map(|buffer| buffer.as_mut_slice())
    }

    /// Saves a checkpoint of one participant. `fill` is given the place for the bytes at an offset of
    /// the segment, in ascending order; `written` learns how many bytes are on the drives.
    ///
    /// # Errors
    /// Whatever failed, `fill` included; then nothing is visible.
    pub fn save(
        &mut self,
        spec: &CheckpointSpec,
        fill: Fill<'_>,
        written: &mut dyn FnMut(u64),
    ) -> Result<Saved, Failure> {
        let handle = self.session.begin(spec)?;
        let result = self.write_and_commit(handle, spec, fill, written);
        // After a commit this only takes the handle back; before, it gives the checkpoint up.
        let closed = self.session.close(handle);
        let saved = result?;
        closed?;
        Ok(saved)
    }

    fn write_and_commit(
        &mut self,
        handle: u64,
        spec: &CheckpointSpec,
        fill: Fill<'_>,
        written: &mut dyn FnMut(u64),
    ) -> Result<Saved, Failure> {
        let started = Instant::now();
        let mut last_write = started;
        let mut free: Vec<usize> = (0..self.buffers.len()).collect();
        let (mut next, mut done) = (0, 0);
        let mut committing = false;
        let mut out = [CompleteEntry::default(); 16];
        loop {
            // A commit that is on its way is not called back: it ends within moments, either way.
            if !committing {
                self.interrupt.check(&format!("{} was given up", spec.name))?;
            }
            if next < spec.len_bytes
                && let Some(place) = free.pop()
            {
                let len_bytes = self.piece_bytes.min(spec.len_bytes - next);
                let buffer = &mut self.buffers[place];
                fill(&mut buffer.as_mut_slice()?[..len_bytes as usize], next)?;
                let transfer = self.transfer(handle, place, next, len_bytes);
                self.submit(SubmitEntry::write(transfer, place as u64))?;
                next += len_bytes;
            }
            if next == spec.len_bytes && !committing {
                // The engine lets it wait for the writes before it.
                self.submit(SubmitEntry::commit(handle, COMMIT))?;
                committing = true;
            }
            let idle = committing || free.is_empty();
            let count = self.session.wait(&mut out, usize::from(idle), LOOK_EVERY);
            for completion in &out[..count] {
                if completion.result < 0 {
                    return Err(not_saved(spec, completion).into());
                }
                if completion.user_data == COMMIT {
                    return Ok(Saved {
                        generation: completion.aux,
                        time: started.elapsed(),
                        commit_tail: last_write.elapsed(),
                    });
                }
                last_write = Instant::now();
                free.push(completion.user_data as usize);
                done += completion.result as u64;
                written(done);
            }
        }
    }

    /// Opens a participant's segment for [`Pipeline::restore`].
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open(
        &mut self,
        name: &CheckpointName,
        participant: u32,
    ) -> Result<OpenedSegment, Failure> {
        Ok(self.session.open(name, participant)?)
    }

    /// Takes back the handle of a segment.
    ///
    /// # Errors
    /// As [`Session::close`].
    pub fn close(&mut self, segment: &OpenedSegment) -> Result<(), Failure> {
        Ok(self.session.close(segment.handle)?)
    }

    /// Reads ranges of a segment, ascending, each a start and an end that lie on chunks, or the end
    /// on that of the segment. `consume` is given verified bytes and their offset, in order.
    ///
    /// # Errors
    /// Whatever failed, `consume` included; damage names what is hurt.
    pub fn restore(
        &mut self,
        name: &CheckpointName,
        segment: &OpenedSegment,
        ranges: &[(u64, u64)],
        consume: Consume<'_>,
    ) -> Result<(), Failure> {
        let mut pieces = cut(ranges, self.piece_bytes);
        let mut free: Vec<usize> = (0..self.buffers.len()).collect();
        let mut under_way: VecDeque<Piece> = VecDeque::new();
        let mut out = [CompleteEntry::default(); 16];
        loop {
            self.interrupt.check(&format!("{name} was not restored"))?;
            while let Some(place) = free.pop() {
                let Some((offset_bytes, len_bytes)) = pieces.next() else { break };
                let transfer = self.transfer(segment.handle, place, offset_bytes, len_bytes);
                self.submit(SubmitEntry::read(transfer, place as u64))?;
                under_way.push_back(Piece { place, offset_bytes, len_bytes, done: false });
            }
            let Some(first) = under_way.front() else { return Ok(()) };
            let count = self.session.wait(&mut out, usize::from(!first.done), LOOK_EVERY);
            for completion in &out[..count] {
                if completion.result < 0 {
                    return Err(self.pool.explain(name, segment.participant, completion).into());
                }
                let place = completion.user_data as usize;
                under_way.iter_mut().filter(|p| p.place == place).for_each(|p| p.done = true);
            }
            // One piece, then new reads for its buffer: the drives stay busy.
            if let Some(piece) = under_way.pop_front_if(|piece| piece.done) {
                let bytes = self.buffers[piece.place].as_slice()?;
                consume(&bytes[..piece.len_bytes as usize], piece.offset_bytes)?;
                free.push(piece.place);
            }
        }
    }

    fn transfer(&self, checkpoint: u64, place: usize, offset_bytes: u64, len: u64) -> Transfer {
        Transfer {
            checkpoint,
            buffer: self.buffers[place].key(),
            buffer_offset_bytes: 0,
            len_bytes: len,
            segment_offset_bytes: offset_bytes,
        }
    }

    fn submit(&mut self, entry: SubmitEntry) -> Result<(), Failure> {
        match self.session.submit(&[entry]) {
            0 => Err(Failure::Failed("the ring takes no entry although it has room".into())),
            _ => Ok(()),
        }
    }
}

/// Ranges in pieces of at most `piece_bytes`: offset and length of each.
fn cut(ranges: &[(u64, u64)], piece_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    ranges.iter().flat_map(move |&(start, end)| {
        let offsets = (start..end).step_by(piece_bytes as usize);
        offsets.map(move |offset| (offset, piece_bytes.min(end - offset)))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_into_pieces() {
        let pieces: Vec<_> = cut(&[(0, 10), (16, 20), (20, 20)], 8).collect();
        assert_eq!(pieces, [(0, 8), (8, 2), (16, 4)]);
    }
}
