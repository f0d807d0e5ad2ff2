// SPDX-License-Identifier: Apache-2.0
//! The interface of every back end: a queue pair that takes commands and gives completions.
//!
//! Invariants that every back end keeps:
//! - Commands are unordered. A caller that needs an order waits for completions.
//! - Each accepted command completes exactly once, with the tag it was given.
//! - The device may touch the memory of an accepted command until its completion was taken from
//!   [`Device::poll`], or until the device was dropped: `drop` returns only when the hardware, the
//!   kernel and helper threads can no longer touch it.
//! - `submit` and `poll` never block and never allocate.
//! - A completed write is durable only after a later [`Operation::Flush`] that was submitted after
//!   that completion, or if it was itself a [`Operation::WriteDurable`].

use std::sync::Arc;

use super::reservation::Reservations;
use crate::drive_info::DriveInfo;
use crate::error::{Error, IoError};
use crate::memory::{DmaSlice, Region};

/// The operation of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Drive to memory.
    Read,
    /// Memory to drive; may stay in the drive's volatile cache.
    Write,
    /// Memory to drive, durable when it completes (NVMe: Force Unit Access).
    WriteDurable,
    /// Makes durable every write that completed before this was submitted. Names no memory.
    Flush,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// What to do.
    pub operation: Operation,
    /// Where on the drive; block aligned; ignored by a flush.
    pub offset_bytes: u64,
    /// The memory to move; lies within a region given to [`Device::register`].
    pub memory: DmaSlice,
    /// Comes back in the completion.
    pub tag: u64,
}

/// The completion of one command.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The command's tag.
    pub tag: u64,
    /// Whether it did all that was requested.
    pub status: Result<(), IoError>,
}

/// Why a command was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// The queue is full: poll, then try again. Nothing was submitted.
    Full,
    /// The drive refuses it; treat as a completion with this status. Nothing was submitted.
    Failed(IoError),
}

/// One drive, open for the exclusive use of one thread at a time.
pub trait Device: Send {
    /// What is known of the drive, read when it was opened.
    fn info(&self) -> &DriveInfo;

    /// Makes a region usable in commands. Not on the hot path: may block and allocate. Registering
    /// a region twice is harmless. The device keeps the region alive until it is dropped or
    /// [`Device::unregister`] is called.
    ///
    /// # Errors
    /// When the back end cannot use the memory (wrong page size, limits of locked memory).
    fn register(&mut self, region: &Arc<Region>) -> Result<(), Error>;

    /// Removes a region. The caller has no command in flight that names it.
    fn unregister(&mut self, region: &Arc<Region>);

    /// Sends one command to the drive.
    ///
    /// # Errors
    /// See [`SubmitError`]. On an error nothing was submitted and no completion will come.
    ///
    /// # Safety
    /// `command.memory` must stay valid, and no other code may write it (for a write) or touch it
    /// (for a read), until its completion was taken from `poll` or the device was dropped.
    #[allow(unsafe_code)]
    unsafe fn submit(&mut self, command: Command) -> Result<(), SubmitError>;

    /// Takes completions, at most as many as fit into `completions`; returns how many it wrote.
    /// Also does the drive's upkeep (keep-alive, timeouts): call it at least every 100 ms, even
    /// when idle.
    fn poll(&mut self, completions: &mut [Completion]) -> usize;

    /// Commands accepted and not yet taken from `poll`.
    fn in_flight(&self) -> u32;

    /// The drive's reservations, if it may have them. Not on the hot path; nothing is in flight.
    /// Dropping the device gives up what was taken.
    fn reservations(&mut self) -> Option<&mut dyn Reservations> {
        None
    }
}
