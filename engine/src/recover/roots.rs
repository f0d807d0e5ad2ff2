// SPDX-License-Identifier: Apache-2.0
//! The root rings: reading them, and repairing places that hold no root that counts.
//!
//! What could not be read may be a root, even the newest one. It is never taken for a place without
//! one, and never written, except with the root that is known to belong there.

use std::collections::BTreeSet;

use crate::drives::{DriveCommand, Drives};
use crate::error::{Damage, Error, IoError};
use crate::format::{FormatError, Label, Root, Zone};
use crate::limits::{BLOCK_BYTES, ROOT_SLOTS};
use crate::notice::Notice;
use crate::planted::{Bug, planted};
pub(crate) use crate::recover::history::Break;
use crate::recover::history::{History, TwoOwners};
use crate::units::{DriveIndex, Generation};

/// A generation may skip numbers: those whose places cannot be written, and those whose catalogue
/// would overwrite one that is still needed. So many numbers behind the newest root are searched
/// for places that may hide a newer one. The root after these shares its unit of 64 KiB with the
/// newest one, and may have been torn with it, in both rings of every drive.
const MOST_SKIPPED: u64 = 15;

/// What the root rings hold.
#[derive(Default)]
pub(crate) struct Roots {
    history: History,
    /// Members without one of the two copies of the newest root.
    pub(crate) incomplete: Vec<DriveIndex>,
    /// Places of the newest root that do not hold it, and may be written.
    lacking: Vec<(Zone, DriveIndex, u64)>,
    /// Members that missed a commit which reached every member: each is a copy of itself from an
    /// earlier time.
    pub(crate) stale: Vec<DriveIndex>,
    /// Places whose bytes are not a root that counts: torn by a power cut, damaged, unreadable, or
    /// written by an owner that was already replaced.
    pub(crate) bad: Vec<BadRoot>,
    /// A bad place that may hold a newer root than all that were read.
    pub(crate) hidden: Option<Damage>,
    /// The slot of the root that an open pool has in memory.
    known_slot: Option<u64>,
    /// The highest generation and open epoch of which a trace was found.
    pub(crate) newest_seen: Generation,
    pub(crate) newest_epoch: u64,
}

/// A place in a root ring that holds no root that counts.
pub(crate) struct BadRoot {
    pub(crate) drive: DriveIndex,
    pub(crate) slot: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) damage: Damage,
    /// The read failed with this error; there may be a root.
    pub(crate) unread: Option<IoError>,
}

/// A place for one root: a slot in one of the rings of a drive.
struct Place {
    drive: DriveIndex,
    zone: Zone,
    slot: u64,
    offset_bytes: u64,
    found: Found,
}

enum Found {
    Root(Root),
    /// It is blank: no root was ever written there. The rings are blanked before a drive gets its
    /// first label, so anything else that is not a root is damage.
    Nothing,
    Bad(BadRoot),
}

impl Place {
    fn holds(&self, id: &[u8; 16]) -> bool {
        matches!(&self.found, Found::Root(root) if root.id() == *id)
    }
}

impl Roots {
    /// The newest root, if there is one.
    pub(crate) fn newest(&self) -> Option<&Root> {
        self.history.by_generation.values().next_back()
    }

    /// The root before this one.
    pub(crate) fn parent_of(&self, root: &Root) -> Option<&Root> {
        self.history.parent_of(root)
    }

    /// Where another owner's root stands in the place of a parent.
    pub(crate) fn breaks(&self) -> &[Break] {
        &self.history.breaks
    }

    /// The newest root that belongs in a slot.
    fn in_slot(&self, slot: u64) -> Option<&Root> {
        let mut newest_first = self.history.by_generation.values().rev();
        newest_first.find(|root| slot_of(root.generation) == slot)
    }
}

fn slot_of(generation: Generation) -> u64 {
    generation.0 % ROOT_SLOTS
}

/// Reads both root rings of every drive that takes part, all drives at once. Reads only the blocks
/// that hold roots.
pub(crate) fn read_roots(drives: &mut dyn Drives, label: &Label) -> Result<Roots, Error> {
    read_and_compare(drives, label, None, false)
}

