// SPDX-License-Identifier: Apache-2.0
//! Filling a drive: what is read for it, how it goes on after an interruption, what keeps it from
//! being a member and what does not, and what goes on beside it.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use crate::common::{Pattern, restore, save};
use stanchion_testing::internals::device::Device;
use stanchion_testing::internals::device::Operation;
use stanchion_testing::internals::device::sim::{Effect, Fault, SimConfig, SimDrive, When};
use stanchion_testing::internals::format::Layout;
use stanchion_testing::internals::{admit_drive_on, format_pool_on};
use stanchion_testing::{
    CheckpointName, DriveState, Error, FormatOptions, HugePages, IoError, Pool, PoolMode,
    PoolOptions, Redundancy,
};

const MIB: u64 = 1 << 20;
const DRIVE_BYTES: u64 = 48 * MIB;
const CHUNK_BYTES: u64 = 64 << 10;
/// The kernel's EIO: it may be gone with the next try.
const FOR_NOW: IoError = IoError::Os(5);

fn name(step: u64) -> CheckpointName {
    CheckpointName::new("run", step).unwrap()
}

fn sim(serial: &str) -> SimDrive {
    let config =
        SimConfig { capacity_bytes: DRIVE_BYTES, serial: serial.into(), ..SimConfig::default() };
    SimDrive::new(config).unwrap()
}

fn devices(sims: &[SimDrive]) -> Vec<Box<dyn Device>> {
    sims.iter().map(|sim| Box::new(sim.open().unwrap()) as Box<dyn Device>).collect()
}

fn open_as(sims: &[SimDrive], mode: PoolMode, degraded: bool) -> Pool {
    let options =
        PoolOptions { mode, degraded, huge_pages: HugePages::Off, ..PoolOptions::new(Vec::new()) };
    Pool::open_on(devices(sims), &options).unwrap()
}

fn open(sims: &[SimDrive]) -> Pool {
    open_as(sims, PoolMode::ReadWrite, false)
}

fn layout(drives: usize) -> Layout {
    Layout::plan(&vec![DRIVE_BYTES; drives], CHUNK_BYTES).unwrap()
}

/// A mirror with a checkpoint, and its contents.
fn mirror(drives: usize, len_bytes: u64) -> (Vec<SimDrive>, Pattern) {
    let sims: Vec<SimDrive> = (0..drives).map(|number| sim(&format!("SIM{number}"))).collect();
    let options = FormatOptions {
        redundancy: Redundancy::Mirror,
        chunk_bytes: Some(CHUNK_BYTES),
        ..FormatOptions::new(Vec::new())
    };
    format_pool_on(devices(&sims), &options).unwrap();
    let pattern = Pattern::new(1, len_bytes);
    save(&open(&sims), &name(1), &pattern).unwrap();
    (sims, pattern)
}

/// The last drive is lost, and a new one takes its place; the pool was opened without it.
fn replace_last(sims: &mut Vec<SimDrive>) {
    sims.pop();
    drop(open_as(sims, PoolMode::ReadWrite, true));
    let new = sim("NEW");
    let newcomer = devices(std::slice::from_ref(&new)).remove(0);
    admit_drive_on(devices(sims), newcomer, None, false, false).unwrap();
    sims.push(new);
}

/// Data slots that commands of this kind have touched since the trace began.
fn slots_of(sim: &SimDrive, layout: &Layout, operation: Operation) -> BTreeSet<u64> {
    let first = layout.slot_offset(0);
    let data = first..first + layout.data_slots(DRIVE_BYTES) * CHUNK_BYTES;
    let trace = sim.take_trace().into_iter();
    trace
        .filter(|event| event.ended == Some(Ok(())) && event.operation == operation)
        .filter(|event| data.contains(&event.offset_bytes))
        .map(|event| (event.offset_bytes - first) / CHUNK_BYTES)
        .collect()
}

#[test]
fn only_what_belongs_on_the_drive_is_read_and_written() {
    let (mut sims, pattern) = mirror(4, 6 * MIB + 77);
    replace_last(&mut sims);
    let layout = layout(4);
    let pool = open(&sims);
    sims.iter().for_each(|sim| sim.start_trace(1 << 16));
    let mut last = (0, 0);
    let report = pool.rebuild(&mut |done, total| last = (done, total)).unwrap();
    assert!(report.is_clean() && report.rebuilt == ["NEW"], "{report:?}");
    assert_eq!(pool.info().drives[3].state, DriveState::Member);
    let written = slots_of(&sims[3], &layout, Operation::Write);
    let read: usize =
        sims[..3].iter().map(|sim| slots_of(sim, &layout, Operation::Read).len()).sum();
    // Half of the copies of 97 chunks lie on two of four drives.
    assert!((40..60).contains(&written.len()), "{} chunks", written.len());
    assert_eq!(read, written.len(), "each is read once, from the other drive that has it");
    assert_eq!(last.0, report.filled[0].data_bytes);
    assert!(last.1 >= last.0 && last.1 - last.0 <= CHUNK_BYTES, "{last:?}");
    assert_eq!(report.filled.len(), 1);
    assert!(report.filled[0].ranges > written.len() as u64, "metadata is filled, too");
    assert!(report.repaired.is_empty(), "nothing was damaged: {report:?}");
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.repaired_count == 0, "{report:?}");
    drop(pool);
    for gone in 0..3 {
        let left: Vec<_> = (0..4).filter(|d| *d != gone).map(|d| sims[d].clone()).collect();
        let pool = open_as(&left, PoolMode::ReadOnly, false);
        assert_eq!(restore(&pool, &name(1), &pattern), Ok(()), "without drive {gone}");
    }
}

