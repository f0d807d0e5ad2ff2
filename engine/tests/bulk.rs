// SPDX-License-Identifier: Apache-2.0
//! Whole segments in one call: saved bytes are restored; a call that is stopped, or fails, leaves
//! nothing behind; lent memory is not copied.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{self, BackEnd, DRIVE_BYTES};
use stanchion_testing::internals::device::Operation;
use stanchion_testing::internals::device::sim::{Effect, Fault, When};
use stanchion_testing::internals::format::Layout;
use stanchion_testing::internals::memory::{HugePages, Region};
use stanchion_testing::internals::ring::codes;
use stanchion_testing::{
    BulkOptions, BulkSession, CheckpointName, CheckpointSpec, Error, IoError, Lent, Pool,
    SessionOptions,
};

const MIB: u64 = 1 << 20;

fn name(text: &str) -> CheckpointName {
    text.parse().unwrap()
}

fn byte_at(offset: u64) -> u8 {
    (offset * 31 + offset / 251 + offset / 65_536) as u8
}

fn bytes(range: Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

/// Small buffers, so that there are many pieces.
fn session(pool: &Pool) -> BulkSession<'_> {
    pool.bulk_session(&BulkOptions { memory_bytes: 4 * MIB }).unwrap()
}

fn save(bulk: &mut BulkSession<'_>, checkpoint: &str, len_bytes: u64) -> Result<u64, Error> {
    let spec = CheckpointSpec::single(name(checkpoint), len_bytes);
    let mut fill = |into: &mut [u8], at: u64| {
        into.copy_from_slice(&bytes(at..at + into.len() as u64));
        Ok(())
    };
    bulk.save(&spec, &[], &mut fill, &mut |_| Ok::<(), Error>(())).map(|saved| saved.generation)
}

/// The restored bytes of a checkpoint, in the order in which they come.
fn restore(
    bulk: &mut BulkSession<'_>,
    checkpoint: &str,
    ranges: &[Range<u64>],
) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let mut parts: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut consume = |bytes: &[u8], at: u64| {
        match parts.last_mut() {
            Some((start, part)) if *start + part.len() as u64 == at => part.extend(bytes),
            _ => parts.push((at, bytes.to_vec())),
        }
        Ok(())
    };
    bulk.restore(&name(checkpoint), 0, ranges, &[], &mut consume, &mut |_| Ok::<(), Error>(()))?;
    Ok(parts)
}

fn is_all_free(pool: &Pool) -> bool {
    let info = pool.info();
    info.free_bytes == Some(info.capacity_bytes) && pool.list().is_empty()
}

#[test]
fn saved_bytes_are_restored_whole_and_in_parts() {
    let len_bytes = 9 * MIB + 4321;
    for back_end in BackEnd::all(3) {
        back_end.format();
        let pool = back_end.open();
        let all = bytes(0..len_bytes);
        let spec = CheckpointSpec::single(name("a@1"), len_bytes);
        assert!(matches!(pool.save(&spec, &all[1..]), Err(Error::Usage(_))));
        let saved = pool.save(&spec, &all).unwrap();
        let found = pool.find(&spec.name).unwrap();
        assert_eq!((found.bytes, found.generation.0), (len_bytes, saved.generation));
        assert!(saved.commit_tail <= saved.time);
        assert!(matches!(pool.save(&spec, &all), Err(Error::CheckpointExists(_))));
        for range in [0..len_bytes, 0..1, MIB - 1..MIB + 1, 5..5, 3 * MIB..len_bytes] {
            let mut into = vec![0; (range.end - range.start) as usize];
            pool.restore(&spec.name, 0, range.start, &mut into).unwrap();
            assert!(into == all[range.start as usize..range.end as usize], "{range:?}");
        }
        let mut into = [0; 2];
        for start in [len_bytes - 1, u64::MAX - 1, u64::MAX] {
            let result = pool.restore(&spec.name, 0, start, &mut into);
            assert!(matches!(result, Err(Error::Usage(_))), "{start}: {result:?}");
        }
        assert!(matches!(pool.restore(&spec.name, 1, 0, &mut into), Err(Error::Usage(_))));
        let absent = pool.restore(&name("a@2"), 0, 0, &mut into);
        assert!(matches!(absent, Err(Error::NoSuchCheckpoint(_))));
    }
}

