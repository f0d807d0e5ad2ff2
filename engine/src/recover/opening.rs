// SPDX-License-Identifier: Apache-2.0
//! Opening: from the drives of a pool, in any order, to its newest whole state.

use std::cell::RefCell;

use crate::commit::{Committer, write_labels};
use crate::drive_info::DriveInfo;
use crate::drives::Drives;
use crate::error::Error;
use crate::format::{DriveState, Label, Owner};
use crate::notice::Notice;
use crate::recover::holdings::{read_holdings, without_holdings};
use crate::recover::labels::{DriveLabels, read_labels, repair_labels};
use crate::recover::membership::Membership;
use crate::recover::metadata::{BadCopy, repair_metadata};
use crate::recover::newest::{Newest, choose_generation};
use crate::recover::roots::{Roots, read_roots, repair_roots, unread_root};
use crate::state::State;
use crate::units::DriveIndex;

/// What the labels of the given drives say.
pub(crate) struct Identified {
    /// By place in the pool's drive table.
    pub(crate) labels: Vec<Option<DriveLabels>>,
    /// By place in the pool's drive table: the index of the given drive.
    pub(crate) membership: Membership,
}

/// Reads the labels, and finds the place of each drive in the pool's drive table. With `tolerant`,
/// a drive whose labels cannot be read counts as missing.
pub(crate) fn identify(
    drives: &mut dyn Drives,
    tolerant: bool,
    notices: &mut Vec<Notice>,
) -> Result<Identified, Error> {
    let info = drives.info().to_vec();
    // The index of a given drive, and its labels.
    let mut read: Vec<(usize, DriveLabels)> = Vec::new();
    let mut first_error = None;
    for (given, info) in info.iter().enumerate() {
        match read_labels(drives, given) {
            Ok(labels) => read.push((given, labels)),
            Err(error @ Error::Io { .. }) if tolerant => {
                let (address, why) = (info.address.clone(), error.to_string());
                notices.push(Notice::Unreachable { address, why });
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(error) = first_error.filter(|_| read.is_empty()) {
        return Err(error);
    }
    let labels: Vec<&Label> = read.iter().map(|(_, labels)| &labels.label).collect();
    let readable: Vec<DriveInfo> = read.iter().map(|(given, _)| info[*given].clone()).collect();
    let mut membership = Membership::new(&labels, &readable)?;
    let mut read: Vec<_> = read.into_iter().map(Some).collect();
    let mut by_place = Vec::new();
    for place in &mut membership.order {
        let (given, labels) = place.and_then(|number| read[number].take()).unzip();
        *place = given;
        by_place.push(labels);
    }
    Ok(Identified { labels: by_place, membership })
}

/// How a pool is opened.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) writable: bool,
    /// Allow writes while drives are missing.
    pub(crate) degraded: bool,
    /// The time of the commit that opening for writing makes.
    pub(crate) now_unix_ns: u64,
    /// Who opens the pool; the roots of an opening for writing name it.
    pub(crate) owner: Owner,
}

/// From the drives, in the order of the pool's drive table, to the newest whole state. For writing
/// it also repairs and commits.
pub(crate) fn recover_state(
    drives: &mut dyn Drives,
    labels: Vec<Option<DriveLabels>>,
    membership: &Membership,
    opening: Opening,
    notices: &mut Vec<Notice>,
) -> Result<State, Error> {
    let Opening { writable, degraded, now_unix_ns, owner } = opening;
    if writable && !degraded {
        membership.require_all()?;
    }
    let mut label = membership.without_missing()?;
    if writable {
        let drive = label.live().next().map_or(0, DriveIndex::as_usize);
        label.features.writable().map_err(|error| Error::Refused {
            address: drives.info()[drive].address.clone(),
            serial: label.drives[drive].serial.clone(),
            reason: error.to_string(),
        })?;
    }
    report_membership(membership, writable, notices);
    notices.extend(repair_labels(drives, &labels, writable)?);
    let roots = read_roots(drives, &label)?;
    if writable {
        unread_root(drives, &roots)?;
    }
    let newest = choose_generation(drives, &label, &roots)?;
    notices.extend(repair_roots(drives, &label, &roots, writable));
    let all_here = label.copies == 1 && label.members().count() == label.drives.len();
    let committed = if writable || !all_here {
        let mut repair = |drives: &mut dyn Drives, bad: &[BadCopy], sound: Option<&[u8]>| {
            notices.extend(if writable {
                repair_metadata(drives, bad, sound)
            } else {
                let damage = |copy: &BadCopy| Notice::DamagedCopy(copy.damage.clone());
                bad.iter().map(damage).collect()
            });
        };
        read_holdings(drives, &label, &newest.catalogue, &mut repair)?
    } else {
        without_holdings(&newest.catalogue, label.drives.len())
    };
    report_newest(&newest, &roots, writable, notices);
    if writable {
        // Before the first commit, the labels of all drives that take part record the membership.
        let some_outdated = labels.iter().flatten().any(|labels| labels.label.epoch < label.epoch);
        if !membership.missing.is_empty() {
            label.follow(&membership.label);
        }
        if some_outdated || !membership.missing.is_empty() {
            write_labels(drives, &label)?;
        }
    }
    let state = State::new(label, newest.root, newest.before, newest.newest_seen, committed);
    let state = RefCell::new(state);
    if writable {
        // Above every epoch of which a trace was found, also that of a generation that was given
        // up.
        let newest_epoch = roots.by_generation.values().map(|root| root.epoch).max().unwrap_or(0);
        Committer::new(&state).begin_epoch(drives, newest_epoch + 1, &owner, now_unix_ns)?;
    }
    Ok(state.into_inner())
}

/// Notices about drives that do not take part, or are still rebuilding.
fn report_membership(membership: &Membership, writable: bool, notices: &mut Vec<Notice>) {
    for serial in membership.missing_serials() {
        notices.push(Notice::Missing { serial, written_without: writable });
    }
    for entry in &membership.label.drives {
        let serial = entry.serial.clone();
        match entry.state {
            DriveState::Member => {}
            DriveState::Absent => notices.push(Notice::Absent { serial }),
            DriveState::Rebuilding => notices.push(Notice::Rebuilding { serial }),
        }
    }
}

/// Notices about the catalogue and about an interrupted commit. Opening for writing then writes a
/// new catalogue and a new root to every drive, which repairs both.
fn report_newest(newest: &Newest, roots: &Roots, writable: bool, notices: &mut Vec<Notice>) {
    if let Some(lost) = newest.given_up {
        notices.push(Notice::FellBack { lost, opened: newest.root.generation });
        notices.extend(newest.bad.iter().map(|copy| Notice::DamagedCopy(copy.damage.clone())));
        return;
    }
    for copy in &newest.bad {
        let damage = copy.damage.clone();
        notices.push(if writable { Notice::Repaired(damage) } else { Notice::DamagedCopy(damage) });
    }
    if writable && roots.bad.is_empty() && !roots.incomplete.is_empty() {
        notices.push(Notice::RolledForward(newest.newest_seen));
    }
}
