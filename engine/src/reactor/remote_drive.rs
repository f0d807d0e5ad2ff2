// SPDX-License-Identifier: Apache-2.0
//! A drive that a reactor owns, as a [`Device`] for the keeper: commands go through the reactor's
//! inbox. So the keeper runs the same metadata code that format and recovery run on real devices.
//!
//! - The keeper has at most `KEEPER_CREDITS` commands in flight, so that the inbox has room for
//!   each.
//! - A request holds a span of its region: the memory stays mapped until the drive is done with it.
//! - A reactor that has ended does not answer; its commands then fail as those of a lost drive.

#![allow(unsafe_code)]

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;

use crate::device::{Command, Completion, Device, DriveInfo, Operation, SubmitError};
use crate::error::{Error, IoError};
use crate::memory::{Region, Span};
use crate::planted::{Victim, may_panic};
use crate::reactor::answer::{Answer, Reply};
use crate::reactor::control::Control;
use crate::reactor::drive_queue::DriveRequest;
use crate::reactor::queues::{Queues, ReactorEnd};
use crate::units::DriveIndex;

/// One drive behind its reactor.
pub(crate) struct RemoteDrive {
    drive: DriveIndex,
    info: DriveInfo,
    queues: Arc<Queues>,
    /// Our place in `Queues::answers`, and the queue there.
    reply_to: u16,
    answers: Arc<ArrayQueue<Answer>>,
    regions: Vec<Arc<Region>>,
    /// Tags of the commands in flight.
    tags: Vec<u64>,
}

impl RemoteDrive {
    pub(crate) fn new(drive: DriveIndex, mut info: DriveInfo, queues: Arc<Queues>) -> RemoteDrive {
        let reply_to = queues.reactors.len() as u16 + drive.0;
        let answers = Arc::clone(&queues.answers[usize::from(reply_to)]);
        // The reactor polls; a thread that waits here may give up the core.
        info.interrupt_driven = true;
        RemoteDrive {
            drive,
            info,
            queues,
            reply_to,
            answers,
            regions: Vec::new(),
            tags: Vec::new(),
        }
    }

    fn reactor(&self) -> &ReactorEnd {
        let route = self.queues.routes[self.drive.as_usize()];
        &self.queues.reactors[usize::from(route.reactor)]
    }
}

impl Device for RemoteDrive {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        let register = |answer| Control::Register { region: Arc::clone(region), answer };
        self.reactor().mailbox.ask(register)??;
        self.regions.push(Arc::clone(region));
        Ok(())
    }

    fn unregister(&mut self, region: &Arc<Region>) {
        self.regions.retain(|known| known.id() != region.id());
        let unregister = |answer| Control::Unregister { region: Arc::clone(region), answer };
        // A reactor that has ended has no regions any more.
        let _ = self.reactor().mailbox.ask(unregister);
    }

    unsafe fn submit(&mut self, command: Command) -> Result<(), SubmitError> {
        let span = if command.operation == Operation::Flush {
            None
        } else {
            let memory = command.memory;
            let span = self.regions.iter().find_map(|region| {
                let start = memory.address.as_ptr() as u64;
                let offset = start.checked_sub(region.base().as_ptr() as u64)?;
                Span::new(region, offset, memory.len_bytes)
            });
            Some(span.ok_or(SubmitError::Failed(IoError::Os(libc::EFAULT)))?)
        };
        let request = DriveRequest {
            operation: command.operation,
            offset_bytes: command.offset_bytes,
            span,
            reply: Reply { to: self.reply_to, token: command.tag },
        };
        may_panic(Victim::Keeper);
        if self.reactor().mailbox.is_closed() {
            return Err(SubmitError::Failed(IoError::Removed));
        }
        self.queues.send_to_drive(self.drive, request);
        self.tags.push(command.tag);
        Ok(())
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = 0;
        for completion in completions {
            let done = match self.answers.pop() {
                Some(Answer::Io { token, status }) => Completion { tag: token, status },
                // What its memory holds is not certain any more; the keeper's failure answers all.
                Some(Answer::Unfenced { .. }) => {
                    panic!("drive {}: it could not be fenced", self.info.serial)
                }
                // A reactor that has ended does not answer; its drives are closed.
                _ if !self.tags.is_empty() && self.reactor().mailbox.is_closed() => {
                    Completion { tag: self.tags[0], status: Err(IoError::Removed) }
                }
                _ => break,
            };
            self.tags.retain(|tag| *tag != done.tag);
            *completion = done;
            count += 1;
        }
        count
    }

    fn in_flight(&self) -> u32 {
        self.tags.len() as u32
    }
}
