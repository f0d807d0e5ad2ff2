// SPDX-License-Identifier: Apache-2.0
//! One drive by two names: two paths of one namespace, two loop devices over one file, a disk and
//! its partition. And two parts of one drive, which do not outlive it.

use crate::device::DriveInfo;
use crate::drives::{DriveCommand, Drives, run_all};
use crate::error::{Damage, Error};
use crate::format::{Label, Layout};
use crate::limits::BLOCK_BYTES;
use crate::recover::labels::read_labels;
use crate::units::DriveIndex;

/// Refuses a drive that is one of `others`, by all that the back ends know.
///
/// # Errors
/// [`Error::DuplicateDrive`].
pub(super) fn refuse_same(info: &DriveInfo, others: &[DriveInfo]) -> Result<(), Error> {
    let is_same =
        |other: &DriveInfo| other.address == info.address || other.origin.is_same(&info.origin);
    match others.iter().any(is_same) {
        false => Ok(()),
        true => Err(Error::DuplicateDrive {
            address: info.address.clone(),
            serial: info.serial.clone(),
        }),
    }
}

/// Refuses a drive of a mirror that fails together with one of `others`.
///
/// # Errors
/// [`Error::Refused`].
pub(super) fn refuse_one_medium(info: &DriveInfo, others: &[DriveInfo]) -> Result<(), Error> {
    let shares = |other: &&DriveInfo| other.origin.shares_medium(&info.origin);
    let Some(other) = others.iter().find(shares) else { return Ok(()) };
    let reason = format!(
        "it is a part of the drive that {} is a part of, too: a mirror over both does not outlive \
         that drive; --force makes it all the same",
        other.address
    );
    Err(Error::Refused { address: info.address.clone(), serial: info.serial.clone(), reason })
}

/// Reads every label back: a drive with two names has the label that was written last.
///
/// # Errors
/// [`Error::DuplicateDrive`], [`Error::Damaged`] for a drive that does not keep what it was given;
/// then no label is left.
pub(super) fn read_back(drives: &mut dyn Drives, label: &Label) -> Result<(), Error> {
    let outcome = label.live().try_for_each(|index| read_one_back(drives, label, index));
    if outcome.is_err() {
        let zeros = vec![0; BLOCK_BYTES as usize];
        for drive in label.live() {
            let capacity_bytes = label.drives[drive.as_usize()].capacity_bytes;
            let write = |offset_bytes| DriveCommand::Write {
                drive,
                offset_bytes,
                data: &zeros,
                durable: true,
            };
            // The outcome is an error already; what remains fails when the pool is opened.
            let _ = run_all(drives, &mut Layout::label_offsets(capacity_bytes).map(write));
        }
    }
    outcome
}

/// The same for a drive that joins a pool. The labels of the others stay.
///
/// # Errors
/// As [`read_back`].
pub(super) fn read_back_newcomer(
    drives: &mut dyn Drives,
    label: &Label,
    place: DriveIndex,
) -> Result<(), Error> {
    read_one_back(drives, label, place)
}

fn read_one_back(drives: &mut dyn Drives, label: &Label, index: DriveIndex) -> Result<(), Error> {
    let info = drives.info()[index.as_usize()].clone();
    let found = read_labels(drives, index.as_usize());
    let detail = match &found {
        Ok(found) if found.label.index == index && found.bad.is_empty() => return Ok(()),
        Ok(found) if found.label.pool == label.pool && found.label.index != index => {
            return Err(Error::DuplicateDrive { address: info.address, serial: info.serial });
        }
        Ok(_) => "the label that was written is not what is read".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Damage {
        what: "label",
        serial: info.serial,
        offset_bytes: None,
        checkpoint: None,
        shard: None,
        generation: None,
        detail,
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::write_labels;
    use crate::error::IoError;
    use crate::format::DriveState;
    use crate::format::testing::mirror_label;

    /// Drives of which some have the same bytes, and one loses what it is given.
    struct Aliases {
        info: Vec<DriveInfo>,
        /// By drive: which of `bytes` it has.
        of: Vec<usize>,
        bytes: Vec<Vec<u8>>,
        forgetful: Option<usize>,
    }

    impl Aliases {
        fn new(label: &Label, of: &[usize]) -> Aliases {
            let capacity_bytes = label.drives[0].capacity_bytes;
            let missing = |entry| crate::device::missing::MissingDrive::new(entry);
            let info = label.drives.iter().map(|entry| {
                use crate::device::Device as _;
                DriveInfo { ..missing(entry).info().clone() }
            });
            let bytes = vec![vec![0; capacity_bytes as usize]; of.len()];
            Aliases { info: info.collect(), of: of.to_vec(), bytes, forgetful: None }
        }
    }

    impl Drives for Aliases {
        fn info(&self) -> &[DriveInfo] {
            &self.info
        }

        fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), IoError>> {
            for command in batch.iter_mut() {
                let drive = command.drive().as_usize();
                let at = command.offset_bytes() as usize;
                let bytes = &mut self.bytes[self.of[drive]];
                match command {
                    DriveCommand::Read { into, .. } => {
                        let len = into.len();
                        into.copy_from_slice(&bytes[at..at + len]);
                    }
                    DriveCommand::Write { data, .. } if self.forgetful != Some(drive) => {
                        bytes[at..at + data.len()].copy_from_slice(data);
                    }
                    DriveCommand::Write { .. } | DriveCommand::Flush { .. } => {}
                }
            }
            batch.iter().map(|_| Ok(())).collect()
        }
    }

    #[test]
    fn labels_that_do_not_read_back_are_erased() {
        let label = mirror_label(&[DriveState::Member; 3]);
        let mut sound = Aliases::new(&label, &[0, 1, 2]);
        write_labels(&mut sound, &label).unwrap();
        read_back(&mut sound, &label).unwrap();
        for of in [[0, 0, 2], [0, 1, 0], [0, 1, 1], [0, 0, 0]] {
            let mut drives = Aliases::new(&label, &of);
            write_labels(&mut drives, &label).unwrap();
            let error = read_back(&mut drives, &label).unwrap_err();
            assert!(matches!(error, Error::DuplicateDrive { .. }), "{of:?}: {error}");
            let is_blank = |bytes: &Vec<u8>| bytes.iter().all(|byte| *byte == 0);
            assert!(drives.bytes.iter().all(is_blank), "{of:?}");
        }
        let mut drives = Aliases::new(&label, &[0, 1, 2]);
        drives.forgetful = Some(1);
        write_labels(&mut drives, &label).unwrap();
        assert!(matches!(
            read_back(&mut drives, &label),
            Err(Error::Damaged(_) | Error::NotFormatted { .. })
        ));
    }
}
