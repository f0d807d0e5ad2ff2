// SPDX-License-Identifier: Apache-2.0
//! The order in which a new generation reaches the drives.
//!
//! 1. A look at one drive's root ring, which shows whether another owner writes the pool, too (see
//!    [`rival`]). Then metadata: manifests and the whole catalogue to every drive, segment tables
//!    and shard lists to the drives that were chosen for them. Data chunks were written and
//!    completed before. "Every drive" means each that the label does not call absent.
//! 2. Flush every drive. From here on everything that the new root names is durable everywhere.
//! 3. The same look again.
//! 4. The root's front copy to every drive, durable when it completes.
//! 5. The root's back copy likewise.
//!
//! Each step starts only after the step before succeeded on every drive. So a root on any drive
//! means that everything that it names is durable on all drives: one valid root is enough evidence
//! for recovery. A failed write in step 1, or a look that cannot be had, leaves the pool as it was.
//! After a failure in the other steps it is unknown what is durable, or the pool is another
//! owner's: it refuses writes until it is opened again.

use super::failure::{CommitFailure, Stage};
use super::plan::Plan;
use super::rival::{self, Known};
use crate::drives::{DriveCommand, Drives, flush_all, io_error, run_all};
use crate::error::Error;
use crate::format::Zone;
use crate::planted::{Bug, planted};
use crate::units::DriveIndex;

/// Carries out the plan.
pub(super) fn run(plan: &Plan, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
    if planted(Bug::RootFirst) {
        write_roots(plan, drives, Zone::Front)?;
    }
    look(plan, drives)?;
    write_metadata(plan, drives)?;
    if !planted(Bug::SkipFlush) {
        flush(plan, drives)?;
    }
    look(plan, drives)?;
    write_roots(plan, drives, Zone::Front)?;
    write_roots(plan, drives, Zone::Back)
}

/// Whether the pool has another owner.
fn look(plan: &Plan, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
    if !plan.is_watched {
        return Ok(());
    }
    let (next, epoch) = (plan.generation(), plan.change.root.epoch);
    let known = Known { label: &plan.label, newest: plan.before, next, epoch };
    rival::look(known, drives)
}

fn write_metadata(plan: &Plan, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
    let mut batch = Vec::new();
    for write in &plan.metadata {
        let pieces = write.pieces(plan.label.live()).into_iter();
        batch.extend(pieces.map(|(drive, offset_bytes, data)| DriveCommand::Write {
            drive,
            offset_bytes,
            data,
            durable: false,
        }));
    }
    let statuses = drives.run(&mut batch);
    let failures =
        batch.iter().zip(statuses).filter_map(|(command, s)| s.err().map(|e| (command, e)));
    let is_catalogue = |command: &DriveCommand<'_>| {
        command.offset_bytes() == plan.change.root.catalogue.offset_bytes
    };
    // What is worst comes first.
    let worst = failures.min_by_key(|(command, _)| is_catalogue(command));
    worst.map_or(Ok(()), |(command, source)| {
        let stage = if is_catalogue(command) { Stage::Catalogue } else { Stage::Metadata };
        Err(failed(plan, stage, io_error(drives, command, source)))
    })
}

fn flush(plan: &Plan, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
    flush_all(drives, plan.label.live()).map_err(|error| failed(plan, Stage::Flush, error))
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
    run_all(drives, &mut batch).map_err(|error| failed(plan, Stage::Root, error))
}

/// The failure of a step. In whatever step a drive says that it is reserved by another owner, this
/// one has lost the pool.
fn failed(plan: &Plan, stage: Stage, error: Error) -> CommitFailure {
    match error {
        Error::Io { serial, source, .. } if source.is_reservation_conflict() => {
            let detail = format!("drive {serial} is reserved by another owner ({source})");
            let error = Error::LostOwnership { pool: plan.label.pool, detail };
            CommitFailure { stage: Stage::Ownership, error }
        }
        error => CommitFailure { stage, error },
    }
}