#[test]
fn an_empty_segment_is_saved_and_restored() {
    let back_end = BackEnd::sim(1);
    back_end.format();
    let pool = back_end.open();
    pool.save(&CheckpointSpec::single(name("a@1"), 0), &[]).unwrap();
    pool.restore(&name("a@1"), 0, 0, &mut []).unwrap();
    assert_eq!(pool.find(&name("a@1")).unwrap().bytes, 0);
}

#[test]
fn ranges_come_in_order_and_without_what_lies_between() {
    let back_end = BackEnd::sim(2);
    back_end.format();
    let pool = back_end.open();
    let mut bulk = session(&pool);
    save(&mut bulk, "a@1", 20 * MIB).unwrap();
    let ranges = [7..100, 100..101, 3 * MIB - 5..9 * MIB + 5, 19 * MIB..20 * MIB];
    let parts = restore(&mut bulk, "a@1", &ranges).unwrap();
    assert_eq!(parts.len(), 3);
    for ((start, part), range) in parts.iter().zip([7..101, ranges[2].clone(), ranges[3].clone()]) {
        assert_eq!(*start, range.start);
        assert!(*part == bytes(range.clone()), "{range:?}");
    }
    let beyond = 0..20 * MIB + 1;
    for wrong in [&[5..6, 4..5][..], &[1..3, 2..4], slice::from_ref(&beyond)] {
        let result = restore(&mut bulk, "a@1", wrong);
        assert!(matches!(result, Err(Error::Usage(_))), "{wrong:?}: {result:?}");
    }
    pool.remove(&name("a@1")).unwrap();
}

#[derive(Debug)]
enum Stop {
    Here,
    Engine(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Engine(error)
    }
}

#[test]
fn the_progress_callback_can_stop_it() {
    for back_end in BackEnd::all(2) {
        back_end.format();
        let pool = back_end.open();
        let mut bulk = session(&pool);
        let spec = CheckpointSpec::single(name("a@1"), 20 * MIB);
        // The commit is not submitted before the last four pieces.
        for limit in [0, 3 * MIB, 12 * MIB] {
            let mut stop = |done| if done >= limit { Err(Stop::Here) } else { Ok(()) };
            let stopped = bulk.save(&spec, &[], &mut |_, _| Ok(()), &mut stop);
            assert!(matches!(stopped, Err(Stop::Here)), "{stopped:?}");
            assert!(is_all_free(&pool));
        }
        let stopped = bulk.save(&spec, &[], &mut |_, _| Err(Stop::Here), &mut |_| Ok(()));
        assert!(matches!(stopped, Err(Stop::Here)), "{stopped:?}");
        assert!(is_all_free(&pool));
        // The same session continues.
        save(&mut bulk, "a@1", 20 * MIB).unwrap();
        let mut seen = vec![0];
        let mut watch = |done| {
            assert!(done >= *seen.last().unwrap());
            seen.push(done);
            if done >= 9 * MIB { Err(Stop::Here) } else { Ok(()) }
        };
        let whole = 0..20 * MIB;
        let ranges = std::slice::from_ref(&whole);
        let stopped = bulk.restore(&spec.name, 0, ranges, &[], &mut |_, _| Ok(()), &mut watch);
        assert!(matches!(stopped, Err(Stop::Here)), "{stopped:?}");
        let parts = restore(&mut bulk, "a@1", ranges).unwrap();
        assert!(parts[0].1 == bytes(whole));
        pool.remove(&spec.name).unwrap();
    }
}

