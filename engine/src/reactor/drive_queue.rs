// SPDX-License-Identifier: Apache-2.0
//! One drive's queue inside a reactor: the requests that wait, and the commands in flight.
//!
//! - The slot of a command keeps the command's span until its completion was taken: memory in
//!   flight belongs to this queue, whatever happens to the asker.
//! - The device is dropped before the slots, and a device's `drop` waits for its commands.
//! - A failed command updates its drive's condition. A drive or pool that may not be written any
//!   more gets no writes: see [`crate::device::condition`].
//! - Nothing here allocates after construction.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::condition::Conditions;
use crate::device::status;
use crate::device::{Command, Completion, Device, DmaSlice, DriveInfo, Operation, SubmitError};
use crate::error::{Error, IoError};
use crate::memory::{Region, Span};
use crate::units::DriveIndex;

/// A request to a drive, and the reply for its end.
#[derive(Debug)]
pub(crate) struct DriveRequest<T> {
    pub(crate) operation: Operation,
    pub(crate) offset_bytes: u64,
    /// None for a flush.
    pub(crate) span: Option<Span>,
    pub(crate) reply: T,
}

/// The queue. Fields are dropped in this order: see the module's second invariant.
pub(crate) struct DriveQueue<T> {
    device: Box<dyn Device>,
    slots: Vec<Option<DriveRequest<T>>>,
    free: Vec<u32>,
    waiting: VecDeque<DriveRequest<T>>,
    waiting_limit: usize,
    completions: Vec<Completion>,
    regions: Vec<Arc<Region>>,
    drive: DriveIndex,
    conditions: Arc<Conditions>,
}

impl<T> DriveQueue<T> {
    /// A queue over `device`, which is the pool's drive `drive`. At most `depth` commands are in
    /// flight (never more than the device takes), and at most `waiting_limit` wait.
    pub(crate) fn new(
        device: Box<dyn Device>,
        depth: u32,
        waiting_limit: usize,
        drive: DriveIndex,
        conditions: Arc<Conditions>,
    ) -> DriveQueue<T> {
        let depth = depth.clamp(1, device.info().queue_depth.max(1));
        let idle = Completion { tag: 0, status: Ok(()) };
        DriveQueue {
            device,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(waiting_limit),
            waiting_limit,
            completions: vec![idle; depth as usize],
            regions: Vec::with_capacity(64),
            drive,
            conditions,
        }
    }

    pub(crate) fn info(&self) -> &DriveInfo {
        self.device.info()
    }

    /// Makes a region usable in requests.
    pub(crate) fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        if !self.regions.iter().any(|known| known.id() == region.id()) {
            self.device.register(region)?;
            self.regions.push(Arc::clone(region));
        }
        Ok(())
    }

    /// Removes a region that no request names any more.
    pub(crate) fn unregister(&mut self, region: &Arc<Region>) {
        self.regions.retain(|known| known.id() != region.id());
        self.device.unregister(region);
    }

    /// Adds a request.
    ///
    /// # Panics
    /// When more wait than the reactor's credits allow, or the span's region was not registered:
    /// both are errors in the caller's arithmetic, and to continue would be worse.
    pub(crate) fn push(&mut self, request: DriveRequest<T>) {
        assert!(self.waiting.len() < self.waiting_limit, "more requests than credits");
        if let Some(span) = &request.span {
            let id = span.region().id();
            assert!(self.regions.iter().any(|known| known.id() == id), "region not registered");
        }
        self.waiting.push_back(request);
    }

    /// Requests that have not ended.
    pub(crate) fn outstanding(&self) -> usize {
        self.waiting.len() + (self.slots.len() - self.free.len())
    }

    /// Whether commands are in flight on the drive.
    pub(crate) fn is_busy(&self) -> bool {
        self.free.len() < self.slots.len()
    }

    /// Sends waiting requests to the drive and takes completions from it; `ended` gets the reply of
    /// each request that ended. Returns whether anything happened.
    pub(crate) fn tick(&mut self, mut ended: impl FnMut(T, Result<(), IoError>)) -> bool {
        let mut progress = false;
        while let Some(&slot) = self.free.last() {
            let Some(request) = self.waiting.pop_front() else { break };
            if let Some(error) = self.conditions.refusal(self.drive, request.operation) {
                progress = true;
                ended(request.reply, Err(error));
                continue;
            }
            let command = Command {
                operation: request.operation,
                offset_bytes: request.offset_bytes,
                memory: request.span.as_ref().map_or(DmaSlice::EMPTY, Span::as_dma),
                tag: u64::from(slot),
            };
            // SAFETY: the memory is a span of a registered region (checked by `push`), and the slot
            // below holds that span until the completion was taken or the device was dropped.
            match unsafe { self.device.submit(command) } {
                Ok(()) => {
                    self.free.pop();
                    self.slots[slot as usize] = Some(request);
                    progress = true;
                }
                Err(SubmitError::Full) => {
                    self.waiting.push_front(request);
                    break;
                }
                Err(SubmitError::Failed(error)) => {
                    progress = true;
                    self.note(request.operation, error);
                    log_failure(self.device.info(), &request, error);
                    ended(request.reply, Err(error));
                }
            }
        }
        let count = self.device.poll(&mut self.completions);
        for at in 0..count {
            let completion = self.completions[at];
            let slot = completion.tag as u32;
            let request = self.slots.get_mut(slot as usize).and_then(Option::take);
            let Some(request) = request else {
                panic!(
                    "drive {}: a completion that no command waits for",
                    self.device.info().serial
                )
            };
            self.free.push(slot);
            if let Err(error) = completion.status {
                self.note(request.operation, error);
                log_failure(self.device.info(), &request, error);
            }
            ended(request.reply, completion.status);
        }
        progress || count > 0
    }

    /// Updates the drive's condition after a failed command. The device has already retried it.
    fn note(&self, operation: Operation, error: IoError) {
        let action = status::action(operation, error).when_retries_end(operation);
        self.conditions.note(self.drive, action, error);
    }
}

/// Logs which drive failed which command: the completion of a whole transfer does not contain that.
fn log_failure<T>(drive: &DriveInfo, request: &DriveRequest<T>, error: IoError) {
    // The loss of a drive is logged once, by its back end.
    if error != IoError::Removed {
        tracing::warn!(
            drive = drive.address,
            serial = drive.serial,
            operation = ?request.operation,
            offset_bytes = request.offset_bytes,
            "a command failed: {error}"
        );
    }
}
