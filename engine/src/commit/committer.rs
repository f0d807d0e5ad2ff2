// SPDX-License-Identifier: Apache-2.0
//! The committer: every step that changes what an open pool holds, from the begin of a participant
//! to a durable generation.
//!
//! - It borrows the state only to read or change it, never while a drive works: trainers begin
//!   their next checkpoints while one is being committed. [`StateCell`] is that rule as a type.
//! - One generation at a time: a pool has one committer, which takes `&mut self` to make one.
//! - The state adopts a generation when it is durable on every drive that takes part, not before. A
//!   failure before the first flush leaves the state as it was. After a later failure it is unknown
//!   what is durable, and the state refuses everything until the pool is opened again.

use std::cell::RefCell;
use std::ops::Deref;

use super::failure::CommitFailure;
use super::labels::write_labels;
use super::order;
use super::plan::Plan;
use super::rival::{self, Known};
use crate::drives::{Drives, flush_all};
use crate::error::{Error, IoError};
use crate::format::{DriveState, Label, Owner};
use crate::name::CheckpointName;
use crate::planted::{Bug, planted};
use crate::state::{BeginError, CheckpointSpec, ChunkPlace, Identity, Readiness, State};
use crate::units::{DriveIndex, Generation, Location};

/// Where the state is kept: behind a lock that other threads take too, or on one thread.
pub(crate) trait StateCell {
    /// Lends the state for a moment. `work` must not wait for a drive or another thread.
    fn with_state<R>(&self, work: impl FnOnce(&mut State) -> R) -> R;
}

impl StateCell for RefCell<State> {
    fn with_state<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.borrow_mut())
    }
}

/// Lets a participant join a checkpoint, or begin it. If there may be room after an empty
/// generation, it calls `reclaim` once, which must end in [`Committer::reclaim`]. Needs no
/// committer: trainers call it while the keeper commits.
pub(crate) fn begin<E: From<Error>>(
    state: &impl StateCell,
    spec: &CheckpointSpec,
    identity: impl Into<Identity>,
    reclaim: impl FnOnce() -> Result<(), E>,
) -> Result<u64, E> {
    let identity = identity.into();
    match state.with_state(|state| state.begin(spec, identity)) {
        Ok(open) => return Ok(open),
        Err(BeginError::Failed(error)) => return Err(error.into()),
        Err(BeginError::Reclaim { .. }) => reclaim()?,
    }
    state.with_state(|state| state.begin(spec, identity)).map_err(|error| match error {
        BeginError::Failed(error) | BeginError::Reclaim { no_space: error } => error.into(),
    })
}

/// How the commit of some checkpoints ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The open checkpoints in it.
    pub(crate) open: Vec<u64>,
    /// The generation that holds all of them, or why no generation does.
    pub(crate) result: Result<Generation, Error>,
}

/// Generations that one commit passes over at most. There are four slots for catalogues, and two
/// are in use.
const MOST_SKIPPED: u32 = 4;

/// The committer of one open pool.
pub(crate) struct Committer<S> {
    state: S,
    /// Open checkpoints all of whose segments are whole: the next commit takes them.
    ready: Vec<u64>,
}

impl<S: Deref<Target: StateCell>> Committer<S> {
    pub(crate) fn new(state: S) -> Committer<S> {
        Committer { state, ready: Vec::new() }
    }

    /// A participant's segment is whole, and it writes no more.
    pub(crate) fn set_whole(&mut self, open: u64, participant: u32) -> Readiness {
        let readiness = self.state.with_state(|state| state.set_whole(open, participant));
        if readiness == Readiness::Ready {
            self.ready.push(open);
        }
        readiness
    }

    /// Gives a copy of a chunk that could not be written another place; if there is none, the error
    /// stays.
    pub(crate) fn relocate(&self, place: ChunkPlace, error: IoError) -> Result<Location, IoError> {
        self.state.with_state(|state| state.relocate(place)).ok_or(error)
    }

    /// An open checkpoint will not be committed. `ended` is a participant that has no write in
    /// flight and begins none: once that holds for all of them, its space is free.
    pub(crate) fn give_up(&mut self, open: u64, ended: Option<u32>) {
        self.ready.retain(|ready| *ready != open);
        self.state.with_state(|state| {
            state.mark_aborted(open);
            if let Some(participant) = ended {
                state.end_segment(open, participant);
            }
        });
    }

    /// Whether a checkpoint waits for [`Committer::commit_ready`].
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Commits every checkpoint that is ready, in one generation. If that fails, all of them are
    /// aborted.
    /// `crc64` gives the checksum of each chunk of (open checkpoint, participant).
    pub(crate) fn commit_ready(
        &mut self,
        drives: &mut dyn Drives,
        crc64: &dyn Fn(u64, u32) -> Vec<u64>,
        now_unix_ns: u64,
    ) -> Ended {
        let open = std::mem::take(&mut self.ready);
        let plan = |state: &State| Plan::of_checkpoints(state, &open, crc64, now_unix_ns);
        let result = self.commit(drives, false, plan);
        if result.is_err() {
            // After the state was poisoned, if it was: their space may belong to a generation that
            // is durable after all, and must not be reused.
            self.state.with_state(|state| open.iter().for_each(|open| state.mark_aborted(*open)));
        }
        Ended { open, result }
    }

