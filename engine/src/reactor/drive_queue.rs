// SPDX-License-Identifier: Apache-2.0
//! One drive's queue inside a reactor: the requests that wait, and the commands in flight.
//!
//! - The slot of a command keeps the command's span until its completion was taken: memory in
//!   flight belongs to this queue, whatever happens to the asker.
//! - The device is dropped before the slots, and a device's `drop` waits for its commands.
//! - A request whose memory is not registered fails; it never reaches the device.
//! - A failed command updates its drive's condition. A drive or pool that may not be written any
//!   more gets no writes: see [`crate::device::condition`].
//! - Nothing here allocates after construction.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::device::condition::Conditions;
use crate::device::status::{self, Action};
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

/// Whether a drive that was closed may still carry out a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unfenced(pub(crate) bool);

/// The queue. Fields are dropped in this order: see the module's second invariant.
pub(crate) struct DriveQueue<T> {
    device: Box<dyn Device>,
    slots: Vec<Option<DriveRequest<T>>>,
    free: Vec<u32>,
    waiting: VecDeque<DriveRequest<T>>,
    waiting_limit: usize,
    completions: Vec<Completion>,
    /// By number, so that a session with many regions does not slow each chunk of all.
    regions: Vec<Arc<Region>>,
    drive: DriveIndex,
    conditions: Arc<Conditions>,
}

impl<T: Copy> DriveQueue<T> {
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
        if let Err(place) = self.place_of(region.id()) {
            self.device.register(region)?;
            self.regions.insert(place, Arc::clone(region));
        }
        Ok(())
    }

    /// Where a region is, or belongs, in the list.
    fn place_of(&self, id: u64) -> Result<usize, usize> {
        self.regions.binary_search_by_key(&id, |known| known.id())
    }

    /// Removes a region that no request names any more.
    pub(crate) fn unregister(&mut self, region: &Arc<Region>) {
        if let Ok(place) = self.place_of(region.id()) {
            self.regions.remove(place);
        }
        self.device.unregister(region);
    }

    /// Adds a request.
    ///
    /// # Panics
    /// When more wait than the reactor's credits allow: an error in the caller's arithmetic, and to
    /// continue would be worse.
    pub(crate) fn push(&mut self, request: DriveRequest<T>) {
        assert!(self.waiting.len() < self.waiting_limit, "more requests than credits");
        self.waiting.push_back(request);
    }

    /// Adds a request that goes before those that wait: metadata, for which a commit waits, does
    /// not wait for the chunks of all sessions.
    ///
    /// # Panics
    /// As [`DriveQueue::push`].
    pub(crate) fn push_first(&mut self, request: DriveRequest<T>) {
        assert!(self.waiting.len() < self.waiting_limit, "more requests than credits");
        self.waiting.push_front(request);
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
            // It leaves the queue after the device has it, so that a panic there does not lose it.
            let Some(request) = self.waiting.front() else { break };
            if let Some(error) = self.refusal(request) {
                progress = true;
                self.end_first(error, &mut ended);
                continue;
            }
            let command = Command {
                operation: request.operation,
                offset_bytes: request.offset_bytes,
                memory: request.span.as_ref().map_or(DmaSlice::EMPTY, Span::as_dma),
                tag: u64::from(slot),
            };
            // SAFETY: the memory is a span of a registered region (checked by `refusal`). The queue
            // or the slot below holds that span until the completion was taken or the device was
            // dropped.
            match unsafe { self.device.submit(command) } {
                Ok(()) => {
                    self.free.pop();
                    self.slots[slot as usize] = self.waiting.pop_front();
                    progress = true;
                }
                Err(SubmitError::Full) => break,
                Err(SubmitError::Failed(error)) => {
                    progress = true;
                    self.note(request.operation, error);
                    log_failure(self.device.info(), request, error);
                    self.end_first(error, &mut ended);
                }
            }
        }
        let count = self.device.poll(&mut self.completions);
        for at in 0..count {
            let completion = self.completions[at];
            let slot = completion.tag as u32;
            // It leaves its slot after the answer, so that a panic in between does not lose it.
            let Some(Some(request)) = self.slots.get(slot as usize) else {
                panic!(
                    "drive {}: a completion that no command waits for",
                    self.device.info().serial
                )
            };
            if let Err(error) = completion.status {
                self.note(request.operation, error);
                log_failure(self.device.info(), request, error);
            }
            ended(request.reply, completion.status);
            self.slots[slot as usize] = None;
            self.free.push(slot);
        }
        progress || count > 0
    }

    /// Ends the request that waits first with an error.
    fn end_first(&mut self, error: IoError, ended: &mut impl FnMut(T, Result<(), IoError>)) {
        if let Some(request) = self.waiting.front() {
            ended(request.reply, Err(error));
            self.waiting.pop_front();
        }
    }

    /// Why a request is not sent to the drive, if it is not.
    fn refusal(&self, request: &DriveRequest<T>) -> Option<IoError> {
        let known = |span: &Span| self.place_of(span.region().id()).is_ok();
        if !request.span.as_ref().is_none_or(known) {
            return Some(IoError::Os(libc::EFAULT));
        }
        self.conditions.refusal(self.drive, request.operation)
    }

    /// Whether a request whose reply is such a one has not ended.
    pub(crate) fn has(&self, which: impl Fn(&T) -> bool) -> bool {
        let mut requests = self.waiting.iter().chain(self.slots.iter().flatten());
        requests.any(|request| which(&request.reply))
    }

    /// The condition of the drive: it is lost.
    pub(crate) fn stop(&self) {
        self.conditions.note(self.drive, Action::StopDrive, IoError::Removed);
    }

    /// Closes the drive, which fences it. `ended` gets the reply of each request that had not
    /// ended, and whether the drive may still carry it out: if it could not be fenced, the memory
    /// of its commands stays mapped and registered for good.
    pub(crate) fn fence(self, mut ended: impl FnMut(T, Unfenced)) {
        let DriveQueue { device, mut slots, mut waiting, regions, .. } = self;
        let serial = device.info().serial.clone();
        let fenced = catch_unwind(AssertUnwindSafe(|| drop(device))).is_ok();
        let mut in_flight: Vec<_> = slots.drain(..).flatten().collect();
        if !fenced {
            tracing::error!(
                serial,
                "a drive could not be fenced: the memory of its commands is not used again"
            );
            std::mem::forget(regions);
            // The device may have had the first one, too, when it panicked.
            in_flight.extend(waiting.pop_front());
        }
        for request in waiting {
            ended(request.reply, Unfenced(false));
        }
        for DriveRequest { span, reply, .. } in in_flight {
            if !fenced {
                std::mem::forget(span);
            }
            ended(reply, Unfenced(!fenced));
        }
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
