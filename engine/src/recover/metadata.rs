// SPDX-License-Identifier: Apache-2.0
//! Reading metadata objects: every drive has the same bytes, so any sound copy is enough.

use crate::drives::{DriveCommand, Drives, read_error};
use crate::error::{Damage, Error, IoError};
use crate::format::{CatalogueEntry, FormatError, Label, Manifest, MetaExtent, SegmentTable};
use crate::notice::Notice;
use crate::units::DriveIndex;

/// Memory limit of one batch of reads.
const BATCH_BYTES: u64 = 32 << 20;

/// A copy on one drive that cannot be read or differs from what was written.
#[derive(Clone, Debug)]
pub(crate) struct BadCopy {
    pub(crate) drive: DriveIndex,
    pub(crate) extent: MetaExtent,
    pub(crate) damage: Damage,
    /// The read failed with this error; the copy itself may be sound.
    pub(crate) unread: Option<IoError>,
}

/// The name of an object in messages.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) what: &'static str,
    pub(crate) checkpoint: Option<String>,
}

/// A sound object, and the bad copies that were read before it.
pub(crate) struct Found<T> {
    /// The object and its stored bytes; `None` when no drive has a sound copy.
    pub(crate) object: Option<(T, Vec<u8>)>,
    pub(crate) bad: Vec<BadCopy>,
}

/// Decodes an object from its bytes.
pub(crate) type Decode<'a, T> = &'a dyn Fn(&[u8]) -> Result<T, FormatError>;

/// Reads an object from the first drive that has a sound copy: first from members, beginning with
/// `first`, then from rebuilding drives. The extent was validated against the layout, so its length
/// is bounded.
pub(crate) fn read_object<T>(
    drives: &mut dyn Drives,
    label: &Label,
    extent: &MetaExtent,
    first: usize,
    subject: &Subject,
    decode: Decode<'_, T>,
) -> Found<T> {
    let mut order: Vec<DriveIndex> = label.members().collect();
    let start = first % order.len().max(1);
    order.rotate_left(start);
    order.extend(label.live().filter(|drive| !label.members().any(|member| member == *drive)));
    let mut bad = Vec::new();
    for drive in order {
        let mut bytes = vec![0; extent.stored_bytes() as usize];
        let mut batch =
            [DriveCommand::Read { drive, offset_bytes: extent.offset_bytes, into: &mut bytes }];
        let status = drives.run(&mut batch).remove(0);
        match status.map_err(Wrong::from).and_then(|()| decode(&bytes).map_err(Wrong::from)) {
            Ok(object) => return Found { object: Some((object, bytes)), bad },
            Err(wrong) => bad.push(bad_copy(label, drive, extent, subject, wrong)),
        }
    }
    Found { object: None, bad }
}

/// Reads the copy of every drive that takes part. The result is in the order of the drives.
pub(crate) fn check_copies<T>(
    drives: &mut dyn Drives,
    label: &Label,
    extent: &MetaExtent,
    subject: &Subject,
    decode: Decode<'_, T>,
) -> Found<T> {
    let mut found = Found { object: None, bad: Vec::new() };
    for drive in label.live() {
        let mut bytes = vec![0; extent.stored_bytes() as usize];
        let mut batch =
            [DriveCommand::Read { drive, offset_bytes: extent.offset_bytes, into: &mut bytes }];
        let status = drives.run(&mut batch).remove(0);
        match status.map_err(Wrong::from).and_then(|()| decode(&bytes).map_err(Wrong::from)) {
            Ok(object) => found.object = found.object.or(Some((object, bytes))),
            Err(wrong) => found.bad.push(bad_copy(label, drive, extent, subject, wrong)),
        }
    }
    found
}

/// What is wrong with a copy.
pub(crate) struct Wrong {
    detail: String,
    unread: Option<IoError>,
}

impl From<IoError> for Wrong {
    fn from(error: IoError) -> Wrong {
        let unread = (!error.is_damage()).then_some(error);
        Wrong { detail: error.to_string(), unread }
    }
}

impl From<FormatError> for Wrong {
    fn from(error: FormatError) -> Wrong {
        Wrong { detail: error.to_string(), unread: None }
    }
}

pub(crate) fn bad_copy(
    label: &Label,
    drive: DriveIndex,
    extent: &MetaExtent,
    subject: &Subject,
    wrong: Wrong,
) -> BadCopy {
    let damage = Damage {
        what: subject.what,
        serial: label.drives[drive.as_usize()].serial.clone(),
        offset_bytes: Some(extent.offset_bytes),
        checkpoint: subject.checkpoint.clone(),
        shard: None,
        generation: None,
        detail: wrong.detail,
    };
    BadCopy { drive, extent: *extent, damage, unread: wrong.unread }
}

/// The error of an object without a sound copy, when some copy could not be read. Such an object is
/// not known to be lost: its space must not be used again.
pub(crate) fn unread(drives: &dyn Drives, bad: &[BadCopy]) -> Result<(), Error> {
    match bad.iter().find_map(|copy| copy.unread.map(|error| (copy, error))) {
        Some((copy, source)) => {
            Err(read_error(drives, copy.drive, copy.extent.offset_bytes, source))
        }
        None => Ok(()),
    }
}

/// The manifest of a catalogue entry.
pub(crate) fn read_manifest(
    drives: &mut dyn Drives,
    label: &Label,
    entry: &CatalogueEntry,
    first: usize,
) -> Found<Manifest> {
    let subject = manifest_subject(entry);
    read_object(drives, label, &entry.manifest, first, &subject, &decode_manifest(label, entry))
}

