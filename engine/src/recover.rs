//! Opening: from the bytes on the drives to the newest whole generation. Pure, over [`Drives`].
//!
//! - One valid root is enough evidence: it was written only after all it names was durable on all
//!   drives. The newest valid root of any drive wins.
//! - If its catalogue is damaged on every drive, its parent is taken, and said so. Recovery never
//!   goes further back: older generations' extents may have been reused.
//! - A read that merely failed is no damage. What it keeps from being decided is an error: to take
//!   an older generation, or to use the space of what was not read, would lose what is not lost.
//! - Nothing is written here. Whoever opens for writing commits an empty generation next, which
//!   rolls a root forward that reached only some drives.
//! - The cost does not depend on the drives' capacity.

use std::collections::BTreeMap;

use crate::drive_info::DriveInfo;
use crate::drives::{DriveCommand, Drives, read_error};
use crate::error::{Damage, Error, IoError};
use crate::format::{Catalogue, FormatError, Label, Layout, Manifest, Root, SegmentTable, Zone};
use crate::limits::{BLOCK_BYTES, ROOT_SLOTS};
use crate::metadata::{self, BadCopy, Found, Subject};
use crate::notice::Notice;
use crate::state::{Committed, Holding};
use crate::units::{DriveIndex, Generation};

/// What was read of one drive's labels.
#[derive(Debug)]
pub(crate) struct DriveLabels {
    /// The sound label.
    pub(crate) label: Label,
    /// Copies that are not it.
    pub(crate) bad: Vec<(u64, Damage)>,
}

/// Reads the labels of the drive at `index`.
///
/// # Errors
/// [`Error::Io`] when there may well be a label, and it could not be read; whatever is wrong with it
/// otherwise.
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
    // Copies are judged where the label says that they lie, which a drive that grew may not end at.
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

/// What the root rings hold.
pub(crate) struct Roots {
    /// Valid roots by generation; all copies of a generation are alike.
    pub(crate) by_generation: BTreeMap<Generation, Root>,
    /// Which drives lack a copy of the newest one.
    pub(crate) incomplete: Vec<DriveIndex>,
    /// Slots whose bytes are no root: torn by a power cut, or damaged.
    pub(crate) bad: Vec<BadRoot>,
}

/// A slot of a root ring that holds no root.
pub(crate) struct BadRoot {
    pub(crate) drive: DriveIndex,
    pub(crate) slot: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) damage: Damage,
    /// The read failed like this, and there may well be a root.
    pub(crate) unread: Option<IoError>,
}

/// Reads both root rings of every drive that takes part: only the blocks that hold roots, of all drives at once.
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
            // A root of a pool that was here before is no damage.
            Err(FormatError::Blank | FormatError::NotOurs) => {}
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

/// The error of a root that was not read, if there is one: a pool that is to be written must know
/// which generation is its newest.
pub(crate) fn unread_root(drives: &dyn Drives, roots: &Roots) -> Result<(), Error> {
    match roots.bad.iter().find_map(|bad| bad.unread.map(|error| (bad, error))) {
        Some((bad, source)) => Err(read_error(drives, bad.drive, bad.offset_bytes, source)),
        None => Ok(()),
    }
}

/// Rewrites bad slots: with the root that belongs there, if another copy of it is sound, and with
/// zeros otherwise, since a slot that holds no root is blank. Without `repair` it only tells.
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

/// Two different roots of one generation would mean two histories: nothing may choose between them.
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

