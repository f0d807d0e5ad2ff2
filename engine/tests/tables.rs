// SPDX-License-Identifier: Apache-2.0
//! Copies of segment tables and shard lists: on drives that were missing when a checkpoint was
//! saved, and in several runs.

#![allow(clippy::unwrap_used)]

use stanchion_testing::internals::admit_drive_on;
use stanchion_testing::internals::device::Operation;
use stanchion_testing::internals::device::sim::{Effect, Fault, SimDrive, When};
use stanchion_testing::internals::format::{Layout, Shard};
use stanchion_testing::internals::format_pool_on;
use stanchion_testing::{
    CheckpointName, CheckpointSpec, FormatOptions, HugePages, IoError, Pool, PoolMode, PoolOptions,
    Redundancy,
};

use crate::mirror::{DRIVE_BYTES, MIB, devices, sim};

/// The smallest metadata area: 16 units of 64 KiB.
const METADATA_BYTES: u64 = MIB;
const UNIT_BYTES: u64 = 64 << 10;

fn name(step: u64) -> CheckpointName {
    CheckpointName::new("run", step).unwrap()
}

fn open(sims: &[SimDrive], degraded: bool) -> Pool {
    let options =
        PoolOptions { degraded, huge_pages: HugePages::Off, ..PoolOptions::new(Vec::new()) };
    Pool::open_on(devices(sims), &options).unwrap()
}

fn open_for_reading(sims: &[SimDrive]) -> Pool {
    let options = PoolOptions {
        mode: PoolMode::ReadOnly,
        huge_pages: HugePages::Off,
        ..PoolOptions::new(Vec::new())
    };
    Pool::open_on(devices(sims), &options).unwrap()
}

fn mirror(drives: usize) -> Vec<SimDrive> {
    let sims: Vec<SimDrive> = (0..drives).map(|number| sim(&format!("SIM{number}"))).collect();
    let options = FormatOptions {
        redundancy: Redundancy::Mirror,
        metadata_bytes: Some(METADATA_BYTES),
        ..FormatOptions::new(Vec::new())
    };
    format_pool_on(devices(&sims), &options).unwrap();
    sims
}

/// A checkpoint of so many bytes and shards; its list has some 128 bytes for each shard.
fn save(pool: &Pool, step: u64, len_bytes: u64, shards: u64) {
    let shards = (0..shards).map(|number| Shard {
        name: format!("{number:0>100}"),
        offset_bytes: number,
        len_bytes: 1,
        ..Shard::default()
    });
    let spec = CheckpointSpec {
        shards: shards.collect(),
        ..CheckpointSpec::single(name(step), len_bytes)
    };
    pool.save(&spec, &bytes(step, len_bytes)).unwrap();
}

fn restore(pool: &Pool, step: u64, len_bytes: u64) {
    let mut restored = vec![0; len_bytes as usize];
    pool.restore(&name(step), 0, 0, &mut restored).unwrap();
    assert!(restored == bytes(step, len_bytes), "run@{step}");
}

fn bytes(step: u64, len_bytes: u64) -> Vec<u8> {
    (0..len_bytes).map(|at| (at.wrapping_mul(step + 7) >> 3) as u8).collect()
}

/// Takes a blank drive into the place of the last one, and fills it.
fn replace_last(left: &[SimDrive]) -> SimDrive {
    let new = sim("NEW");
    let newcomer = devices(std::slice::from_ref(&new)).remove(0);
    admit_drive_on(devices(left), newcomer, None, false, false).unwrap();
    let all: Vec<SimDrive> = left.iter().chain([&new]).cloned().collect();
    let pool = open(&all, false);
    let report = pool.rebuild(&mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.rebuilt == ["NEW"], "{report:?}");
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    new
}

fn metadata_area(drives: usize) -> std::ops::Range<u64> {
    let capacities = vec![DRIVE_BYTES; drives];
    let layout = Layout::plan_sized(&capacities, MIB, Some(METADATA_BYTES)).unwrap();
    layout.meta_offset()..layout.meta_offset() + METADATA_BYTES
}

