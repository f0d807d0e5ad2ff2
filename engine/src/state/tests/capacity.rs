// SPDX-License-Identifier: Apache-2.0
//! What fits into a pool of 8 x 15 TB: the real allocators over the real maps, full size. Nothing
//! is encoded or written.

use super::*;
use crate::format::{Manifest, SegmentTable, ShardList, blocks_of};
use crate::placement;

const TB: u64 = 1_000_000_000_000;
const DRIVES: usize = 8;

/// A checkpoint of equal participants.
struct Job {
    bytes: u64,
    participants: u32,
    shards_each: u64,
}

/// What a full pool holds.
#[derive(Debug)]
#[expect(dead_code, reason = "for the report that the test prints")]
struct Full {
    checkpoints: u64,
    /// Of all data slots.
    data_used: f64,
    /// Of all units of metadata.
    metadata_used: f64,
    data_ended_first: bool,
    /// What opening the pool reads of segment tables.
    table_bytes: u64,
    /// What the space of all checkpoints takes in memory.
    run_bytes: u64,
}

/// The size of a list of so many shards with names of 62 bytes: from two small lists.
fn list_bytes(shards: u64) -> u64 {
    let of = |count: u64| {
        let shard = |number| Shard {
            name: format!("{number:062}"),
            dtype: "F16".into(),
            shape: vec![4096, 4096],
            ..Shard::default()
        };
        ShardList::encoded_bytes(&(0..count).map(shard).collect::<Vec<_>>())
    };
    of(0) + shards * (of(1) - of(0))
}

fn fill(chunk_bytes: u64, job: &Job) -> Full {
    let label = striped_label(15 * TB, chunk_bytes, DRIVES);
    let root = root(&label, 1);
    let mut state = State::new(label, root, None, Generation(1), Vec::new());
    let units = state.free_meta_units();
    let slots: u64 = state.free_slots().iter().sum();
    let segment_bytes = job.bytes / u64::from(job.participants);
    let chunks = segment_bytes.div_ceil(chunk_bytes);
    let table_bytes = SegmentTable::encoded_bytes(segment_bytes, chunk_bytes, 1);
    let list_blocks = blocks_of(list_bytes(job.shards_each));
    let (mut checkpoints, mut run_bytes) = (0, 0);
    let data_ended_first = 'full: loop {
        if checkpoints == state.label().layout.max_checkpoints() as u64 {
            break false;
        }
        let mut runs = 0;
        let mut holding = Holding::new(DRIVES);
        for participant in 0..job.participants {
            let turn = checkpoints + u64::from(participant);
            let free = state.free_slots();
            let Some(share) = placement::shares(chunks, 1, &free, participant as usize) else {
                break 'full true;
            };
            let places = state.place_tables(blocks_of(table_bytes), list_blocks, turn);
            let Some(places) = places else { break 'full false };
            runs += (places.table.len() + places.list.len()) as u64;
            let all = places.table.iter().chain(&places.list);
            holding.add_tables(&state.label.layout, all);
            for (drive, count) in share.into_iter().enumerate() {
                if let Some(start) = state.data[drive].allocate_run(count) {
                    holding.data[drive].push(Run { start, count });
                }
            }
        }
        let manifest = Manifest::encoded_bytes("run", job.participants, runs);
        let Some(run) = state.place_manifest(blocks_of(manifest)) else { break false };
        holding.add_common(run);
        let held = holding.data.iter().chain(&holding.meta).map(Vec::len).sum::<usize>();
        run_bytes += (held * size_of::<Run>()) as u64;
        checkpoints += 1;
    };
    let part = |free: u64, all: u64| 1.0 - free as f64 / all as f64;
    Full {
        checkpoints,
        data_used: part(state.free_slots().iter().sum(), slots),
        metadata_used: part(state.free_meta_units().iter().sum(), units.iter().sum()),
        data_ended_first,
        table_bytes: checkpoints * u64::from(job.participants) * table_bytes,
        run_bytes,
    }
}

#[test]
fn data_ends_before_metadata_in_a_pool_of_120_tb() {
    let jobs = [
        Job { bytes: 10_000_000_000, participants: 1, shards_each: 100_000 },
        Job { bytes: 1_400_000_000_000, participants: 1024, shards_each: 1000 },
    ];
    for job in jobs {
        for chunk_bytes in [MIB, 4 * MIB, 16 * MIB] {
            let full = fill(chunk_bytes, &job);
            let Job { bytes, participants, shards_each } = job;
            eprintln!("{bytes} B, {participants} x {shards_each}, {chunk_bytes} B: {full:?}");
            assert!(full.data_ended_first, "{full:?}");
            assert!(full.data_used > 0.97 && full.metadata_used < 0.6, "{full:?}");
        }
    }
}
