// SPDX-License-Identifier: Apache-2.0
//! The layout: where every region lies on a drive. Offsets are computed only here.
//!
//! ```text
//! 0       1 MiB   2 MiB   3 MiB   4 MiB                           end-3   end-2   end-1   end
//! | zeros | label | label | roots | catalogues | metadata | data  | roots | label | label |
//! ```
//!
//! Invariants:
//! - Offsets are chained from constants and from two numbers: chunk size and metadata blocks. The
//!   label stores those and what follows from them; a reader accepts only a chain that agrees.
//! - The metadata area is given out in units. A drive may rewrite a whole unit when a block of it
//!   is written, and tear it when power fails: so no unit holds parts of two checkpoints.
//! - Everything except the data slots and the regions counted from the end lies at the same offset
//!   on every drive.
//! - `end` is the capacity in the label's drive table, rounded down to 1 MiB: a drive that later
//!   shows more capacity keeps its layout.

use crate::error::Error;
use crate::format::codec::{PROLOGUE_BYTES, Reader, Writer, corrupt};
use crate::format::object::chunk_record_bytes;
use crate::format::table_run::TableRun;
use crate::format::{FormatError, MetaExtent};
use crate::limits::{
    BLOCK_BYTES, CATALOGUE_SLOTS, DEFAULT_CHUNK_BYTES, MAX_CHECKPOINTS, MAX_CHUNK_BYTES,
    MAX_DRIVE_BYTES, MAX_DRIVES, MAX_NAME_BYTES, MIN_CHUNK_BYTES, ROOT_SLOTS,
};
use crate::planted::{Bug, planted};
use crate::units::{Generation, round_down};

const MIB: u64 = 1 << 20;

/// The smallest drive of a pool: it still has a slot for the largest chunk.
pub const MIN_DRIVE_BYTES: u64 = 32 * MIB;
/// The fewest checkpoints that a pool has room for.
pub const MIN_POOL_CHECKPOINTS: usize = 16;

/// Where the root of a generation lies in its ring. The front rings of all drives are written at
/// once: no write may be able to tear the newest root on every drive, so it shares no unit with the
/// roots of its neighbours.
pub(super) const fn root_offset_in_ring(generation: Generation) -> u64 {
    let slot = generation.0 % ROOT_SLOTS;
    let units = ROOT_SLOTS / ROOTS_IN_UNIT;
    (slot % units * ROOTS_IN_UNIT + slot / units) * ROOT_STRIDE_BYTES
}

/// Regions at both ends are of this size, and the data area is aligned to it.
const REGION_BYTES: u64 = MIB;
const FRONT_LABELS: [u64; 2] = [REGION_BYTES, 2 * REGION_BYTES];
/// Counted back from the end.
const BACK_LABELS: [u64; 2] = [2 * REGION_BYTES, REGION_BYTES];

/// The distance from one root to the next. A drive may rewrite a whole preferred write unit when a
/// block of it is written, and lose it. A unit of 16 KiB holds one root only; in one of 64 KiB lie
/// roots that are 16 generations apart ([`root_offset_in_ring`]).
pub const ROOT_STRIDE_BYTES: u64 = 16 << 10;
/// Roots in a unit of 64 KiB.
const ROOTS_IN_UNIT: u64 = (64 << 10) / ROOT_STRIDE_BYTES;
/// Bytes of one root ring.
pub const ROOT_ZONE_BYTES: u64 = ROOT_SLOTS * ROOT_STRIDE_BYTES;
const ROOT_FRONT: u64 = FRONT_LABELS[1] + REGION_BYTES;
/// Counted back from the end.
const ROOT_BACK: u64 = BACK_LABELS[0] + ROOT_ZONE_BYTES;

/// A drive may rewrite a whole unit of up to this size when a block of it is written, and tear it
/// when power fails. Whatever is written at different times lies in different units.
pub(crate) const META_UNIT_BYTES: u64 = 64 << 10;
/// Blocks of a unit of the metadata area.
pub const META_UNIT_BLOCKS: u64 = META_UNIT_BYTES / BLOCK_BYTES;

/// Bytes of a catalogue between its prologue and its first entry.
pub(in crate::format) const CATALOGUE_HEADER_BYTES: u64 = 16;
/// Bytes of a catalogue's entry without name and attributes.
pub(in crate::format) const CATALOGUE_ENTRY_BYTES: u64 = 104;
/// Bytes of a catalogue slot for each checkpoint: an entry with the longest name, and a few bytes
/// of attributes.
const SLOT_BYTES_PER_CHECKPOINT: u64 = 256;
const CATALOGUE_AT: u64 = ROOT_FRONT + ROOT_ZONE_BYTES;

