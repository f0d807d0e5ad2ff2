// SPDX-License-Identifier: Apache-2.0
//! The layout: regions that do not overlap, and sizes that follow from the drives.

use proptest::prelude::*;

use super::*;
use crate::units::is_block_aligned;

/// All regions of a drive, as offset and length, in the order of their offsets.
fn regions(layout: &Layout, capacity: u64) -> Vec<(u64, u64)> {
    let [front, second, back, last] = Layout::label_offsets(capacity);
    let mut regions = vec![(0, MIB), (front, MIB), (second, MIB)];
    regions.push(layout.root_zone_range(Zone::Front, capacity));
    for generation in 0..CATALOGUE_SLOTS {
        let offset = layout.catalogue_offset(Generation(generation));
        regions.push((offset, layout.catalogue_slot_bytes()));
    }
    regions.push((layout.meta_offset(), layout.metadata_bytes()));
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
        prop_assert!(layout.metadata_bytes() <= smallest / 8);
        prop_assert!(layout.metadata_bytes().is_multiple_of(META_UNIT_BYTES));
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
        // A write that tears its unit of 64 KiB hurts no root of the 15 generations before.
        for generation in 100..100 + ROOT_SLOTS {
            let unit = |g| layout.root_offset(zone, Generation(g), capacity) / (64 << 10);
            assert!((1..16).all(|before| unit(generation) != unit(generation - before)));
        }
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
    assert_eq!(layout.max_checkpoints(), 1024);
    assert_eq!(layout.root_zone_range(Zone::Front, capacity), (3 * MIB, MIB));
    assert_eq!(layout.root_zone_range(Zone::Back, capacity), (8189 * MIB, MIB));
    assert_eq!(layout.catalogue_offset(Generation(0)), 4 * MIB);
    // 80 bytes and 256 for each checkpoint, in units of 64 KiB.
    assert_eq!(layout.catalogue_slot_bytes(), 5 * (64 << 10));
    assert_eq!(layout.meta_offset(), 4 * MIB + 4 * 5 * (64 << 10));
    // 256 MiB and 8192 chunks of 20 bytes, in units of 64 KiB.
    assert_eq!(layout.meta_units(), 4096 + 3);
    assert_eq!(layout.slot_offset(0), 262 * MIB);
    assert_eq!(layout.slot_offset(3), 265 * MIB);
    assert_eq!(layout.data_slots(capacity), 8189 - 262);
}

#[test]
fn extents_outside_the_metadata_area_have_no_units() {
    let layout = Layout::plan(&[MIN_DRIVE_BYTES], MIB).unwrap();
    let units = layout.meta_units();
    let of = |offset_bytes, len_bytes| {
        layout.meta_units_of(&MetaExtent { offset_bytes, len_bytes, hash: [0; 16] })
    };
    let (start, last) = (layout.meta_offset(), layout.meta_unit_offset(units - 1));
    assert_eq!(of(start, 1), Some((0, 1)));
    assert_eq!(of(start, META_UNIT_BYTES + 1), Some((0, 2)));
    assert_eq!(of(start, units * META_UNIT_BYTES), Some((0, units)));
    assert_eq!(of(last, META_UNIT_BYTES), Some((units - 1, 1)));
    assert_eq!(of(last, META_UNIT_BYTES + 1), None);
    assert_eq!(of(start - META_UNIT_BYTES, 4096), None);
    assert_eq!(of(start + 4096, 4096), None, "not at the start of a unit");
    assert_eq!(of(start, 0), None);
    assert_eq!(of(u64::MAX - 4095, u64::MAX), None);
    let run = |first_block, blocks| {
        let drive = crate::units::DriveIndex(0);
        layout.meta_units_of_run(&TableRun { drive, copy: 0, blocks, first_block })
    };
    let first = start / BLOCK_BYTES;
    assert_eq!(run(first, 1), Some((0, 1)));
    assert_eq!(run(first + 15, 2), Some((0, 2)));
    assert_eq!(run(first + 16, 16), Some((1, 1)));
    assert_eq!(run(first + units * 16 - 1, 1), Some((units - 1, 1)));
    for (first, blocks) in [(first - 1, 1), (first, 0), (first + units * 16 - 1, 2)] {
        assert_eq!(run(first, blocks), None);
    }
    assert_eq!(run(u64::MAX, u32::MAX), None);
}

#[test]
fn the_metadata_area_follows_from_the_smallest_drive_or_is_given() {
    const TB: u64 = 1_000_000_000_000;
    let area = |capacities: &[u64]| {
        let layout = Layout::plan(capacities, MIB).unwrap();
        (layout.metadata_bytes(), layout.max_checkpoints())
    };
    assert_eq!(area(&[MIN_DRIVE_BYTES]), (4 * MIB, 16));
    assert_eq!(area(&[64 * MIB, TB]), (8 * MIB, 32));
    assert_eq!(area(&[2 << 30]), (256 * MIB, 1024));
    let of_15_tb = (15 * TB / 128).next_multiple_of(META_UNIT_BYTES);
    assert_eq!(area(&[15 * TB; 8]), (of_15_tb, MAX_CHECKPOINTS));
    assert_eq!(area(&[MAX_DRIVE_BYTES]).0, MAX_METADATA_BYTES);

    let sized = |bytes| Layout::plan_sized(&[64 * MIB], MIB, Some(bytes));
    let layout = sized(20 * MIB - 5).unwrap();
    assert_eq!((layout.metadata_bytes(), layout.max_checkpoints()), (20 * MIB, 80));
    assert_eq!(sized(MIB).unwrap().max_checkpoints(), MIN_POOL_CHECKPOINTS);
    for refused in [0, MIB - 1, 32 * MIB + 1, u64::MAX] {
        assert!(matches!(sized(refused), Err(Error::Usage(text)) if text.contains("half")));
    }
    let tight = Layout::plan_sized(&[MIN_DRIVE_BYTES], 16 * MIB, Some(15 * MIB));
    assert!(matches!(tight, Err(Error::Usage(text)) if text.contains("no room for a chunk")));
}

#[test]
fn larger_pools_have_larger_chunks() {
    const TB: u64 = 1_000_000_000_000;
    let chunk = |drives: &[u64]| Layout::default_chunk_bytes(drives) / MIB;
    assert_eq!(chunk(&[30 * TB, 30 * TB]), 1);
    assert_eq!(chunk(&[30 * TB, 30 * TB + 1]), 4);
    assert_eq!(chunk(&[25 * TB; 10]), 4);
    assert_eq!(chunk(&[25 * TB; 11]), 16);
    assert_eq!(chunk(&[u64::MAX; 3]), 16);
}
