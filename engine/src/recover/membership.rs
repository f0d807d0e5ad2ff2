// SPDX-License-Identifier: Apache-2.0
//! Membership: which place of the pool each given drive has, and which drives take part. Pure.
//!
//! - The label with the highest epoch is valid. A drive with an older label either missed the last
//!   change of the membership and is still a member, or was excluded by that change.
//! - A pool is written without a drive only after the labels of all other drives call it absent. So
//!   a drive that the newest label calls a member has every acknowledged commit. A drive that it
//!   calls absent is stale until it is admitted again like a new one.
//! - A label that the newest one does not descend from means two histories: the program never
//!   chooses between them.

use uuid::Uuid;

use crate::drive_info::DriveInfo;
use crate::error::{Damage, Error, Stale};
use crate::format::{DriveEntry, DriveState, Label};
use crate::units::DriveIndex;

/// The given drives, matched with the pool's drive table.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The newest label. Its `index` is that of some drive and has no meaning here.
    pub(crate) label: Label,
    /// By place in the drive table: the index of the given drive. `None` for a drive that is absent
    /// or missing.
    pub(crate) order: Vec<Option<usize>>,
    /// Drives that should take part and were not given.
    pub(crate) missing: Vec<DriveIndex>,
}

impl Membership {
    /// Compares the labels of the given drives, which are in the order of `info`.
    pub(crate) fn new(labels: &[&Label], info: &[DriveInfo]) -> Result<Membership, Error> {
        let Some(first) = labels.first() else {
            return Err(Error::Usage("no drive was named".into()));
        };
        // All drives must belong to the first drive's pool.
        let pool: Uuid = first.pool;
        for (label, info) in labels.iter().zip(info) {
            if label.pool != pool {
                let (address, serial) = (info.address.clone(), label.drive().serial.clone());
                let (found, expected) = (label.pool, pool);
                return Err(Error::ForeignDrive { address, serial, found, expected });
            }
        }
        let newest = labels.iter().max_by_key(|label| label.epoch).copied().unwrap_or(first);
        let mut order = vec![None; newest.drives.len()];
        for (given, (label, info)) in labels.iter().zip(info).enumerate() {
            let (address, serial) = (info.address.clone(), label.drive().serial.clone());
            if !is_one_history(label, newest) {
                return Err(two_histories(&serial).into());
            }
            let takes_part = newest.drives.get(label.index.as_usize()).is_some_and(|entry| {
                entry.uuid == label.drive().uuid && entry.state != DriveState::Absent
            });
            if !takes_part {
                return Err(stale(address, label, newest));
            }
            // The newest label may claim more for it than its own one.
            let expected_bytes = newest.drives[label.index.as_usize()].capacity_bytes;
            if info.capacity_bytes < expected_bytes {
                let actual_bytes = info.capacity_bytes;
                return Err(Error::ShortDrive { address, serial, actual_bytes, expected_bytes });
            }
            let place = &mut order[label.index.as_usize()];
            if place.is_some() {
                return Err(Error::DuplicateDrive { address, serial });
            }
            *place = Some(given);
        }
        let missing = newest.live().filter(|drive| order[drive.as_usize()].is_none()).collect();
        Ok(Membership { label: newest.clone(), order, missing })
    }

    /// Fails when a drive is missing.
    pub(crate) fn require_all(&self) -> Result<(), Error> {
        if self.missing.is_empty() {
            return Ok(());
        }
        Err(self.missing_error())
    }

    fn missing_error(&self) -> Error {
        let (pool, total) = (self.label.pool, self.order.len());
        Error::MissingDrives { pool, missing: self.missing_serials(), total }
    }

    /// The serials of the drives that are missing.
    pub(crate) fn missing_serials(&self) -> Vec<String> {
        let serial = |drive: &DriveIndex| self.label.drives[drive.as_usize()].serial.clone();
        self.missing.iter().map(serial).collect()
    }

    /// The pool's label for reading from the drives that are there. There may be no member among
    /// them: what a drive holds that is being rebuilt is read, too, and its hashes and checksums
    /// say whether it is right.
    ///
    /// # Errors
    /// When no drive is there that takes part.
    pub(crate) fn for_reading(&self) -> Result<Label, Error> {
        let mut label = self.label.clone();
        for drive in &self.missing {
            label.drives[drive.as_usize()].state = DriveState::Absent;
        }
        if label.live().next().is_none() {
            return Err(self.missing_error());
        }
        Ok(label)
    }

    /// The pool's label for writing without the drives that are missing.
    ///
    /// # Errors
    /// When no member would be left.
    pub(crate) fn without_missing(&self) -> Result<Label, Error> {
        let label = self.for_reading()?;
        if label.members().next().is_none() {
            return Err(self.missing_error());
        }
        Ok(label)
    }
}

/// Whether an older label became the newest one, or is the same.
fn is_one_history(label: &Label, newest: &Label) -> bool {
    let same_pool = label.layout == newest.layout
        && label.copies == newest.copies
        && label.drives.len() == newest.drives.len();
    same_pool && newest.descends_from(label)
}

fn two_histories(serial: &str) -> Damage {
    Damage {
        what: "label",
        serial: serial.to_owned(),
        offset_bytes: None,
        checkpoint: None,
        shard: None,
        generation: None,
        detail: "its drive table differs from that of the pool's other drives: they have two \
                 different histories"
            .into(),
    }
}