/// No metadata of a checkpoint can be read on this drive.
fn lose_metadata(sim: &SimDrive, drives: usize) {
    let fails = Fault::new(Operation::Read, When::From(0), Effect::Fail(IoError::Os(5)));
    sim.inject(fails.within(metadata_area(drives))).unwrap();
}

/// Runs of the metadata area that were written since the trace began.
fn runs_written(sim: &SimDrive, drives: usize) -> usize {
    let area = metadata_area(drives);
    let mut writes: Vec<(u64, u64)> = sim
        .take_trace()
        .into_iter()
        .filter(|event| event.operation == Operation::Write)
        .filter(|event| area.contains(&event.offset_bytes))
        .map(|event| (event.offset_bytes, event.offset_bytes + u64::from(event.len_bytes)))
        .collect();
    writes.sort_unstable();
    writes.dedup();
    let gaps = writes.windows(2).filter(|pair| pair[1].0 / UNIT_BYTES > pair[0].1 / UNIT_BYTES);
    writes.len().min(1) + gaps.count()
}

/// Whichever drives are left out at a save, after the filling every copy that the pool wants is
/// there: another drive may lose its metadata.
#[test]
fn tables_saved_without_a_drive_are_on_the_drive_that_replaces_it() {
    for (drives, shards) in [(2, 0), (2, 900), (3, 30)] {
        let mut sims = mirror(drives);
        save(&open(&sims, false), 1, 3 * MIB, shards);
        sims.pop();
        save(&open(&sims, true), 2, 3 * MIB + 5, shards);
        let new = replace_last(&sims);
        sims.push(new);
        sims[..drives - 1].iter().for_each(|sim| lose_metadata(sim, drives));
        // The chunks of the second checkpoint may be on the old drives only; its tables are not.
        let pool = open_for_reading(&sims);
        for (step, len_bytes) in [(1, 3 * MIB), (2, 3 * MIB + 5)] {
            restore(&pool, step, len_bytes);
        }
    }
}

/// The same space is free again afterwards: what an absent drive was to get is not forgotten.
#[test]
fn the_places_on_a_missing_drive_are_free_when_the_checkpoint_is_removed() {
    let mut sims = mirror(2);
    sims.pop();
    for _ in 0..3 {
        let pool = open(&sims, true);
        for step in 1..=6 {
            save(&pool, step, MIB, 0);
        }
        for step in 1..=6 {
            pool.remove(&name(step)).unwrap();
        }
    }
    let new = replace_last(&sims);
    sims.push(new);
    let pool = open(&sims, false);
    (1..=6).for_each(|step| save(&pool, step, MIB, 0));
}

#[test]
fn tables_in_several_runs_are_filled() {
    for absent_at_save in [false, true] {
        let mut sims = mirror(2);
        let pool = open(&sims, false);
        (1..=7).for_each(|step| save(&pool, step, MIB, 0));
        // Single units at the end of the area are free now, and few in its middle.
        for step in [1, 3, 5] {
            pool.remove(&name(step)).unwrap();
        }
        drop(pool);
        if absent_at_save {
            sims.pop();
        }
        let pool = open(&sims, absent_at_save);
        sims[0].start_trace(1 << 16);
        save(&pool, 8, 3 * MIB, 2200);
        let runs = runs_written(&sims[0], 2);
        drop(pool);
        assert!(runs >= 4, "a manifest, and tables in {runs} runs with it");
        sims.truncate(1);
        drop(open(&sims, true));
        let new = replace_last(&sims);
        sims.push(new);
        lose_metadata(&sims[0], 2);
        let pool = open_for_reading(&sims);
        for (step, len_bytes) in [(2, MIB), (4, MIB), (6, MIB), (7, MIB), (8, 3 * MIB)] {
            restore(&pool, step, len_bytes);
        }
    }
}
