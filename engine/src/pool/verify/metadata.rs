// SPDX-License-Identifier: Apache-2.0
//! The pass over the metadata: every copy of each object is read, and bad ones are written again.
//!
//! The keeper reads and writes for it, a few MiB at a time, so that commits go on in between. Bytes
//! are decoded on the caller's thread.

use std::collections::VecDeque;
use std::ops::Range;

use crate::drives::Drives;
use crate::error::{Error, IoError};
use crate::format::{
    CatalogueEntry, DriveState, FormatError, Label, Manifest, Root, SegmentTable, Shard,
};
use crate::notice::Notice;
use crate::pool::handle::Pool;
use crate::pool::hold::Hold;
use crate::pool::options::PoolMode;
use crate::pool::verify::report::Tally;
use crate::pool::verify::scope::Scope;
use crate::recover::labels::{check_labels, read_labels, repair_labels};
use crate::recover::metadata::{
    self, BadCopy, CopyPlace, Decode, Found, Subject, Wrong, bad_copy, copies_of, everywhere,
    repair_metadata,
};
use crate::recover::newest::{catalogue_subject, decode_catalogue};
use crate::recover::roots::{check_roots, repair_roots};

/// What the keeper reads in one call. A commit waits for no more than that.
const BYTES_PER_CALL: u64 = 4 << 20;
/// Copies that are in memory at once, unless one alone is larger.
const BYTES_AT_ONCE: u64 = 16 << 20;

/// Decodes the object of that number.
type DecodeNumbered<'a, T> = &'a dyn Fn(usize, &[u8]) -> Result<T, FormatError>;

/// The pass.
pub(super) struct MetadataPass<'a> {
    pool: &'a Pool,
    label: Label,
    scope: Scope,
    repair: bool,
}

/// An object of a checkpoint.
struct Object {
    subject: Subject,
    /// Its copies on drives that take part.
    copies: Vec<CopyPlace>,
}

impl Object {
    fn stored_bytes(&self) -> u64 {
        self.copies.iter().map(CopyPlace::stored_bytes).sum()
    }
}

