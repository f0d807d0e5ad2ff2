// SPDX-License-Identifier: Apache-2.0
//! What is written around the generations: a new pool, a changed label, a drive that is admitted.
//!
//! A label is written last, and durably: everything that it says must hold before. A drive loses
//! its old labels first: tombstones take their places, so that a crash in the middle leaves a drive
//! that counts as blank, whatever roots are left on it.

use std::ops::Range;

use super::order;
use super::plan::Plan;
use crate::drives::{DriveCommand, Drives, flush_all, run_all};
use crate::error::{Damage, Error};
use crate::format::layout::{BACK_BYTES, FRONT_BYTES};
use crate::format::{Label, Layout, encode_tombstone};
use crate::limits::BLOCK_BYTES;
use crate::units::{DriveIndex, round_down};

/// Zeros are written in pieces of this size: each label is at the start of one.
const ERASED_BYTES: u64 = 1 << 20;

/// Writes everything that makes the drives a pool: erases old labels, makes the first generation
/// durable like every later one, and writes the new labels last.
pub(crate) fn make_pool(drives: &mut dyn Drives, label: &Label) -> Result<(), Error> {
    erase(drives, label, &label.live().collect::<Vec<_>>())?;
    order::run(&Plan::first(label), drives).map_err(|failure| failure.error)?;
    write_labels(drives, label)
}

/// Admits the drive at `place`, which the label calls rebuilding. A drive that takes part must hold
/// no roots of an earlier time, so they are erased before the label names the drive. Only the
/// drives that are there get the label; the others keep their places, and an older label.
pub(crate) fn take_in(
    drives: &mut dyn Drives,
    label: &Label,
    place: DriveIndex,
    there: &[DriveIndex],
) -> Result<(), Error> {
    label.check().map_err(impossible)?;
    erase(drives, label, &[place])?;
    write_labels_to(drives, label, there)
}

/// Writes the label to every drive that takes part, durably. The first copy is written last: a
/// drive whose first copy can be read has all of them. A label that changes the membership follows
/// the one before ([`Label::follow`]).
pub(crate) fn write_labels(drives: &mut dyn Drives, label: &Label) -> Result<(), Error> {
    write_labels_to(drives, label, &label.live().collect::<Vec<_>>())
}

fn write_labels_to(
    drives: &mut dyn Drives,
    label: &Label,
    which: &[DriveIndex],
) -> Result<(), Error> {
    label.check().map_err(impossible)?;
    for &index in which {
        let own = Label { index, ..label.clone() };
        for offset_bytes in Layout::label_offsets(own.drive().capacity_bytes).into_iter().rev() {
            write_durable(drives, index, offset_bytes, &own.encode(offset_bytes))?;
        }
    }
    flush_all(drives, which.iter().copied())
}

/// Removes old labels first, then everything else that a reader could take for a label, ours or
/// another system's. The label may give a drive less room than it has: what another pool left at
/// its real end is removed, too. The tombstones at the front stay until the new label.
fn erase(drives: &mut dyn Drives, label: &Label, which: &[DriveIndex]) -> Result<(), Error> {
    for &drive in which {
        let ends = ends_of(drives, label, drive);
        for offset_bytes in ends.iter().flat_map(|end| Layout::label_offsets(*end)) {
            let tombstone = encode_tombstone(label.pool, offset_bytes);
            write_durable(drives, drive, offset_bytes, &tombstone)?;
        }
    }
    let zeros = vec![0; ERASED_BYTES as usize];
    let mut batch = Vec::new();
    for &drive in which {
        let formatted_bytes = label.drives[drive.as_usize()].capacity_bytes;
        for range in ends(drives.info()[drive.as_usize()].capacity_bytes, formatted_bytes) {
            let starts = range.clone().step_by(zeros.len());
            batch.extend(starts.map(|start| {
                let is_tombstone = Layout::front_label_offsets().contains(&start);
                let offset_bytes = if is_tombstone { start + BLOCK_BYTES } else { start };
                let end = range.end.min(start + ERASED_BYTES);
                let data = &zeros[..(end - offset_bytes) as usize];
                DriveCommand::Write { drive, offset_bytes, data, durable: false }
            }));
        }
    }
    run_all(drives, &mut batch)?;
    flush_all(drives, which.iter().copied())
}

/// The end of a drive by its label, and its real end.
fn ends_of(drives: &dyn Drives, label: &Label, drive: DriveIndex) -> Vec<u64> {
    let labelled_bytes = label.drives[drive.as_usize()].capacity_bytes;
    let real_bytes = drives.info()[drive.as_usize()].capacity_bytes;
    if real_bytes > labelled_bytes {
        vec![labelled_bytes, real_bytes]
    } else {
        vec![labelled_bytes]
    }
}

/// The error of a label that no reader would accept: a forged one came before it.
fn impossible(detail: String) -> Error {
    Error::from(Damage {
        what: "label",
        serial: String::new(),
        offset_bytes: None,
        checkpoint: None,
        shard: None,
        generation: None,
        detail: format!("no label can follow: {detail}"),
    })
}

/// What is erased: the front up to the catalogue slots, and the back from the root ring on, both at
/// the end that the pool will know and at the drive's own, which may lie behind it: there, labels
/// of an earlier pool and RAIDs are sought.
fn ends(capacity_bytes: u64, formatted_bytes: u64) -> Vec<Range<u64>> {
    let start = |end| round_down(end, ERASED_BYTES) - BACK_BYTES;
    let mut ranges = vec![0..FRONT_BYTES, start(formatted_bytes)..formatted_bytes];
    if capacity_bytes > formatted_bytes {
        ranges.push(start(capacity_bytes).max(formatted_bytes)..capacity_bytes);
    }
    ranges
}

fn write_durable(
    drives: &mut dyn Drives,
    drive: DriveIndex,
    offset_bytes: u64,
    data: &[u8],
) -> Result<(), Error> {
    run_all(drives, &mut [DriveCommand::Write { drive, offset_bytes, data, durable: true }])
}
