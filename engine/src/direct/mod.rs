// SPDX-License-Identifier: Apache-2.0
//! [`Drives`] on the calling thread: submits to the devices and polls them until the batch is done.
//! For format, recovery and the simulator. While a pool is open, the reactors have the devices; the
//! keeper's devices send messages to them, and it sleeps until a reactor answers.
//!
//! - Bytes go through an arena of fixed slots, allocated once. A command is cut into pieces of at
//!   most one slot and the drive's largest transfer; there are never more pieces in flight than
//!   slots.
//! - A slot belongs to the device from `submit` to its completion, and to this file otherwise. Only
//!   this file touches the caller's slices, never a device.
//! - `run` returns with nothing in flight. It has no deadline of its own: the back ends time out,
//!   and every accepted command completes.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::{ptr, thread};

use crossbeam::sync::Parker;

use crate::backoff::MAX_PARK;
use crate::device::{Command, Completion, Device, DmaSlice, DriveInfo, Operation, SubmitError};
use crate::drives::{DriveCommand, Drives};
use crate::error::{Error, IoError};
use crate::limits::{BLOCK_BYTES, MAX_DRIVES};
use crate::memory::{HugePages, Region};
use crate::units::{is_block_aligned, round_down};

/// The largest piece of a command.
const SLOT_BYTES: usize = 256 << 10;
/// One for each drive of the largest pool, so that a batch with one command a drive runs at once.
const SLOTS: usize = MAX_DRIVES;
const ARENA_BYTES: u64 = (SLOT_BYTES * SLOTS) as u64;
const COMPLETIONS_PER_POLL: usize = 16;

/// Drives that are polled by the caller of [`Drives::run`].
pub struct DirectDrives {
    devices: Vec<Box<dyn Device>>,
    info: Vec<DriveInfo>,
    arena: Arc<Region>,
    /// The piece of each slot; a slot's number is the tag of its command.
    slots: Vec<Option<Piece>>,
    free_slots: Vec<usize>,
    /// Unparked by the thread that completes commands, if that is another one.
    parker: Option<Parker>,
}

/// A part of a command, in flight.
#[derive(Clone, Copy)]
struct Piece {
    drive: usize,
    /// Place in the batch.
    command: usize,
    /// Place in the command's bytes.
    start: usize,
    len: usize,
}

/// How far the submission of a batch is on one drive.
#[derive(Clone, Copy, Default)]
struct Cursor {
    command: usize,
    start: usize,
}

impl DirectDrives {
    /// Takes devices, in the order of their drive index, and 8 MiB of memory that is registered
    /// with each of them.
    ///
    /// # Errors
    /// When the memory is not available or a device cannot use it; [`Error::Usage`] when there are
    /// too many devices, or one accepts less than a block at a time.
    pub fn new(devices: Vec<Box<dyn Device>>, pages: HugePages) -> Result<DirectDrives, Error> {
        DirectDrives::with_arena(devices, DirectDrives::arena(pages)?)
    }

    /// The memory of one set of drives.
    pub(crate) fn arena(pages: HugePages) -> Result<Arc<Region>, Error> {
        Ok(Arc::new(Region::new(ARENA_BYTES, pages)?))
    }

    /// As [`DirectDrives::new`], in memory that an earlier set of drives has released.
    pub(crate) fn with_arena(
        mut devices: Vec<Box<dyn Device>>,
        arena: Arc<Region>,
    ) -> Result<DirectDrives, Error> {
        if devices.len() > MAX_DRIVES {
            return Err(Error::Usage(format!("{} drives; at most {MAX_DRIVES}", devices.len())));
        }
        for device in &mut devices {
            let info = device.info();
            if info.max_transfer_bytes < BLOCK_BYTES {
                return Err(Error::Usage(format!(
                    "drive {} ({}): moves at most {} bytes at a time; {BLOCK_BYTES} are needed",
                    info.address, info.serial, info.max_transfer_bytes,
                )));
            }
            device.register(&arena)?;
        }
        let info = devices.iter().map(|device| device.info().clone()).collect();
        let free_slots = (0..SLOTS).rev().collect();
        let slots = vec![None; SLOTS];
        Ok(DirectDrives { devices, info, arena, slots, free_slots, parker: None })
    }

