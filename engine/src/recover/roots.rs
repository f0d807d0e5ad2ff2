// SPDX-License-Identifier: Apache-2.0
//! The root rings: reading them, and repairing slots that hold no root.

use std::collections::BTreeMap;

use crate::drives::{DriveCommand, Drives, read_error};
use crate::error::{Damage, Error, IoError};
use crate::format::{FormatError, Label, Root, Zone};
use crate::limits::{BLOCK_BYTES, ROOT_SLOTS};
use crate::notice::Notice;
use crate::units::{DriveIndex, Generation};

/// What the root rings hold.
pub(crate) struct Roots {
    /// Valid roots by generation; all copies of a generation are equal.
    pub(crate) by_generation: BTreeMap<Generation, Root>,
    /// Which drives lack a copy of the newest one.
    pub(crate) incomplete: Vec<DriveIndex>,
    /// Slots whose bytes are not a root: torn by a power cut, or damaged.
    pub(crate) bad: Vec<BadRoot>,
}

/// A slot of a root ring that holds no root.
pub(crate) struct BadRoot {
    pub(crate) drive: DriveIndex,
    pub(crate) slot: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) damage: Damage,
    /// The read failed with this error; there may be a root.
    pub(crate) unread: Option<IoError>,
}

/// Reads both root rings of every drive that takes part, all drives at once. Reads only the blocks
/// that hold roots.
pub(crate) fn read_roots(drives: &mut dyn Drives, label: &Label) -> Result<Roots, Error> {
    let mut roots =
        Roots { by_generation: BTreeMap::new(), incomplete: Vec::new(), bad: Vec::new() };
    let mut places = Vec::new();
    for drive in label.live() {
        let capacity_bytes = label.drives[drive.as_usize()].capacity_bytes;
        for zone in [Zone::Front, Zone::Back] {
            places.extend((0..ROOT_SLOTS).map(|slot| {
                let offset = label.layout.root_offset(zone, Generation(slot), capacity_bytes);
                (drive, slot, offset)
            }));
        }
    }
    let mut bytes = vec![0; places.len() * BLOCK_BYTES as usize];
    let mut batch: Vec<_> = places
        .iter()
        .zip(bytes.chunks_exact_mut(BLOCK_BYTES as usize))
        .map(|((drive, _, offset), into)| DriveCommand::Read {
            drive: *drive,
            offset_bytes: *offset,
            into,
        })
        .collect();
    let statuses = drives.run(&mut batch);
    drop(batch);
    let mut copies: BTreeMap<Generation, Vec<DriveIndex>> = BTreeMap::new();
    let blocks = bytes.chunks_exact(BLOCK_BYTES as usize);
    for (((drive, slot, offset), block), status) in places.into_iter().zip(blocks).zip(statuses) {
        let entry = &label.drives[drive.as_usize()];
        let decoded =
            status.map_err(|error| FormatError::Corrupt(error.to_string())).and_then(|()| {
                let root = Root::decode(block, label.pool, entry.uuid, offset)?;
                root.validate(&label.layout).map(|()| root)
            });
        match decoded {
            Ok(root) => {
                copies.entry(root.generation).or_default().push(drive);
                add_root(&mut roots, root, &entry.serial, offset)?;
            }
            // A root of an earlier pool on this drive is not damage. One of an older format is such
            // a root: the labels and roots of a pool have one major version.
            Err(FormatError::Blank | FormatError::NotOurs | FormatError::Older { .. }) => {}
            Err(FormatError::Newer { found, supported }) => {
                let info = &drives.info()[drive.as_usize()];
                let (address, serial) = (info.address.clone(), entry.serial.clone());
                return Err(Error::NewerFormat { address, serial, found, supported });
            }
            Err(error) => {
                let damage = root_damage(&entry.serial, offset, error.to_string());
                let unread = status.err().filter(|error| !error.is_damage());
                roots.bad.push(BadRoot { drive, slot, offset_bytes: offset, damage, unread });
            }
        }
    }
    if let Some((_, newest)) = copies.last_key_value() {
        let lacks = |index: &DriveIndex| newest.iter().filter(|d| *d == index).count() < 2;
        roots.incomplete = label.members().filter(lacks).collect();
    }
    Ok(roots)
}

/// The error of a root that could not be read, if there is one: a pool opened for writing must know
/// its newest generation.
pub(crate) fn unread_root(drives: &dyn Drives, roots: &Roots) -> Result<(), Error> {
    match roots.bad.iter().find_map(|bad| bad.unread.map(|error| (bad, error))) {
        Some((bad, source)) => Err(read_error(drives, bad.drive, bad.offset_bytes, source)),
        None => Ok(()),
    }
}

/// Rewrites bad slots: with their root, if another copy of it is sound, and otherwise with zeros
/// (blank). Without `repair` it only reports.
pub(crate) fn repair_roots(
    drives: &mut dyn Drives,
    label: &Label,
    roots: &Roots,
    repair: bool,
) -> Vec<Notice> {
    let mut notices = Vec::new();
    for bad in &roots.bad {
        let mut damage = bad.damage.clone();
        let offset_bytes = bad.offset_bytes;
        let belongs = |root: &&Root| root.generation.0 % ROOT_SLOTS == bad.slot;
        let root = roots.by_generation.values().rev().find(belongs);
        damage.generation = root.map(|root| root.generation);
        let uuid = label.drives[bad.drive.as_usize()].uuid;
        let block = root
            .map_or_else(|| vec![0; BLOCK_BYTES as usize], |root| root.encode(uuid, offset_bytes));
        let mut batch =
            [DriveCommand::Write { drive: bad.drive, offset_bytes, data: &block, durable: true }];
        let repaired = repair && drives.run(&mut batch).remove(0).is_ok();
        notices.push(if repaired { Notice::Repaired(damage) } else { Notice::DamagedCopy(damage) });
    }
    notices
}

/// Two different roots of one generation mean two histories: the program never chooses between
/// them.
fn add_root(roots: &mut Roots, root: Root, serial: &str, offset: u64) -> Result<(), Error> {
    let known = roots.by_generation.entry(root.generation).or_insert_with(|| root.clone());
    if known.id() != root.id() {
        let detail = "another root of the same generation exists: the pool's drives have two \
                      different histories";
        let mut damage = root_damage(serial, offset, detail.into());
        damage.generation = Some(root.generation);
        return Err(damage.into());
    }
    Ok(())
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