/// The front label copies and the front root ring end here.
pub(crate) const FRONT_BYTES: u64 = CATALOGUE_AT;
/// The back root ring and the back label copies start here, counted back from the end.
pub(crate) const BACK_BYTES: u64 = ROOT_BACK;

/// The metadata area of a new pool is this part of the smallest drive,
const META_PART: u64 = 128;
/// but of a small drive up to this and some bytes a chunk of the pool, for records of chunks,
const META_BYTES_OF_SMALL: u64 = 256 * MIB;
const META_BYTES_PER_CHUNK: u64 = 20;
/// and at most this part of it.
const META_SHARE: u64 = 8;
/// One checkpoint of the catalogue per this much of the metadata area.
const META_BYTES_PER_CHECKPOINT: u64 = 256 << 10;
/// The smallest and the largest metadata area of a drive.
pub const MIN_METADATA_BYTES: u64 = MIB;
/// The maps of larger ones would take much memory.
pub const MAX_METADATA_BYTES: u64 = 1 << 40;
/// Bytes of metadata that a shard with a name of some 60 characters takes, once.
const TYPICAL_SHARD_BYTES: u64 = 128;

/// Pools of more bytes have larger chunks: fewer records to write, to read at open and to keep.
const LARGE_POOL_BYTES: u64 = 60_000_000_000_000;
const LARGE_POOL_CHUNK_BYTES: u64 = 4 * MIB;
const HUGE_POOL_BYTES: u64 = 250_000_000_000_000;
const HUGE_POOL_CHUNK_BYTES: u64 = 16 * MIB;

const _: () = {
    assert!(ROOT_ZONE_BYTES == REGION_BYTES && REGION_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(ROOT_STRIDE_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(ROOT_SLOTS.is_multiple_of(ROOTS_IN_UNIT));
    assert!(CATALOGUE_AT.is_multiple_of(META_UNIT_BYTES));
    assert!(CATALOGUE_ENTRY_BYTES + MAX_NAME_BYTES as u64 <= SLOT_BYTES_PER_CHECKPOINT);
    assert!(HUGE_POOL_CHUNK_BYTES <= MAX_CHUNK_BYTES);
    assert!(MIN_METADATA_BYTES.is_multiple_of(META_UNIT_BYTES));
    // Every checkpoint takes at least a unit for its manifest and one for its tables.
    assert!(META_BYTES_PER_CHECKPOINT >= 2 * META_UNIT_BYTES);
    // The smallest drive, with the largest metadata area it can get, has room for the largest
    // chunk.
    let catalogues = CATALOGUE_SLOTS * catalogue_slot_bytes_for(MIN_POOL_CHECKPOINTS as u64);
    let before_data = CATALOGUE_AT + catalogues + MIN_DRIVE_BYTES / META_SHARE;
    assert!(
        before_data.next_multiple_of(REGION_BYTES) + MAX_CHUNK_BYTES <= MIN_DRIVE_BYTES - ROOT_BACK
    );
    assert!(
        MIN_DRIVE_BYTES / META_SHARE / META_BYTES_PER_CHECKPOINT >= MIN_POOL_CHECKPOINTS as u64
    );
    // A slot number fits the 48 bits of a location.
    assert!(MAX_DRIVE_BYTES / MIN_CHUNK_BYTES < 1 << 48);
};

/// One of the two rings of roots on a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zone {
    /// Near the start; written first.
    Front,
    /// Near the end; written after every drive has the front copy.
    Back,
}

/// Where everything lies, for all drives of one pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    chunk_bytes: u64,
    meta_blocks: u64,
    // Derived from the two above.
    max_checkpoints: u64,
    catalogue_slot_bytes: u64,
    meta_offset: u64,
    data_offset: u64,
}

impl Layout {
    /// The layout of a new pool of drives with these capacities, with a metadata area of the size
    /// that such drives get.
    #[cfg(any(test, feature = "internals"))]
    pub fn plan(capacities_bytes: &[u64], chunk_bytes: u64) -> Result<Layout, Error> {
        Layout::plan_sized(capacities_bytes, chunk_bytes, None)
    }