#[test]
fn an_interrupted_rebuilding_goes_on_where_it_ended() {
    let (mut sims, pattern) = mirror(2, 12 * MIB);
    replace_last(&mut sims);
    let layout = layout(2);
    let dies = Fault {
        operation: Some(Operation::Write),
        range_bytes: Some(layout.slot_offset(0)..DRIVE_BYTES),
        when: When::From(150),
        effect: Effect::Fail(IoError::Removed),
    };
    {
        let pool = open(&sims);
        sims[1].inject(dies).unwrap();
        let lost = pool.rebuild(&mut |_, _| ()).unwrap_err();
        assert!(matches!(lost, Error::Io { what: "write", .. }), "{lost}");
        assert_eq!(pool.info().drives[1].state, DriveState::Rebuilding);
    }
    sims[1].clear_faults();
    let pool = open(&sims);
    sims[1].start_trace(1 << 16);
    let report = pool.rebuild(&mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.rebuilt == ["NEW"], "{report:?}");
    let written = slots_of(&sims[1], &layout, Operation::Write).len();
    assert!((30..=192 - 100).contains(&written), "{written} of 192 chunks were written again");
    drop(pool);
    let alone = open_as(&sims[1..], PoolMode::ReadOnly, false);
    assert_eq!(restore(&alone, &name(1), &pattern), Ok(()));
}

/// What no drive has is lost, with this drive or without it. What could not be read for now is not.
#[test]
fn a_lost_chunk_keeps_no_drive_out_and_an_unread_one_does() {
    for is_lost in [true, false] {
        let (mut sims, pattern) = mirror(2, 6 * MIB);
        let layout = layout(2);
        replace_last(&mut sims);
        let place = layout.slot_offset(17);
        let pool = open(&sims);
        if is_lost {
            sims[0].corrupt(place, 4096, 3);
        } else {
            let fails = Fault::new(Operation::Read, When::From(0), Effect::Fail(FOR_NOW));
            sims[0].inject(fails.within(place..place + CHUNK_BYTES)).unwrap();
        }
        let report = pool.rebuild(&mut |_, _| ()).unwrap();
        assert!(!report.is_clean(), "{report:?}");
        let of_it = |damage: &stanchion_testing::Damage| damage.offset_bytes == Some(place);
        assert!(report.damages.iter().any(of_it), "{report:?}");
        let state = pool.info().drives[1].state;
        if is_lost {
            assert_eq!((report.rebuilt, state), (vec!["NEW".to_owned()], DriveState::Member));
            // The rest has two copies again.
            let report = pool.verify(None, true, &mut |_, _| ()).unwrap();
            assert_eq!(report.damage_count, 2, "{report:?}");
            continue;
        }
        assert_eq!((report.rebuilt.len(), state), (0, DriveState::Rebuilding));
        sims[0].clear_faults();
        let report = pool.rebuild(&mut |_, _| ()).unwrap();
        assert!(report.is_clean() && report.rebuilt == ["NEW"], "{report:?}");
        assert_eq!(report.filled[0].data_bytes, CHUNK_BYTES, "only what was missing");
        drop(pool);
        let alone = open_as(&sims[1..], PoolMode::ReadOnly, false);
        assert_eq!(restore(&alone, &name(1), &pattern), Ok(()));
    }
}

#[test]
fn a_failed_read_of_one_place_does_not_end_a_verification() {
    let (sims, _) = mirror(2, 6 * MIB);
    let layout = layout(2);
    let pool = open(&sims);
    let place = layout.slot_offset(17);
    let fails = Fault::new(Operation::Read, When::From(0), Effect::Fail(FOR_NOW));
    sims[1].inject(fails.within(place..place + CHUNK_BYTES)).unwrap();
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert_eq!(report.damage_count, 1, "{report:?}");
    assert_eq!(report.damages[0].offset_bytes, Some(place));
    assert_eq!(report.data_bytes, 2 * 6 * MIB - CHUNK_BYTES, "the rest was checked");
    // A drive that is gone ends it: nothing can be said about what it has.
    sims[1].clear_faults();
    let dies = Fault::new(Operation::Read, When::From(20), Effect::Fail(IoError::Removed));
    sims[1].inject(dies).unwrap();
    let lost = pool.verify(None, false, &mut |_, _| ());
    assert!(matches!(lost, Err(Error::Io { .. })), "{lost:?}");
}

