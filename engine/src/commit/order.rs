// SPDX-License-Identifier: Apache-2.0
//! The order in which a new generation reaches the drives.
//!
//! 1. Metadata (segment tables, manifests, the whole catalogue) to every drive. Data chunks were
//!    written and completed before. "Every drive" means each that the label does not call absent.
//! 2. Flush every drive. From here on everything that the new root names is durable everywhere.
//! 3. The root's front copy to every drive, durable when it completes.
//! 4. The root's back copy likewise.
//!
//! Each step starts only after the step before succeeded on every drive. So a root on any drive
//! means that everything that it names is durable on all drives: one valid root is enough evidence
//! for recovery. A failure in step 1 leaves the pool as it was. After a failure in steps 2 to 4 it
//! is unknown what is durable: the pool refuses writes until it is opened again.

use super::plan::Plan;
use crate::drives::{DriveCommand, Drives, flush_all, io_error, run_all};
use crate::error::{Error, IoError};
use crate::format::Zone;
use crate::planted::{Bug, planted};
use crate::units::DriveIndex;

/// The step of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Metadata,
    /// Of the metadata, only the catalogue could not be written.
    Catalogue,
    Flush,
    Root,
}

/// A commit that failed.
#[derive(Debug)]
pub(super) struct CommitFailure {
    pub(super) stage: Stage,
    pub(super) error: Error,
}

impl CommitFailure {
    /// Whether the next generation, whose catalogue and roots lie elsewhere, may succeed where this
    /// one failed. After a root write that holds only for the generation that an opening makes: it
    /// has the same checkpoints as the one before, so it does not matter which of the two is found.
    pub(super) fn is_of_one_place(&self, is_opening: bool) -> bool {
        let is_gone = matches!(self.error, Error::Io { source: IoError::Removed, .. });
        match self.stage {
            Stage::Catalogue => !is_gone,
            Stage::Root => is_opening && !is_gone,
            Stage::Metadata | Stage::Flush => false,
        }
    }

    /// The reason to poison the pool; `None` when the failure left it as it was.
    pub(super) fn poison(&self) -> Option<&'static str> {
        match self.stage {
            Stage::Metadata | Stage::Catalogue => None,
            Stage::Flush => Some("flush"),
            Stage::Root => Some("root write"),
        }
    }
}

/// Carries out the plan.
pub(super) fn run(plan: &Plan, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
    if planted(Bug::RootFirst) {
        write_roots(plan, drives, Zone::Front)?;
    }
    write_metadata(plan, drives)?;
    if !planted(Bug::SkipFlush) {
        flush(plan, drives)?;
    }
    write_roots(plan, drives, Zone::Front)?;
    write_roots(plan, drives, Zone::Back)
}

fn write_metadata(plan: &Plan, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
    let mut batch = Vec::new();
    for write in &plan.metadata {
        batch.extend(plan.label.live().map(|drive| DriveCommand::Write {
            drive,
            offset_bytes: write.offset_bytes,
            data: &write.bytes,
            durable: false,
        }));
    }
    let statuses = drives.run(&mut batch);
    let failed =
        batch.iter().zip(statuses).filter_map(|(command, s)| s.err().map(|e| (command, e)));
    let is_catalogue = |command: &DriveCommand<'_>| {
        command.offset_bytes() == plan.change.root.catalogue.offset_bytes
    };
    // What is worst comes first.
    let worst = failed.min_by_key(|(command, _)| is_catalogue(command));
    worst.map_or(Ok(()), |(command, source)| {
        let stage = if is_catalogue(command) { Stage::Catalogue } else { Stage::Metadata };
        Err(CommitFailure { stage, error: io_error(drives, command, source) })
    })
}

fn flush(plan: &Plan, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
    flush_all(drives, plan.label.live())
        .map_err(|error| CommitFailure { stage: Stage::Flush, error })
}

fn write_roots(plan: &Plan, drives: &mut dyn Drives, zone: Zone) -> Result<(), CommitFailure> {
    let roots: Vec<(DriveIndex, u64, Vec<u8>)> = plan
        .label
        .live()
        .map(|index| {
            let drive = &plan.label.drives[index.as_usize()];
            let layout = &plan.label.layout;
            let generation = plan.generation();
            let offset = layout.root_offset(zone, generation, drive.capacity_bytes);
            (index, offset, plan.change.root.encode(drive.uuid, offset))
        })
        .collect();
    let mut batch: Vec<_> = roots
        .iter()
        .map(|(drive, offset_bytes, data)| DriveCommand::Write {
            drive: *drive,
            offset_bytes: *offset_bytes,
            data,
            durable: true,
        })
        .collect();
    run_all(drives, &mut batch).map_err(|error| CommitFailure { stage: Stage::Root, error })
}