    /// Looks whether another owner writes the pool, too. If so, the pool is poisoned.
    pub(crate) fn look(&mut self, drives: &mut dyn Drives) -> Result<(), Error> {
        let (label, root, next) = self.state.with_state(|state| {
            state.check_poison()?;
            Ok::<_, Error>((state.label().clone(), state.root().clone(), state.next_generation()))
        })?;
        let newest = Some((root.generation, root.id()));
        let looked = rival::look(Known { label: &label, newest, next, epoch: root.epoch }, drives);
        looked.map_err(|failure| self.fail(failure))
    }

    /// The error of a failed step, after which the pool may be poisoned.
    fn fail(&self, failure: CommitFailure) -> Error {
        if let Some(what) = failure.poison() {
            self.state.with_state(|state| state.poison(what, failure.error.to_string()));
        }
        failure.error
    }

    /// Makes the next generation without a checkpoint. No one begins to read it meanwhile; a
    /// restore that has begun refuses the removal.
    pub(crate) fn remove(
        &mut self,
        drives: &mut dyn Drives,
        name: &CheckpointName,
        now_unix_ns: u64,
    ) -> Result<Generation, Error> {
        let removal = self.state.with_state(|state| state.begin_removal(name))?;
        let result = self.commit(drives, false, |state| Plan::of_removal(state, name, now_unix_ns));
        self.state.with_state(|state| state.end_removal(removal));
        result
    }

    /// Makes the next generation without changes, so that the space of what the one before removed
    /// is free.
    pub(crate) fn reclaim(
        &mut self,
        drives: &mut dyn Drives,
        now_unix_ns: u64,
    ) -> Result<Generation, Error> {
        self.commit(drives, false, |state| Plan::empty(state, None, now_unix_ns))
    }

    /// Makes the next generation without changes, in a new open epoch: every opening for writing
    /// ends with it. From then on all drives agree on what this opening found, and on its owner.
    pub(crate) fn begin_epoch(
        &mut self,
        drives: &mut dyn Drives,
        epoch: u64,
        owner: &Owner,
        now_unix_ns: u64,
    ) -> Result<Generation, Error> {
        self.commit(drives, true, |state| Plan::empty(state, Some((epoch, owner)), now_unix_ns))
    }

    /// Plans a generation, makes it durable, and lets the state adopt it. One whose places cannot
    /// be written is passed over, while it is certain that it was not acknowledged.
    fn commit(
        &mut self,
        drives: &mut dyn Drives,
        is_opening: bool,
        plan: impl Fn(&State) -> Result<Plan, Error>,
    ) -> Result<Generation, Error> {
        let mut skipped = 0;
        loop {
            let plan = self.state.with_state(|state| plan(state))?;
            plan.check()?;
            if planted(Bug::AdoptedEarly) {
                self.state.with_state(|state| state.adopt(plan.change.clone()));
            }
            let failure = match order::run(&plan, drives) {
                Ok(()) if planted(Bug::AdoptedEarly) => return Ok(plan.generation()),
                Ok(()) => return Ok(self.state.with_state(|state| state.adopt(plan.change))),
                Err(failure) => failure,
            };
            if skipped == MOST_SKIPPED || !failure.is_of_one_place(is_opening) {
                return Err(self.fail(failure));
            }
            self.state.with_state(State::skip_generation);
            skipped += 1;
        }
    }

    /// Makes a changed label durable on every drive that takes part, and then the state's. It
    /// follows the state's, whatever its epoch and ancestors say.
    pub(crate) fn change_label(
        &mut self,
        drives: &mut dyn Drives,
        mut label: Label,
    ) -> Result<(), Error> {
        self.state.with_state(|state| label.follow(state.label()));
        write_labels(drives, &label)?;
        self.state.with_state(|state| state.set_label(label));
        Ok(())
    }

    /// Makes durable what was written outside of commits. After a failure it is unknown what is
    /// durable of anything that was written: as in a commit, the pool refuses later writes.
    pub(crate) fn flush(&mut self, drives: &mut dyn Drives) -> Result<(), Error> {
        let live: Vec<_> = self.state.with_state(|state| state.label().live().collect());
        flush_all(drives, live.into_iter()).inspect_err(|error| {
            self.state.with_state(|state| state.poison("flush", error.to_string()));
        })
    }

    /// Everything that belongs on these drives was written, as far as any drive has it: makes it
    /// durable, and then makes those that were rebuilding members again. The result is their
    /// serials.
    pub(crate) fn finish_rebuilding(
        &mut self,
        drives: &mut dyn Drives,
        complete: &[DriveIndex],
    ) -> Result<Vec<String>, Error> {
        let mut label = self.state.with_state(|state| state.label().clone());
        let mut rebuilt = Vec::new();
        for (number, drive) in (0..).map(DriveIndex).zip(&mut label.drives) {
            if drive.state == DriveState::Rebuilding && complete.contains(&number) {
                drive.state = DriveState::Member;
                rebuilt.push(drive.serial.clone());
            }
        }
        if !rebuilt.is_empty() {
            self.flush(drives)?;
            self.change_label(drives, label)?;
        }
        Ok(rebuilt)
    }
}
