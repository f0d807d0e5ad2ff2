// SPDX-License-Identifier: Apache-2.0
//! Verification and repair, while the pool is used: every copy of the metadata and of the data, or
//! only what belongs on drives that are being rebuilt.
//!
//! - A checkpoint is held while it is checked, and its removal is not refused: what was removed
//!   meanwhile is left out, and the pass goes on with the next one.
//! - What was saved during the pass needs none: it was written to every drive that takes part.
//! - Memory is bounded: a buffer of chunks, a few MiB of metadata, one segment table, and lists of
//!   damage that end at a thousand entries.

mod chunk;
mod data;
mod metadata;
mod report;
mod scope;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use uuid::Uuid;

use crate::error::Error;
use crate::format::{DriveState, Label};
use crate::name::CheckpointName;
use crate::pool::handle::Pool;
use crate::pool::hold::Hold;
use crate::pool::options::PoolMode;
use crate::pool::verify::data::DataPass;
use crate::pool::verify::metadata::MetadataPass;
use crate::pool::verify::report::Tally;
use crate::pool::verify::scope::Scope;
use crate::state::{Committed, Use};
use crate::units::DriveIndex;

#[cfg(any(test, feature = "internals"))]
pub(crate) use chunk::{Begin, ChunkCheck, Step, Verdict};
#[cfg(any(test, feature = "internals"))]
pub(crate) use metadata::check_pool;
pub use report::{Filled, VerifyProgress, VerifyReport};

/// A checkpoint to check.
#[derive(Clone)]
struct Listed {
    id: Uuid,
    name: CheckpointName,
    /// Bytes of data to check, as far as they are known.
    bytes: u64,
}

impl Pool {
    /// Verifies one checkpoint, or all: every copy of its metadata and every copy of its data. With
    /// `repair`, in a pool that is open for writing, bad copies are rewritten from sound ones.
    /// Drives that were rebuilding and hold everything then become full members again.
    ///
    /// Saves, restores and removals go on meanwhile. A checkpoint that is removed is left out.
    ///
    /// # Errors
    /// When verification itself cannot continue: a drive is lost. Damage is not an error: the
    /// report names it.
    pub fn verify(
        &self,
        name: Option<&CheckpointName>,
        repair: bool,
        progress: VerifyProgress<'_>,
    ) -> Result<VerifyReport, Error> {
        let repair = repair && self.open.context.mode == PoolMode::ReadWrite;
        if let Some(name) = name {
            self.open.find(name)?;
        }
        self.check(Scope::Everything, name, repair, progress)
    }

    /// Fills the drives that are rebuilding, and makes them full members again. Reads only what
    /// belongs on them, and changes nothing else; [`Pool::verify`] with `repair` does the same and
    /// checks all the rest. If it was interrupted, the next call goes on where it ended.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; when a drive is lost. A chunk that no drive has is not an error: the
    /// report names it.
    pub fn rebuild(&self, progress: VerifyProgress<'_>) -> Result<VerifyReport, Error> {
        self.open.context.require_writable()?;
        self.check(Scope::Rebuilding, None, true, progress)
    }

    fn check(
        &self,
        scope: Scope,
        name: Option<&CheckpointName>,
        repair: bool,
        progress: VerifyProgress<'_>,
    ) -> Result<VerifyReport, Error> {
        let (label, listed) = {
            let state = self.open.context.state();
            let label = state.label().clone();
            let wanted = |c: &&Arc<Committed>| name.is_none_or(|n| c.name() == *n);
            let listed = state.checkpoints().filter(wanted);
            let listed: Vec<Listed> = listed.map(|c| list(c, &label, scope)).collect();
            (label, listed)
        };
        let total_bytes = listed.iter().map(|listed| listed.bytes).sum();
        let mut tally = Tally::new(&rebuilding(&label), total_bytes, progress);
        let mut pass = Pass {
            pool: self,
            metadata: MetadataPass::new(self, label.clone(), scope, repair),
            data: DataPass::new(self, label.clone(), scope, repair)?,
        };
        pass.metadata.check_pool(&mut tally)?;
        pass.check_all(listed, &mut tally)?;
        let complete = if repair && name.is_none() { tally.complete() } else { Vec::new() };
        let unflushed = pass.data.has_unflushed();
        let rebuilt = self.open.on_keeper(move |keeper| {
            if unflushed {
                keeper.flush()?;
            }
            keeper.finish_rebuilding(&complete)
        })??;
        Ok(tally.finish(&label, rebuilt))
    }
}

fn rebuilding(label: &Label) -> Vec<DriveIndex> {
    let is_rebuilding =
        |drive: &DriveIndex| label.drives[drive.as_usize()].state == DriveState::Rebuilding;
    label.live().filter(is_rebuilding).collect()
}

fn list(committed: &Committed, label: &Label, scope: Scope) -> Listed {
    let entry = &committed.entry;
    let bytes = match scope {
        Scope::Everything => entry.bytes * u64::from(label.copies),
        Scope::Rebuilding => {
            let drives = rebuilding(label);
            let runs = drives.iter().flat_map(|drive| &committed.holding.data[drive.as_usize()]);
            runs.map(|run| run.count).sum::<u64>() * label.layout.chunk_bytes()
        }
    };
    Listed { id: entry.id, name: committed.name(), bytes }
}

/// A pass over checkpoints.
struct Pass<'a> {
    pool: &'a Pool,
    metadata: MetadataPass<'a>,
    data: DataPass<'a>,
}

impl Pass<'_> {
    fn check_all(&mut self, listed: Vec<Listed>, tally: &mut Tally<'_>) -> Result<(), Error> {
        let mut left = listed;
        // A checkpoint that was left alone because its removal had begun is there again when that
        // failed. Each further round needs another removal.
        while !left.is_empty() {
            for listed in &left {
                match self.hold(listed)? {
                    Some(hold) => self.check_one(&Rc::new(hold), tally)?,
                    None => {
                        tally.checkpoint_removed();
                        tally.skip(listed.bytes);
                        continue;
                    }
                }
                tally.checkpoint_checked();
            }
            self.data.wait_for_all(tally)?;
            let abandoned: BTreeSet<Uuid> = self.data.take_abandoned();
            left.retain(|listed| abandoned.contains(&listed.id));
            left.iter().for_each(|_| tally.checkpoint_unchecked());
        }
        Ok(())
    }

    /// Holds the checkpoint that was listed; `None` when it is gone, even if there is another one
    /// of its name.
    fn hold(&self, listed: &Listed) -> Result<Option<Hold>, Error> {
        match self.pool.open.hold(&listed.name, Use::Inspect) {
            Ok(hold) => Ok(Some(hold).filter(|hold| hold.committed().entry.id == listed.id)),
            Err(Error::NoSuchCheckpoint(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks one checkpoint. Its last chunks may still be on their way then.
    fn check_one(&mut self, hold: &Rc<Hold>, tally: &mut Tally<'_>) -> Result<(), Error> {
        let Some(manifest) = self.metadata.check_manifest(hold, tally)? else { return Ok(()) };
        let mut first = 0;
        while first < manifest.segments.len() && hold.is_current() {
            let group = self.metadata.group_of(&manifest, first);
            first = group.end;
            let mut tables = Vec::new();
            let mut take = |table, shards| tables.push((table, shards));
            self.metadata.check_tables(hold, &manifest, group, tally, &mut take)?;
            for table in tables {
                self.data.check(hold, table, tally)?;
            }
        }
        if !hold.is_current() {
            self.data.abandon(hold);
        }
        Ok(())
    }
}
