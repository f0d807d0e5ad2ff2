// SPDX-License-Identifier: Apache-2.0
//! An open pool as its handle and its sessions use it: its context, and access to its keeper.
//!
//! The pool and each of its sessions hold it. When the last of them is dropped, the threads finish
//! everything in flight and end, the drives are closed, and then the pool's lock is released.

use std::sync::Arc;

use crate::drives::Drives;
use crate::error::{Error, ErrorKind};
use crate::format::{CatalogueEntry, Label, SegmentRef, SegmentTable, Shard};
use crate::host::lock::PoolLock;
use crate::name::CheckpointName;
use crate::pool::context::PoolContext;
use crate::pool::hold::Hold;
use crate::pool::keeper::{Call, Keeper};
use crate::pool::options::PoolMode;
use crate::pool::ownership::Ownership;
use crate::pool::threads::Threads;
use crate::recover::{currency, metadata};
use crate::state::{Committed, NotHeld, Use};

/// An open pool. The fields drop in this order: the threads own the drives; the lock is released
/// last.
pub(crate) struct OpenPool {
    pub(crate) context: Arc<PoolContext>,
    threads: Threads,
    _held: Option<Held>,
}

/// What keeps other owners out of a pool that is open for writing.
pub(super) struct Held {
    pub(super) ownership: Ownership,
    pub(super) _lock: Option<PoolLock>,
}

impl OpenPool {
    pub(super) fn new(context: Arc<PoolContext>, threads: Threads, held: Option<Held>) -> OpenPool {
        OpenPool { context, threads, _held: held }
    }

    /// Runs `work` on the keeper's thread and waits for what it returns.
    pub(crate) fn on_keeper<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Keeper) -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.threads.keeper().ask(|answer| {
            Call::Run(Box::new(move |keeper| {
                // Sending the answer fails only when the asking thread has ended.
                let _ = answer.send(work(keeper));
            }))
        })
    }

    /// Sends the keeper a call; an error when the keeper has ended.
    pub(crate) fn send_to_keeper(&self, call: Call) -> Result<(), Error> {
        self.threads.keeper().send(call)
    }

    /// Holds a checkpoint. While it is being removed this waits until that is decided.
    pub(crate) fn hold(&self, name: &CheckpointName, what: Use) -> Result<Hold, Error> {
        loop {
            match Hold::try_new(&self.context, name, what) {
                Ok(hold) => return Ok(hold),
                Err(NotHeld::NoSuchCheckpoint) => {
                    return Err(Error::NoSuchCheckpoint(name.to_string()));
                }
                // The keeper removes; it takes this call when the removal has ended.
                Err(NotHeld::BeingRemoved) => self.on_keeper(|_| ())?,
            }
        }
    }

    /// The committed checkpoint of this name. To read what it names, hold it instead.
    pub(crate) fn find(&self, name: &CheckpointName) -> Result<Arc<Committed>, Error> {
        let found = self.context.state().find(name).cloned();
        found.ok_or_else(|| Error::NoSuchCheckpoint(name.to_string()))
    }

    /// Reads a participant's segment table from any drive that has a sound copy.
    pub(crate) fn read_segment_table(
        &self,
        hold: &Hold,
        participant: u32,
    ) -> Result<SegmentTable, Error> {
        self.read_segment(hold, participant, read_table)
    }

    /// The same, with the shards of the segment.
    pub(crate) fn read_segment_and_shards(
        &self,
        hold: &Hold,
        participant: u32,
    ) -> Result<(SegmentTable, Vec<Shard>), Error> {
        self.read_segment(hold, participant, |drives, label, entry, segment, participant| {
            let table = read_table(drives, label, entry, segment, participant)?;
            Ok((table, read_shards(drives, label, entry, segment, participant)?))
        })
    }

    /// Reads the shards of a participant's segment from any drive that has a sound copy.
    pub(crate) fn read_shards(&self, hold: &Hold, participant: u32) -> Result<Vec<Shard>, Error> {
        self.read_segment(hold, participant, read_shards)
    }

    /// Reads what describes a participant's segment, on the keeper's thread.
    fn read_segment<T: Send + 'static>(
        &self,
        hold: &Hold,
        participant: u32,
        read: impl FnOnce(
            &mut dyn Drives,
            &Label,
            &CatalogueEntry,
            &SegmentRef,
            u32,
        ) -> Result<T, Error>
        + Send
        + 'static,
    ) -> Result<T, Error> {
        let entry = hold.committed().entry.clone();
        let label = self.context.state().label().clone();
        let described = self.on_keeper(move |keeper: &mut Keeper| {
            let drives = keeper.drives();
            let found = metadata::read_manifest(drives, &label, &entry, participant as usize);
            let manifest = metadata::sound(found, &metadata::manifest_subject(&entry))?;
            let Some(segment) = manifest.segments.get(participant as usize) else {
                return Err(Error::Usage(format!(
                    "{}@{} has {} participants; there is no participant {participant}",
                    entry.name,
                    entry.step,
                    manifest.segments.len()
                )));
            };
            read(drives, &label, &entry, segment, participant)
        })?;
        described.map_err(|error| self.or_stale(hold.committed(), error))
    }

    /// Fails with [`Error::Stale`] when the checkpoint's owner, another process, has removed it so
    /// long ago that what was read of it before may be something else's. Where this process is the
    /// owner, it removes nothing that is being read.
    pub(crate) fn require_current(&self, committed: &Committed) -> Result<(), Error> {
        if self.context.mode == PoolMode::ReadWrite {
            return Ok(());
        }
        let entry = committed.entry.clone();
        let (label, root) = {
            let state = self.context.state();
            (state.label().clone(), state.root().clone())
        };
        let is_current = self.on_keeper(move |keeper: &mut Keeper| {
            currency::is_current(keeper.drives(), &label, &root, &entry)
        })??;
        if is_current { Ok(()) } else { Err(Error::Stale(committed.name().to_string())) }
    }

    /// Damage that a reader finds in what another process removed meanwhile is none.
    pub(crate) fn or_stale(&self, committed: &Committed, error: Error) -> Error {
        if error.kind() != ErrorKind::Damaged {
            return error;
        }
        match self.require_current(committed) {
            Err(stale @ Error::Stale(_)) => stale,
            _ => error,
        }
    }
}

fn read_table(
    drives: &mut dyn Drives,
    label: &Label,
    entry: &CatalogueEntry,
    segment: &SegmentRef,
    participant: u32,
) -> Result<SegmentTable, Error> {
    let found = metadata::read_table(drives, label, entry, segment, participant);
    metadata::sound(found, &metadata::table_subject(entry))
}

fn read_shards(
    drives: &mut dyn Drives,
    label: &Label,
    entry: &CatalogueEntry,
    segment: &SegmentRef,
    participant: u32,
) -> Result<Vec<Shard>, Error> {
    let found = metadata::read_list(drives, label, entry, segment, participant);
    metadata::sound(found, &metadata::list_subject(entry)).map(|list| list.shards)
}
