// SPDX-License-Identifier: Apache-2.0
//! The layout: where every region lies on a drive. Offsets are computed only here.
//!
//! ```text
//! 0       1 MiB   2 MiB   3 MiB   4 MiB                           end-3   end-2   end-1   end
//! | zeros | label | label | roots | catalogues | metadata | data  | roots | label | label |
//! ```
//!
//! Invariants:
//! - Offsets are chained from constants and from three numbers: chunk size, checkpoints, metadata
//!   blocks. The label stores those and the offsets; a reader accepts only a chain that agrees.
//! - Everything except the data slots and the regions counted from the end lies at the same offset
//!   on every drive.
//! - `end` is the capacity in the label's drive table, rounded down to 1 MiB: a drive that later
//!   shows more capacity keeps its layout.

use super::codec::{PROLOGUE_BYTES, Reader, Writer, corrupt};
use super::{FormatError, MetaExtent};
use crate::error::Error;
use crate::limits::{
    BLOCK_BYTES, CATALOGUE_SLOTS, MAX_CHECKPOINTS, MAX_CHUNK_BYTES, MAX_DRIVE_BYTES, MAX_DRIVES,
    MAX_NAME_BYTES, MIN_CHUNK_BYTES, ROOT_SLOTS,
};
use crate::planted::{Bug, planted};
use crate::units::{Generation, is_block_aligned, round_down};

const MIB: u64 = 1 << 20;

/// The smallest drive of a pool: it still has a slot for the largest chunk.
pub const MIN_DRIVE_BYTES: u64 = 32 * MIB;
/// The fewest checkpoints that a pool has room for.
pub const MIN_POOL_CHECKPOINTS: usize = 16;

/// Regions at both ends are of this size, and the data area is aligned to it.
const REGION_BYTES: u64 = MIB;
const FRONT_LABELS: [u64; 2] = [REGION_BYTES, 2 * REGION_BYTES];
/// Counted back from the end.
const BACK_LABELS: [u64; 2] = [2 * REGION_BYTES, REGION_BYTES];

/// The distance from one root to the next. A drive may rewrite a whole preferred write unit when a
/// block of it is written; no two roots share a unit that is not larger than this.
pub const ROOT_STRIDE_BYTES: u64 = 16 << 10;
/// Bytes of one root ring.
pub const ROOT_ZONE_BYTES: u64 = ROOT_SLOTS * ROOT_STRIDE_BYTES;
const ROOT_FRONT: u64 = FRONT_LABELS[1] + REGION_BYTES;
/// Counted back from the end.
const ROOT_BACK: u64 = BACK_LABELS[0] + ROOT_ZONE_BYTES;

/// A drive may rewrite a whole unit of up to this size when a block of it is written, and tear it
/// when power fails. Whatever is written at different times lies in different units.
pub(super) const META_UNIT_BYTES: u64 = 64 << 10;

/// Bytes of a catalogue between its prologue and its first entry.
pub(super) const CATALOGUE_HEADER_BYTES: u64 = 16;
/// Bytes of a catalogue's entry without name and attributes.
pub(super) const CATALOGUE_ENTRY_BYTES: u64 = 104;
/// Bytes of a catalogue slot for each checkpoint: an entry with the longest name, and a few bytes
/// of attributes.
const SLOT_BYTES_PER_CHECKPOINT: u64 = 256;
const CATALOGUE_AT: u64 = ROOT_FRONT + ROOT_ZONE_BYTES;

/// One checkpoint of the catalogue per this much of the smallest drive, up to this many.
const DRIVE_BYTES_PER_CHECKPOINT: u64 = 2 * MIB;
const MOST_PLANNED_CHECKPOINTS: u64 = 4096;
/// Metadata area per data chunk of the pool: a chunk record, and a quarter more for fragmentation
/// and for tables that wait two generations to be freed.
const META_BYTES_PER_CHUNK: u64 = 20;
/// Metadata area per checkpoint, for manifests, shards and the rounding to blocks.
const META_BYTES_PER_CHECKPOINT: u64 = 64 << 10;
/// The metadata area is at most this part of the smallest drive.
const META_SHARE: u64 = 8;

