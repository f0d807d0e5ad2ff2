// SPDX-License-Identifier: Apache-2.0
//! Opening: from the drives of a pool, in any order, to its newest whole state.

use std::cell::RefCell;

use crate::commit::{Committer, write_labels};
use crate::drive_info::DriveInfo;
use crate::drives::Drives;
use crate::error::{Error, Stale};
use crate::format::{DriveEntry, DriveState, Label, Owner};
use crate::notice::Notice;
use crate::recover::holdings::{read_holdings, without_holdings};
use crate::recover::labels::{DriveLabels, read_labels, read_labels_of, repair_labels};
use crate::recover::membership::Membership;
use crate::recover::metadata::{BadCopy, repair_metadata};
use crate::recover::newest::{GivenUp, Newest, choose_generation};
use crate::recover::roots::{Break, Roots, read_roots, repair_roots, roll_forward};
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
    let mut failed: Vec<(usize, Error)> = Vec::new();
    for given in 0..info.len() {
        match read_labels(drives, given) {
            Ok(labels) => read.push((given, labels)),
            Err(error) => failed.push((given, error)),
        }
    }
    // A drive that has grown and lost its first labels: where its last ones are, the labels of the
    // other drives say.
    let capacity = |drive: &DriveEntry| drive.capacity_bytes;
    let known: Vec<u64> =
        read.iter().flat_map(|(_, labels)| labels.label.drives.iter().map(capacity)).collect();
    let mut first_error = None;
    for (given, error) in failed {
        if !matches!(error, Error::NotFormatted { .. } | Error::Damaged(_) | Error::Io { .. }) {
            return Err(error);
        }
        match read_labels_of(drives, given, &known) {
            Ok(labels) => read.push((given, labels)),
            Err(Error::Io { .. }) if tolerant => {
                let (address, why) = (info[given].address.clone(), error.to_string());
                notices.push(Notice::Unreachable { address, why });
                first_error.get_or_insert(error);
            }
            Err(_) => return Err(error),
        }
    }
    if let Some(error) = first_error.filter(|_| read.is_empty()) {
        return Err(error);
    }
    read.sort_by_key(|(given, _)| *given);
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

/// How a pool is opened. The default opens for reading, and allows nothing.
#[derive(Clone, Default)]
pub(crate) struct Opening {
    pub(crate) writable: bool,
    /// Allow writes while drives are missing.
    pub(crate) degraded: bool,
    /// Allow the generation before the newest one, where that cannot be read.
    pub(crate) fall_back: bool,
    /// The time of the commit that opening for writing makes.
    pub(crate) now_unix_ns: u64,
    /// Who opens the pool; the roots of an opening for writing name it.
    pub(crate) owner: Owner,
}

/// From the drives, in the order of the pool's drive table, to the newest whole state. For writing
/// it also repairs and commits; nothing is written before all refusals have been decided.
pub(crate) fn recover_state(
    drives: &mut dyn Drives,
    labels: Vec<Option<DriveLabels>>,
    membership: &Membership,
    opening: Opening,
    notices: &mut Vec<Notice>,
) -> Result<State, Error> {
    let Opening { writable, degraded, now_unix_ns, .. } = opening;
    if writable && !degraded {
        membership.require_all()?;
    }
    let mut label =
        if writable { membership.without_missing()? } else { membership.for_reading()? };
    if writable {
        let drive = label.live().next().map_or(0, DriveIndex::as_usize);
        label.features.writable().map_err(|error| Error::Refused {
            address: drives.info()[drive].address.clone(),
            serial: label.drives[drive].serial.clone(),
            reason: error.to_string(),
        })?;
    }
    report_membership(membership, writable, notices);
    let roots = read_roots(drives, &label)?;
    let stale = demote_stale(drives, &mut label, &roots, &opening, notices)?;
    let newest = choose_generation(drives, &label, &roots)?;
    if let Some(given_up) = newest.given_up.as_ref().filter(|_| !opening.fall_back) {
        return Err(Error::NewestUnreadable {
            lost: given_up.lost,
            older: newest.root.generation,
            damage: Box::new(given_up.damage.clone()),
        });
    }
    let mut labels = labels;
    for drive in &stale {
        labels[drive.as_usize()] = None;
    }
    notices.extend(repair_labels(drives, &labels, writable));
    if writable && newest.given_up.is_none() {
        roll_forward(drives, &label, &roots);
    }
    let (repaired, unusable) = repair_roots(drives, &label, &roots, writable);
    notices.extend(repaired);
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
        let is_older = |labels: &DriveLabels| labels.label.epoch < label.epoch;
        let some_older = labels.iter().flatten().any(is_older);
        let changed = label.drives != membership.label.drives;
        if changed {
            label.follow(&membership.label);
        }
        if some_older || changed {
            write_labels(drives, &label)?;
        }
    }
    let mut state = State::new(label, newest.root, newest.before, newest.newest_seen, committed);
    state.skip_root_slots(unusable);
    let state = RefCell::new(state);
    if writable {
        // Above every epoch of which a trace was found, also that of a generation that was given
        // up.
        let epoch = roots.newest_epoch + epoch_step(&opening.owner);
        Committer::new(&state).begin_epoch(drives, epoch, &opening.owner, now_unix_ns)?;
    }
    Ok(state.into_inner())
}