    /// The devices, between two batches: nothing is in flight.
    pub(crate) fn devices_mut(&mut self) -> &mut [Box<dyn Device>] {
        &mut self.devices
    }

    /// Sleeps on `parker` when idle. On a core that a reactor polls, a thread that only yields runs
    /// when the reactor's time slice is over, once for each step of a commit; one that slept runs
    /// at once.
    pub(crate) fn sleeping_on(self, parker: Parker) -> DirectDrives {
        DirectDrives { parker: Some(parker), ..self }
    }

    /// Waits until something may have completed.
    fn pause(&self, may_sleep: bool) {
        match &self.parker {
            // Not without a limit: a reactor that ended by a panic wakes no thread.
            Some(parker) => parker.park_timeout(MAX_PARK),
            None if may_sleep => thread::yield_now(),
            None => std::hint::spin_loop(),
        }
    }

    /// Sleeps until the parker is unparked, if there is one.
    pub(crate) fn park(&self) {
        if let Some(parker) = &self.parker {
            parker.park();
        }
    }

    /// Returns the devices.
    pub fn into_devices(mut self) -> Vec<Box<dyn Device>> {
        for device in &mut self.devices {
            device.unregister(&self.arena);
        }
        self.devices
    }

    fn slot_memory(&self, slot: usize, len: usize) -> DmaSlice {
        let address = self.arena.at((slot * SLOT_BYTES) as u64, len as u64);
        DmaSlice {
            address: address.expect("the arena holds every slot"),
            len_bytes: len as u32, // at most SLOT_BYTES
        }
    }

