// SPDX-License-Identifier: Apache-2.0
//! What one drive says of its pool, without the others: each has every root and every catalogue.

use crate::drive_info::DriveInfo;
use crate::drives::{DriveCommand, Drives};
use crate::error::IoError;
use crate::format::{DriveEntry, DriveState, Label, Root};
use crate::recover::labels::read_labels;
use crate::recover::newest::choose_generation;
use crate::recover::roots::read_roots;
use crate::units::DriveIndex;

/// The newest root on the drive at `index`, if it is a drive of a pool.
pub(crate) fn newest_root(drives: &mut dyn Drives, index: usize) -> Option<Root> {
    let alone = alone(&read_labels(drives, index).ok()?.label);
    let roots = read_roots(&mut OneDrive { drives, index }, &alone).ok()?;
    roots.newest().cloned()
}

/// How many checkpoints the pool of the drive at `index` has.
pub(crate) fn count_checkpoints(
    drives: &mut dyn Drives,
    index: usize,
    label: &Label,
) -> Option<usize> {
    let alone = alone(label);
    let mut only = OneDrive { drives, index };
    let roots = read_roots(&mut only, &alone).ok()?;
    let newest = choose_generation(&mut only, &alone, &roots).ok()?;
    // The newest generation may hold more than this one.
    newest.given_up.is_none().then_some(newest.catalogue.entries.len())
}

/// A pool of the label's own drive only.
fn alone(label: &Label) -> Label {
    let entry = DriveEntry { state: DriveState::Member, ..label.drive().clone() };
    let (drives, index) = (vec![entry], DriveIndex(0));
    Label { copies: 1, table_copies: 1, drives, index, ..label.clone() }
}

/// One of several drives, as drive 0.
struct OneDrive<'a> {
    drives: &'a mut dyn Drives,
    index: usize,
}

impl Drives for OneDrive<'_> {
    fn info(&self) -> &[DriveInfo] {
        &self.drives.info()[self.index..=self.index]
    }

    fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), IoError>> {
        for command in batch.iter_mut() {
            let (DriveCommand::Read { drive, .. }
            | DriveCommand::Write { drive, .. }
            | DriveCommand::Flush { drive }) = command;
            *drive = DriveIndex(self.index as u16);
        }
        self.drives.run(batch)
    }
}
