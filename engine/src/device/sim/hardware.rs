// SPDX-License-Identifier: Apache-2.0
//! The inside of a simulated drive: commands in flight, and what they do when they complete.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::slice;
use std::sync::Arc;

use super::config::{CompletionOrder, SimConfig};
use super::content::{BLOCK, Content, SECTOR, Write};
use super::fault::{Effect, Faults};
use super::reservation::ReservationState;
use super::rng::SimRng;
use super::trace::TraceEvent;
use super::world::SimWorld;
use super::write::WriteId;
use crate::device::{Command, Completion, DmaSlice, Operation};
use crate::error::IoError;
use crate::limits::BLOCK_BYTES;
use crate::units::is_block_aligned;

/// All that the lock protects.
pub(super) struct Hardware {
    pub(super) config: SimConfig,
    pub(super) content: Content,
    pub(super) faults: Faults,
    pub(super) rng: SimRng,
    pub(super) trace: Option<Vec<TraceEvent>>,
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) next_write: u64,
    /// Distinguishes a device that is open from those that a power cut has disconnected.
    pub(super) epoch: u64,
    pub(super) is_open: bool,
    pub(super) is_removed: bool,
    pub(super) reservations: ReservationState,
    /// Epochs and tags of commands that a power cut took from a device that still polls for them.
    pub(super) orphans: Vec<(u64, u64)>,
}

/// A command that the hardware has accepted.
pub(super) struct InFlight {
    command: Command,
    /// Polls that do not give it.
    polls_left: u32,
    status: Result<(), IoError>,
    action: Action,
}

/// What a command does when it completes.
enum Action {
    Nothing,
    Read { offset_bytes: u64, stale: bool },
    Land(Write),
    LandLater { write: Write, after_polls: u32 },
    Flush { covers: u64 },
}

impl InFlight {
    fn write(&self) -> Option<&Write> {
        match &self.action {
            Action::Land(write) | Action::LandLater { write, .. } => Some(write),
            _ => None,
        }
    }

    fn into_write(self) -> Option<Write> {
        match self.action {
            Action::Land(write) | Action::LandLater { write, .. } => Some(write),
            _ => None,
        }
    }
}

fn event(command: &Command, ended: Option<Result<(), IoError>>) -> TraceEvent {
    TraceEvent {
        at: 0,
        operation: command.operation,
        offset_bytes: command.offset_bytes,
        len_bytes: command.memory.len_bytes,
        tag: command.tag,
        ended,
    }
}

impl Hardware {
    fn contains(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        offset_bytes.checked_add(len_bytes).is_some_and(|end| end <= self.config.capacity_bytes)
    }

    pub(super) fn buffer_for(&self, offset_bytes: u64, len_bytes: u64) -> Option<Vec<u8>> {
        let aligned = is_block_aligned(offset_bytes) && is_block_aligned(len_bytes);
        (aligned && self.contains(offset_bytes, len_bytes)).then(|| vec![0; len_bytes as usize])
    }

    /// In the order of submission, whatever order they will complete in.
    pub(super) fn writes_in_flight(&self) -> Vec<&Write> {
        let mut writes: Vec<&Write> = self.in_flight.iter().filter_map(InFlight::write).collect();
        writes.sort_by_key(|write| write.id);
        writes
    }

    /// Takes the commands from the device that holds the drive. Their writes become strays, in the
    /// order of submission; if the device polls for them, it finds them failed.
    pub(super) fn abandon_in_flight(&mut self) {
        let mut writes = Vec::new();
        for command in self.in_flight.drain(..) {
            self.orphans.push((self.epoch, command.command.tag));
            writes.extend(command.into_write());
        }
        writes.sort_by_key(|write| write.id);
        for write in writes {
            self.content.stray(write, None);
        }
    }

    /// Adds an event to the trace, if one is kept, and numbers it.
    pub(super) fn trace(&mut self, world: &SimWorld, event: TraceEvent) {
        if let Some(trace) = &mut self.trace {
            trace.push(TraceEvent { at: world.tick(), ..event });
        }
    }