/// The error for a drive that missed writes, because the pool was written without it.
fn stale(address: String, label: &Label, newest: &Label) -> Error {
    let DriveEntry { serial, uuid, .. } = label.drive().clone();
    let replaced = newest.drives.get(label.index.as_usize()).is_none_or(|entry| entry.uuid != uuid);
    let why = if replaced { Stale::Replaced } else { Stale::WrittenWithout };
    Error::StaleDrive { address, serial, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::mirror_label;

    const MIB: u64 = 1 << 20;

    fn label(index: u16) -> Label {
        Label { index: DriveIndex(index), ..mirror_label(&[DriveState::Member; 3]) }
    }

    /// The label after the pool was written without drive `gone`.
    fn without(gone: usize, index: u16) -> Label {
        let mut without = label(index);
        without.drives[gone].state = DriveState::Absent;
        without.follow(&label(index));
        without
    }

    fn info(count: usize) -> Vec<DriveInfo> {
        let info = |n| DriveInfo {
            address: format!("drive{n}"),
            serial: String::new(),
            model: String::new(),
            back_end: "test",
            capacity_bytes: 64 * MIB,
            max_transfer_bytes: MIB,
            queue_depth: 1,
            reservations: Some(false),
            volatile_cache: None,
            interrupt_driven: false,
            needs_huge_pages: false,
            origin: crate::drive_info::Origin::default(),
        };
        (0..count).map(info).collect()
    }

    fn membership(labels: &[Label]) -> Result<Membership, Error> {
        let labels: Vec<&Label> = labels.iter().collect();
        Membership::new(&labels, &info(labels.len()))
    }

    #[test]
    fn drives_are_put_in_order() {
        let found = membership(&[label(2), label(0), label(1)]).unwrap();
        assert_eq!(found.order, [Some(1), Some(2), Some(0)]);
        assert!(found.require_all().is_ok());
        assert!(matches!(membership(&[]), Err(Error::Usage(_))));
        assert!(matches!(
            membership(&[label(0), label(0), label(1)]),
            Err(Error::DuplicateDrive { address, .. }) if address == "drive1"
        ));
        let foreign = Label { pool: Uuid::from_u128(5), ..label(1) };
        assert!(matches!(membership(&[label(0), foreign]), Err(Error::ForeignDrive { .. })));
    }

    #[test]
    fn missing_drives_are_named_and_can_be_left_out() {
        let found = membership(&[label(2), label(0)]).unwrap();
        assert_eq!(found.order, [Some(1), None, Some(0)]);
        assert!(matches!(
            found.require_all(),
            Err(Error::MissingDrives { missing, total: 3, .. }) if missing == ["S2"]
        ));
        let label = found.without_missing().unwrap();
        assert_eq!(label.live().collect::<Vec<_>>(), [DriveIndex(0), DriveIndex(2)]);
    }

    #[test]
    fn an_absent_drive_is_not_missing_and_is_refused() {
        let found = membership(&[without(1, 0), without(1, 2)]).unwrap();
        assert_eq!(found.order, [Some(0), None, Some(1)]);
        assert!(found.missing.is_empty());
        let back = membership(&[label(1), without(1, 0), without(1, 2)]);
        assert!(matches!(
            back,
            Err(Error::StaleDrive { serial, why: Stale::WrittenWithout, .. }) if serial == "S2"
        ));
    }

    #[test]
    fn a_replaced_drive_is_refused() {
        let mut new = label(0);
        new.drives[1].uuid = Uuid::from_u128(77);
        new.follow(&label(0));
        let back = membership(&[new, label(1)]);
        assert!(matches!(back, Err(Error::StaleDrive { why: Stale::Replaced, .. })));
    }

    #[test]
    fn a_member_that_missed_the_change_is_still_a_member() {
        let found = membership(&[label(0), without(1, 2)]).unwrap();
        assert_eq!(found.label.epoch, 2);
        assert_eq!(found.order, [Some(0), None, Some(1)]);
        assert!(found.missing.is_empty());
    }

    #[test]
    fn two_histories_are_refused() {
        let one = membership(&[without(0, 1), without(1, 0)]);
        assert!(matches!(one, Err(Error::Damaged(damage)) if damage.detail.contains("histories")));
        let mut other = label(1);
        other.copies = 1;
        assert!(matches!(membership(&[label(0), other]), Err(Error::Damaged(_))));
        // The older label is not where the newest one came from, although its epoch is lower.
        let mut newer = without(0, 1);
        newer.drives[2].state = DriveState::Rebuilding;
        newer.follow(&without(0, 1));
        assert!(membership(&[newer.clone(), label(2)]).is_ok());
        let other = membership(&[newer, without(1, 2)]);
        assert!(
            matches!(other, Err(Error::Damaged(damage)) if damage.detail.contains("histories"))
        );
    }

    #[test]
    fn a_rebuilding_drive_alone_is_not_a_pool() {
        let mut rebuilding = label(1);
        rebuilding.drives[1].state = DriveState::Rebuilding;
        let found = membership(&[rebuilding]).unwrap();
        assert!(matches!(found.without_missing(), Err(Error::MissingDrives { .. })));
    }
}
