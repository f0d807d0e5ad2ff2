// SPDX-License-Identifier: Apache-2.0
//! The pass over the metadata: every copy of each object is read, and bad ones are written again.
//!
//! The keeper reads and writes for it, a few MiB at a time, so that commits go on in between. Bytes
//! are decoded on the caller's thread.

use std::ops::Range;

use crate::drives::{DriveCommand, Drives};
use crate::error::{Error, IoError};
use crate::format::{
    CatalogueEntry, DriveState, FormatError, Label, Manifest, MetaExtent, SegmentTable,
};
use crate::notice::Notice;
use crate::pool::handle::Pool;
use crate::pool::hold::Hold;
use crate::pool::options::PoolMode;
use crate::pool::verify::Scope;
use crate::pool::verify::report::Tally;
use crate::recover::labels::{check_labels, read_labels, repair_labels};
use crate::recover::metadata::{
    self, BadCopy, Decode, Found, Subject, Wrong, bad_copy, repair_metadata,
};
use crate::recover::newest::{catalogue_subject, decode_catalogue};
use crate::recover::roots::{check_roots, repair_roots};
use crate::units::DriveIndex;

/// What the keeper reads in one call. A commit waits for no more than that.
const BYTES_PER_CALL: u64 = 4 << 20;
/// Copies that are in memory at once, unless one alone is larger.
const BYTES_AT_ONCE: u64 = 16 << 20;

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
    extent: MetaExtent,
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
            let drives = keeper.drives();
            let mut notices = Vec::new();
            let mut copies = 0;
            let mut labels: Vec<_> = label.drives.iter().map(|_| None).collect();
            for drive in label.live() {
                // A pool that is open for reading has a label of its own where drives are missing.
                labels[drive.as_usize()] = Some(match context.mode {
                    PoolMode::ReadWrite => check_labels(drives, &label, drive),
                    PoolMode::ReadOnly => read_labels(drives, drive.as_usize())?,
                });
                copies += 4;
            }
            notices.extend(repair_labels(drives, &labels, repair));
            let roots = check_roots(drives, &label, &root)?;
            copies += 2 * label.live().count();
            notices.extend(repair_roots(drives, &label, &roots, repair).0);
            let (subject, decode) = (catalogue_subject(), decode_catalogue(&label, &root));
            let found = metadata::check_copies(drives, &label, &root.catalogue, &subject, &decode);
            copies += label.live().count();
            let sound = found.object.map(|(_, bytes)| bytes).filter(|_| repair);
            notices.extend(mend(drives, &found.bad, sound.as_deref()));
            Ok::<_, Error>((copies, notices))
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
        let object = Object { subject: metadata::manifest_subject(entry), extent: entry.manifest };
        let decode = metadata::decode_manifest(&self.label, entry);
        let mut found = None;
        self.check(hold, &[object], &|_, bytes| decode(bytes), tally, &mut |_, manifest| {
            found = manifest;
            Ok(())
        })?;
        Ok(found)
    }

    /// Segment tables of a checkpoint: each goes to `take`, if any drive has a sound copy of it.
    pub(super) fn check_tables(
        &self,
        hold: &Hold,
        manifest: &Manifest,
        participants: Range<usize>,
        tally: &mut Tally<'_>,
        take: &mut dyn FnMut(SegmentTable),
    ) -> Result<(), Error> {
        let entry: &CatalogueEntry = &hold.committed().entry;
        let objects: Vec<Object> = manifest.segments[participants.clone()]
            .iter()
            .map(|s| Object { subject: metadata::table_subject(entry), extent: s.table })
            .collect();
        let decode = |number: usize, bytes: &[u8]| {
            let participant = (participants.start + number) as u32;
            metadata::decode_table(&self.label, entry, manifest, participant)(bytes)
        };
        self.check(hold, &objects, &decode, tally, &mut |_, table| {
            table.into_iter().for_each(&mut *take);
            Ok(())
        })
    }

    /// How many participants, from `first` on, have tables that fit into memory together.
    pub(super) fn group_of(&self, manifest: &Manifest, first: usize) -> Range<usize> {
        let sizes = manifest.segments[first..].iter().map(|s| s.table.stored_bytes());
        first..first + fitting(sizes, BYTES_AT_ONCE / self.copies_of_each())
    }

    fn copies_of_each(&self) -> u64 {
        (self.label.live().count() as u64).max(1)
    }

    /// Reads the copies of objects, mends the bad ones, and gives each object to `take`.
    fn check<T>(
        &self,
        hold: &Hold,
        objects: &[Object],
        decode: &dyn Fn(usize, &[u8]) -> Result<T, FormatError>,
        tally: &mut Tally<'_>,
        take: &mut dyn FnMut(usize, Option<T>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut start = 0;
        while start < objects.len() {
            let sizes = objects[start..].iter().map(|object| object.extent.stored_bytes());
            let count = fitting(sizes, BYTES_AT_ONCE / self.copies_of_each());
            let group = start..start + count;
            let mut found: Vec<Found<T>> =
                group.clone().map(|_| Found { object: None, bad: Vec::new() }).collect();
            let (first, spare) = self.readers(start);
            let mut wanted: Vec<(usize, DriveIndex)> = Vec::new();
            for drive in &first {
                wanted.extend(group.clone().map(|number| (number, *drive)));
            }
            self.read(objects, &wanted, decode, start, &mut found, tally)?;
            for drive in spare {
                let lacking = group.clone().filter(|number| found[number - start].object.is_none());
                let wanted: Vec<_> = lacking.map(|number| (number, drive)).collect();
                self.read(objects, &wanted, decode, start, &mut found, tally)?;
            }
            for (number, found) in group.zip(found) {
                let object = self.settle(hold, found, tally)?;
                take(number, object)?;
            }
            start += count;
        }
        Ok(())
    }

    /// The drives whose copies are read, and those that are read only if none of these is sound.
    fn readers(&self, number: usize) -> (Vec<DriveIndex>, Vec<DriveIndex>) {
        if self.scope == Scope::Everything {
            return (self.label.live().collect(), Vec::new());
        }
        let mut members: Vec<DriveIndex> = self.label.members().collect();
        let count = members.len().max(1);
        members.rotate_left(number % count);
        let spare = members.split_off(members.len().min(1));
        let is_rebuilding = |drive: &DriveIndex| {
            self.label.drives[drive.as_usize()].state == DriveState::Rebuilding
        };
        members.extend(self.label.live().filter(is_rebuilding));
        (members, spare)
    }

    /// Reads copies of objects, in calls of a bounded size, and decodes them. A copy that is alone
    /// larger than a call is read in pieces.
    fn read<T>(
        &self,
        objects: &[Object],
        wanted: &[(usize, DriveIndex)],
        decode: &dyn Fn(usize, &[u8]) -> Result<T, FormatError>,
        start: usize,
        found: &mut [Found<T>],
        tally: &mut Tally<'_>,
    ) -> Result<(), Error> {
        let mut at = 0;
        while at < wanted.len() {
            let size = |(number, _): &(usize, DriveIndex)| objects[*number].extent.stored_bytes();
            let count = fitting(wanted[at..].iter().map(size), BYTES_PER_CALL);
            let batch = &wanted[at..at + count];
            let places = batch.iter().map(|(number, drive)| (*drive, objects[*number].extent));
            let read = self.read_batch(places.collect())?;
            tally.metadata_read(count);
            for ((number, drive), bytes) in batch.iter().zip(read) {
                let (object, found) = (&objects[*number], &mut found[number - start]);
                let decode: Decode<'_, T> = &|bytes| decode(*number, bytes);
                take_copy(&self.label, *drive, object, bytes, decode, found);
            }
            tally.tick();
            at += count;
        }
        Ok(())
    }

    fn read_batch(
        &self,
        places: Vec<(DriveIndex, MetaExtent)>,
    ) -> Result<Vec<Result<Vec<u8>, IoError>>, Error> {
        if let [(drive, extent)] = places[..]
            && extent.stored_bytes() > BYTES_PER_CALL
        {
            return Ok(vec![self.read_large(drive, extent)?]);
        }
        self.pool.open.on_keeper(move |keeper| {
            let mut buffers: Vec<Vec<u8>> =
                places.iter().map(|(_, extent)| vec![0; extent.stored_bytes() as usize]).collect();
            let mut batch: Vec<_> = buffers
                .iter_mut()
                .zip(&places)
                .map(|(into, (drive, extent))| DriveCommand::Read {
                    drive: *drive,
                    offset_bytes: extent.offset_bytes,
                    into,
                })
                .collect();
            let statuses = keeper.drives().run(&mut batch);
            drop(batch);
            let read = buffers.into_iter().zip(statuses);
            read.map(|(bytes, status)| status.map(|()| bytes)).collect()
        })
    }

    fn read_large(
        &self,
        drive: DriveIndex,
        extent: MetaExtent,
    ) -> Result<Result<Vec<u8>, IoError>, Error> {
        let mut bytes = Vec::with_capacity(extent.stored_bytes() as usize);
        while (bytes.len() as u64) < extent.stored_bytes() {
            let at = bytes.len() as u64;
            let len = BYTES_PER_CALL.min(extent.stored_bytes() - at);
            let offset_bytes = extent.offset_bytes + at;
            let piece = self.pool.open.on_keeper(move |keeper| {
                let mut into = vec![0; len as usize];
                let read = DriveCommand::Read { drive, offset_bytes, into: &mut into };
                keeper.drives().run(&mut [read]).remove(0).map(|()| into)
            })?;
            match piece {
                Ok(piece) => bytes.extend(piece),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(bytes))
    }

    /// Writes bad copies again, if the checkpoint is still there, and reports what is left.
    fn settle<T>(
        &self,
        hold: &Hold,
        found: Found<T>,
        tally: &mut Tally<'_>,
    ) -> Result<Option<T>, Error> {
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
    drive: DriveIndex,
    object: &Object,
    read: Result<Vec<u8>, IoError>,
    decode: Decode<'_, T>,
    found: &mut Found<T>,
) {
    let Object { subject, extent } = object;
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
        Err(wrong) => found.bad.push(bad_copy(label, drive, extent, subject, wrong)),
    }
}

/// Writes the sound bytes over bad copies; without them it only reports.
fn mend(drives: &mut dyn Drives, bad: &[BadCopy], sound: Option<&[u8]>) -> Vec<Notice> {
    match sound {
        Some(_) => repair_metadata(drives, bad, sound),
        None => bad.iter().map(|copy| Notice::DamagedCopy(copy.damage.clone())).collect(),
    }
}
