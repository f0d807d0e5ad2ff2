// SPDX-License-Identifier: Apache-2.0
//! The space of each checkpoint, from its manifest and segment tables.

use crate::drives::Drives;
use crate::error::{Damage, Error};
use crate::format::{Catalogue, CatalogueEntry, Label, Manifest, SegmentTable};
use crate::recover::metadata::{self, BadCopy, CopyPlace, Found, Subject};
use crate::state::{Committed, Holding};

/// Called with the bad copies of an object, and with its sound bytes if there are any.
pub(crate) type OnBadCopies<'a> = &'a mut dyn FnMut(&mut dyn Drives, &[BadCopy], Option<&[u8]>);

/// Reads the manifests and segment tables of every checkpoint, to learn which space each uses.
/// Shard lists are not read. Calls `bad` for bad copies, with the sound bytes if another drive has
/// them.
pub(crate) fn read_holdings(
    drives: &mut dyn Drives,
    label: &Label,
    catalogue: &Catalogue,
    bad: OnBadCopies<'_>,
) -> Result<Vec<Committed>, Error> {
    let entries = &catalogue.entries;
    let manifests = read_manifests(drives, label, entries);
    let mut committed = Vec::with_capacity(entries.len());
    let mut of_entries = Vec::with_capacity(entries.len());
    for (entry, manifest) in entries.iter().zip(manifests) {
        let mut damage = None;
        let manifest = match manifest {
            Some(manifest) => Some(manifest),
            None => {
                let found = metadata::read_manifest(drives, label, entry, 0);
                settle(drives, found, &metadata::manifest_subject(entry), &mut damage, bad)?
            }
        };
        let mut holding = Holding::new(label.drives.len());
        holding.add_manifest(&label.layout, &entry.manifest);
        for segment in manifest.iter().flat_map(|manifest| &manifest.segments) {
            let runs = segment.table.runs.iter().chain(&segment.list.runs);
            holding.add_tables(&label.layout, runs);
        }
        committed.push(Committed { entry: entry.clone(), holding, damage });
        of_entries.push(manifest);
    }
    add_chunks(drives, label, &of_entries, &mut committed, bad)?;
    Ok(committed)
}

/// Reads one copy of each manifest.
fn read_manifests(
    drives: &mut dyn Drives,
    label: &Label,
    entries: &[CatalogueEntry],
) -> Vec<Option<Manifest>> {
    let mut manifests: Vec<Option<Manifest>> = vec![None; entries.len()];
    let extents: Vec<_> = entries.iter().map(|entry| entry.manifest).collect();
    let places = metadata::one_copy_each(label, &extents);
    metadata::read_many(drives, &places, |number, bytes| {
        let decode = metadata::decode_manifest(label, &entries[number]);
        manifests[number] = bytes.and_then(|bytes| decode(&bytes).ok());
    });
    manifests
}

/// Reads the segment tables that the manifests name, and adds the chunks in them to the holdings.
fn add_chunks(
    drives: &mut dyn Drives,
    label: &Label,
    manifests: &[Option<Manifest>],
    committed: &mut [Committed],
    bad: OnBadCopies<'_>,
) -> Result<(), Error> {
    // The checkpoint and participant of each place, and of each table without a sound first copy.
    let mut owners: Vec<(usize, u32)> = Vec::new();
    let mut places: Vec<CopyPlace> = Vec::new();
    let mut unread: Vec<(usize, u32)> = Vec::new();
    for (number, manifest) in manifests.iter().enumerate() {
        let Some(manifest) = manifest else { continue };
        for (participant, segment) in (0..).zip(&manifest.segments) {
            match metadata::first_copy(label, &segment.table, participant) {
                Some(place) => {
                    owners.push((number, participant));
                    places.push(place);
                }
                None => {
                    let chunks = segment.len_bytes.div_ceil(label.layout.chunk_bytes());
                    committed[number].holding.spread.add_unreachable(&segment.table, chunks);
                    unread.push((number, participant));
                }
            }
        }
    }
    let segment = |(number, participant): (usize, u32)| {
        manifests[number].as_ref().and_then(|manifest| manifest.segments.get(participant as usize))
    };
    let add = |committed: &mut Committed, table: &SegmentTable| {
        table.chunks.iter().for_each(|chunk| committed.holding.add_chunk(chunk.copies));
    };
    metadata::read_many(drives, &places, |place, bytes| {
        let owner @ (number, participant) = owners[place];
        let table = bytes.zip(segment(owner)).and_then(|(bytes, segment)| {
            let entry = &committed[number].entry;
            metadata::decode_table(label, entry, segment, participant)(&bytes).ok()
        });
        match table {
            Some(table) => add(&mut committed[number], &table),
            None => unread.push(owner),
        }
    });
    for owner @ (number, participant) in unread {
        let Some(segment) = segment(owner) else { continue };
        let committed = &mut committed[number];
        let found = metadata::read_table(drives, label, &committed.entry, segment, participant);
        let subject = metadata::table_subject(&committed.entry);
        if let Some(table) = settle(drives, found, &subject, &mut committed.damage, bad)? {
            add(committed, &table);
        }
    }
    Ok(())
}

/// Reports the bad copies of an object, and keeps the damage if no copy is sound.
fn settle<T>(
    drives: &mut dyn Drives,
    found: Found<T>,
    subject: &Subject,
    damage: &mut Option<Damage>,
    bad: OnBadCopies<'_>,
) -> Result<Option<T>, Error> {
    let lost = found.damage(subject);
    let (object, bytes) = found.object.unzip();
    bad(drives, &found.bad, bytes.as_deref());
    if object.is_none() {
        metadata::unread(drives, &found.bad)?;
        damage.get_or_insert(lost);
    }
    Ok(object)
}

/// A pool open for reading needs the list of checkpoints, not the space that they use.
pub(super) fn without_holdings(catalogue: &Catalogue, drives: usize) -> Vec<Committed> {
    let committed = |entry: &CatalogueEntry| Committed {
        entry: entry.clone(),
        holding: Holding::new(drives),
        damage: None,
    };
    catalogue.entries.iter().map(committed).collect()
}
