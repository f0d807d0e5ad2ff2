// SPDX-License-Identifier: Apache-2.0
//! The keeper: the thread that commits. It owns the committer and the metadata access to the
//! drives.
//!
//! The committer decides what is done and in which order ([`crate::commit`]). The keeper passes it
//! the requests of participants and callers, one after the other, and sends back the results.
//!
//! It sleeps until it is woken. A wake-up costs a reactor one system call for each commit, and none
//! while chunks flow. Polling for commits would cost a core far more.

use std::collections::HashMap;
use std::sync::Arc;

use crate::commit::{Committer, Ended};
use crate::direct::DirectDrives;
use crate::drives::Drives;
use crate::error::Error;
use crate::name::CheckpointName;
use crate::pool::context::{PoolContext, unix_ns};
use crate::reactor::answer::{Answer, Outcome, Reply};
use crate::reactor::mailbox::Mailbox;
use crate::reactor::queues::{KeeperRequest, Verdict};
use crate::state::{ChunkPlace, Readiness};
use crate::units::{DriveIndex, Generation};

/// Work for the keeper's thread.
pub(crate) enum Call {
    /// Work that needs the drives.
    Run(Box<dyn FnOnce(&mut Keeper) + Send>),
    /// A checkpoint was begun. There is nothing to do; the caller only checks that the keeper runs.
    Nudge,
    /// End.
    Stop,
}

/// The keeper.
pub(crate) struct Keeper {
    context: Arc<PoolContext>,
    committer: Committer<Arc<PoolContext>>,
    drives: DirectDrives,
    /// By open checkpoint: participants that wait for the other participants.
    waiting: HashMap<u64, Vec<Reply>>,
}

impl Keeper {
    pub(crate) fn new(context: Arc<PoolContext>, drives: DirectDrives) -> Keeper {
        let committer = Committer::new(Arc::clone(&context));
        Keeper { context, committer, drives, waiting: HashMap::new() }
    }

    /// The metadata access to the drives.
    pub(crate) fn drives(&mut self) -> &mut dyn Drives {
        &mut self.drives
    }

    /// Runs until [`Call::Stop`]. A caller that sends a call unparks the parker of the keeper's
    /// drives.
    pub(crate) fn run(mut self, mailbox: &Mailbox<Call>) {
        let _open = mailbox.open_while_held();
        loop {
            let mut worked = self.take_requests();
            for call in mailbox.take() {
                worked = true;
                match call {
                    Call::Run(work) => work(&mut self),
                    Call::Nudge => {}
                    Call::Stop => return,
                }
                self.take_requests();
            }
            // The wake-up of a new request may have been consumed during the work. Sleep only after
            // a pass that found nothing and did no work.
            if !worked {
                self.drives.park();
            }
        }
    }

    /// Takes the participants' requests, and commits together all checkpoints that are complete
    /// now. Returns whether there was a request.
    fn take_requests(&mut self) -> bool {
        let mut found = false;
        while let Some(request) = self.context.queues.keeper.pop() {
            found = true;
            match request.verdict {
                Verdict::Whole => self.participant_is_whole(request),
                Verdict::Abort => {
                    self.give_up(request.checkpoint, Some(request.participant));
                    self.answer(request.reply, Outcome::success(0, 0));
                }
                Verdict::Move { chunk, second, error } => {
                    let KeeperRequest { checkpoint, participant, reply, .. } = request;
                    let place = ChunkPlace { checkpoint, participant, chunk, second };
                    let to = self.committer.relocate(place, error);
                    self.context.queues.answer(reply.to, Answer::Moved { token: reply.token, to });
                }
            }
        }
        self.commit();
        found
    }

    fn participant_is_whole(&mut self, request: KeeperRequest) {
        match self.committer.set_whole(request.checkpoint, request.participant) {
            Readiness::Aborted => {
                self.context.forget_segment(request.checkpoint, request.participant);
                self.answer(request.reply, Outcome::CANCELED);
            }
            Readiness::Waiting | Readiness::Ready => {
                self.waiting.entry(request.checkpoint).or_default().push(request.reply);
            }
        }
    }

    /// Commits the checkpoints whose segments are all whole, if there are any.
    fn commit(&mut self) {
        if !self.committer.is_ready() {
            return;
        }
        self.context.poison_if_foreign();
        let sums = |open, participant| self.context.checksums_of(open, participant);
        let Ended { open, result } =
            self.committer.commit_ready(&mut self.drives, &sums, unix_ns());
        let outcome = match result {
            Ok(generation) => Outcome::success(0, generation.0),
            Err(error) => {
                tracing::error!("commit failed: {error}");
                Outcome::of_error(&error)
            }
        };
        for open in open {
            self.context.forget_checkpoint(open);
            self.answer_all(open, outcome);
        }
    }

    /// Removes a checkpoint, unless a session of this process restores it.
    pub(crate) fn remove(&mut self, name: &CheckpointName) -> Result<Generation, Error> {
        self.context.poison_if_foreign();
        self.committer.remove(&mut self.drives, name, unix_ns())
    }

    /// Looks whether another owner writes the pool, too.
    pub(crate) fn look(&mut self) -> Result<(), Error> {
        self.committer.look(&mut self.drives)
    }

    /// Frees the space of what the last generation removed.
    pub(crate) fn reclaim(&mut self) -> Result<Generation, Error> {
        self.context.poison_if_foreign();
        self.committer.reclaim(&mut self.drives, unix_ns())
    }

    /// Makes durable what was written outside of commits.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.committer.flush(&mut self.drives)
    }

    /// These drives hold everything that belongs on them: those that were rebuilding are members
    /// again, and the result is their serials.
    pub(crate) fn finish_rebuilding(
        &mut self,
        complete: &[DriveIndex],
    ) -> Result<Vec<String>, Error> {
        self.committer.finish_rebuilding(&mut self.drives, complete)
    }

    /// Aborts an open checkpoint, and answers the participants that wait for it. `ended` is the
    /// participant that writes no more.
    pub(crate) fn give_up(&mut self, open: u64, ended: Option<u32>) {
        self.committer.give_up(open, ended);
        if let Some(participant) = ended {
            self.context.forget_segment(open, participant);
        }
        self.answer_all(open, Outcome::CANCELED);
    }

    fn answer_all(&mut self, open: u64, outcome: Outcome) {
        for reply in self.waiting.remove(&open).unwrap_or_default() {
            self.answer(reply, outcome);
        }
    }

    fn answer(&self, reply: Reply, outcome: Outcome) {
        let answer = Answer::Finished { token: reply.token, outcome };
        self.context.queues.answer(reply.to, answer);
    }
}