    /// The same with so many bytes of metadata area on each drive, if given, in whole units.
    pub fn plan_sized(
        capacities_bytes: &[u64],
        chunk_bytes: u64,
        metadata_bytes: Option<u64>,
    ) -> Result<Layout, Error> {
        check_chunk_bytes(chunk_bytes).map_err(Error::Usage)?;
        if capacities_bytes.is_empty() || capacities_bytes.len() > MAX_DRIVES {
            return Err(Error::Usage(format!(
                "{} drives; a pool has 1 to {MAX_DRIVES}",
                capacities_bytes.len()
            )));
        }
        for capacity in capacities_bytes {
            check_capacity(*capacity).map_err(Error::Usage)?;
        }
        let smallest = capacities_bytes.iter().copied().min().unwrap_or(0);
        let chunks: u64 = capacities_bytes.iter().map(|c| end_of(*c) / chunk_bytes).sum();
        let metadata_bytes = match metadata_bytes {
            None => default_metadata_bytes(smallest, chunks),
            Some(bytes) => {
                check_metadata_bytes(bytes, smallest).map_err(Error::Usage)?;
                bytes.next_multiple_of(META_UNIT_BYTES)
            }
        };
        let layout = Layout::chain(chunk_bytes, metadata_bytes / BLOCK_BYTES);
        if layout.data_slots(smallest) == 0 {
            return Err(Error::Usage(format!(
                "{metadata_bytes} bytes of metadata leave no room for a chunk of {chunk_bytes} bytes on the smallest drive, of {smallest} bytes"
            )));
        }
        Ok(layout)
    }

    /// The chunk size of a new pool of drives with these capacities, where nothing else decides.
    pub fn default_chunk_bytes(capacities_bytes: &[u64]) -> u64 {
        let total = capacities_bytes.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        if total <= LARGE_POOL_BYTES {
            DEFAULT_CHUNK_BYTES
        } else if total <= HUGE_POOL_BYTES {
            LARGE_POOL_CHUNK_BYTES
        } else {
            HUGE_POOL_CHUNK_BYTES
        }
    }

    /// Chains the offsets. The arguments are in range.
    fn chain(chunk_bytes: u64, meta_blocks: u64) -> Layout {
        let max_checkpoints = (meta_blocks * BLOCK_BYTES / META_BYTES_PER_CHECKPOINT)
            .clamp(MIN_POOL_CHECKPOINTS as u64, MAX_CHECKPOINTS as u64);
        let catalogue_slot_bytes = catalogue_slot_bytes_for(max_checkpoints);
        let meta_offset = CATALOGUE_AT + CATALOGUE_SLOTS * catalogue_slot_bytes;
        let meta_end = meta_offset + meta_blocks * BLOCK_BYTES;
        Layout {
            chunk_bytes,
            meta_blocks,
            max_checkpoints,
            catalogue_slot_bytes,
            meta_offset,
            data_offset: meta_end.next_multiple_of(REGION_BYTES),
        }
    }

    /// The four copies of the label on a drive of this capacity (at least [`MIN_DRIVE_BYTES`]).
    pub fn label_offsets(capacity_bytes: u64) -> [u64; 4] {
        let end = end_of(capacity_bytes);
        let [back, last] = BACK_LABELS.map(|from_end| end.saturating_sub(from_end));
        [FRONT_LABELS[0], FRONT_LABELS[1], back, last]
    }

    /// The copies that can be found before the capacity at format time is known.
    pub fn front_label_offsets() -> [u64; 2] {
        FRONT_LABELS
    }

    /// Where a ring of roots lies on a drive of this capacity: offset and length.
    pub fn root_zone_range(&self, zone: Zone, capacity_bytes: u64) -> (u64, u64) {
        let offset = match zone {
            Zone::Front => ROOT_FRONT,
            Zone::Back => end_of(capacity_bytes).saturating_sub(ROOT_BACK),
        };
        (offset, ROOT_ZONE_BYTES)
    }

    /// Where roots may lie on a drive without a label: the front ring, and the back ring of a pool
    /// that was made when the drive had this size.
    pub(crate) fn root_offsets_by_size(capacity_bytes: u64) -> Vec<u64> {
        if capacity_bytes < MIN_DRIVE_BYTES {
            return Vec::new();
        }
        let rings = [ROOT_FRONT, end_of(capacity_bytes) - ROOT_BACK];
        let slots = |ring| (0..ROOT_SLOTS).map(move |slot| ring + slot * ROOT_STRIDE_BYTES);
        rings.into_iter().flat_map(slots).collect()
    }