pub(crate) fn manifest_subject(entry: &CatalogueEntry) -> Subject {
    Subject { what: "manifest", checkpoint: Some(format!("{}@{}", entry.name, entry.step)) }
}

pub(crate) fn decode_manifest(
    label: &Label,
    entry: &CatalogueEntry,
) -> impl Fn(&[u8]) -> Result<Manifest, FormatError> {
    move |bytes| {
        let manifest = Manifest::decode(bytes, &entry.manifest, label.pool, entry.id)?;
        manifest.validate(entry, &label.layout)?;
        Ok(manifest)
    }
}

pub(crate) fn table_subject(entry: &CatalogueEntry) -> Subject {
    Subject { what: "segment table", checkpoint: Some(format!("{}@{}", entry.name, entry.step)) }
}

pub(crate) fn decode_table(
    label: &Label,
    entry: &CatalogueEntry,
    manifest: &Manifest,
    participant: u32,
) -> impl Fn(&[u8]) -> Result<SegmentTable, FormatError> {
    move |bytes| {
        let segment = manifest
            .segments
            .get(participant as usize)
            .ok_or_else(|| FormatError::Corrupt(format!("no participant {participant}")))?;
        let table = SegmentTable::decode(bytes, &segment.table, label.pool, entry.id, participant)?;
        table.validate(&label.layout, &label.drives)?;
        if table.len_bytes != segment.len_bytes {
            return Err(FormatError::Corrupt(format!(
                "{} bytes, where the manifest says {}",
                table.len_bytes, segment.len_bytes
            )));
        }
        Ok(table)
    }
}

/// The segment table of one participant.
pub(crate) fn read_table(
    drives: &mut dyn Drives,
    label: &Label,
    entry: &CatalogueEntry,
    manifest: &Manifest,
    participant: u32,
) -> Found<SegmentTable> {
    let Some(segment) = manifest.segments.get(participant as usize) else {
        return Found { object: None, bad: Vec::new() };
    };
    let subject = table_subject(entry);
    let decode = decode_table(label, entry, manifest, participant);
    read_object(drives, label, &segment.table, participant as usize, &subject, &decode)
}

/// Overwrites bad copies with the sound bytes. Place and content are those that the newest root
/// names, so nothing else is overwritten. Returns for each copy whether the write succeeded.
fn repair_copies(drives: &mut dyn Drives, bad: &[BadCopy], sound: &[u8]) -> Vec<bool> {
    let mut batch: Vec<_> = bad
        .iter()
        .map(|copy| DriveCommand::Write {
            drive: copy.drive,
            offset_bytes: copy.extent.offset_bytes,
            data: sound,
            durable: true,
        })
        .collect();
    drives.run(&mut batch).into_iter().map(|status| status.is_ok()).collect()
}

/// Rewrites bad copies of a manifest or segment table from a sound one. A copy that cannot be
/// rewritten stays damaged; the object is not lost.
pub(crate) fn repair_metadata(
    drives: &mut dyn Drives,
    bad: &[BadCopy],
    sound: Option<&[u8]>,
) -> Vec<Notice> {
    let Some(sound) = sound else { return Vec::new() };
    let repaired = repair_copies(drives, bad, sound);
    bad.iter()
        .zip(repaired)
        .map(|(copy, repaired)| {
            let damage = copy.damage.clone();
            if repaired { Notice::Repaired(damage) } else { Notice::DamagedCopy(damage) }
        })
        .collect()
}

/// Reads many extents, each from one member if there is any, several at a time. A failed read gives
/// `None`.
pub(crate) fn read_many(
    drives: &mut dyn Drives,
    label: &Label,
    extents: &[MetaExtent],
    mut take: impl FnMut(usize, Option<Vec<u8>>),
) {
    let mut sources: Vec<DriveIndex> = label.members().collect();
    if sources.is_empty() {
        sources = label.live().collect();
    }
    let mut start = 0;
    while start < extents.len() {
        let mut end = start;
        let mut bytes = 0;
        while end < extents.len() && (end == start || bytes < BATCH_BYTES) {
            bytes += extents[end].stored_bytes();
            end += 1;
        }
        let mut buffers: Vec<Vec<u8>> =
            extents[start..end].iter().map(|e| vec![0; e.stored_bytes() as usize]).collect();
        let mut batch: Vec<_> = buffers
            .iter_mut()
            .zip(&extents[start..end])
            .enumerate()
            .map(|(number, (into, extent))| DriveCommand::Read {
                drive: sources[(start + number) % sources.len()],
                offset_bytes: extent.offset_bytes,
                into,
            })
            .collect();
        let statuses = drives.run(&mut batch);
        drop(batch);
        for (number, (buffer, status)) in buffers.into_iter().zip(statuses).enumerate() {
            take(start + number, status.is_ok().then_some(buffer));
        }
        start = end;
    }
}

/// The object, or the damage of the first copy when no drive has a sound one.
pub(crate) fn sound<T>(found: Found<T>) -> Result<T, Error> {
    if let Some((object, _)) = found.object {
        return Ok(object);
    }
    let damage = found.bad.into_iter().next().map(|copy| copy.damage);
    Err(damage.unwrap_or_else(unreachable_damage).into())
}

/// Every pool has at least one drive, so a missing object always has a bad copy.
fn unreachable_damage() -> Damage {
    Damage {
        what: "metadata",
        serial: String::new(),
        offset_bytes: None,
        checkpoint: None,
        shard: None,
        generation: None,
        detail: "no copy was found".into(),
    }
}