    /// Submits one more piece of the batch to `drive`. Returns false when the drive has no more
    /// pieces, or no slot is free.
    fn advance(
        &mut self,
        drive: usize,
        cursor: &mut Cursor,
        batch: &[DriveCommand<'_>],
        results: &mut [Result<(), IoError>],
    ) -> bool {
        // Skip commands that are for other drives, have failed, or are done. Zero bytes are done at
        // once.
        let (command, len) = loop {
            let Some(command) = batch.get(cursor.command) else { return false };
            let left = match command {
                DriveCommand::Read { into, .. } => into.len() - cursor.start,
                DriveCommand::Write { data, .. } => data.len() - cursor.start,
                DriveCommand::Flush { .. } => usize::from(cursor.start == 0),
            };
            let is_mine = command.drive().as_usize() == drive;
            if is_mine && left > 0 && results[cursor.command].is_ok() {
                break (command, left);
            }
            *cursor = Cursor { command: cursor.command + 1, start: 0 };
        };
        let Some(&slot) = self.free_slots.last() else { return false };
        let largest = round_down(self.info[drive].max_transfer_bytes, BLOCK_BYTES);
        let len = len.min(SLOT_BYTES).min(usize::try_from(largest).unwrap_or(usize::MAX));
        let (operation, memory) = match command {
            DriveCommand::Read { .. } => (Operation::Read, self.slot_memory(slot, len)),
            DriveCommand::Write { data, durable, .. } => {
                let memory = self.slot_memory(slot, len);
                let bytes = &data[cursor.start..][..len];
                // SAFETY: no other code touches a free slot, and it holds SLOT_BYTES >= len bytes.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), memory.address.as_ptr(), len) };
                (if *durable { Operation::WriteDurable } else { Operation::Write }, memory)
            }
            DriveCommand::Flush { .. } => (Operation::Flush, DmaSlice::EMPTY),
        };
        let offset_bytes = match operation {
            Operation::Flush => 0,
            _ => command.offset_bytes() + cursor.start as u64, // `check` excluded an overflow
        };
        let submitted = Command { operation, offset_bytes, memory, tag: slot as u64 };
        // SAFETY: the slot's memory lives as long as the arena, which each device holds, and is not
        // touched until the completion frees the slot.
        match unsafe { self.devices[drive].submit(submitted) } {
            Ok(()) => {
                self.free_slots.pop();
                let start = cursor.start;
                self.slots[slot] = Some(Piece { drive, command: cursor.command, start, len });
                cursor.start += len;
                true
            }
            Err(SubmitError::Full) => false,
            Err(SubmitError::Failed(error)) => {
                results[cursor.command] = Err(error);
                true
            }
        }
    }

    /// Takes the completions of `drive`; returns how many.
    fn collect(
        &mut self,
        drive: usize,
        batch: &mut [DriveCommand<'_>],
        results: &mut [Result<(), IoError>],
    ) -> usize {
        let mut completions = [Completion { tag: 0, status: Ok(()) }; COMPLETIONS_PER_POLL];
        let count = self.devices[drive].poll(&mut completions);
        for completion in &completions[..count] {
            let slot = usize::try_from(completion.tag).unwrap_or(usize::MAX);
            let Some(piece) = self.slots.get_mut(slot).and_then(Option::take) else {
                debug_assert!(false, "a completion for a command that was not submitted");
                continue;
            };
            debug_assert_eq!(piece.drive, drive);
            match (completion.status, &mut batch[piece.command]) {
                (Err(error), _) => {
                    let result = &mut results[piece.command];
                    *result = result.and(Err(error));
                }
                (Ok(()), DriveCommand::Read { into, .. }) => {
                    let memory = self.slot_memory(slot, piece.len);
                    let into = &mut into[piece.start..][..piece.len];
                    // SAFETY: the command has completed, so the slot is ours again.
                    unsafe {
                        ptr::copy_nonoverlapping(
                            memory.address.as_ptr(),
                            into.as_mut_ptr(),
                            piece.len,
                        );
                    }
                }
                (Ok(()), _) => {}
            }
            self.free_slots.push(slot);
        }
        count
    }

    /// The checks that need no device.
    fn check(&self, command: &DriveCommand<'_>) -> Result<(), IoError> {
        let len_bytes = match command {
            DriveCommand::Read { into, .. } => into.len() as u64,
            DriveCommand::Write { data, .. } => data.len() as u64,
            DriveCommand::Flush { .. } => 0,
        };
        let info = self.info.get(command.drive().as_usize()).ok_or(IoError::Os(libc::ENODEV))?;
        if !is_block_aligned(command.offset_bytes()) || !is_block_aligned(len_bytes) {
            return Err(IoError::Os(libc::EINVAL));
        }
        match command.offset_bytes().checked_add(len_bytes) {
            Some(end) if end <= info.capacity_bytes => Ok(()),
            _ => Err(IoError::Os(libc::ENXIO)),
        }
    }
}

impl Drives for DirectDrives {
    fn info(&self) -> &[DriveInfo] {
        &self.info
    }

    /// A command of several pieces has the status of the first piece that was seen to fail; its
    /// remaining pieces are not submitted. A drive index that does not exist is ENODEV, a place or
    /// length that is not whole blocks EINVAL, one beyond the end ENXIO.
    fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), IoError>> {
        let mut results: Vec<_> = batch.iter().map(|command| self.check(command)).collect();
        let mut cursors = [Cursor::default(); MAX_DRIVES];
        let may_sleep = self.info.iter().any(|info| info.interrupt_driven);
        loop {
            let mut progress = false;
            // One piece per drive in turn, so that no drive takes all the slots.
            loop {
                let mut submitted = false;
                for (drive, cursor) in (0..self.devices.len()).zip(&mut cursors) {
                    submitted |= self.advance(drive, cursor, batch, &mut results);
                }
                progress |= submitted;
                if !submitted {
                    break;
                }
            }
            for drive in 0..self.devices.len() {
                progress |= self.collect(drive, batch, &mut results) > 0;
            }
            let all_submitted =
                cursors[..self.devices.len()].iter().all(|cursor| cursor.command >= batch.len());
            if all_submitted && self.free_slots.len() == SLOTS {
                return results;
            }
            if !progress {
                self.pause(may_sleep);
            }
        }
    }
}

const _: () = {
    assert!((SLOT_BYTES as u64).is_multiple_of(BLOCK_BYTES) && SLOT_BYTES <= u32::MAX as usize);
};

#[cfg(test)]
mod tests;