#[test]
fn a_commit_that_waits_for_others_can_be_stopped_and_reports_its_result() {
    let back_end = BackEnd::sim(2);
    back_end.format();
    let pool = back_end.open();
    let part = |participant| CheckpointSpec {
        participants: 2,
        participant,
        ..CheckpointSpec::single(name("both@1"), 3 * MIB)
    };
    let mut bulk = session(&pool);
    // No other participant joins.
    let mut asked = 0;
    let mut patience = |done| {
        asked += u32::from(done == 3 * MIB);
        if asked > 3 { Err(Stop::Here) } else { Ok(()) }
    };
    let stopped = bulk.save(&part(0), &[], &mut |_, _| Ok(()), &mut patience);
    assert!(matches!(stopped, Err(Stop::Here)), "{stopped:?}");
    assert!(is_all_free(&pool));
    // The other participant joins and leaves.
    let mut other = pool.session(&SessionOptions::default()).unwrap();
    let handle = other.begin(&part(1)).unwrap();
    let mut handle = Some(handle);
    let mut leave = |done| {
        if done == 3 * MIB
            && let Some(handle) = handle.take()
        {
            other.close(handle).unwrap();
        }
        Ok(())
    };
    let canceled = bulk.save::<Error>(&part(0), &[], &mut |_, _| Ok(()), &mut leave).unwrap_err();
    assert!(matches!(canceled, Error::NotCommitted { .. }), "{canceled:?}");
    assert_eq!(bulk.failure().unwrap().result, codes::CANCELED);
    assert!(is_all_free(&pool));
    // A save that is stopped during its successful commit has succeeded: at any moment, the result
    // and the pool agree.
    for round in 0..40 {
        let mut looks = 0;
        let mut stop = |done| {
            looks += u32::from(done == 3 * MIB);
            if looks > round / 10 { Err(Stop::Here) } else { Ok(()) }
        };
        let spec = CheckpointSpec::single(name("late@1"), 3 * MIB);
        let saved = bulk.save(&spec, &[], &mut |_, _| Ok(()), &mut stop);
        match saved {
            Ok(saved) => {
                assert_eq!(pool.remove(&spec.name).unwrap().0, saved.generation + 1);
            }
            Err(Stop::Here) => assert!(pool.list().is_empty()),
            Err(Stop::Engine(error)) => panic!("{error}"),
        }
    }
}

#[test]
fn both_participants_save_at_once() {
    let back_end = BackEnd::sim(2);
    back_end.format();
    let pool = back_end.open();
    let len_bytes = 5 * MIB + 1;
    let save = |participant| {
        let spec = CheckpointSpec {
            participants: 2,
            participant,
            ..CheckpointSpec::single(name("both@1"), len_bytes)
        };
        pool.save(&spec, &vec![participant as u8; len_bytes as usize]).unwrap().generation
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| save(1));
        assert_eq!(save(0), other.join().unwrap());
    });
    for participant in 0..2 {
        let mut into = vec![9; len_bytes as usize];
        pool.restore(&name("both@1"), participant, 0, &mut into).unwrap();
        assert!(into.iter().all(|byte| *byte == participant as u8));
    }
}

/// The bytes of a region of the test.
fn of_region(region: &Region) -> &[u8] {
    // SAFETY: mapped and initialised, and nothing is in flight.
    unsafe { std::slice::from_raw_parts(region.base().as_ptr(), region.len_bytes() as usize) }
}

fn set_region(region: &Region, at: u64) {
    for offset in 0..region.len_bytes() {
        let byte = region.at(offset, 1).unwrap();
        // SAFETY: inside of the mapping, and nothing is in flight.
        unsafe { byte.write(byte_at(at + offset)) };
    }
}

