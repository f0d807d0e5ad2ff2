// SPDX-License-Identifier: Apache-2.0
//! The labels of a drive: reading them, and repairing their copies.
//!
//! - Every format and every admission writes the front copies, at places that do not depend on the
//!   drive's size. So they say which pool a drive belongs to; a label that an earlier pool left at
//!   the drive's end does not.
//! - The copies at the end are counted back from the capacity in the label. On a drive that has
//!   grown they are not at its end, and the drive itself does not say where; the labels of the
//!   pool's other drives do.

use crate::drive_info::DriveInfo;
use crate::drives::{DriveCommand, Drives, read_error};
use crate::error::{Damage, Error, IoError};
use crate::format::layout::MIN_DRIVE_BYTES;
use crate::format::{FormatError, Label, Layout};
use crate::limits::BLOCK_BYTES;
use crate::notice::Notice;
use crate::recover::unlabelled::{has_tombstone, leftover};
use crate::units::DriveIndex;

/// The labels that were read from one drive.
#[derive(Clone, Debug)]
pub(crate) struct DriveLabels {
    /// The sound label.
    pub(crate) label: Label,
    /// Copies that differ from it.
    pub(crate) bad: Vec<BadLabel>,
    /// An open pool says that this is the label; otherwise a copy that cannot be read may be newer.
    is_certain: bool,
}

/// A copy of a label that is not what it should be.
#[derive(Clone, Debug)]
pub(crate) struct BadLabel {
    pub(crate) offset_bytes: u64,
    pub(crate) damage: Damage,
    /// The read failed with this error; there may be a sound label.
    pub(crate) unread: Option<IoError>,
}

/// What one place for a label holds.
struct Copy {
    offset_bytes: u64,
    found: Result<Label, Wrong>,
}

/// Why a place holds no label.
#[derive(Clone)]
enum Wrong {
    Unread(IoError),
    Format(FormatError),
}

impl Wrong {
    fn detail(&self) -> String {
        match self {
            Wrong::Unread(error) => error.to_string(),
            Wrong::Format(error) => error.to_string(),
        }
    }
}

/// Reads the labels of the drive at `index`.
///
/// # Errors
/// [`Error::Io`] when there may be a label that could not be read; otherwise the reason why the
/// label is not valid.
pub(crate) fn read_labels(drives: &mut dyn Drives, index: usize) -> Result<DriveLabels, Error> {
    read_labels_of(drives, index, &[])
}

/// The same, for a drive that may have had one of these capacities when it was formatted.
pub(crate) fn read_labels_of(
    drives: &mut dyn Drives,
    index: usize,
    capacities_bytes: &[u64],
) -> Result<DriveLabels, Error> {
    let info = drives.info()[index].clone();
    let mut offsets = offsets_of(info.capacity_bytes, info.capacity_bytes);
    for earlier in capacities_bytes {
        offsets.extend(offsets_of(*earlier, info.capacity_bytes));
    }
    offsets.sort_unstable();
    offsets.dedup();
    let mut copies = read_copies(drives, index, &offsets);
    let Some(label) = sound(&info, &copies)? else {
        return Err(no_label(drives, index, &copies));
    };
    let expected_bytes = label.drive().capacity_bytes;
    if info.capacity_bytes < expected_bytes {
        let (address, serial) = (info.address, label.drive().serial.clone());
        let actual_bytes = info.capacity_bytes;
        return Err(Error::ShortDrive { address, serial, actual_bytes, expected_bytes });
    }
    // A drive that grew has its last copies elsewhere.
    let own = Layout::label_offsets(expected_bytes);
    let elsewhere: Vec<u64> = own.into_iter().filter(|at| !offsets.contains(at)).collect();
    copies.extend(read_copies(drives, index, &elsewhere));
    copies.retain(|copy| own.contains(&copy.offset_bytes));
    let Some(label) = sound(&info, &copies)? else {
        return Err(no_label(drives, index, &copies));
    };
    let bad = copies.into_iter().filter_map(|copy| bad_copy(&label, copy)).collect();
    Ok(DriveLabels { label, bad, is_certain: false })
}