    /// Where the root of a generation lies.
    pub fn root_offset(&self, zone: Zone, generation: Generation, capacity_bytes: u64) -> u64 {
        let (offset, _) = self.root_zone_range(zone, capacity_bytes);
        offset + root_offset_in_ring(generation)
    }

    /// Where the catalogue of a generation lies on every drive.
    pub fn catalogue_offset(&self, generation: Generation) -> u64 {
        let slot = if planted(Bug::SlotReused) { 0 } else { generation.0 % CATALOGUE_SLOTS };
        CATALOGUE_AT + slot * self.catalogue_slot_bytes
    }

    /// Bytes of one catalogue slot: the catalogue of `max_checkpoints` with the longest names fits,
    /// if they have no attributes.
    pub fn catalogue_slot_bytes(&self) -> u64 {
        self.catalogue_slot_bytes
    }

    /// Checkpoints that the pool has room for in its catalogue.
    pub fn max_checkpoints(&self) -> usize {
        self.max_checkpoints as usize
    }

    /// Where the metadata area starts on every drive.
    #[cfg(any(test, feature = "internals"))]
    pub fn meta_offset(&self) -> u64 {
        self.meta_offset
    }

    /// Bytes of the metadata area of a drive.
    pub fn metadata_bytes(&self) -> u64 {
        self.meta_blocks * BLOCK_BYTES
    }

    /// About how many shards with names of some 60 characters the metadata areas of that many
    /// drives hold, beside the records of all chunks.
    pub fn typical_shards(&self, capacities_bytes: &[u64], copies: u8, table_copies: u8) -> u64 {
        let slots: u64 = capacities_bytes.iter().map(|bytes| self.data_slots(*bytes)).sum();
        let records = slots * chunk_record_bytes(copies) / u64::from(copies.max(1));
        let area = self.metadata_bytes() * capacities_bytes.len() as u64;
        (area / u64::from(table_copies.max(1))).saturating_sub(records) / TYPICAL_SHARD_BYTES
    }

    /// Units of the metadata area.
    pub fn meta_units(&self) -> u64 {
        self.meta_blocks / META_UNIT_BLOCKS
    }

    /// Where a unit of the metadata area lies. `unit` is below [`Layout::meta_units`].
    pub fn meta_unit_offset(&self, unit: u64) -> u64 {
        self.meta_offset.saturating_add(unit.saturating_mul(META_UNIT_BYTES))
    }

    /// The units of the metadata area that an extent takes: first and count. `None` when any part
    /// of it lies outside, or it does not start with a unit.
    pub fn meta_units_of(&self, extent: &MetaExtent) -> Option<(u64, u64)> {
        let into = extent.offset_bytes.checked_sub(self.meta_offset)?;
        let blocks = extent.blocks();
        let (first, count) = self.units(into / BLOCK_BYTES, blocks)?;
        into.is_multiple_of(META_UNIT_BYTES).then_some((first, count))
    }

    /// The units that a run of a table's blocks touches: first and count. `None` when any part of
    /// it lies outside the metadata area.
    pub fn meta_units_of_run(&self, run: &TableRun) -> Option<(u64, u64)> {
        let first = run.first_block.checked_sub(self.meta_offset / BLOCK_BYTES)?;
        self.units(first, run.blocks.into())
    }

