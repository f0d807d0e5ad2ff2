//! The keeper: the thread that commits. It owns the way to the drives' metadata.
//!
//! Commits, removals and empty generations come strictly one after the other, in this thread. The
//! state's lock is held only to plan and to take over, never during I/O, so that a trainer can begin
//! its next checkpoint while the last one is being committed.
//!
//! It sleeps until somebody wakes it. Waking it costs a reactor one system call for each commit, but
//! none while chunks flow; looking for commits every now and then would cost a core far more.

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam::channel::{Receiver, TryRecvError};

use crate::direct::DirectDrives;
use crate::drives::Drives;
use crate::error::{Error, IoError};
use crate::format::Label;
use crate::name::CheckpointName;
use crate::pool::shared::{Shared, unix_ns};
use crate::reactor::queues::{Done, KeeperRequest, Reply, Verdict};
use crate::recover::labels::write_labels;
use crate::ring::codes;
use crate::state::{ChunkPlace, Planned, Progress};
use crate::units::Generation;

/// Work for the keeper's thread.
pub(crate) enum Call {
    /// Something to do with the drives in hand.
    Run(Box<dyn FnOnce(&mut Keeper) + Send>),
    /// A checkpoint was begun. There is nothing to do; whoever says so learns whether anybody will
    /// commit it.
    Nudge,
    /// End.
    Stop,
}

/// The keeper.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    drives: DirectDrives,
    /// By open checkpoint: participants that wait for the others.
    waiting: HashMap<u64, Vec<Reply>>,
}

/// What a finished commit or abort says to its participants.
#[derive(Clone, Copy)]
struct Outcome {
    result: i64,
    detail: u32,
    aux: u64,
}

impl Outcome {
    const CANCELED: Outcome = Outcome { result: codes::CANCELED, detail: 0, aux: 0 };

    fn of_error(error: &Error) -> Outcome {
        let (result, detail) = match error {
            Error::Io { source, .. } => codes::of_io_error(*source),
            Error::Poisoned { .. } => (codes::POISONED, 0),
            _ => codes::of_io_error(IoError::Os(libc::EIO)),
        };
        Outcome { result, detail, aux: 0 }
    }
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>, drives: DirectDrives) -> Keeper {
        Keeper { shared, drives, waiting: HashMap::new() }
    }

    /// The way to the drives.
    pub(crate) fn drives(&mut self) -> &mut dyn Drives {
        &mut self.drives
    }

    /// Which drives the pool has, and which take part.
    pub(crate) fn label(&self) -> Label {
        self.shared.state().label().clone()
    }

    /// Makes a changed label durable on every drive that takes part, and the pool's own.
    pub(crate) fn change_label(&mut self, label: Label) -> Result<(), Error> {
        write_labels(&mut self.drives, &label)?;
        self.shared.state().set_label(label);
        Ok(())
    }

    /// Runs until it is told to stop. Whoever gives it work unparks the parker of its drives.
    pub(crate) fn run(mut self, calls: &Receiver<Call>) {
        loop {
            self.take_requests();
            match calls.try_recv() {
                Ok(Call::Run(work)) => work(&mut self),
                Ok(Call::Nudge) => {}
                Ok(Call::Stop) | Err(TryRecvError::Disconnected) => return,
                // What came since the looks above has left a token.
                Err(TryRecvError::Empty) => self.drives.park(),
            }
        }
    }

    /// Takes what participants said; commits together all checkpoints that became whole by it.
    fn take_requests(&mut self) {
        let mut ready = Vec::new();
        while let Some(request) = self.shared.queues.keeper.pop() {
            match request.verdict {
                Verdict::Whole => self.participant_is_whole(request, &mut ready),
                Verdict::Abort => {
                    self.give_up(request.checkpoint, Some(request.participant));
                    self.answer(request.reply, Outcome { result: 0, detail: 0, aux: 0 });
                }
                Verdict::Move { chunk, second, error } => {
                    let KeeperRequest { checkpoint, participant, reply, .. } = request;
                    let place = ChunkPlace { checkpoint, participant, chunk, second };
                    let to = self.shared.state().relocate(place).ok_or(error);
                    self.shared.queues.answer(reply.to, Done::Moved { token: reply.token, to });
                }
            }
        }
        if !ready.is_empty() {
            self.commit(&ready);
        }
    }

    fn participant_is_whole(&mut self, request: KeeperRequest, ready: &mut Vec<u64>) {
        let progress = self.shared.state().set_whole(request.checkpoint, request.participant);
        if progress == Progress::Aborted {
            self.shared.forget_segment(request.checkpoint, request.participant);
            self.answer(request.reply, Outcome::CANCELED);
            return;
        }
        self.waiting.entry(request.checkpoint).or_default().push(request.reply);
        if progress == Progress::Ready {
            ready.push(request.checkpoint);
        }
    }

    /// Commits checkpoints whose segments are all whole.
    fn commit(&mut self, ready: &[u64]) {
        let shared = Arc::clone(&self.shared);
        let sums = |open, participant| shared.checksums_of(open, participant);
        let planned = self
            .shared
            .check_ownership()
            .and_then(|()| self.shared.state().plan_commit(ready, &sums, unix_ns()));
        let outcome = match planned.and_then(|planned| self.make_durable(planned)) {
            Ok(generation) => Outcome { result: 0, detail: 0, aux: generation.0 },
            Err(error) => {
                tracing::error!("commit failed: {error}");
                ready.iter().for_each(|open| self.shared.state().mark_aborted(*open));
                Outcome::of_error(&error)
            }
        };
        for open in ready {
            self.shared.forget_checkpoint(*open);
            self.answer_all(*open, outcome);
        }
    }

    /// Carries a planned generation out; the pool refuses writes if nobody knows how it ended.
    fn make_durable(&mut self, planned: Planned) -> Result<Generation, Error> {
        match planned.plan.run(&mut self.drives) {
            Ok(()) => Ok(self.shared.state().committed(planned)),
            Err(failure) => {
                if let Some(what) = failure.poison() {
                    self.shared.state().poison(what, failure.error.to_string());
                }
                Err(failure.error)
            }
        }
    }

    /// Makes the next generation without a checkpoint.
    pub(crate) fn remove(&mut self, name: &CheckpointName) -> Result<Generation, Error> {
        self.shared.refuse_while_read(name)?;
        self.shared.check_ownership()?;
        let planned = self.shared.state().plan_remove(name, unix_ns())?;
        self.make_durable(planned)
    }

    /// Makes the next generation with nothing new, so that what the one before removed is free.
    pub(crate) fn reclaim(&mut self) -> Result<Generation, Error> {
        self.shared.check_ownership()?;
        let planned = self.shared.state().plan_empty(None, unix_ns())?;
        self.make_durable(planned)
    }

    /// An open checkpoint will not be committed: tells everybody who waits for it. `ended` is the
    /// participant that writes no more.
    pub(crate) fn give_up(&mut self, open: u64, ended: Option<u32>) {
        self.shared.state().mark_aborted(open);
        if let Some(participant) = ended {
            self.shared.state().end_segment(open, participant);
            self.shared.forget_segment(open, participant);
        }
        self.answer_all(open, Outcome::CANCELED);
    }

    fn answer_all(&mut self, open: u64, outcome: Outcome) {
        for reply in self.waiting.remove(&open).unwrap_or_default() {
            self.answer(reply, outcome);
        }
    }

    fn answer(&self, reply: Reply, outcome: Outcome) {
        let Outcome { result, detail, aux } = outcome;
        let done = Done::Keeper { token: reply.token, result, detail, aux };
        self.shared.queues.answer(reply.to, done);
    }
}
