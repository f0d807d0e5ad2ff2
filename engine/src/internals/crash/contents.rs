// SPDX-License-Identifier: Apache-2.0
//! The contents of checkpoints, compared with what was saved: those of the newest generation, and
//! those that it removed, whose space is not given away yet.

use std::sync::Arc;

use super::lab::CHUNK_BYTES;
use super::model::{Contents, Stored, chunk_bytes};
use crate::checksum::chunk_is_sound;
use crate::device::sim::SimDrive;
use crate::drives::{DriveCommand, Drives};
use crate::error::{Damage, Error};
use crate::format::{Label, Manifest, Root, SegmentTable, Zone, crc64};
use crate::limits::BLOCK_BYTES;
use crate::recover::metadata;
use crate::recover::newest::{catalogue_subject, decode_catalogue};
use crate::state::{Committed, Holding, State};
use crate::units::{Generation, Location};

/// The tables of a checkpoint, by its metadata on the drives. Its shard lists are read, too.
pub(super) fn read_tables(
    drives: &mut dyn Drives,
    label: &Label,
    committed: &Committed,
) -> Result<(Manifest, Vec<SegmentTable>), Error> {
    let entry = &committed.entry;
    let found = metadata::read_manifest(drives, label, entry, 0);
    let manifest = metadata::sound(found, &metadata::manifest_subject(entry))?;
    let mut tables = Vec::with_capacity(manifest.segments.len());
    for (number, segment) in (0..).zip(&manifest.segments) {
        let found = metadata::read_table(drives, label, entry, segment, number);
        tables.push(metadata::sound(found, &metadata::table_subject(entry))?);
        let found = metadata::read_list(drives, label, entry, segment, number);
        metadata::sound(found, &metadata::list_subject(entry))?;
    }
    Ok((manifest, tables))
}

/// Reads a checkpoint as a restore would; the ballast directly from the drives of `image`.
/// `Ok(None)`: it is what was saved. `Ok(Some)`: it is damaged, and that is reported. `Err`: it is
/// wrong, and a restore would not detect it.
pub(super) fn verify_checkpoint(
    drives: &mut dyn Drives,
    image: &[SimDrive],
    label: &Label,
    committed: &Committed,
    stored: &Stored,
) -> Result<Option<Error>, String> {
    let name = committed.name();
    let tables = match read_tables(drives, label, committed) {
        Ok((_, tables)) => tables,
        Err(error) => return Ok(Some(error)),
    };
    let Stored::Segments { seed, lengths_bytes } = stored else {
        return Ok(ballast_damage(image, label, &name.to_string(), &tables));
    };
    let lengths: Vec<u64> = tables.iter().map(|table| table.len_bytes).collect();
    if lengths != *lengths_bytes {
        return Err(format!("{name}: segments of {lengths:?} bytes, not {lengths_bytes:?}"));
    }
    for table in &tables {
        for (number, record) in (0..).zip(&table.chunks) {
            let len_bytes = CHUNK_BYTES.min(table.len_bytes - number * CHUNK_BYTES) as usize;
            let mut bytes = vec![0; len_bytes.next_multiple_of(BLOCK_BYTES as usize)];
            let live = |location: &Location| label.live().any(|drive| drive == location.drive);
            // Each copy must be right, not just one of them.
            for location in record.copies.iter().filter(live) {
                let offset_bytes = label.layout.slot_offset(location.slot);
                let mut batch =
                    [DriveCommand::Read { drive: location.drive, offset_bytes, into: &mut bytes }];
                if let Err(error) = crate::drives::run_all(drives, &mut batch) {
                    return Ok(Some(error));
                }
                let (data, padding) = bytes.split_at(len_bytes);
                let padding_is_zero = padding.iter().all(|byte| *byte == 0);
                if !chunk_is_sound(record.crc64, crc64(data), padding_is_zero) {
                    return Ok(Some(
                        data_damage(label, &name.to_string(), location, number).into(),
                    ));
                }
                if *data != chunk_bytes(*seed, table.participant, number, len_bytes) {
                    return Err(format!(
                        "{name}: chunk {number} of participant {} has wrong bytes and a right checksum",
                        table.participant
                    ));
                }
            }
        }
    }
    Ok(None)
}

