// SPDX-License-Identifier: Apache-2.0
//! The keeper: the thread that commits. It owns the committer and the metadata access to the
//! drives.
//!
//! The committer decides what is done and in which order ([`crate::commit`]). The keeper passes it
//! the requests of participants and callers, one after the other, and sends back the results.
//!
//! After a panic it answers everything with *poisoned*: what is durable is unknown then, and the
//! pool refuses writes until it is opened again. When a reactor has failed, no commit can reach all
//! drives any more: those that wait for other participants end too.
//!
//! It sleeps until it is woken. A wake-up costs a reactor one system call for each commit, and none
//! while chunks flow. Polling for commits would cost a core far more.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::commit::{Committer, Ended};
use crate::direct::DirectDrives;
use crate::drives::Drives;
use crate::error::Error;
use crate::name::CheckpointName;
use crate::planted::{Victim, may_panic};
use crate::pool::context::{PoolContext, unix_ns};
use crate::reactor::answer::{Answer, Finished, Outcome, Reply};
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
    /// The request that was taken and is neither answered nor waits.
    in_hand: Option<KeeperRequest>,
}

impl Keeper {
    pub(crate) fn new(context: Arc<PoolContext>, drives: DirectDrives) -> Keeper {
        let committer = Committer::new(Arc::clone(&context));
        Keeper { context, committer, drives, waiting: HashMap::new(), in_hand: None }
    }

    /// The metadata access to the drives.
    pub(crate) fn drives(&mut self) -> &mut dyn Drives {
        &mut self.drives
    }

    /// Runs until [`Call::Stop`]. A caller that sends a call unparks the parker of the keeper's
    /// drives.
    pub(crate) fn run(mut self, mailbox: &Mailbox<Call>) {
        let _open = mailbox.open_while_held();
        if catch_unwind(AssertUnwindSafe(|| self.serve(mailbox))).is_err() {
            self.fail();
            while catch_unwind(AssertUnwindSafe(|| self.serve_failed(mailbox))).is_err() {}
        }
    }

    fn serve(&mut self, mailbox: &Mailbox<Call>) {
        loop {
            let mut worked = self.take_requests();
            for call in mailbox.take() {
                worked = true;
                match call {
                    Call::Run(work) => work(self),
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

    /// After a panic: the state may be half changed, and a generation half written.
    fn fail(&mut self) {
        tracing::error!("the keeper failed: nothing is committed any more; open the pool again");
        self.context.state().poison("keeper", "its thread failed; the log has the message".into());
        if let Some(request) = self.in_hand.take() {
            self.refuse(request, Outcome::POISONED);
        }
        let waiting: Vec<u64> = self.waiting.keys().copied().collect();
        waiting.into_iter().for_each(|open| self.answer_all(open, Outcome::POISONED));
    }

    /// Answers everything with an error until [`Call::Stop`].
    fn serve_failed(&mut self, mailbox: &Mailbox<Call>) {
        loop {
            while let Some(request) = self.context.queues.keeper.pop() {
                self.refuse(request, Outcome::POISONED);
            }
            // A call that is dropped is an error for its caller.
            if mailbox.take().iter().any(|call| matches!(call, Call::Stop)) {
                return;
            }
            self.drives.park();
        }
    }

    /// Answers a request with an error.
    fn refuse(&self, request: KeeperRequest, outcome: Outcome) {
        let KeeperRequest { verdict, reply, .. } = request;
        match verdict {
            Verdict::Move { error, .. } => {
                let answer = Answer::Moved { token: reply.token, to: Err(error) };
                self.context.queues.answer(reply.to, answer);
            }
            Verdict::Whole | Verdict::Abort => self.answer(reply, outcome),
        }
    }

    /// A reactor has failed: gives up the checkpoints that wait for participants.
    fn give_up_all(&mut self) {
        let waiting: Vec<u64> = self.waiting.keys().copied().collect();
        for open in waiting {
            self.committer.give_up(open, None);
            self.answer_all(open, Outcome::REMOVED);
        }
    }

    /// Takes the participants' requests, and commits together all checkpoints that are complete
    /// now. Returns whether there was a request.
    fn take_requests(&mut self) -> bool {
        let mut found = false;
        while let Some(request) = self.context.queues.keeper.pop() {
            found = true;
            self.in_hand = Some(request);
            may_panic(Victim::Keeper);
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
            self.in_hand = None;
        }
        if self.context.queues.has_failed() {
            self.give_up_all();
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
                self.in_hand = None;
                may_panic(Victim::Keeper);
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
            may_panic(Victim::Keeper);
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
        // One after the other, so that a panic leaves the others to be answered.
        while let Some(reply) = self.waiting.get_mut(&open).and_then(Vec::pop) {
            self.answer(reply, outcome);
        }
        self.waiting.remove(&open);
    }

    fn answer(&self, reply: Reply, outcome: Outcome) {
        self.context.queues.finish(reply.to, Finished { token: reply.token, outcome });
    }
}