impl<'a> MetadataPass<'a> {
    pub(super) fn new(
        pool: &'a Pool,
        label: Label,
        scope: Scope,
        repair: bool,
    ) -> MetadataPass<'a> {
        MetadataPass { pool, label, scope, repair }
    }

    /// Checks labels, roots and the catalogue: those of the generation that is the newest now.
    pub(super) fn check_pool(&self, tally: &mut Tally<'_>) -> Result<(), Error> {
        let (context, repair) = (self.pool.open.context.clone(), self.repair);
        let (copies, notices) = self.pool.open.on_keeper(move |keeper| {
            let (label, root) = {
                let state = context.state();
                (state.label().clone(), state.root().clone())
            };
            if repair {
                context.state().check_poison()?;
            }
            check_pool(keeper.drives(), &label, &root, context.mode, repair)
        })??;
        tally.metadata_read(copies);
        tally.take_notices(notices);
        Ok(())
    }

    /// The manifest of a checkpoint, if any drive has a sound copy.
    pub(super) fn check_manifest(
        &self,
        hold: &Hold,
        tally: &mut Tally<'_>,
    ) -> Result<Option<Manifest>, Error> {
        let entry = &hold.committed().entry;
        let copies = everywhere(&self.label, &entry.manifest);
        let object = Object { subject: metadata::manifest_subject(entry), copies };
        let decode = metadata::decode_manifest(&self.label, entry);
        let mut found = None;
        self.check(hold, &[object], &|_, bytes| decode(bytes), tally, &mut |_, manifest| {
            found = manifest;
            Ok(())
        })?;
        Ok(found)
    }

    /// Segment tables and shards of some participants: each goes to `take`, if any drive has a
    /// sound copy of the table.
    pub(super) fn check_tables(
        &self,
        hold: &Hold,
        manifest: &Manifest,
        participants: Range<usize>,
        tally: &mut Tally<'_>,
        take: &mut dyn FnMut(SegmentTable, Vec<Shard>),
    ) -> Result<(), Error> {
        let entry: &CatalogueEntry = &hold.committed().entry;
        let segments = &manifest.segments[participants.clone()];
        let of = |number: usize| (&segments[number], (participants.start + number) as u32);
        let object = |subject: Subject, reference| {
            let copies = copies_of(&self.label, reference);
            Object { subject, copies }
        };
        let lists: Vec<Object> =
            segments.iter().map(|s| object(metadata::list_subject(entry), &s.list)).collect();
        let decode = |number: usize, bytes: &[u8]| {
            let (segment, participant) = of(number);
            metadata::decode_list(&self.label, entry, segment, participant)(bytes)
        };
        let mut shards: Vec<Vec<Shard>> = vec![Vec::new(); segments.len()];
        self.check(hold, &lists, &decode, tally, &mut |number, list| {
            shards[number] = list.map(|list| list.shards).unwrap_or_default();
            Ok(())
        })?;
        let tables: Vec<Object> =
            segments.iter().map(|s| object(metadata::table_subject(entry), &s.table)).collect();
        let decode = |number: usize, bytes: &[u8]| {
            let (segment, participant) = of(number);
            metadata::decode_table(&self.label, entry, segment, participant)(bytes)
        };
        self.check(hold, &tables, &decode, tally, &mut |number, table| {
            if let Some(table) = table {
                take(table, std::mem::take(&mut shards[number]));
            }
            Ok(())
        })
    }

    /// How many participants, from `first` on, have tables and lists that fit into memory together.
    pub(super) fn group_of(&self, manifest: &Manifest, first: usize) -> Range<usize> {
        let sizes = manifest.segments[first..].iter().map(|segment| {
            let references = [&segment.table, &segment.list];
            let places = references.into_iter().flat_map(|r| copies_of(&self.label, r));
            places.map(|place| place.stored_bytes()).sum()
        });
        first..first + fitting(sizes, BYTES_AT_ONCE)
    }

    /// Reads the copies of objects, mends the bad ones, and gives each object to `take`.
    fn check<T>(
        &self,
        hold: &Hold,
        objects: &[Object],
        decode: DecodeNumbered<'_, T>,
        tally: &mut Tally<'_>,
        take: &mut dyn FnMut(usize, Option<T>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut start = 0;
        while start < objects.len() {
            let sizes = objects[start..].iter().map(Object::stored_bytes);
            let count = fitting(sizes, BYTES_AT_ONCE);
            let group = start..start + count;
            let mut found: Vec<Found<T>> =
                group.clone().map(|_| Found { object: None, bad: Vec::new() }).collect();
            let mut wanted: Vec<(usize, CopyPlace)> = Vec::new();
            let mut spare: Vec<(usize, VecDeque<CopyPlace>)> = Vec::new();
            for number in group.clone() {
                let (first, rest) = self.readers(number, &objects[number].copies);
                wanted.extend(first.into_iter().map(|place| (number, place)));
                spare.push((number, rest));
            }
            while !wanted.is_empty() {
                self.read(objects, &wanted, decode, start, &mut found, tally)?;
                spare.retain(|(number, _)| found[number - start].object.is_none());
                let next = spare.iter_mut();
                wanted = next
                    .filter_map(|(number, rest)| rest.pop_front().map(|place| (*number, place)))
                    .collect();
            }
            for (number, found) in group.zip(found) {
                let object = self.settle(hold, &objects[number].subject, found, tally)?;
                take(number, object)?;
            }
            start += count;
        }
        Ok(())
    }

    /// The copies that are read, and those that are read only if none of these is sound.
    fn readers(
        &self,
        number: usize,
        copies: &[CopyPlace],
    ) -> (Vec<CopyPlace>, VecDeque<CopyPlace>) {
        if self.scope == Scope::Everything {
            return (copies.to_vec(), VecDeque::new());
        }
        let is_rebuilding = |place: &CopyPlace| {
            self.label.drives[place.drive.as_usize()].state == DriveState::Rebuilding
        };
        let (rebuilding, mut members): (Vec<_>, VecDeque<_>) = {
            let (rebuilding, members): (Vec<_>, Vec<_>) =
                copies.iter().cloned().partition(is_rebuilding);
            (rebuilding, members.into())
        };
        let count = members.len().max(1);
        members.rotate_left(number % count);
        // Of an object that no rebuilding drive has, one copy tells what else belongs there.
        let mut first: Vec<CopyPlace> = members.pop_front().into_iter().collect();
        first.extend(rebuilding);
        (first, members)
    }

    /// Reads copies of objects, in calls of a bounded size, and decodes them. A copy that is alone
    /// larger than a call is read in pieces.
    fn read<T>(
        &self,
        objects: &[Object],
        wanted: &[(usize, CopyPlace)],
        decode: DecodeNumbered<'_, T>,
        start: usize,
        found: &mut [Found<T>],
        tally: &mut Tally<'_>,
    ) -> Result<(), Error> {
        let mut at = 0;
        while at < wanted.len() {
            let sizes = wanted[at..].iter().map(|(_, place)| place.stored_bytes());
            let count = fitting(sizes, BYTES_PER_CALL);
            let batch = &wanted[at..at + count];
            let read = self.read_batch(batch.iter().map(|(_, place)| place.clone()).collect())?;
            tally.metadata_read(count);
            for ((number, place), bytes) in batch.iter().zip(read) {
                let (subject, found) = (&objects[*number].subject, &mut found[number - start]);
                let decode: Decode<'_, T> = &|bytes| decode(*number, bytes);
                take_copy(&self.label, place, subject, bytes, decode, found);
            }
            tally.tick();
            at += count;
        }
        Ok(())
    }

    fn read_batch(&self, places: Vec<CopyPlace>) -> Result<Vec<Result<Vec<u8>, IoError>>, Error> {
        if let [place] = &places[..]
            && place.stored_bytes() > BYTES_PER_CALL
        {
            return Ok(vec![self.read_large(place)?]);
        }
        self.pool.open.on_keeper(move |keeper| metadata::read_places(keeper.drives(), &places))
    }

    fn read_large(&self, place: &CopyPlace) -> Result<Result<Vec<u8>, IoError>, Error> {
        let mut bytes = Vec::with_capacity(place.stored_bytes() as usize);
        for part in place.parts(BYTES_PER_CALL) {
            let read = self.pool.open.on_keeper(move |keeper| {
                metadata::read_places(keeper.drives(), &[part]).remove(0)
            })?;
            match read {
                Ok(part) => bytes.extend(part),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(bytes))
    }

    /// Writes bad copies again, if the checkpoint is still there, and reports what is left.
    fn settle<T>(
        &self,
        hold: &Hold,
        subject: &Subject,
        found: Found<T>,
        tally: &mut Tally<'_>,
    ) -> Result<Option<T>, Error> {
        if found.object.is_none() && found.bad.is_empty() {
            // No drive that takes part has a copy; what it names may belong on any of them.
            tally.all_incomplete();
            tally.damaged(found.damage(subject));
            return Ok(None);
        }
        let Found { object, bad } = found;
        let (object, sound) = object.unzip();
        if bad.is_empty() {
            return Ok(object);
        }
        if object.is_none() && bad.iter().any(|copy| copy.unread.is_some()) {
            // What it names is unknown, and another try may tell.
            tally.all_incomplete();
        }
        let Some(sound) = sound.filter(|_| self.repair) else {
            for copy in bad {
                if object.is_some() {
                    tally.incomplete(copy.drive);
                }
                tally.damaged(copy.damage);
            }
            return Ok(object);
        };
        let (is_current, copies) = (hold.watch(), bad.clone());
        let context = self.pool.open.context.clone();
        let notices = self.pool.open.on_keeper(move |keeper| {
            context.state().check_poison()?;
            Ok::<_, Error>(match is_current() {
                true => mend(keeper.drives(), &copies, Some(&sound)),
                false => Vec::new(),
            })
        })??;
        for (copy, notice) in bad.into_iter().zip(notices) {
            match notice {
                Notice::Repaired(damage) => tally.rewritten(copy.drive, 0, Some(damage)),
                _ => {
                    tally.incomplete(copy.drive);
                    tally.damaged(copy.damage);
                }
            }
        }
        Ok(object)
    }
}

/// How many of these, at least one, are together no larger than the limit.
fn fitting(sizes: impl Iterator<Item = u64>, limit_bytes: u64) -> usize {
    let mut sum: u64 = 0;
    let fits = |size: &u64| {
        sum = sum.saturating_add(*size);
        sum <= limit_bytes
    };
    sizes.take_while(fits).count().max(1)
}

/// Adds one copy to what was found of an object. All copies have the same bytes, so only the first
/// sound one is decoded.
fn take_copy<T>(
    label: &Label,
    place: &CopyPlace,
    subject: &Subject,
    read: Result<Vec<u8>, IoError>,
    decode: Decode<'_, T>,
    found: &mut Found<T>,
) {
    let known = found.object.as_ref().map(|(_, bytes)| bytes);
    if read.as_ref().is_ok_and(|bytes| known == Some(bytes)) {
        return;
    }
    let decoded = match read {
        Ok(bytes) => decode(&bytes).map(|decoded| (decoded, bytes)).map_err(Wrong::from),
        Err(error) => Err(Wrong::from(error)),
    };
    match decoded {
        Ok(sound) => found.object = found.object.take().or(Some(sound)),
        Err(wrong) => found.bad.push(bad_copy(label, place.clone(), subject, wrong)),
    }
}

/// Writes the sound bytes over bad copies; without them it only reports.
fn mend(drives: &mut dyn Drives, bad: &[BadCopy], sound: Option<&[u8]>) -> Vec<Notice> {
    match sound {
        Some(_) => repair_metadata(drives, bad, sound),
        None => bad.iter().map(|copy| Notice::DamagedCopy(copy.damage.clone())).collect(),
    }
}

/// Checks labels, roots and the catalogue of a pool whose label and newest root are known, and with
/// `repair` repairs them. The result is how many copies were read, and what is wrong.
pub(crate) fn check_pool(
    drives: &mut dyn Drives,
    label: &Label,
    root: &Root,
    mode: PoolMode,
    repair: bool,
) -> Result<(usize, Vec<Notice>), Error> {
    let mut notices = Vec::new();
    let mut copies = 0;
    let mut labels: Vec<_> = label.drives.iter().map(|_| None).collect();
    for drive in label.live() {
        // A pool that is open for reading has a label of its own where drives are missing.
        labels[drive.as_usize()] = Some(match mode {
            PoolMode::ReadWrite => check_labels(drives, label, drive),
            PoolMode::ReadOnly => read_labels(drives, drive.as_usize())?,
        });
        copies += 4;
    }
    notices.extend(repair_labels(drives, &labels, repair));
    let roots = check_roots(drives, label, root, mode == PoolMode::ReadOnly)?;
    copies += 2 * label.live().count();
    notices.extend(repair_roots(drives, label, &roots, repair).0);
    let (subject, decode) = (catalogue_subject(), decode_catalogue(label, root));
    let places = everywhere(label, &root.catalogue);
    let found = metadata::check_copies(drives, label, places, &subject, &decode);
    copies += label.live().count();
    let sound = found.object.map(|(_, bytes)| bytes).filter(|_| repair);
    notices.extend(mend(drives, &found.bad, sound.as_deref()));
    Ok((copies, notices))
}