#[test]
fn lent_memory_is_not_copied_where_drives_can_use_it() {
    for back_end in BackEnd::all(2) {
        back_end.format();
        let pool = back_end.open();
        let mut bulk = session(&pool);
        // SPDK drives use huge pages only.
        let is_usual = matches!(back_end, BackEnd::Sim(_) | BackEnd::Files { .. });
        let pages = if is_usual { HugePages::Off } else { HugePages::Required };
        let region = Arc::new(Region::new(12 * MIB, pages).unwrap());
        // A session has the same memory registered, before and after.
        let mut owner = pool.session(&SessionOptions { memory_bytes: 0, ring_entries: 8 }).unwrap();
        let registered = owner.register(Arc::clone(&region)).unwrap();

        let start = MIB / 2;
        set_region(&region, start - 4096);
        let lent = |region_offset_bytes| Lent {
            segment: start..start + 11 * MIB,
            region: Arc::clone(&region),
            region_offset_bytes,
        };
        let spec = CheckpointSpec::single(name("a@1"), 12 * MIB + 77);
        let mut filled = Vec::new();
        let mut fill = |into: &mut [u8], at: u64| {
            into.copy_from_slice(&bytes(at..at + into.len() as u64));
            filled.push((at, at + into.len() as u64));
            Ok::<(), Error>(())
        };
        bulk.save(&spec, &[lent(4096)], &mut fill, &mut |_| Ok(())).unwrap();
        // Whole chunks of lent memory are not passed to the callback.
        assert_eq!(filled, [(0, MIB), (11 * MIB, 12 * MIB), (12 * MIB, 12 * MIB + 77)]);
        let mut all = vec![0; 12 * MIB as usize + 77];
        pool.restore(&spec.name, 0, 0, &mut all).unwrap();
        assert!(all == bytes(0..12 * MIB + 77));

        // Memory that does not start at a block is copied, and so is what lies outside of the
        // region.
        for wrong in [4096 + 8, 2 * MIB, u64::MAX] {
            let spec = CheckpointSpec::single(name("b@1"), 12 * MIB);
            let mut filled = 0;
            let mut fill = |into: &mut [u8], _| {
                filled += into.len() as u64;
                Ok::<(), Error>(())
            };
            bulk.save(&spec, &[lent(wrong)], &mut fill, &mut |_| Ok(())).unwrap();
            assert_eq!(filled, 12 * MIB);
            pool.remove(&spec.name).unwrap();
        }
        let twice = bulk.save::<Error>(
            &CheckpointSpec::single(name("b@1"), 12 * MIB),
            &[lent(4096), lent(4096)],
            &mut |_, _| Ok(()),
            &mut |_| Ok(()),
        );
        assert!(matches!(twice, Err(Error::Usage(_))), "{twice:?}");

        let back = Arc::new(Region::new(12 * MIB, pages).unwrap());
        let lent = Lent {
            segment: start..start + 11 * MIB,
            region: Arc::clone(&back),
            region_offset_bytes: MIB / 2,
        };
        let mut rest = Vec::new();
        let mut consume = |part: &[u8], at: u64| {
            assert!(part == bytes(at..at + part.len() as u64));
            rest.push((at, part.len() as u64));
            Ok::<(), Error>(())
        };
        let wanted = 5..11 * MIB + 9;
        let mut done = 0;
        let mut watch = |bytes| {
            done = bytes;
            Ok(())
        };
        let ranges = std::slice::from_ref(&wanted);
        bulk.restore(&spec.name, 0, ranges, &[lent], &mut consume, &mut watch).unwrap();
        assert_eq!(rest, [(5, MIB - 5), (11 * MIB, 9)]);
        assert_eq!(done, wanted.end - wanted.start);
        assert!(of_region(&back)[MIB as usize..11 * MIB as usize] == bytes(MIB..11 * MIB));

        // The owner's registration has outlived the loans.
        let handle = owner.begin(&CheckpointSpec::single(name("own@1"), 2 * MIB)).unwrap();
        let write = common::write(handle, registered.key(), 2 * MIB, 0, 1);
        assert_eq!(owner.submit(&[write]), 1);
        let mut out = [Default::default(); 1];
        assert_eq!(owner.wait(&mut out, 1, Duration::from_secs(30)), 1);
        assert_eq!(out[0].result, 2 * MIB as i64);
    }
}

#[test]
fn failures_of_drives_name_the_damage() {
    let back_end = BackEnd::sim(1);
    back_end.format();
    let pool = back_end.open();
    let BackEnd::Sim(drives) = &back_end else { unreachable!() };
    let mut bulk = session(&pool);
    save(&mut bulk, "a@1", 8 * MIB).unwrap();
    let layout = Layout::plan(&[DRIVE_BYTES], pool.info().chunk_bytes).unwrap();
    let data = layout.slot_offset(0)..layout.slot_offset(layout.data_slots(DRIVE_BYTES));

    let read_fault = IoError::Nvme { sct: 2, sc: 0x81, dnr: true };
    let fault = Fault::new(Operation::Read, When::From(0), Effect::Fail(read_fault));
    drives[0].inject(fault.within(data.clone())).unwrap();
    let whole = 0..8 * MIB;
    let failed = restore(&mut bulk, "a@1", std::slice::from_ref(&whole)).unwrap_err();
    assert!(failed.to_string().contains("02/81"), "{failed}");
    assert_eq!(bulk.failure().unwrap().detail, 0x281);
    drives[0].clear_faults();
    let parts = restore(&mut bulk, "a@1", std::slice::from_ref(&whole)).unwrap();
    assert!(parts[0].1 == bytes(whole) && bulk.failure().is_none());

    let write_fault = IoError::Nvme { sct: 0, sc: 0x06, dnr: true };
    let fault = Fault::new(Operation::Write, When::From(0), Effect::Fail(write_fault));
    drives[0].inject(fault.within(data)).unwrap();
    let failed = save(&mut bulk, "a@2", 8 * MIB).unwrap_err();
    assert!(matches!(failed, Error::NotCommitted { .. }), "{failed:?}");
    assert!(failed.to_string().contains("a@2"), "{failed}");
    assert_eq!(bulk.failure().unwrap().result, codes::IO);
    drives[0].clear_faults();
    assert_eq!(pool.list().len(), 1);
}