/// Compares every copy of the label of a drive that takes part with what it must be.
pub(crate) fn check_labels(
    drives: &mut dyn Drives,
    label: &Label,
    drive: DriveIndex,
) -> DriveLabels {
    let label = Label { index: drive, ..label.clone() };
    let offsets = Layout::label_offsets(label.drive().capacity_bytes);
    let copies = read_copies(drives, drive.as_usize(), &offsets);
    let bad = copies.into_iter().filter_map(|copy| bad_copy(&label, copy)).collect();
    DriveLabels { label, bad, is_certain: true }
}

/// The places of the labels that a drive of one capacity has, as far as they are on a drive of the
/// other.
fn offsets_of(labelled_bytes: u64, capacity_bytes: u64) -> Vec<u64> {
    let mut offsets = Layout::front_label_offsets().to_vec();
    if labelled_bytes >= MIN_DRIVE_BYTES {
        offsets.extend(Layout::label_offsets(labelled_bytes));
    }
    offsets.retain(|at| at.checked_add(BLOCK_BYTES).is_some_and(|end| end <= capacity_bytes));
    offsets
}

fn read_copies(drives: &mut dyn Drives, index: usize, offsets: &[u64]) -> Vec<Copy> {
    let drive = DriveIndex(index as u16);
    let mut blocks = vec![vec![0; BLOCK_BYTES as usize]; offsets.len()];
    let mut batch: Vec<_> = blocks
        .iter_mut()
        .zip(offsets)
        .map(|(into, offset)| DriveCommand::Read { drive, offset_bytes: *offset, into })
        .collect();
    let statuses = drives.run(&mut batch);
    drop(batch);
    let copy = |((offset, block), status): ((&u64, &Vec<u8>), Result<(), IoError>)| Copy {
        offset_bytes: *offset,
        found: status
            .map_err(Wrong::Unread)
            .and_then(|()| Label::decode(block, *offset).map_err(Wrong::Format)),
    };
    offsets.iter().zip(&blocks).zip(statuses).map(copy).collect()
}

/// The newest of the copies that are sound and in places of their own.
fn sound(info: &DriveInfo, copies: &[Copy]) -> Result<Option<Label>, Error> {
    let in_place = |copy: &&Copy| match &copy.found {
        Ok(label) => {
            Layout::label_offsets(label.drive().capacity_bytes).contains(&copy.offset_bytes)
        }
        Err(_) => false,
    };
    let front = |copy: &&&Copy| Layout::front_label_offsets().contains(&copy.offset_bytes);
    let sound: Vec<&Copy> = copies.iter().filter(in_place).collect();
    let any_front = sound.iter().any(|copy| front(&copy));
    let newest = sound
        .iter()
        .filter(|copy| !any_front || front(copy))
        .filter_map(|copy| copy.found.as_ref().ok())
        .max_by_key(|label| label.epoch);
    let Some(newest) = newest else { return Ok(None) };
    // Copies at the end of a drive of another capacity were left by another pool.
    let own = Layout::label_offsets(newest.drive().capacity_bytes);
    let mut newest = newest;
    for copy in sound.iter().filter(|copy| own.contains(&copy.offset_bytes)) {
        let Ok(label) = &copy.found else { continue };
        if label.pool != newest.pool {
            let detail = format!(
                "it names pool {}, and another copy on this drive names pool {}",
                label.pool, newest.pool
            );
            return Err(label_damage(&info.serial, copy.offset_bytes, detail).into());
        }
        if label.epoch > newest.epoch {
            newest = label;
        }
        if label.epoch == newest.epoch && label != newest {
            let detail = "it differs from another copy of the same epoch on this drive";
            return Err(label_damage(&info.serial, copy.offset_bytes, detail.into()).into());
        }
    }
    Ok(Some(newest.clone()))
}