/// The same for an open pool, which knows its newest root, whatever the drives say: both rings of
/// every drive must have it. A reader did not write it: where `may_be_unfinished`, places that a
/// commit in progress, or an interrupted one, has not reached are no damage.
pub(crate) fn check_roots(
    drives: &mut dyn Drives,
    label: &Label,
    newest: &Root,
    may_be_unfinished: bool,
) -> Result<Roots, Error> {
    read_and_compare(drives, label, Some(newest), may_be_unfinished)
}

fn read_and_compare(
    drives: &mut dyn Drives,
    label: &Label,
    known: Option<&Root>,
    may_be_unfinished: bool,
) -> Result<Roots, Error> {
    let places = read_places(drives, label)?;
    let on_drives = places.iter().filter_map(|place| match &place.found {
        Found::Root(root) => Some(root),
        _ => None,
    });
    let found = on_drives.chain(known);
    let history =
        History::of(found.clone()).map_err(|rivals| two_owners(label, &places, &rivals))?;
    let mut roots = Roots {
        newest_seen: found.clone().map(|root| root.generation).max().unwrap_or_default(),
        newest_epoch: found.map(|root| root.epoch).max().unwrap_or(0),
        known_slot: known.map(|root| slot_of(root.generation)),
        history,
        ..Roots::default()
    };
    roots.find_incomplete(label, &places);
    let is_unfinished = may_be_unfinished && known.is_some_and(|root| is_unfinished(root, &places));
    roots.find_stale(label, &places);
    roots.hidden = roots.find_hidden(label, &places);
    for Place { drive, slot, offset_bytes, found, .. } in places {
        let detail = match found {
            Found::Bad(bad) => {
                roots.bad.push(bad);
                continue;
            }
            Found::Root(root) if !roots.counts(&root) => format!(
                "a root of generation {} and open epoch {} that its owner wrote after another one \
                 had taken over",
                root.generation, root.epoch
            ),
            Found::Root(root) if known.is_some_and(|known| known.id() == root.id()) => continue,
            _ if roots.known_slot == Some(slot) && !is_unfinished => {
                "not the newest root".to_owned()
            }
            _ => continue,
        };
        let damage = root_damage(&label.drives[drive.as_usize()].serial, offset_bytes, detail);
        roots.bad.push(BadRoot { drive, slot, offset_bytes, damage, unread: None });
    }
    Ok(roots)
}

/// Whether a commit in progress explains where this root is: it reaches every front ring first, and
/// then the back rings.
fn is_unfinished(root: &Root, places: &[Place]) -> bool {
    let (id, slot) = (root.id(), slot_of(root.generation));
    let mut places = places.iter().filter(|place| place.slot == slot);
    let in_back = places.clone().any(|place| place.zone == Zone::Back && place.holds(&id));
    !in_back || places.all(|place| place.zone == Zone::Back || place.holds(&id))
}

fn read_places(drives: &mut dyn Drives, label: &Label) -> Result<Vec<Place>, Error> {
    let mut offsets = Vec::new();
    for drive in label.live() {
        let capacity_bytes = label.drives[drive.as_usize()].capacity_bytes;
        for zone in [Zone::Front, Zone::Back] {
            offsets.extend((0..ROOT_SLOTS).map(|slot| {
                let offset = label.layout.root_offset(zone, Generation(slot), capacity_bytes);
                (drive, zone, slot, offset)
            }));
        }
    }
    let mut bytes = vec![0; offsets.len() * BLOCK_BYTES as usize];
    let mut batch: Vec<_> = offsets
        .iter()
        .zip(bytes.chunks_exact_mut(BLOCK_BYTES as usize))
        .map(|((drive, _, _, offset), into)| DriveCommand::Read {
            drive: *drive,
            offset_bytes: *offset,
            into,
        })
        .collect();
    let statuses = drives.run(&mut batch);
    drop(batch);
    let mut places = Vec::with_capacity(offsets.len());
    let blocks = bytes.chunks_exact(BLOCK_BYTES as usize);
    for (((drive, zone, slot, offset_bytes), block), status) in
        offsets.into_iter().zip(blocks).zip(statuses)
    {
        let entry = &label.drives[drive.as_usize()];
        let decoded =
            status.map_err(|error| FormatError::Corrupt(error.to_string())).and_then(|()| {
                let root = Root::decode(block, label.pool, entry.uuid, offset_bytes)?;
                root.validate(&label.layout).map(|()| root)
            });
        let found = match decoded {
            Ok(root) => Found::Root(root),
            Err(FormatError::Blank) => Found::Nothing,
            Err(FormatError::Newer { found, supported }) => {
                let info = &drives.info()[drive.as_usize()];
                let (address, serial) = (info.address.clone(), entry.serial.clone());
                return Err(Error::NewerFormat { address, serial, found, supported });
            }
            Err(error) => {
                let damage = root_damage(&entry.serial, offset_bytes, error.to_string());
                let unread = status.err();
                Found::Bad(BadRoot { drive, slot, offset_bytes, damage, unread })
            }
        };
        places.push(Place { drive, zone, slot, offset_bytes, found });
    }
    Ok(places)
}

