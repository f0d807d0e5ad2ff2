// SPDX-License-Identifier: Apache-2.0
//! A trainer: begins a checkpoint and writes its chunks, over the same state and drives as the
//! committer. It does what sessions and reactors do, in the same order.

use std::cell::RefCell;
use std::rc::Rc;

use uuid::Uuid;

use super::lab::CHUNK_BYTES;
use super::model::{Stored, chunk_bytes};
use crate::commit::{self, Committer};
use crate::device::Operation;
use crate::device::status::{Action, action};
use crate::drives::{DriveCommand, Drives, io_error};
use crate::error::Error;
use crate::format::crc64;
use crate::limits::BLOCK_BYTES;
use crate::name::CheckpointName;
use crate::state::{CheckpointSpec, ChunkPlace, State};
use crate::units::Location;

/// How often a chunk is moved at most, as in a reactor.
const MAX_MOVES: usize = 8;

/// What a trainer saves: one segment for each length.
#[derive(Clone, Debug)]
pub(super) struct Save {
    pub(super) step: u64,
    pub(super) lengths_bytes: Vec<u64>,
}

impl Save {
    pub(super) fn name(&self) -> CheckpointName {
        CheckpointName { name: "c".into(), step: self.step }
    }

    pub(super) fn stored(&self) -> Stored {
        Stored::Segments { seed: self.step, lengths_bytes: self.lengths_bytes.clone() }
    }

    pub(super) fn id(&self) -> Uuid {
        Uuid::from_u128(u128::from(self.step) << 8 | 0xc)
    }

    pub(super) fn spec(&self, participant: u32) -> CheckpointSpec {
        CheckpointSpec {
            name: self.name(),
            participants: self.lengths_bytes.len() as u32,
            participant,
            len_bytes: self.lengths_bytes[participant as usize],
            shards: Vec::new(),
        }
    }
}

/// A checkpoint that is written and not committed.
pub(super) struct Begun {
    pub(super) number: u64,
    pub(super) save: Save,
    /// By participant: the checksum of each chunk.
    pub(super) sums: Vec<Vec<u64>>,
}

/// One copy of a chunk, to be written.
struct Write {
    place: ChunkPlace,
    at: Location,
    bytes: Vec<u8>,
}

/// Writes every chunk of a checkpoint that all participants have joined. A copy whose place is bad
/// is written elsewhere. The result is the checksums.
pub(super) fn write_chunks(
    drives: &mut dyn Drives,
    state: &Rc<RefCell<State>>,
    number: u64,
    save: &Save,
) -> Result<Vec<Vec<u64>>, Error> {
    let (sums, writes) = chunks(&state.borrow(), number, save);
    let layout = state.borrow().label().layout.clone();
    let command = |write: &'_ Write| (write.at.drive, layout.slot_offset(write.at.slot));
    let mut pending = writes;
    for moves in 0.. {
        let mut batch: Vec<_> = pending
            .iter()
            .map(|write| {
                let (drive, offset_bytes) = command(write);
                DriveCommand::Write { drive, offset_bytes, data: &write.bytes, durable: false }
            })
            .collect();
        let statuses = drives.run(&mut batch);
        let mut failed = Vec::new();
        for (index, (status, command)) in statuses.iter().zip(&batch).enumerate() {
            let Err(error) = *status else { continue };
            let is_bad_place = action(Operation::Write, error) == Action::Move;
            let to = match is_bad_place && moves < MAX_MOVES {
                true => Committer::new(Rc::clone(state)).relocate(pending[index].place, error),
                false => Err(error),
            };
            let to = to.map_err(|error| io_error(drives, command, error))?;
            failed.push((index, to));
        }
        drop(batch);
        if failed.is_empty() {
            break;
        }
        pending = failed
            .into_iter()
            .map(|(index, at)| {
                let Write { place, bytes, .. } = &pending[index];
                Write { place: *place, at, bytes: bytes.clone() }
            })
            .collect();
    }
    Ok(sums)
}

fn chunks(state: &State, number: u64, save: &Save) -> (Vec<Vec<u64>>, Vec<Write>) {
    let mut sums = Vec::new();
    let mut writes = Vec::new();
    for (participant, len_bytes) in (0..).zip(&save.lengths_bytes) {
        let mut of_segment = Vec::new();
        let copies = state.copies_of(number, participant).unwrap_or_default();
        for (chunk, copies) in (0..).zip(copies) {
            let len_bytes = CHUNK_BYTES.min(len_bytes - chunk * CHUNK_BYTES) as usize;
            let mut bytes = chunk_bytes(save.step, participant, chunk, len_bytes);
            of_segment.push(crc64(&bytes));
            bytes.resize(len_bytes.next_multiple_of(BLOCK_BYTES as usize), 0);
            writes.extend(copies.iter().zip([false, true]).map(|(at, second)| {
                let place = ChunkPlace { checkpoint: number, participant, chunk, second };
                Write { place, at, bytes: bytes.clone() }
            }));
        }
        sums.push(of_segment);
    }
    (sums, writes)
}

/// A trainer that begins its checkpoint while the committer makes a generation.
pub(super) struct Meanwhile {
    /// Batches of the commit that it waits for.
    pub(super) after_batches: u64,
    pub(super) save: Save,
    /// The result: `None` when there was no room; the number of the checkpoint if it could not be
    /// written.
    pub(super) begun: Option<Result<Begun, u64>>,
}

impl Meanwhile {
    /// The committer is about to run a batch.
    pub(super) fn before_batch(&mut self, drives: &mut dyn Drives, state: &Rc<RefCell<State>>) {
        if self.after_batches > 0 {
            self.after_batches -= 1;
            return;
        }
        if self.begun.is_some() {
            return;
        }
        let Meanwhile { save, .. } = self;
        // The thread that would reclaim is busy.
        let no_room = || Err(Error::NoMetadataSpace);
        let Ok(number) = commit::begin(&**state, &save.spec(0), save.id(), no_room) else {
            return;
        };
        let sums = write_chunks(drives, state, number, save);
        let save = save.clone();
        self.begun = Some(sums.map(|sums| Begun { number, save, sums }).map_err(|_| number));
    }
}
