// SPDX-License-Identifier: Apache-2.0
//! The labels of a drive: reading them, and repairing their copies.

use crate::drive_info::DriveInfo;
use crate::drives::{DriveCommand, Drives, read_error, run_all};
use crate::error::{Damage, Error};
use crate::format::{FormatError, Label, Layout};
use crate::limits::BLOCK_BYTES;
use crate::notice::Notice;
use crate::units::DriveIndex;

/// The labels that were read from one drive.
#[derive(Debug)]
pub(crate) struct DriveLabels {
    /// The sound label.
    pub(crate) label: Label,
    /// Copies that differ from it.
    pub(crate) bad: Vec<(u64, Damage)>,
}

/// Reads the labels of the drive at `index`.
///
/// # Errors
/// [`Error::Io`] when there may be a label that could not be read; otherwise the reason why the
/// label is not valid.
pub(crate) fn read_labels(drives: &mut dyn Drives, index: usize) -> Result<DriveLabels, Error> {
    let info = drives.info()[index].clone();
    let drive = DriveIndex(index as u16);
    let offsets = label_offsets_of(info.capacity_bytes);
    let mut blocks = vec![vec![0; BLOCK_BYTES as usize]; offsets.len()];
    let mut batch: Vec<_> = blocks
        .iter_mut()
        .zip(&offsets)
        .map(|(into, offset)| DriveCommand::Read { drive, offset_bytes: *offset, into })
        .collect();
    let statuses = drives.run(&mut batch);
    drop(batch);
    let mut sound: Option<Label> = None;
    let mut wrong: Vec<(u64, Result<FormatError, String>)> = Vec::new();
    let mut unread = None;
    for ((offset, block), status) in offsets.iter().zip(&blocks).zip(statuses) {
        match status.map_err(|e| e.to_string()).map(|()| Label::decode(block, *offset)) {
            Ok(Ok(label)) if sound.as_ref().is_none_or(|s| label.epoch >= s.epoch) => {
                sound = Some(label);
            }
            Ok(Ok(_)) => wrong.push((*offset, Err("of an older epoch".into()))),
            Ok(Err(error)) => wrong.push((*offset, Ok(error))),
            Err(error) => wrong.push((*offset, Err(error))),
        }
        if let Err(error) = status
            && !error.is_damage()
        {
            unread.get_or_insert((*offset, error));
        }
    }
    let Some(label) = sound else {
        return Err(match unread {
            Some((offset, error)) => read_error(drives, drive, offset, error),
            None => no_label(&info, wrong),
        });
    };
    if info.capacity_bytes < label.drive().capacity_bytes {
        return Err(Error::ShortDrive {
            address: info.address,
            serial: label.drive().serial.clone(),
            actual_bytes: info.capacity_bytes,
            expected_bytes: label.drive().capacity_bytes,
        });
    }
    // Check the copies at the offsets that the label names: a drive that grew ends elsewhere.
    let expected = Layout::label_offsets(label.drive().capacity_bytes);
    let bad = wrong
        .into_iter()
        .filter(|(offset, _)| expected.contains(offset))
        .map(|(offset, why)| {
            let detail = why.map_or_else(|text| text, |error| error.to_string());
            (offset, label_damage(&label.drive().serial, offset, detail))
        })
        .collect();
    Ok(DriveLabels { label, bad })
}

fn label_offsets_of(capacity_bytes: u64) -> Vec<u64> {
    let fits = |offset: &u64| offset.checked_add(BLOCK_BYTES).is_some_and(|e| e <= capacity_bytes);
    let mut offsets: Vec<u64> = Layout::front_label_offsets().into_iter().filter(fits).collect();
    if capacity_bytes >= crate::format::layout::MIN_DRIVE_BYTES {
        offsets.extend(Layout::label_offsets(capacity_bytes));
    }
    offsets.sort_unstable();
    offsets.dedup();
    offsets
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
fn no_label(info: &DriveInfo, wrong: Vec<(u64, Result<FormatError, String>)>) -> Error {
    let (address, serial) = (info.address.clone(), info.serial.clone());
    let mut corrupt = None;
    for (offset, why) in wrong {
        match why {
            Ok(FormatError::Newer { found, supported }) => {
                return Error::NewerFormat { address, serial, found, supported };
            }
            Ok(FormatError::Older { found, supported }) => {
                return Error::OlderFormat { address, serial, found, supported };
            }
            Ok(FormatError::Blank | FormatError::NotOurs) => {}
            Ok(FormatError::Corrupt(detail)) | Err(detail) => {
                corrupt.get_or_insert((offset, detail));
            }
        }
    }
    match corrupt {
        Some((offset, detail)) => label_damage(&serial, offset, detail).into(),
        None => Error::NotFormatted { address, serial },
    }
}

/// Rewrites bad label copies from the sound one, if that is allowed.
pub(crate) fn repair_labels(
    drives: &mut dyn Drives,
    labels: &[Option<DriveLabels>],
    writable: bool,
) -> Result<Vec<Notice>, Error> {
    let mut notices = Vec::new();
    for (index, labels) in labels.iter().enumerate() {
        let Some(labels) = labels else { continue };
        for (offset, damage) in &labels.bad {
            if !writable {
                notices.push(Notice::DamagedCopy(damage.clone()));
                continue;
            }
            let block = labels.label.encode(*offset);
            let drive = DriveIndex(index as u16);
            let mut batch =
                [DriveCommand::Write { drive, offset_bytes: *offset, data: &block, durable: true }];
            run_all(drives, &mut batch)?;
            notices.push(Notice::Repaired(damage.clone()));
        }
    }
    Ok(notices)
}
