//! The queue pair of a simulated drive.

#![allow(unsafe_code)]

use std::slice;
use std::sync::Arc;

use super::content::{BLOCK, Write};
use super::{CompletionOrder, Effect, Hardware, SimDrive, SimWorld, TraceEvent, WriteId};
use crate::device::{Command, Completion, Device, DmaSlice, DriveFacts, Operation, SubmitError};
use crate::error::{Error, IoError};
use crate::limits::BLOCK_BYTES;
use crate::memory::Region;
use crate::units::is_block_aligned;

const INVALID_FIELD: IoError = IoError::Nvme { sct: 0, sc: 0x02, dnr: true };
const LBA_OUT_OF_RANGE: IoError = IoError::Nvme { sct: 0, sc: 0x80, dnr: true };

/// A simulated drive, open.
pub struct SimDevice {
    drive: SimDrive,
    facts: DriveFacts,
    epoch: u64,
    in_flight: u32,
    regions: Vec<Arc<Region>>,
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
    pub(super) fn tag(&self) -> u64 {
        self.command.tag
    }

    pub(super) fn write(&self) -> Option<&Write> {
        match &self.action {
            Action::Land(write) | Action::LandLater { write, .. } => Some(write),
            _ => None,
        }
    }

    pub(super) fn into_write(self) -> Option<Write> {
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

impl SimDevice {
    pub(super) fn new(drive: SimDrive, facts: DriveFacts, epoch: u64) -> SimDevice {
        SimDevice { drive, facts, epoch, in_flight: 0, regions: Vec::new() }
    }

    /// What a drive checks before it accepts a command, and that the memory is registered.
    fn check(&self, command: &Command) -> Result<(), IoError> {
        if command.operation == Operation::Flush {
            return Ok(());
        }
        let len_bytes = u64::from(command.memory.len_bytes);
        let offset_bytes = command.offset_bytes;
        if len_bytes == 0
            || len_bytes > self.facts.max_transfer_bytes
            || !is_block_aligned(len_bytes)
            || !is_block_aligned(offset_bytes)
            || !is_block_aligned(command.memory.address.as_ptr() as u64)
        {
            return Err(INVALID_FIELD);
        }
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > self.facts.capacity_bytes) {
            return Err(LBA_OUT_OF_RANGE);
        }
        let known = |region: &Arc<Region>| region.contains(command.memory.address, len_bytes);
        if !self.regions.iter().any(known) {
            return Err(IoError::Os(libc::EFAULT));
        }
        Ok(())
    }
}

impl Device for SimDevice {
    fn facts(&self) -> &DriveFacts {
        &self.facts
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        if !self.regions.iter().any(|known| known.id() == region.id()) {
            self.regions.push(region.clone());
        }
        Ok(())
    }

    fn unregister(&mut self, region: &Arc<Region>) {
        self.regions.retain(|known| known.id() != region.id());
    }

    unsafe fn submit(&mut self, command: Command) -> Result<(), SubmitError> {
        let world = &self.drive.world;
        let mut hardware = self.drive.lock();
        if hardware.epoch != self.epoch || hardware.is_removed || !world.has_power() {
            return Err(SubmitError::Failed(IoError::Removed));
        }
        self.check(&command).map_err(SubmitError::Failed)?;
        if self.in_flight >= self.facts.queue_depth {
            return Err(SubmitError::Full);
        }
        if !world.admit() {
            return Err(SubmitError::Failed(IoError::Removed));
        }
        let data: &[u8] = match command.operation {
            Operation::Write | Operation::WriteDurable => {
                let len_bytes = command.memory.len_bytes as usize;
                // SAFETY: `check` found the bytes within a registered region, which `self.regions`
                // keeps mapped, and the caller promises that nobody writes them meanwhile.
                unsafe { slice::from_raw_parts(command.memory.address.as_ptr(), len_bytes) }
            }
            Operation::Read | Operation::Flush => &[],
        };
        hardware.accept(world, command, data).map_err(SubmitError::Failed)?;
        self.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut hardware = self.drive.lock();
        let is_connected = hardware.epoch == self.epoch;
        let is_alive = is_connected && !hardware.is_removed && self.drive.world.has_power();
        if is_connected && !is_alive {
            hardware.abandon_in_flight();
        }
        let mut count = 0;
        for completion in completions {
            let next = if is_alive {
                // The first one is sure, so that polling gets on.
                hardware.next_completion(&self.drive.world, count == 0)
            } else {
                hardware.next_orphan(self.epoch)
            };
            let Some(next) = next else { break };
            *completion = next;
            count += 1;
        }
        if is_alive {
            hardware.pass_poll();
        }
        self.in_flight -= count as u32;
        count
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

impl Drop for SimDevice {
    /// Memory is only touched within `submit` and `poll`, so nothing has to be waited for.
    fn drop(&mut self) {
        let mut hardware = self.drive.lock();
        if hardware.epoch == self.epoch {
            hardware.abandon_in_flight();
            hardware.is_open = false;
        }
        hardware.orphans.retain(|(epoch, _)| *epoch != self.epoch);
    }
}

impl Hardware {
    /// Takes a valid command. `data` is what a write writes.
    fn accept(&mut self, world: &SimWorld, command: Command, data: &[u8]) -> Result<(), IoError> {
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
    fn next_completion(&mut self, world: &SimWorld, is_first: bool) -> Option<Completion> {
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
    fn next_orphan(&mut self, epoch: u64) -> Option<Completion> {
        let place = self.orphans.iter().position(|orphan| orphan.0 == epoch)?;
        let (_, tag) = self.orphans.remove(place);
        Some(Completion { tag, status: Err(IoError::Removed) })
    }

    fn pass_poll(&mut self) {
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