const _: () = {
    assert!(ROOT_ZONE_BYTES == REGION_BYTES && REGION_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(ROOT_STRIDE_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(CATALOGUE_AT.is_multiple_of(META_UNIT_BYTES));
    assert!(CATALOGUE_ENTRY_BYTES + MAX_NAME_BYTES as u64 <= SLOT_BYTES_PER_CHECKPOINT);
    assert!(MOST_PLANNED_CHECKPOINTS <= MAX_CHECKPOINTS as u64);
    // The smallest drive, with the largest metadata area it can get, has room for the largest
    // chunk.
    let catalogues = CATALOGUE_SLOTS * catalogue_slot_bytes_for(MIN_POOL_CHECKPOINTS as u64);
    let before_data = CATALOGUE_AT + catalogues + MIN_DRIVE_BYTES / META_SHARE;
    assert!(
        before_data.next_multiple_of(REGION_BYTES) + MAX_CHUNK_BYTES <= MIN_DRIVE_BYTES - ROOT_BACK
    );
    assert!(MIN_DRIVE_BYTES / DRIVE_BYTES_PER_CHECKPOINT >= MIN_POOL_CHECKPOINTS as u64);
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
    max_checkpoints: u64,
    meta_blocks: u64,
    // Derived from the three above.
    catalogue_slot_bytes: u64,
    meta_offset: u64,
    data_offset: u64,
}

impl Layout {
    /// The layout of a new pool of drives with these capacities.
    pub fn plan(capacities_bytes: &[u64], chunk_bytes: u64) -> Result<Layout, Error> {
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
        let max_checkpoints = (smallest / DRIVE_BYTES_PER_CHECKPOINT).min(MOST_PLANNED_CHECKPOINTS);
        let wanted = chunks
            .saturating_mul(META_BYTES_PER_CHUNK)
            .saturating_add(max_checkpoints * META_BYTES_PER_CHECKPOINT);
        let meta_blocks = wanted.min(smallest / META_SHARE) / BLOCK_BYTES;
        Ok(Layout::chain(chunk_bytes, max_checkpoints, meta_blocks))
    }

    /// Chains the offsets. The arguments are in range.
    fn chain(chunk_bytes: u64, max_checkpoints: u64, meta_blocks: u64) -> Layout {
        let catalogue_slot_bytes = catalogue_slot_bytes_for(max_checkpoints);
        let meta_offset = CATALOGUE_AT + CATALOGUE_SLOTS * catalogue_slot_bytes;
        let meta_end = meta_offset + meta_blocks * BLOCK_BYTES;
        Layout {
            chunk_bytes,
            max_checkpoints,
            meta_blocks,
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

    /// Where the front copy of the root of a generation lies on every drive of every pool.
    pub fn front_root_offset(generation: Generation) -> u64 {
        ROOT_FRONT + generation.0 % ROOT_SLOTS * ROOT_STRIDE_BYTES
    }

    /// Where the root of a generation lies.
    pub fn root_offset(&self, zone: Zone, generation: Generation, capacity_bytes: u64) -> u64 {
        let (offset, _) = self.root_zone_range(zone, capacity_bytes);
        offset + generation.0 % ROOT_SLOTS * ROOT_STRIDE_BYTES
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

    /// Blocks of the metadata area.
    pub fn meta_blocks(&self) -> u64 {
        self.meta_blocks
    }

    /// Where a block of the metadata area lies. `block` is below [`Layout::meta_blocks`].
    pub fn meta_block_offset(&self, block: u64) -> u64 {
        self.meta_offset.saturating_add(block.saturating_mul(BLOCK_BYTES))
    }

    /// The blocks of the metadata area that an extent takes: first and count. `None` when any part
    /// of it lies outside.
    pub fn meta_blocks_of(&self, extent: &MetaExtent) -> Option<(u64, u64)> {
        let into = extent.offset_bytes.checked_sub(self.meta_offset)?;
        let (first, count) = (into / BLOCK_BYTES, extent.blocks());
        let fits = is_block_aligned(into)
            && count > 0
            && first.checked_add(count).is_some_and(|end| end <= self.meta_blocks);
        fits.then_some((first, count))
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

    pub(super) fn encode(&self, writer: &mut Writer) {
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

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Layout, FormatError> {
        let chunk_bytes = reader.u64()?;
        check_chunk_bytes(chunk_bytes).map_err(FormatError::Corrupt)?;
        let roots = (reader.u32()?, reader.u32()?, reader.u64()?, reader.u64()?);
        let catalogue_slots = reader.u32()?;
        let max_checkpoints = reader.u32()?;
        let stored = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let (catalogue_at, catalogue_slot_bytes, meta_offset, meta_blocks, data_offset) = stored;

        let known = (MIN_POOL_CHECKPOINTS..=MAX_CHECKPOINTS).contains(&(max_checkpoints as usize))
            && (1..=MAX_DRIVE_BYTES / BLOCK_BYTES).contains(&meta_blocks);
        if !known {
            return Err(corrupt(format!(
                "a layout of {max_checkpoints} checkpoints and {meta_blocks} metadata blocks"
            )));
        }
        let layout = Layout::chain(chunk_bytes, u64::from(max_checkpoints), meta_blocks);
        let agrees = roots == (ROOT_SLOTS as u32, ROOT_STRIDE_BYTES as u32, ROOT_FRONT, ROOT_BACK)
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

/// Whether the drive can be part of a pool.
pub(super) fn check_capacity(capacity_bytes: u64) -> Result<(), String> {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All regions of a drive, as offset and length, in the order of their offsets.
    fn regions(layout: &Layout, capacity: u64) -> Vec<(u64, u64)> {
        let [front, second, back, last] = Layout::label_offsets(capacity);
        let mut regions = vec![(0, MIB), (front, MIB), (second, MIB)];
        regions.push(layout.root_zone_range(Zone::Front, capacity));
        for generation in 0..CATALOGUE_SLOTS {
            let offset = layout.catalogue_offset(Generation(generation));
            regions.push((offset, layout.catalogue_slot_bytes()));
        }
        regions.push((layout.meta_offset(), layout.meta_blocks() * BLOCK_BYTES));
        let slots = layout.data_slots(capacity);
        regions.push((layout.slot_offset(0), slots * layout.chunk_bytes()));
        regions.push(layout.root_zone_range(Zone::Back, capacity));
        regions.extend([(back, MIB), (last, MIB)]);
        regions
    }

    proptest! {
        #[test]
        fn regions_follow_each_other_on_every_drive(
            capacities in prop::collection::vec(MIN_DRIVE_BYTES..1 << 46, 1..=MAX_DRIVES),
            chunk_log2 in 12..=24_u32,
        ) {
            let layout = Layout::plan(&capacities, 1 << chunk_log2).unwrap();
            for capacity in &capacities {
                let regions = regions(&layout, *capacity);
                for pair in regions.windows(2) {
                    prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:x?}", regions);
                }
                let (last, len) = regions[regions.len() - 1];
                prop_assert!(last + len <= *capacity);
                prop_assert!(regions.iter().all(|(o, l)| is_block_aligned(*o) && *l > 0));
                prop_assert!(layout.data_slots(*capacity) > 0);
                // The unused rest is smaller than a chunk and a region's rounding.
                let data_end = layout.slot_offset(layout.data_slots(*capacity));
                let (roots, _) = layout.root_zone_range(Zone::Back, *capacity);
                prop_assert!(roots - data_end < layout.chunk_bytes());
            }
            let smallest = capacities.iter().min().unwrap();
            prop_assert!(layout.meta_blocks() * BLOCK_BYTES <= smallest / 8);
        }
    }

    #[test]
    fn smallest_drive_holds_any_chunk_in_a_pool_of_the_largest_drives() {
        for chunk_log2 in 12..=24 {
            let mut capacities = vec![MAX_DRIVE_BYTES; MAX_DRIVES];
            capacities[0] = MIN_DRIVE_BYTES;
            let layout = Layout::plan(&capacities, 1 << chunk_log2).unwrap();
            assert_eq!(layout.max_checkpoints(), MIN_POOL_CHECKPOINTS);
            assert!(layout.data_slots(MIN_DRIVE_BYTES) > 0);
        }
    }

    #[test]
    fn what_cannot_be_a_pool_is_refused() {
        let refusal = |capacities: &[u64], chunk| Layout::plan(capacities, chunk).unwrap_err();
        let small = refusal(&[1 << 40, MIN_DRIVE_BYTES - 1], MIB);
        assert!(matches!(&small, Error::Usage(text) if text.contains("33554432 bytes (32 MiB)")));
        for error in [
            refusal(&[], MIB),
            refusal(&[1 << 40; MAX_DRIVES + 1], MIB),
            refusal(&[u64::MAX], MIB),
            refusal(&[1 << 40], 0),
            refusal(&[1 << 40], MIB + 4096),
            refusal(&[1 << 40], 2048),
            refusal(&[1 << 40], 32 * MIB),
        ] {
            assert!(matches!(error, Error::Usage(_)), "{error}");
        }
    }

    #[test]
    fn generations_rotate_through_distinct_slots() {
        let capacity = 1_000_000_000_000;
        let layout = Layout::plan(&[capacity], MIB).unwrap();
        for zone in [Zone::Front, Zone::Back] {
            let (start, len) = layout.root_zone_range(zone, capacity);
            let mut offsets: Vec<u64> = (100..100 + ROOT_SLOTS)
                .map(|g| layout.root_offset(zone, Generation(g), capacity))
                .collect();
            offsets.sort_unstable();
            assert_eq!(offsets[0], start);
            assert!(offsets.windows(2).all(|w| w[1] - w[0] == 16 << 10));
            assert_eq!(offsets[offsets.len() - 1] + ROOT_STRIDE_BYTES, start + len);
            let again = layout.root_offset(zone, Generation(100 + ROOT_SLOTS), capacity);
            assert_eq!(again, layout.root_offset(zone, Generation(100), capacity));
        }
        let catalogues: Vec<u64> = (5..9).map(|g| layout.catalogue_offset(Generation(g))).collect();
        assert!((0..4).all(|i| !catalogues[..i].contains(&catalogues[i])));
        assert_eq!(layout.catalogue_offset(Generation(9)), catalogues[0]);
    }

    #[test]
    fn offsets_are_as_specified() {
        let capacity = 8 * 1024 * MIB + 12_345;
        assert_eq!(Layout::front_label_offsets(), [MIB, 2 * MIB]);
        assert_eq!(
            Layout::label_offsets(capacity),
            [MIB, 2 * MIB, 8190 * MIB, 8191 * MIB],
            "the end is rounded down"
        );
        let layout = Layout::plan(&[capacity], MIB).unwrap();
        assert_eq!(layout.max_checkpoints(), 4096);
        assert_eq!(layout.root_zone_range(Zone::Front, capacity), (3 * MIB, MIB));
        assert_eq!(layout.root_zone_range(Zone::Back, capacity), (8189 * MIB, MIB));
        assert_eq!(layout.catalogue_offset(Generation(0)), 4 * MIB);
        // 80 bytes and 256 for each checkpoint, in units of 64 KiB.
        assert_eq!(layout.catalogue_slot_bytes(), 17 * (64 << 10));
        assert_eq!(layout.meta_offset(), 4 * MIB + 4 * 17 * (64 << 10));
        // 4096 checkpoints of 64 KiB and 8192 chunks of 20 bytes.
        assert_eq!(layout.meta_blocks(), 4096 * 16 + 40);
        assert_eq!(layout.slot_offset(0), 265 * MIB);
        assert_eq!(layout.slot_offset(3), 268 * MIB);
        assert_eq!(layout.data_slots(capacity), 8189 - 265);
    }

    #[test]
    fn extents_outside_the_metadata_area_have_no_blocks() {
        let layout = Layout::plan(&[MIN_DRIVE_BYTES], MIB).unwrap();
        let blocks = layout.meta_blocks();
        let of = |offset_bytes, len_bytes| {
            layout.meta_blocks_of(&MetaExtent { offset_bytes, len_bytes, hash: [0; 16] })
        };
        let (start, last) = (layout.meta_offset(), layout.meta_block_offset(blocks - 1));
        assert_eq!(of(start, 1), Some((0, 1)));
        assert_eq!(of(start, 4097), Some((0, 2)));
        assert_eq!(of(start, blocks * 4096), Some((0, blocks)));
        assert_eq!(of(last, 4096), Some((blocks - 1, 1)));
        assert_eq!(of(last, 4097), None);
        assert_eq!(of(start - 4096, 4096), None);
        assert_eq!(of(start + 512, 4096), None);
        assert_eq!(of(start, 0), None);
        assert_eq!(of(u64::MAX - 4095, u64::MAX), None);
    }
}