/// Members that missed a commit do not count as members. For writing they are left out where drives
/// may be missing, and refused otherwise. The result is those that were left out.
fn demote_stale(
    drives: &dyn Drives,
    label: &mut Label,
    roots: &Roots,
    opening: &Opening,
    notices: &mut Vec<Notice>,
) -> Result<Vec<DriveIndex>, Error> {
    let mut left_out = Vec::new();
    for drive in &roots.stale {
        let index = drive.as_usize();
        let serial = label.drives[index].serial.clone();
        let address = drives.info()[index].address.clone();
        let state = match (opening.writable, opening.degraded) {
            (true, false) => {
                return Err(Error::StaleDrive { address, serial, why: Stale::MissedCommits });
            }
            (true, true) => {
                left_out.push(*drive);
                DriveState::Absent
            }
            (false, _) => DriveState::Rebuilding,
        };
        label.drives[index].state = state;
        notices.push(Notice::Outdated { serial, written_without: opening.writable });
    }
    Ok(left_out)
}

/// How far an opening raises the epoch: by chance, so that two openings at once, which see the same
/// epoch, choose different ones. Then one of two roots of a generation is the newer one.
fn epoch_step(owner: &Owner) -> u64 {
    const BITS: u128 = 0xF_FFFF;
    1 + (owner.open_id.as_u128() & BITS) as u64
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

/// An owner in a message.
fn name_of(owner: &Owner) -> String {
    match (owner.command.as_str(), owner.host_name.as_str()) {
        ("", "") => format!("opening {}", owner.open_id),
        (command, host) => format!("{command} (pid {}) on {host}", owner.process.pid),
    }
}

/// Notices about the catalogue, about an interrupted commit, and about other owners. Opening for
/// writing then writes a new catalogue and a new root to every drive, which repairs the first two.
fn report_newest(newest: &Newest, roots: &Roots, writable: bool, notices: &mut Vec<Notice>) {
    for Break { root, before } in roots.breaks() {
        notices.push(Notice::OtherOwner {
            generation: before.generation,
            owner: name_of(&before.owner),
            after: root.generation,
            owner_after: name_of(&root.owner),
        });
    }
    if let Some(GivenUp { lost, damage }) = &newest.given_up {
        notices.push(Notice::FellBack { lost: *lost, opened: newest.root.generation });
        let copies = newest.bad.iter().map(|copy| &copy.damage);
        let damages: Vec<_> = if newest.bad.is_empty() { vec![damage] } else { copies.collect() };
        notices.extend(damages.into_iter().cloned().map(Notice::Unusable));
        return;
    }
    for copy in &newest.bad {
        let damage = copy.damage.clone();
        notices.push(if writable { Notice::Repaired(damage) } else { Notice::DamagedCopy(damage) });
    }
    let mut incomplete = roots.incomplete.iter().filter(|drive| !roots.stale.contains(drive));
    if roots.bad.is_empty() && incomplete.next().is_some() {
        notices.push(match writable {
            true => Notice::RolledForward(newest.newest_seen),
            false => Notice::Unfinished(newest.newest_seen),
        });
    }
}
