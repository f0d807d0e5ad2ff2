// SPDX-License-Identifier: Apache-2.0
//! Reading metadata objects: all copies have the same bytes, so any sound one is enough. Every
//! drive has a copy of a catalogue and a manifest; a few drives have one of a table or a list.

use crate::drives::{DriveCommand, Drives, read_error};
use crate::error::{Damage, Error, IoError};
use crate::format::{
    CatalogueEntry, FormatError, Label, Manifest, MetaExtent, SegmentRef, SegmentTable, ShardList,
    TableRef,
};
use crate::notice::Notice;
use crate::units::DriveIndex;

/// Memory limit of one batch of reads.
const BATCH_BYTES: u64 = 32 << 20;

/// Where a copy of an object lies on one drive.
#[derive(Clone, Debug)]
pub(crate) struct CopyPlace {
    pub(crate) drive: DriveIndex,
    /// Its pieces in their order: offset and length.
    pieces: Vec<(u64, u64)>,
}

impl CopyPlace {
    fn of_extent(drive: DriveIndex, extent: &MetaExtent) -> CopyPlace {
        CopyPlace { drive, pieces: vec![(extent.offset_bytes, extent.stored_bytes())] }
    }

    fn offset_bytes(&self) -> u64 {
        self.pieces.first().map_or(0, |(offset_bytes, _)| *offset_bytes)
    }

    /// Its length on the drive.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, len_bytes)| len_bytes).sum()
    }
}

impl CopyPlace {
    /// The same in parts of at most `most_bytes`, whole blocks.
    pub(crate) fn parts(&self, most_bytes: u64) -> Vec<CopyPlace> {
        let mut parts = Vec::new();
        for (offset_bytes, len_bytes) in &self.pieces {
            let mut at = 0;
            while at < *len_bytes {
                let len = most_bytes.min(len_bytes - at);
                let pieces = vec![(offset_bytes + at, len)];
                parts.push(CopyPlace { drive: self.drive, pieces });
                at += len;
            }
        }
        parts
    }
}

/// The copies of a catalogue or manifest: one on every drive that takes part.
pub(crate) fn everywhere(label: &Label, extent: &MetaExtent) -> Vec<CopyPlace> {
    label.live().map(|drive| CopyPlace::of_extent(drive, extent)).collect()
}

/// The copies of a table or list on drives that take part. The reference was validated.
pub(crate) fn copies_of(label: &Label, reference: &TableRef) -> Vec<CopyPlace> {
    let live: Vec<DriveIndex> = label.live().collect();
    let places = reference.copies().map(|runs| CopyPlace {
        drive: runs[0].drive,
        pieces: runs.iter().map(|run| (run.offset_bytes(), run.len_bytes())).collect(),
    });
    places.filter(|place| live.contains(&place.drive)).collect()
}

/// In the order in which they are tried: those on members from the one at `first` on, then those on
/// rebuilding drives.
fn in_order(label: &Label, copies: Vec<CopyPlace>, first: usize) -> Vec<CopyPlace> {
    let is_member = |place: &CopyPlace| label.members().any(|member| member == place.drive);
    let (mut members, rebuilding): (Vec<_>, Vec<_>) = copies.into_iter().partition(is_member);
    let start = first % members.len().max(1);
    members.rotate_left(start);
    members.extend(rebuilding);
    members
}