impl Roots {
    /// Whether this root is not of an owner that was already replaced. One that is only older than
    /// the ring is long is no damage: a commit did not reach its place.
    fn counts(&self, root: &Root) -> bool {
        let Some(newest) = self.newest() else { return true };
        if root.generation > newest.generation {
            return false;
        }
        match self.history.by_generation.get(&root.generation) {
            Some(known) => known.id() == root.id(),
            None => root.generation.0 + ROOT_SLOTS <= newest.generation.0,
        }
    }

    fn find_incomplete(&mut self, label: &Label, places: &[Place]) {
        let Some(newest) = self.newest() else { return };
        let (id, slot) = (newest.id(), slot_of(newest.generation));
        let copies = |drive: &DriveIndex| {
            places.iter().filter(|place| place.drive == *drive && place.holds(&id)).count()
        };
        self.incomplete = label.members().filter(|drive| copies(drive) < 2).collect();
        let may_write = |place: &&Place| match &place.found {
            Found::Bad(bad) => bad.unread.is_none_or(IoError::is_damage),
            Found::Root(root) => root.id() != id,
            Found::Nothing => true,
        };
        let lacking = places.iter().filter(|place| place.slot == slot).filter(may_write);
        self.lacking = lacking.map(|place| (place.zone, place.drive, place.offset_bytes)).collect();
    }

    /// A root in a back ring, and one that was followed by another of the same opening, had reached
    /// the front ring of every drive. So a member whose front ring has neither the newest of these
    /// roots nor a newer one missed a commit. A place that cannot be read shows nothing, and
    /// neither does one that a late root has overwritten.
    fn find_stale(&mut self, label: &Label, places: &[Place]) {
        let mut recent = Vec::new();
        let mut next = self.newest();
        let complete = loop {
            let Some(root) = next else { return };
            let id = root.id();
            let in_back = places.iter().any(|place| place.zone == Zone::Back && place.holds(&id));
            let followed = self.child_of(&id).is_some_and(|child| child.epoch == root.epoch);
            recent.push(id);
            if in_back || followed {
                break root;
            }
            next = self.parent_of(root);
        };
        let slot = slot_of(complete.generation);
        let missed = |drive: &DriveIndex| {
            let mut own = places.iter().filter(|place| place.drive == *drive);
            let mut front = own.clone().filter(|p| p.zone == Zone::Front && p.slot == slot);
            let was_read = front.any(|place| match &place.found {
                Found::Root(root) => self.counts(root),
                Found::Nothing => true,
                Found::Bad(_) => false,
            });
            was_read && !own.any(|place| recent.iter().any(|id| place.holds(id)))
        };
        self.stale = label.members().filter(missed).collect();
    }

    fn child_of(&self, id: &[u8; 16]) -> Option<&Root> {
        self.history.by_generation.values().rev().find(|root| root.parent == *id)
    }

    /// A newer root that was acknowledged is in both rings of every member. So one place in its
    /// slot that was read and does not hold it shows that there is none, or that no caller heard of
    /// it.
    fn find_hidden(&self, label: &Label, places: &[Place]) -> Option<Damage> {
        let newest = self.newest()?;
        let is_witness = |place: &&Place| {
            !self.stale.contains(&place.drive) && label.members().any(|m| m == place.drive)
        };
        let any_witness = places.iter().any(|place| is_witness(&place));
        (1..=MOST_SKIPPED).find_map(|ahead| {
            let slot = slot_of(Generation(newest.generation.0 + ahead));
            let mut first = None;
            for place in places.iter().filter(|place| place.slot == slot) {
                match &place.found {
                    Found::Bad(bad) => first = first.or(Some(bad)),
                    _ if is_witness(&place) || !any_witness => return None,
                    _ => {}
                }
            }
            first.map(|bad| bad.damage.clone())
        })
    }
}