    /// The units that these blocks of the area touch.
    fn units(&self, first_block: u64, blocks: u64) -> Option<(u64, u64)> {
        let end = first_block.checked_add(blocks)?;
        let first = first_block / META_UNIT_BLOCKS;
        let fits = blocks > 0 && end <= self.meta_blocks;
        fits.then(|| (first, end.div_ceil(META_UNIT_BLOCKS) - first))
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Chunk slots of a drive of this capacity.
    pub fn data_slots(&self, capacity_bytes: u64) -> u64 {
        let data_end = end_of(capacity_bytes).saturating_sub(ROOT_BACK);
        data_end.saturating_sub(self.data_offset) / self.chunk_bytes
    }

    /// Where a chunk slot lies. `slot` is below [`Layout::data_slots`]; a slot far beyond gives an
    /// offset that no drive has.
    pub fn slot_offset(&self, slot: u64) -> u64 {
        self.data_offset.saturating_add(slot.saturating_mul(self.chunk_bytes))
    }

    pub(in crate::format) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.chunk_bytes);
        writer.u32(ROOT_SLOTS as u32);
        writer.u32(ROOT_STRIDE_BYTES as u32);
        writer.u64(ROOT_FRONT);
        writer.u64(ROOT_BACK);
        writer.u32(CATALOGUE_SLOTS as u32);
        writer.u32(self.max_checkpoints as u32);
        writer.u64(CATALOGUE_AT);
        writer.u64(self.catalogue_slot_bytes);
        writer.u64(self.meta_offset);
        writer.u64(self.meta_blocks);
        writer.u64(self.data_offset);
    }

    pub(in crate::format) fn decode(reader: &mut Reader<'_>) -> Result<Layout, FormatError> {
        let chunk_bytes = reader.u64()?;
        check_chunk_bytes(chunk_bytes).map_err(FormatError::Corrupt)?;
        let roots = (reader.u32()?, reader.u32()?, reader.u64()?, reader.u64()?);
        let catalogue_slots = reader.u32()?;
        let max_checkpoints = reader.u32()?;
        let stored = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let (catalogue_at, catalogue_slot_bytes, meta_offset, meta_blocks, data_offset) = stored;

        let known = (MIN_METADATA_BYTES / BLOCK_BYTES..=MAX_METADATA_BYTES / BLOCK_BYTES)
            .contains(&meta_blocks)
            && meta_blocks.is_multiple_of(META_UNIT_BLOCKS);
        if !known {
            return Err(corrupt(format!("a layout of {meta_blocks} metadata blocks")));
        }
        let layout = Layout::chain(chunk_bytes, meta_blocks);
        let agrees = u64::from(max_checkpoints) == layout.max_checkpoints
            && roots == (ROOT_SLOTS as u32, ROOT_STRIDE_BYTES as u32, ROOT_FRONT, ROOT_BACK)
            && (u64::from(catalogue_slots), catalogue_at) == (CATALOGUE_SLOTS, CATALOGUE_AT)
            && (catalogue_slot_bytes, meta_offset, data_offset)
                == (layout.catalogue_slot_bytes, layout.meta_offset, layout.data_offset);
        if !agrees {
            return Err(corrupt("the regions of the layout do not follow from its sizes"));
        }
        Ok(layout)
    }
}

/// The end of the layout on a drive of this capacity.
fn end_of(capacity_bytes: u64) -> u64 {
    round_down(capacity_bytes, REGION_BYTES)
}

const fn catalogue_slot_bytes_for(max_checkpoints: u64) -> u64 {
    let most =
        PROLOGUE_BYTES + CATALOGUE_HEADER_BYTES + max_checkpoints * SLOT_BYTES_PER_CHECKPOINT;
    most.next_multiple_of(META_UNIT_BYTES)
}

/// Bytes of the metadata area of each drive of a new pool.
fn default_metadata_bytes(smallest: u64, chunks: u64) -> u64 {
    let of_small = chunks.saturating_mul(META_BYTES_PER_CHUNK).saturating_add(META_BYTES_OF_SMALL);
    let most = round_down(smallest / META_SHARE, META_UNIT_BYTES).min(MAX_METADATA_BYTES);
    of_small.max(smallest / META_PART).min(most).next_multiple_of(META_UNIT_BYTES)
}

fn check_metadata_bytes(bytes: u64, smallest: u64) -> Result<(), String> {
    let most = round_down(smallest / 2, META_UNIT_BYTES).min(MAX_METADATA_BYTES);
    if (MIN_METADATA_BYTES..=most).contains(&bytes) {
        return Ok(());
    }
    Err(format!(
        "{bytes} bytes of metadata on each drive: from {MIN_METADATA_BYTES} bytes to half of the smallest drive, here {most} bytes, are possible"
    ))
}

/// Whether the drive can be part of a pool.
pub(in crate::format) fn check_capacity(capacity_bytes: u64) -> Result<(), String> {
    if capacity_bytes < MIN_DRIVE_BYTES {
        return Err(format!(
            "a drive of {capacity_bytes} bytes is too small: the smallest allowed has {MIN_DRIVE_BYTES} bytes ({} MiB)",
            MIN_DRIVE_BYTES / MIB
        ));
    }
    if capacity_bytes > MAX_DRIVE_BYTES {
        return Err(format!(
            "a drive of {capacity_bytes} bytes is too large: the largest allowed has {MAX_DRIVE_BYTES} bytes"
        ));
    }
    Ok(())
}

fn check_chunk_bytes(chunk_bytes: u64) -> Result<(), String> {
    let known = (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk_bytes);
    if known && chunk_bytes.is_power_of_two() {
        return Ok(());
    }
    Err(format!(
        "a chunk of {chunk_bytes} bytes: it must be a power of two from {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}"
    ))
}

#[cfg(test)]
mod tests;
