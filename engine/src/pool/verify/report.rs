// SPDX-License-Identifier: Apache-2.0
//! What a verification reports, during and after it.
//!
//! Each damage is in exactly one list: not repaired, or repaired. The lists are bounded, the counts
//! are not: a pool may be larger than memory, and all of it may be damaged.

use std::collections::BTreeMap;

use crate::error::Damage;
use crate::format::Label;
use crate::notice::Notice;
use crate::units::DriveIndex;

/// Called regularly with the bytes of data checked so far and the bytes to check in total. The
/// total falls when checkpoints are removed meanwhile.
pub type VerifyProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Damages that each list names; more are only counted.
const MAX_LISTED: usize = 1000;

/// The result of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Checkpoints checked.
    pub checkpoints: usize,
    /// Checkpoints that were there at the start and were removed before they were checked.
    pub removed: usize,
    /// Bytes of data whose checksum was compared; each copy counts.
    pub data_bytes: u64,
    /// Copies of metadata objects checked.
    pub metadata_copies: u64,
    /// Damage that was not repaired: the first thousand.
    pub damages: Vec<Damage>,
    /// How many there are.
    pub damage_count: u64,
    /// Damage that was repaired: the first thousand. What was written to drives that were
    /// rebuilding is in `filled`.
    pub repaired: Vec<Damage>,
    /// How many there are.
    pub repaired_count: u64,
    /// What was written to each drive that was rebuilding.
    pub filled: Vec<Filled>,
    /// Serials of drives that were rebuilding and hold everything now.
    pub rebuilt: Vec<String>,
}

/// What was written to a drive that was rebuilding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filled {
    /// The drive's serial.
    pub serial: String,
    /// Copies of metadata, and chunks of data.
    pub ranges: u64,
    /// Bytes of data.
    pub data_bytes: u64,
}

impl VerifyReport {
    /// Whether no damage remains.
    pub fn is_clean(&self) -> bool {
        self.damage_count == 0
    }

    fn damaged(&mut self, damage: Damage) {
        self.damage_count += 1;
        if self.damages.len() < MAX_LISTED {
            self.damages.push(damage);
        }
    }

    fn repaired(&mut self, damage: Damage) {
        self.repaired_count += 1;
        if self.repaired.len() < MAX_LISTED {
            self.repaired.push(damage);
        }
    }
}

/// A drive that is being rebuilt, so far.
#[derive(Clone, Copy, Default)]
struct Filling {
    ranges: u64,
    data_bytes: u64,
    /// Something that belongs on it is missing, and another drive may have it.
    incomplete: bool,
}

/// The report while the pass runs, and its progress.
pub(super) struct Tally<'a> {
    report: VerifyReport,
    progress: VerifyProgress<'a>,
    done_bytes: u64,
    total_bytes: u64,
    filling: BTreeMap<DriveIndex, Filling>,
}

impl<'a> Tally<'a> {
    /// For drives that are being rebuilt, and this much data.
    pub(super) fn new(
        rebuilding: &[DriveIndex],
        total_bytes: u64,
        progress: VerifyProgress<'a>,
    ) -> Tally<'a> {
        let filling = rebuilding.iter().map(|drive| (*drive, Filling::default())).collect();
        Tally { report: VerifyReport::default(), progress, done_bytes: 0, total_bytes, filling }
    }

    /// Reports the progress.
    pub(super) fn tick(&mut self) {
        (self.progress)(self.done_bytes, self.total_bytes);
    }

    /// So much is done.
    pub(super) fn done(&mut self, bytes: u64) {
        self.done_bytes += bytes;
    }

    /// So much need not be done.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.total_bytes = self.total_bytes.saturating_sub(bytes).max(self.done_bytes);
    }

    pub(super) fn checkpoint_checked(&mut self) {
        self.report.checkpoints += 1;
    }

    /// It was not checked after all.
    pub(super) fn checkpoint_unchecked(&mut self) {
        self.report.checkpoints -= 1;
    }

    pub(super) fn checkpoint_removed(&mut self) {
        self.report.removed += 1;
    }

    /// One copy of a chunk has the right checksum.
    pub(super) fn compared(&mut self, bytes: u64) {
        self.report.data_bytes += bytes;
    }

    /// So many copies of metadata were read.
    pub(super) fn metadata_read(&mut self, copies: usize) {
        self.report.metadata_copies += copies as u64;
    }

    pub(super) fn damaged(&mut self, damage: Damage) {
        self.report.damaged(damage);
    }

    /// A bad copy on this drive was rewritten. On a drive that is being rebuilt it was missing, not
    /// bad.
    pub(super) fn rewritten(&mut self, drive: DriveIndex, data_bytes: u64, damage: Option<Damage>) {
        match (self.filling.get_mut(&drive), damage) {
            (Some(filling), _) => {
                filling.ranges += 1;
                filling.data_bytes += data_bytes;
            }
            (None, Some(damage)) => self.report.repaired(damage),
            (None, None) => {}
        }
    }

    /// Something that belongs on this drive could not be read now, or not be written to it.
    pub(super) fn incomplete(&mut self, drive: DriveIndex) {
        if let Some(filling) = self.filling.get_mut(&drive) {
            filling.incomplete = true;
        }
    }

    /// The same for every drive that is being rebuilt.
    pub(super) fn all_incomplete(&mut self) {
        self.filling.values_mut().for_each(|filling| filling.incomplete = true);
    }

    /// Drives that were being rebuilt and lack nothing that any drive has.
    pub(super) fn complete(&self) -> Vec<DriveIndex> {
        let complete = self.filling.iter().filter(|(_, filling)| !filling.incomplete);
        complete.map(|(drive, _)| *drive).collect()
    }

    pub(super) fn take_notices(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Repaired(damage) => self.report.repaired(damage),
                Notice::DamagedCopy(damage) | Notice::Unusable(damage) => {
                    self.report.damaged(damage);
                }
                _ => {}
            }
        }
    }

    /// The report. `rebuilt` are the serials of drives that are members again.
    pub(super) fn finish(mut self, label: &Label, rebuilt: Vec<String>) -> VerifyReport {
        self.tick();
        let filled = self.filling.iter().filter(|(_, filling)| filling.ranges > 0);
        self.report.filled = filled
            .map(|(drive, filling)| Filled {
                serial: label.drives[drive.as_usize()].serial.clone(),
                ranges: filling.ranges,
                data_bytes: filling.data_bytes,
            })
            .collect();
        self.report.rebuilt = rebuilt;
        self.report
    }
}
