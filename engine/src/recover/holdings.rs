// SPDX-License-Identifier: Apache-2.0
//! The space of each checkpoint, from its manifest and segment tables.

use crate::drives::Drives;
use crate::error::{Damage, Error};
use crate::format::{Catalogue, CatalogueEntry, Label, Manifest, SegmentTable};
use crate::recover::metadata::{self, BadCopy, Found};
use crate::state::{Committed, Holding};

/// Called with the bad copies of an object, and with its sound bytes if there are any.
pub(crate) type OnBadCopies<'a> = &'a mut dyn FnMut(&mut dyn Drives, &[BadCopy], Option<&[u8]>);

/// Reads the manifests and segment tables of every checkpoint, to learn which space each uses.
/// Calls `bad` for bad copies, with the sound bytes if another drive has them.
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
    entry: &CatalogueEntry,
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

/// Reports the bad copies of an object, and keeps the damage if no copy is sound.
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

/// A pool open for reading needs the list of checkpoints, not the space that they use.
pub(super) fn without_holdings(catalogue: &Catalogue, drives: usize) -> Vec<Committed> {
    let committed = |entry: &CatalogueEntry| Committed {
        entry: entry.clone(),
        holding: Holding::new(drives),
        damage: None,
    };
    catalogue.entries.iter().map(committed).collect()
}