fn root_damage(serial: &str, offset_bytes: u64, detail: String) -> Damage {
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

/// The newest whole generation.
pub(crate) struct Newest {
    pub(crate) root: Root,
    pub(crate) catalogue: Catalogue,
    /// The newest generation that left a trace.
    pub(crate) newest_seen: Generation,
    /// The generation that `root` followed, if its root is still there.
    pub(crate) before: Option<Generation>,
    /// Copies of the catalogue that are bad.
    pub(crate) bad: Vec<BadCopy>,
    /// The generation that had to be given up, if its catalogue cannot be read.
    pub(crate) given_up: Option<Generation>,
}

/// Chooses the generation to open.
pub(crate) fn choose_generation(
    drives: &mut dyn Drives,
    label: &Label,
    roots: &Roots,
) -> Result<Newest, Error> {
    let Some(newest) = roots.by_generation.values().next_back() else {
        let mut damage = root_damage("", 0, "no drive of the pool holds a valid root".into());
        damage.offset_bytes = None;
        return Err(damage.into());
    };
    let newest_seen = newest.generation;
    // By identity, not by number: a generation that was given up once may lie between.
    let parent_of = |root: &Root| {
        let mut older = roots.by_generation.range(..root.generation).rev();
        older.find(|(_, other)| other.id() == root.parent).map(|(_, other)| other)
    };
    let mut bad = Vec::new();
    // Only these two are protected from reuse.
    for root in [Some(newest), parent_of(newest)].into_iter().flatten() {
        let found = read_catalogue(drives, label, root);
        if let Some((catalogue, _)) = found.object {
            bad.extend(found.bad);
            let given_up = (root.generation != newest_seen).then_some(newest_seen);
            let before = parent_of(root).map(|before| before.generation);
            let root = root.clone();
            return Ok(Newest { root, catalogue, newest_seen, before, bad, given_up });
        }
        metadata::unread(drives, &found.bad)?;
        bad.extend(found.bad);
    }
    let first = bad.into_iter().next().map(|copy| copy.damage);
    Err(first.unwrap_or_else(|| root_damage("", 0, "no catalogue".into())).into())
}

/// The catalogue that a root names, from any drive.
fn read_catalogue(drives: &mut dyn Drives, label: &Label, root: &Root) -> Found<Catalogue> {
    let first = root.generation.0 as usize;
    let decode = decode_catalogue(label, root);
    let subject = catalogue_subject();
    let mut found = metadata::read_object(drives, label, &root.catalogue, first, &subject, &decode);
    found.bad.iter_mut().for_each(|copy| copy.damage.generation = Some(root.generation));
    found
}

pub(crate) fn catalogue_subject() -> Subject {
    Subject { what: "catalogue", checkpoint: None }
}

pub(crate) fn decode_catalogue(
    label: &Label,
    root: &Root,
) -> impl Fn(&[u8]) -> Result<Catalogue, FormatError> {
    move |bytes| {
        let catalogue = Catalogue::decode(bytes, &root.catalogue, label.pool)?;
        catalogue.validate(root, &label.layout)?;
        Ok(catalogue)
    }
}

/// Told of bad copies of an object, with the drives at hand and the sound bytes if there are any.
pub(crate) type OnBadCopies<'a> = &'a mut dyn FnMut(&mut dyn Drives, &[BadCopy], Option<&[u8]>);

/// Reads the manifests and segment tables of every checkpoint, to know what each occupies. A copy
/// that is bad is told to `bad` with the sound bytes, if another drive has them.
pub(crate) fn read_holdings(
    drives: &mut dyn Drives,
    label: &Label,
    catalogue: &Catalogue,
    bad: OnBadCopies<'_>,
) -> Result<Vec<Committed>, Error> {
    let count = label.drives.len();
    let entries = &catalogue.entries;
    let mut manifests: Vec<Option<Manifest>> = vec![None; entries.len()];
    let extents: Vec<_> = entries.iter().map(|entry| entry.manifest).collect();
    metadata::read_many(drives, label, &extents, |number, bytes| {
        let decode = metadata::decode_manifest(label, &entries[number]);
        manifests[number] = bytes.and_then(|bytes| decode(&bytes).ok());
    });
    let mut committed = Vec::with_capacity(entries.len());
    for (entry, manifest) in entries.iter().zip(manifests) {
        let mut damage = None;
        let manifest = match manifest {
            Some(manifest) => Some(manifest),
            None => {
                let found = metadata::read_manifest(drives, label, entry, 0);
                settle(drives, found, &mut damage, bad)?
            }
        };
        let mut holding = Holding::new(count);
        holding.add_meta(&label.layout, &entry.manifest);
        if let Some(manifest) = &manifest {
            add_tables(drives, label, entry, manifest, &mut holding, &mut damage, bad)?;
        }
        committed.push(Committed { entry: entry.clone(), holding, damage });
    }
    Ok(committed)
}

fn add_tables(
    drives: &mut dyn Drives,
    label: &Label,
    entry: &crate::format::CatalogueEntry,
    manifest: &Manifest,
    holding: &mut Holding,
    damage: &mut Option<Damage>,
    bad: OnBadCopies<'_>,
) -> Result<(), Error> {
    let extents: Vec<_> = manifest.segments.iter().map(|segment| segment.table).collect();
    let mut unread = Vec::new();
    let add = |holding: &mut Holding, table: &SegmentTable| {
        table.chunks.iter().for_each(|chunk| holding.add_chunk(chunk.copies));
    };
    metadata::read_many(drives, label, &extents, |number, bytes| {
        let decode = metadata::decode_table(label, entry, manifest, number as u32);
        match bytes.and_then(|bytes| decode(&bytes).ok()) {
            Some(table) => add(holding, &table),
            None => unread.push(number as u32),
        }
    });
    extents.iter().for_each(|extent| holding.add_meta(&label.layout, extent));
    for participant in unread {
        let found = metadata::read_table(drives, label, entry, manifest, participant);
        if let Some(table) = settle(drives, found, damage, bad)? {
            add(holding, &table);
        }
    }
    Ok(())
}

/// Tells of the bad copies of an object, and remembers the damage if no copy is sound.
fn settle<T>(
    drives: &mut dyn Drives,
    found: Found<T>,
    damage: &mut Option<Damage>,
    bad: OnBadCopies<'_>,
) -> Result<Option<T>, Error> {
    let (object, bytes) = found.object.unzip();
    bad(drives, &found.bad, bytes.as_deref());
    if object.is_none() {
        metadata::unread(drives, &found.bad)?;
        *damage = damage.take().or_else(|| found.bad.first().map(|copy| copy.damage.clone()));
    }
    Ok(object)
}