/// A copy on one drive that cannot be read or differs from what was written.
#[derive(Clone, Debug)]
pub(crate) struct BadCopy {
    pub(crate) drive: DriveIndex,
    place: CopyPlace,
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

impl Subject {
    fn of(what: &'static str, entry: &CatalogueEntry) -> Subject {
        Subject { what, checkpoint: Some(format!("{}@{}", entry.name, entry.step)) }
    }
}

/// A sound object, and the bad copies that were read before it.
pub(crate) struct Found<T> {
    /// The object and its stored bytes; `None` when no drive has a sound copy.
    pub(crate) object: Option<(T, Vec<u8>)>,
    pub(crate) bad: Vec<BadCopy>,
}

impl<T> Found<T> {
    /// The damage of an object without a sound copy.
    pub(crate) fn damage(&self, subject: &Subject) -> Damage {
        let first = self.bad.first().map(|copy| copy.damage.clone());
        first.unwrap_or_else(|| Damage {
            what: subject.what,
            serial: String::new(),
            offset_bytes: None,
            checkpoint: subject.checkpoint.clone(),
            shard: None,
            generation: None,
            detail: "every drive that has a copy is missing".into(),
        })
    }
}

/// Decodes an object from its bytes.
pub(crate) type Decode<'a, T> = &'a dyn Fn(&[u8]) -> Result<T, FormatError>;

/// Reads an object that every drive has from the first one that has a sound copy: first from
/// members, beginning with `first`, then from rebuilding drives. The extent was validated against
/// the layout, so its length is bounded.
pub(crate) fn read_object<T>(
    drives: &mut dyn Drives,
    label: &Label,
    extent: &MetaExtent,
    first: usize,
    subject: &Subject,
    decode: Decode<'_, T>,
) -> Found<T> {
    let copies = in_order(label, everywhere(label, extent), first);
    read_first(drives, label, copies, subject, decode)
}

/// Reads the copies in this order up to the first sound one.
fn read_first<T>(
    drives: &mut dyn Drives,
    label: &Label,
    copies: Vec<CopyPlace>,
    subject: &Subject,
    decode: Decode<'_, T>,
) -> Found<T> {
    let mut bad = Vec::new();
    for place in copies {
        match read_copy(drives, &place, decode) {
            Ok(object) => return Found { object: Some(object), bad },
            Err(wrong) => bad.push(bad_copy(label, place, subject, wrong)),
        }
    }
    Found { object: None, bad }
}

/// Reads all of these copies. The result is in their order.
pub(crate) fn check_copies<T>(
    drives: &mut dyn Drives,
    label: &Label,
    copies: Vec<CopyPlace>,
    subject: &Subject,
    decode: Decode<'_, T>,
) -> Found<T> {
    let mut found = Found { object: None, bad: Vec::new() };
    for place in copies {
        match read_copy(drives, &place, decode) {
            Ok(object) => found.object = found.object.or(Some(object)),
            Err(wrong) => found.bad.push(bad_copy(label, place, subject, wrong)),
        }
    }
    found
}

fn read_copy<T>(
    drives: &mut dyn Drives,
    place: &CopyPlace,
    decode: Decode<'_, T>,
) -> Result<(T, Vec<u8>), Wrong> {
    let bytes = read_places(drives, std::slice::from_ref(place)).remove(0)?;
    let object = decode(&bytes)?;
    Ok((object, bytes))
}

/// The bytes of each of these copies, all read in one batch.
pub(crate) fn read_places(
    drives: &mut dyn Drives,
    places: &[CopyPlace],
) -> Vec<Result<Vec<u8>, IoError>> {
    let mut buffers: Vec<Vec<u8>> =
        places.iter().map(|place| vec![0; place.stored_bytes() as usize]).collect();
    let mut batch = Vec::with_capacity(places.len());
    let mut owners = Vec::with_capacity(places.len());
    for (owner, (buffer, place)) in buffers.iter_mut().zip(places).enumerate() {
        let mut left = buffer.as_mut_slice();
        for (offset_bytes, len_bytes) in &place.pieces {
            let (into, rest) = left.split_at_mut(*len_bytes as usize);
            left = rest;
            let (drive, offset_bytes) = (place.drive, *offset_bytes);
            batch.push(DriveCommand::Read { drive, offset_bytes, into });
            owners.push(owner);
        }
    }
    let statuses = drives.run(&mut batch);
    drop(batch);
    let mut results = vec![Ok(()); places.len()];
    for (owner, status) in owners.into_iter().zip(statuses) {
        results[owner] = results[owner].and(status);
    }
    buffers.into_iter().zip(results).map(|(bytes, result)| result.map(|()| bytes)).collect()
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
    place: CopyPlace,
    subject: &Subject,
    wrong: Wrong,
) -> BadCopy {
    let drive = place.drive;
    let damage = Damage {
        what: subject.what,
        serial: label.drives[drive.as_usize()].serial.clone(),
        offset_bytes: Some(place.offset_bytes()),
        checkpoint: subject.checkpoint.clone(),
        shard: None,
        generation: None,
        detail: wrong.detail,
    };
    BadCopy { drive, place, damage, unread: wrong.unread }
}

/// The error of an object without a sound copy, when some copy could not be read. Such an object is
/// not known to be lost: its space must not be used again.
pub(crate) fn unread(drives: &dyn Drives, bad: &[BadCopy]) -> Result<(), Error> {
    match bad.iter().find_map(|copy| copy.unread.map(|error| (copy, error))) {
        Some((copy, source)) => {
            Err(read_error(drives, copy.drive, copy.place.offset_bytes(), source))
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
    Subject::of("manifest", entry)
}

pub(crate) fn decode_manifest(
    label: &Label,
    entry: &CatalogueEntry,
) -> impl Fn(&[u8]) -> Result<Manifest, FormatError> {
    move |bytes| {
        let manifest = Manifest::decode(bytes, &entry.manifest, label.pool, entry.id)?;
        manifest.validate(entry, &label.layout, label.drives.len())?;
        Ok(manifest)
    }
}

pub(crate) fn table_subject(entry: &CatalogueEntry) -> Subject {
    Subject::of("segment table", entry)
}

pub(crate) fn list_subject(entry: &CatalogueEntry) -> Subject {
    Subject::of("shard list", entry)
}

pub(crate) fn decode_table(
    label: &Label,
    entry: &CatalogueEntry,
    segment: &SegmentRef,
    participant: u32,
) -> impl Fn(&[u8]) -> Result<SegmentTable, FormatError> {
    move |bytes| {
        let table = SegmentTable::decode(bytes, &segment.table, label.pool, entry.id, participant)?;
        table.validate(&label.layout, &label.drives)?;
        same_length(table.len_bytes, segment)?;
        Ok(table)
    }
}

pub(crate) fn decode_list(
    label: &Label,
    entry: &CatalogueEntry,
    segment: &SegmentRef,
    participant: u32,
) -> impl Fn(&[u8]) -> Result<ShardList, FormatError> {
    move |bytes| {
        let list = ShardList::decode(bytes, &segment.list, label.pool, entry.id, participant)?;
        same_length(list.len_bytes, segment)?;
        Ok(list)
    }
}

fn same_length(len_bytes: u64, segment: &SegmentRef) -> Result<(), FormatError> {
    if len_bytes == segment.len_bytes {
        return Ok(());
    }
    Err(FormatError::Corrupt(format!(
        "{len_bytes} bytes, where the manifest says {}",
        segment.len_bytes
    )))
}

/// The copy of a segment table to read first, if a drive that takes part has one.
pub(crate) fn first_copy(
    label: &Label,
    reference: &TableRef,
    participant: u32,
) -> Option<CopyPlace> {
    copies_to_read(label, reference, participant).into_iter().next()
}

/// The copies of a table or list on the drives that take part, in the order of reading.
fn copies_to_read(label: &Label, reference: &TableRef, participant: u32) -> Vec<CopyPlace> {
    in_order(label, copies_of(label, reference), participant as usize)
}

/// The segment table of one participant.
pub(crate) fn read_table(
    drives: &mut dyn Drives,
    label: &Label,
    entry: &CatalogueEntry,
    segment: &SegmentRef,
    participant: u32,
) -> Found<SegmentTable> {
    let decode = decode_table(label, entry, segment, participant);
    let copies = copies_to_read(label, &segment.table, participant);
    read_first(drives, label, copies, &table_subject(entry), &decode)
}

/// The shard list of one participant.
pub(crate) fn read_list(
    drives: &mut dyn Drives,
    label: &Label,
    entry: &CatalogueEntry,
    segment: &SegmentRef,
    participant: u32,
) -> Found<ShardList> {
    let decode = decode_list(label, entry, segment, participant);
    let copies = copies_to_read(label, &segment.list, participant);
    read_first(drives, label, copies, &list_subject(entry), &decode)
}

/// Overwrites bad copies with the sound bytes. Place and content are those that the newest root
/// names, so nothing else is overwritten. A copy that could not be read for now may be sound, and
/// is left alone. Returns for each copy whether it was rewritten.
fn repair_copies(drives: &mut dyn Drives, bad: &[BadCopy], sound: &[u8]) -> Vec<bool> {
    let mut batch = Vec::new();
    let mut owners = Vec::new();
    let mut repaired: Vec<bool> = bad.iter().map(|copy| copy.unread.is_none()).collect();
    for (owner, copy) in bad.iter().enumerate().filter(|(_, copy)| copy.unread.is_none()) {
        let mut left = sound;
        for (offset_bytes, len_bytes) in &copy.place.pieces {
            let (data, rest) = left.split_at((*len_bytes as usize).min(left.len()));
            left = rest;
            let (drive, offset_bytes) = (copy.drive, *offset_bytes);
            batch.push(DriveCommand::Write { drive, offset_bytes, data, durable: true });
            owners.push(owner);
        }
    }
    for (owner, status) in owners.into_iter().zip(drives.run(&mut batch)) {
        repaired[owner] &= status.is_ok();
    }
    repaired
}

/// Rewrites bad copies of a manifest, segment table or shard list from a sound one. A copy that
/// cannot be rewritten stays damaged; the object is not lost.
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

/// Reads these copies of many objects, several at a time. A failed read gives `None`.
pub(crate) fn read_many(
    drives: &mut dyn Drives,
    places: &[CopyPlace],
    mut take: impl FnMut(usize, Option<Vec<u8>>),
) {
    let mut start = 0;
    while start < places.len() {
        let mut end = start;
        let mut bytes = 0;
        while end < places.len() && (end == start || bytes < BATCH_BYTES) {
            bytes += places[end].stored_bytes();
            end += 1;
        }
        let read = read_places(drives, &places[start..end]);
        for (number, result) in (start..).zip(read) {
            take(number, result.ok());
        }
        start = end;
    }
}

/// One copy of each of these manifests, on members in turn, if there are any.
pub(crate) fn one_copy_each(label: &Label, extents: &[MetaExtent]) -> Vec<CopyPlace> {
    let mut sources: Vec<DriveIndex> = label.members().collect();
    if sources.is_empty() {
        sources = label.live().collect();
    }
    let place = |(number, extent): (usize, &MetaExtent)| {
        CopyPlace::of_extent(sources[number % sources.len()], extent)
    };
    extents.iter().enumerate().map(place).collect()
}

/// The object, or the damage of the first copy when no drive has a sound one.
pub(crate) fn sound<T>(found: Found<T>, subject: &Subject) -> Result<T, Error> {
    let damage = found.damage(subject);
    found.object.map(|(object, _)| object).ok_or_else(|| damage.into())
}