#[test]
fn what_is_saved_and_removed_meanwhile_is_right_afterwards() {
    let (mut sims, first) = mirror(3, 6 * MIB);
    replace_last(&mut sims);
    let pool = open(&sims);
    let second = Pattern::new(2, 5 * MIB + 11);
    save(&pool, &name(2), &second).unwrap();
    let (mut calls, mut saved) = (0, Vec::new());
    // The verification's thread removes and saves at many points of the pass.
    let report = pool.rebuild(&mut |_, _| {
        calls += 1;
        match calls {
            2 => drop(pool.remove(&name(2)).unwrap()),
            3 | 5 | 7 | 9 => {
                let step = 10 + calls;
                let pattern = Pattern::new(step, 2 * MIB + step);
                save(&pool, &name(step), &pattern).unwrap();
                saved.push((name(step), pattern));
            }
            _ => {}
        }
    });
    let report = report.unwrap();
    assert!(report.is_clean() && report.rebuilt == ["NEW"], "{report:?}");
    assert_eq!((report.checkpoints, report.removed), (1, 1), "{report:?}");
    assert_eq!(saved.len(), 4, "{calls} calls");
    saved.push((name(1), first));
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop(pool);
    for gone in 0..2 {
        let left: Vec<_> = (0..3).filter(|d| *d != gone).map(|d| sims[d].clone()).collect();
        let pool = open_as(&left, PoolMode::ReadOnly, false);
        for (name, pattern) in &saved {
            assert_eq!(restore(&pool, name, pattern), Ok(()), "{name} without drive {gone}");
        }
    }
}

/// The checkpoint that is being repaired is removed, and its space is wanted by the next save.
#[test]
fn a_repair_writes_nothing_over_what_comes_after_a_removal() {
    for at in [1, 3] {
        let (sims, _) = mirror(2, 8 * MIB);
        let pool = open(&sims);
        let layout = layout(2);
        let slots = layout.data_slots(DRIVE_BYTES);
        // Every copy on one drive is bad.
        sims[1].corrupt(layout.slot_offset(0), slots * CHUNK_BYTES, 5);
        let all = Pattern::new(9, pool.info().free_bytes.unwrap());
        let (mut calls, mut saved) = (0, 0);
        let report = pool.verify(None, true, &mut |_, _| {
            calls += 1;
            if calls == at {
                pool.remove(&name(1)).unwrap();
                // Two generations later its slots would be free, and these need some of them.
                let more = Pattern::new(9, all.len_bytes() + MIB);
                saved += u32::from(save(&pool, &name(2), &more).is_ok());
                save(&pool, &name(3), &all).unwrap();
            }
        });
        assert_eq!(saved, 0, "the slots were given away while they were repaired (call {at})");
        let report = report.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(restore(&pool, &name(3), &all), Ok(()));
        let after = pool.verify(None, false, &mut |_, _| ()).unwrap();
        assert!(after.is_clean(), "call {at}: {after:?}");
        // Afterwards they are free.
        save(&pool, &name(4), &Pattern::new(4, 8 * MIB)).unwrap();
    }
}

#[test]
fn much_damage_is_counted_and_not_kept() {
    let sims = [sim("A"), sim("B")];
    let options = FormatOptions {
        redundancy: Redundancy::Mirror,
        chunk_bytes: Some(4096),
        ..FormatOptions::new(Vec::new())
    };
    format_pool_on(devices(&sims), &options).unwrap();
    let pool = open(&sims);
    let pattern = Pattern::new(3, 6 * MIB);
    save(&pool, &name(1), &pattern).unwrap();
    let layout = Layout::plan(&[DRIVE_BYTES; 2], 4096).unwrap();
    sims[0].corrupt(layout.slot_offset(0), layout.data_slots(DRIVE_BYTES) * 4096, 9);
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert_eq!((report.damages.len(), report.damage_count), (1000, 1536));
    let report = pool.verify(None, true, &mut |_, _| ()).unwrap();
    assert!(report.is_clean());
    assert_eq!((report.repaired.len(), report.repaired_count), (1000, 1536));
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.repaired_count == 0, "{report:?}");
    assert_eq!(restore(&pool, &name(1), &pattern), Ok(()));
}

#[test]
fn what_no_flush_has_covered_is_not_called_repaired() {
    let (sims, _) = mirror(2, 2 * MIB);
    let pool = open(&sims);
    sims[1].corrupt(layout(2).slot_offset(3), 4096, 5);
    let fails = Fault::new(Operation::Flush, When::From(0), Effect::Fail(FOR_NOW));
    sims[1].inject(fails).unwrap();
    assert!(pool.verify(None, true, &mut |_, _| ()).is_err());
    sims[1].clear_faults();
    // Whatever else was not durable on that drive then: nothing is acknowledged any more.
    let refused = save(&pool, &name(2), &Pattern::new(2, MIB));
    assert!(matches!(refused, Err(Error::Poisoned { what: "flush", .. })), "{refused:?}");
    let refused = pool.verify(None, true, &mut |_, _| ());
    assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
    drop(pool);
    let read_only = open_as(&sims, PoolMode::ReadOnly, false);
    assert!(matches!(read_only.rebuild(&mut |_, _| ()), Err(Error::ReadOnly)));
}