fn bad_copy(label: &Label, copy: Copy) -> Option<BadLabel> {
    let (detail, unread) = match copy.found {
        Ok(found) if found == *label => return None,
        Ok(found) if found.pool != label.pool => (format!("of pool {}", found.pool), None),
        Ok(found) if found.epoch < label.epoch => ("of an older epoch".to_owned(), None),
        Ok(_) => ("it is not the label of this drive".to_owned(), None),
        Err(Wrong::Unread(error)) => (error.to_string(), Some(error)),
        Err(wrong) => (wrong.detail(), None),
    };
    let damage = label_damage(&label.drive().serial, copy.offset_bytes, detail);
    Some(BadLabel { offset_bytes: copy.offset_bytes, damage, unread })
}

fn label_damage(serial: &str, offset_bytes: u64, detail: String) -> Damage {
    Damage {
        what: "label",
        serial: serial.to_owned(),
        offset_bytes: Some(offset_bytes),
        checkpoint: None,
        shard: None,
        generation: None,
        detail,
    }
}

/// The error for a drive without a sound label.
fn no_label(drives: &mut dyn Drives, index: usize, copies: &[Copy]) -> Error {
    let DriveInfo { address, serial, .. } = drives.info()[index].clone();
    let drive = DriveIndex(index as u16);
    let (mut unread, mut corrupt) = (None, None);
    for copy in copies {
        match &copy.found {
            Ok(_) | Err(Wrong::Format(FormatError::Blank | FormatError::NotOurs)) => {}
            Err(Wrong::Format(FormatError::Newer { found, supported })) => {
                let (found, supported) = (found.clone(), supported.clone());
                return Error::NewerFormat { address, serial, found, supported };
            }
            Err(Wrong::Format(FormatError::Older { found, supported })) => {
                let (found, supported) = (found.clone(), supported.clone());
                return Error::OlderFormat { address, serial, found, supported };
            }
            Err(Wrong::Unread(error)) if !error.is_damage() => {
                unread.get_or_insert((copy.offset_bytes, *error));
            }
            Err(wrong) => {
                corrupt.get_or_insert((copy.offset_bytes, wrong.detail()));
            }
        }
    }
    if let Some((offset, error)) = unread {
        return read_error(drives, drive, offset, error);
    }
    if let Some((offset, detail)) = corrupt {
        // The last old label and the first new one are written while tombstones are in the front:
        // torn by a crash, they are no damage.
        return match has_tombstone(drives, index) {
            Ok(true) => Error::NotFormatted { address, serial },
            Ok(false) => label_damage(&serial, offset, detail).into(),
            Err(error) => error,
        };
    }
    match leftover(drives, index) {
        Ok(None) => Error::NotFormatted { address, serial },
        Ok(Some(left)) => {
            let detail = format!(
                "no copy of the label is there, but the drive holds roots of pool {}: name the \
                 pool's other drives, too; do not format it",
                left.pool
            );
            label_damage(&serial, Layout::front_label_offsets()[0], detail).into()
        }
        Err(error) => error,
    }
}

/// Rewrites bad label copies from the sound one, if that is allowed. A copy that could not be read
/// may be a newer label: it is only rewritten where an open pool knows the label, or the drive says
/// that its bytes are lost.
pub(crate) fn repair_labels(
    drives: &mut dyn Drives,
    labels: &[Option<DriveLabels>],
    repair: bool,
) -> Vec<Notice> {
    let mut notices = Vec::new();
    for (index, labels) in labels.iter().enumerate() {
        let Some(labels) = labels else { continue };
        for bad in &labels.bad {
            let may_write = labels.is_certain || bad.unread.is_none_or(IoError::is_damage);
            let block = labels.label.encode(bad.offset_bytes);
            let (drive, offset_bytes) = (DriveIndex(index as u16), bad.offset_bytes);
            let mut batch =
                [DriveCommand::Write { drive, offset_bytes, data: &block, durable: true }];
            // A block that cannot be written must not keep the pool from being opened.
            let repaired = repair && may_write && drives.run(&mut batch).remove(0).is_ok();
            let damage = bad.damage.clone();
            notices.push(match repaired {
                true => Notice::Repaired(damage),
                false => Notice::DamagedCopy(damage),
            });
        }
    }
    notices
}