fn data_damage(label: &Label, name: &str, location: Location, chunk: u64) -> Damage {
    Damage {
        what: "data",
        serial: label.drives[location.drive.as_usize()].serial.clone(),
        offset_bytes: Some(label.layout.slot_offset(location.slot)),
        checkpoint: Some(name.to_owned()),
        shard: None,
        generation: None,
        detail: format!("chunk {chunk}: its checksum does not match"),
    }
}

/// The first chunk of the ballast that is not blank any more. It was never written.
fn ballast_damage(
    image: &[SimDrive],
    label: &Label,
    name: &str,
    tables: &[SegmentTable],
) -> Option<Error> {
    let chunks = tables.iter().flat_map(|table| (0..).zip(&table.chunks));
    let mut copies =
        chunks.flat_map(|(number, chunk)| chunk.copies.iter().map(move |at| (number, at)));
    let live = |location: &Location| label.live().any(|drive| drive == location.drive);
    let (number, location) = copies.find(|(_, location)| {
        let offset_bytes = label.layout.slot_offset(location.slot);
        live(location) && !image[location.drive.as_usize()].is_blank(offset_bytes, CHUNK_BYTES)
    })?;
    Some(data_damage(label, name, location, number).into())
}

/// What the newest generation removed is still whole: its space is given away one generation later.
/// `before` is what the generation before holds.
pub(super) fn verify_retired(
    drives: &mut dyn Drives,
    image: &[SimDrive],
    state: &State,
    before: &Contents,
) -> Result<(), String> {
    let mut retired = before.iter().filter(|(name, _)| state.find(name).is_none()).peekable();
    if retired.peek().is_none() {
        return Ok(());
    }
    let (label, newest) = (state.label(), state.root());
    let root = find_root(image, label, Generation(newest.generation.0 - 1), &newest.parent);
    let root = root.ok_or("no drive has the parent of the newest root")?;
    let (subject, decode) = (catalogue_subject(), decode_catalogue(label, &root));
    let found = metadata::read_object(drives, label, &root.catalogue, 0, &subject, &decode);
    let catalogue = metadata::sound(found, &subject)
        .map_err(|error| format!("the generation before the newest: {error}"))?;
    for (name, stored) in retired {
        let mut entries = catalogue.entries.iter();
        let entry = entries.find(|entry| entry.name == name.name && entry.step == name.step);
        let entry = entry.ok_or(format!("{name} is not in the generation before the newest"))?;
        let (entry, holding) = (entry.clone(), Holding::new(label.drives.len()));
        let committed = Arc::new(Committed { entry, holding, damage: None });
        if let Some(damage) = verify_checkpoint(drives, image, label, &committed, stored)? {
            return Err(format!("{name}, which the newest generation removed: {damage}"));
        }
    }
    Ok(())
}

/// The root of a generation with this id, from any place that has it.
fn find_root(
    image: &[SimDrive],
    label: &Label,
    generation: Generation,
    id: &[u8; 16],
) -> Option<Root> {
    label.live().flat_map(|drive| [Zone::Front, Zone::Back].map(|zone| (drive, zone))).find_map(
        |(drive, zone)| {
            let entry = &label.drives[drive.as_usize()];
            let at = label.layout.root_offset(zone, generation, entry.capacity_bytes);
            let block = image[drive.as_usize()].peek_durable(at, BLOCK_BYTES)?;
            let root = Root::decode(&block, label.pool, entry.uuid, at).ok()?;
            (root.id() == *id).then_some(root)
        },
    )
}