    /// Takes a valid command. `data` is what a write writes.
    pub(super) fn accept(
        &mut self,
        world: &SimWorld,
        command: Command,
        data: &[u8],
    ) -> Result<(), IoError> {
        let Command { operation, mut offset_bytes, memory, .. } = command;
        self.trace(world, event(&command, None));
        let effect = self.faults.hit(operation, offset_bytes, u64::from(memory.len_bytes));
        if let Some(Effect::Refuse(error)) = effect {
            self.trace(world, event(&command, Some(Err(error))));
            return Err(error);
        }
        if let Some(Effect::Misdirect { offset_bytes: elsewhere }) = effect {
            let last_fit = self.config.capacity_bytes - u64::from(memory.len_bytes);
            offset_bytes = elsewhere.min(last_fit);
        }
        let status = match effect {
            Some(Effect::Fail(error) | Effect::FailThenLand { error, .. }) => Err(error),
            _ => Ok(()),
        };
        let is_void = matches!(effect, Some(Effect::Fail(_) | Effect::Lose));
        let action = match operation {
            Operation::Write | Operation::WriteDurable => {
                let id = WriteId(self.next_write);
                self.next_write += 1;
                let durable = operation == Operation::WriteDurable;
                if is_void || self.content.store_dense(offset_bytes as usize, data) {
                    Action::Nothing
                } else {
                    let write = copy_write(id, offset_bytes, data, durable);
                    match effect {
                        Some(Effect::FailThenLand { after_polls, .. }) => {
                            Action::LandLater { write, after_polls }
                        }
                        _ => Action::Land(write),
                    }
                }
            }
            _ if is_void || status.is_err() => Action::Nothing,
            Operation::Read => Action::Read { offset_bytes, stale: effect == Some(Effect::Stale) },
            Operation::Flush => Action::Flush { covers: self.content.flush_covers() },
        };
        let polls_left = match effect {
            Some(Effect::Delay { polls }) => polls,
            _ => 0,
        };
        self.in_flight.push_back(InFlight { command, polls_left, status, action });
        Ok(())
    }

    /// The next command to complete in this poll, completed.
    pub(super) fn next_completion(
        &mut self,
        world: &SimWorld,
        is_first: bool,
    ) -> Option<Completion> {
        let is_due = |command: &InFlight| command.polls_left == 0;
        let next = match self.config.order {
            CompletionOrder::InOrder => self.in_flight.pop_front_if(|command| is_due(command))?,
            CompletionOrder::Shuffled => {
                let due = self.in_flight.iter().filter(|command| is_due(command)).count();
                if due == 0 || (!is_first && self.rng.one_in(4)) {
                    return None;
                }
                let chosen = self.rng.index(due);
                let places = self.in_flight.iter().enumerate();
                let place = places.filter(|(_, command)| is_due(command)).nth(chosen)?.0;
                self.in_flight.swap_remove_back(place)?
            }
        };
        self.trace(world, event(&next.command, Some(next.status)));
        self.perform(next.command, next.action);
        Some(Completion { tag: next.command.tag, status: next.status })
    }

    fn perform(&mut self, command: Command, action: Action) {
        match action {
            Action::Nothing => {}
            Action::Land(write) => self.content.complete(write),
            Action::LandLater { write, after_polls } => {
                self.content.stray(write, Some(after_polls));
            }
            Action::Flush { covers } => self.content.flush(covers),
            Action::Read { offset_bytes, stale } => {
                let DmaSlice { address, len_bytes } = command.memory;
                // SAFETY: the bytes lay in a registered region at submission; the caller promised
                // that they stay valid and untouched until this very completion is taken.
                let into =
                    unsafe { slice::from_raw_parts_mut(address.as_ptr(), len_bytes as usize) };
                self.content.read(offset_bytes, into, stale);
            }
        }
    }

    /// The end of a command that the device lost.
    pub(super) fn next_orphan(&mut self, epoch: u64) -> Option<Completion> {
        let place = self.orphans.iter().position(|orphan| orphan.0 == epoch)?;
        let (_, tag) = self.orphans.remove(place);
        Some(Completion { tag, status: Err(IoError::Removed) })
    }

    pub(super) fn pass_poll(&mut self) {
        for command in &mut self.in_flight {
            command.polls_left = command.polls_left.saturating_sub(1);
        }
        self.content.pass_poll();
    }
}

fn copy_write(id: WriteId, offset_bytes: u64, data: &[u8], durable: bool) -> Write {
    let copy = |block: &[u8]| {
        let mut bytes = [0; BLOCK];
        bytes.copy_from_slice(block);
        Arc::new(bytes)
    };
    let blocks = data.chunks_exact(BLOCK).map(copy).collect();
    Write { id, first_block: offset_bytes / BLOCK_BYTES, blocks, durable }
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(SECTOR as u64));