/// Writes the newest root wherever its commit did not reach, in the order of a commit: the front
/// rings, then the back rings. No place that holds it is written. Until then it may be on one drive
/// only, in a unit that the repair of another root, or the next commit, could tear.
///
/// Failures are left to the next commit, which writes to the same drives.
pub(crate) fn roll_forward(drives: &mut dyn Drives, label: &Label, roots: &Roots) {
    let Some(newest) = roots.newest() else { return };
    for zone in [Zone::Front, Zone::Back] {
        let lacking = roots.lacking.iter().filter(|(of, drive, _)| {
            *of == zone && !roots.stale.contains(drive) && label.live().any(|live| live == *drive)
        });
        let blocks: Vec<_> = lacking
            .map(|&(_, drive, offset_bytes)| {
                let uuid = label.drives[drive.as_usize()].uuid;
                (drive, offset_bytes, newest.encode(uuid, offset_bytes))
            })
            .collect();
        let mut batch: Vec<_> = blocks
            .iter()
            .map(|(drive, offset_bytes, block)| DriveCommand::Write {
                drive: *drive,
                offset_bytes: *offset_bytes,
                data: block,
                durable: true,
            })
            .collect();
        // A root in a back ring says that every front ring has it.
        if !batch.is_empty() && drives.run(&mut batch).iter().any(Result::is_err) {
            return;
        }
    }
}

/// Slots of the rings with a place that cannot be read, or that could not be rewritten: their
/// generations are skipped, since nothing may be written there.
pub(crate) type UnusableSlots = BTreeSet<u64>;

/// Rewrites bad places: with their root, if it is known, and otherwise with zeros (blank), if they
/// were read.
pub(crate) fn repair_roots(
    drives: &mut dyn Drives,
    label: &Label,
    roots: &Roots,
    repair: bool,
) -> (Vec<Notice>, UnusableSlots) {
    let mut notices = Vec::new();
    let mut unusable = UnusableSlots::new();
    for bad in &roots.bad {
        let mut damage = bad.damage.clone();
        let offset_bytes = bad.offset_bytes;
        let root = roots.in_slot(bad.slot);
        damage.generation = root.map(|root| root.generation);
        let may_write = match bad.unread {
            None => true,
            // The drive says that the bytes are lost, and another place has them.
            Some(error) => {
                roots.known_slot == Some(bad.slot)
                    || root.is_some() && error.is_damage()
                    || planted(Bug::UnreadRootZeroed)
            }
        };
        let uuid = label.drives[bad.drive.as_usize()].uuid;
        let block = root
            .map_or_else(|| vec![0; BLOCK_BYTES as usize], |root| root.encode(uuid, offset_bytes));
        let mut batch =
            [DriveCommand::Write { drive: bad.drive, offset_bytes, data: &block, durable: true }];
        let repaired = repair && may_write && drives.run(&mut batch).remove(0).is_ok();
        if !repaired && (bad.unread.is_some() || repair) {
            unusable.insert(bad.slot);
        }
        notices.push(match (repaired, root.is_some()) {
            (true, _) => Notice::Repaired(damage),
            (false, true) => Notice::DamagedCopy(damage),
            (false, false) => Notice::Unusable(damage),
        });
    }
    (notices, unusable)
}

/// Two roots of one generation and open epoch that say different things: nothing decides between
/// them.
fn two_owners(label: &Label, places: &[Place], rivals: &TwoOwners) -> Error {
    let TwoOwners { one, other } = rivals;
    let id = other.id();
    let of_other =
        places.iter().find(|place| matches!(&place.found, Found::Root(root) if root.id() == id));
    let (serial, offset) = of_other.map_or(("", 0), |place| {
        (label.drives[place.drive.as_usize()].serial.as_str(), place.offset_bytes)
    });
    let detail = "another root of the same generation and open epoch exists: two owners wrote the \
                  pool at once";
    let mut damage = root_damage(serial, offset, detail.into());
    damage.generation = Some(one.generation);
    damage.into()
}

pub(super) fn root_damage(serial: &str, offset_bytes: u64, detail: String) -> Damage {
    Damage {
        what: "root",
        serial: serial.to_owned(),
        offset_bytes: Some(offset_bytes),
        checkpoint: None,
        shard: None,
        generation: None,
        detail,
    }
}
