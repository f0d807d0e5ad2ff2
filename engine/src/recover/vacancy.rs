// SPDX-License-Identifier: Apache-2.0
//! The place that a drive gets which is admitted to a pool, and the label that says so. Pure over
//! the drives.
//!
//! - A place whose drive was merely not named is never given away: with more than one vacancy, the
//!   caller names the drive that is replaced.
//! - A drive of the pool gets its own place. What it holds is the past of the pool, or a history of
//!   its own, which is not destroyed unasked.

use uuid::Uuid;

use crate::drive_info::DriveInfo;
use crate::drives::Drives;
use crate::error::Error;
use crate::format::{DriveEntry, DriveState, Label};
use crate::planted::{Bug, planted};
use crate::recover::membership::Membership;
use crate::recover::roots::read_roots;
use crate::units::DriveIndex;

/// What the caller wants and allows.
#[derive(Clone, Copy, Default)]
pub(crate) struct Choice<'a> {
    /// The serial of the drive that is replaced.
    pub(crate) replaces: Option<&'a str>,
    /// What the newcomer holds may be destroyed.
    pub(crate) force: bool,
    /// Other drives may be missing.
    pub(crate) degraded: bool,
}

/// The label of a drive that comes back, if it is of the past of the pool as the other drives have
/// it. Anything else that it holds of this pool is a history of its own, or a later state, and is
/// not destroyed without `force`. `alone` has the newcomer only.
pub(crate) fn past_of(
    own: &Label,
    membership: &Membership,
    drives: &mut dyn Drives,
    alone: &mut dyn Drives,
    choice: Choice<'_>,
) -> Result<Option<Label>, Error> {
    let info = alone.info()[0].clone();
    let refused = |what: &str| {
        if choice.force {
            return Ok(None);
        }
        let reason = format!("{what}; --force destroys what it holds");
        let (address, serial) = (info.address.clone(), own.drive().serial.clone());
        Err(Error::Refused { address, serial, reason })
    };
    if !membership.label.descends_from(own) {
        return refused(if own.descends_from(&membership.label) {
            "it holds a later state of the pool than the drives that were named"
        } else {
            "it holds another history of the pool than the drives that were named"
        });
    }
    let newest = |drives: &mut dyn Drives, label: &Label| -> Result<Option<(u64, u64)>, Error> {
        let roots = read_roots(drives, label)?;
        Ok(roots.newest().map(|root| (root.epoch, root.generation.0)))
    };
    let entry = DriveEntry { state: DriveState::Member, ..own.drive().clone() };
    let (index, drive) = (DriveIndex(0), vec![entry]);
    let only = Label { index, drives: drive, copies: 1, table_copies: 1, ..own.clone() };
    let own_newest = newest(alone, &only)?;
    if own_newest > newest(drives, &membership.for_reading()?)? {
        return refused("it holds a later generation of the pool than the drives that were named");
    }
    Ok(Some(own.clone()))
}

/// The place that the drive gets.
#[derive(Debug)]
pub(crate) struct Vacancy {
    pub(crate) place: DriveIndex,
    /// It is the drive's own place.
    pub(crate) returning: bool,
}

impl Vacancy {
    /// `past` is the label of a drive that comes back.
    pub(crate) fn find(
        membership: &Membership,
        past: Option<&Label>,
        info: &DriveInfo,
        choice: Choice<'_>,
    ) -> Result<Vacancy, Error> {
        let label = &membership.label;
        let numbered = || (0..).map(DriveIndex).zip(&label.drives);
        let is_vacant = |place: DriveIndex| membership.order[place.as_usize()].is_none();
        let known =
            past.and_then(|own| numbered().find(|(_, entry)| entry.uuid == own.drive().uuid));
        let vacant: Vec<_> = numbered().filter(|(place, _)| is_vacant(*place)).collect();
        let serials =
            || vacant.iter().map(|(_, e)| e.serial.as_str()).collect::<Vec<_>>().join(", ");
        let of_serial = |serial| vacant.iter().find(|(_, entry)| entry.serial == serial);
        let pool = label.pool;
        let (place, entry) = match (known, choice.replaces, vacant.as_slice()) {
            (Some((place, entry)), ..) if !is_vacant(place) => {
                let (address, serial) = (info.address.clone(), entry.serial.clone());
                return Err(Error::DuplicateDrive { address, serial });
            }
            (Some((_, entry)), Some(serial), _) if entry.serial != serial => {
                return Err(Error::Usage(format!(
                    "drive {} ({}) has a place of its own in the pool, and cannot get that of \
                     {serial}",
                    info.address, entry.serial
                )));
            }
            (Some(known), ..) => known,
            (None, _, []) => {
                return Err(Error::Usage(format!(
                    "pool {pool}: no drive is missing, so no drive can be replaced"
                )));
            }
            (None, Some(serial), _) => *of_serial(serial).ok_or_else(|| {
                Error::Usage(format!(
                    "pool {pool}: no drive {serial} is missing; those that are: {}",
                    serials()
                ))
            })?,
            (None, None, [only]) => *only,
            (None, None, [first, ..]) if planted(Bug::HealthyReplaced) => *first,
            (None, None, _) => {
                return Err(Error::Usage(format!(
                    "pool {pool}: more than one drive is missing: {}; name those that are sound, \
                     or pass --replaces SERIAL with the serial of the lost one",
                    serials()
                )));
            }
        };
        let returning = known.is_some();
        let missing = membership.missing.iter().filter(|missing| **missing != place);
        let missing: Vec<String> =
            missing.map(|drive| label.drives[drive.as_usize()].serial.clone()).collect();
        if !missing.is_empty() && !choice.degraded {
            let total = label.drives.len();
            return Err(Error::MissingDrives { pool, missing, total });
        }
        // The newcomer is filled from a member.
        let is_source = |drive: DriveIndex| drive != place && !is_vacant(drive);
        if !label.members().any(is_source) {
            membership.without_missing()?;
        }
        if entry.capacity_bytes > info.capacity_bytes {
            return Err(Error::Usage(format!(
                "drive {} ({}) has {} bytes; the drive that it replaces had {}",
                info.address, info.serial, info.capacity_bytes, entry.capacity_bytes
            )));
        }
        Ok(Vacancy { place, returning })
    }

    /// The label that makes the newcomer a drive that is being rebuilt. A drive that returns keeps
    /// its identity; another one has `uuid` and `serial` from then on.
    pub(crate) fn label(&self, membership: &Membership, uuid: Uuid, serial: String) -> Label {
        let mut label = membership.label.clone();
        label.follow(&membership.label);
        let entry = &mut label.drives[self.place.as_usize()];
        entry.state = DriveState::Rebuilding;
        if !self.returning {
            (entry.uuid, entry.serial) = (uuid, serial);
        }
        label
    }

    /// The drives that get that label: the newcomer, and those that were named and take part.
    pub(crate) fn there(&self, membership: &Membership) -> Vec<DriveIndex> {
        let is_there = |drive: &DriveIndex| {
            *drive == self.place || membership.order[drive.as_usize()].is_some()
        };
        let live = |drive: &DriveIndex| {
            *drive == self.place
                || membership.label.drives[drive.as_usize()].state != DriveState::Absent
        };
        (0..membership.label.drives.len() as u16)
            .map(DriveIndex)
            .filter(|drive| live(drive) && is_there(drive))
            .collect()
    }
}
