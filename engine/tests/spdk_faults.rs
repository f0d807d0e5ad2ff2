// SPDX-License-Identifier: Apache-2.0
//! What happens to a pool when its NVMe-oF drives fail: statuses, late answers, and drives that
//! change or vanish. After each fault every operation has ended once, SPDK has answered every
//! request and has no memory registered, and everything that was acknowledged is restored from the
//! drives.
//!
//! Each test starts a target of its own; it is skipped, with a message, where that is not possible.
//! Faults of the connection: `spdk_loss.rs`.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::common::faulty::Bench;
use crate::common::{self, Pattern, restore, save, save_disturbed};
use stanchion_testing::internals::device::Operation;
use stanchion_testing::internals::device::spdk::inject::Fault;
use stanchion_testing::internals::ring::codes;
use stanchion_testing::{Error, IoError};

const MIB: u64 = 1 << 20;
const EVERY: u32 = 1 << 20;

fn status(operation: Operation, sct: u8, sc: u8, count: u32) -> Fault {
    Fault::Status { operation, sct, sc, count }
}

#[test]
fn transient_statuses_are_survived() {
    let Some(mut bench) = Bench::new(2) else { return };
    let (pool, injectors) = bench.open_faulty();
    // Interrupted; transient transport error; not ready; internal path error.
    for (number, (sct, sc)) in [(0, 0x21), (0, 0x22), (0, 0x82), (3, 0x00)].into_iter().enumerate()
    {
        injectors.iter().for_each(|i| i.set(status(Operation::Write, sct, sc, 7)));
        bench.save(&pool, 12 * MIB);
        injectors.iter().for_each(|i| i.set(status(Operation::Read, sct, sc, 7)));
        bench.restore_all(&pool);
        assert_eq!(bench.acknowledged(), number + 1);
    }
    bench.close(pool);
}

#[test]
fn a_bad_block_is_read_once_more_and_then_reported() {
    let Some(mut bench) = Bench::new(2) else { return };
    let (pool, injectors) = bench.open_faulty();
    bench.save(&pool, 8 * MIB);
    let (name, pattern) = bench.newest();
    injectors[1].set(status(Operation::Read, 2, 0x81, 1));
    assert_eq!(restore(&pool, &name, &pattern), Ok(()));
    injectors[1].set(status(Operation::Read, 2, 0x81, EVERY));
    assert_eq!(restore(&pool, &name, &pattern), Err(codes::IO));
    injectors[1].set(Fault::Heal { operation: Operation::Read });
    bench.close(pool);
}

#[test]
fn a_chunk_moves_from_a_place_that_cannot_be_written() {
    let Some(mut bench) = Bench::new(2) else { return };
    let (pool, injectors) = bench.open_faulty();
    bench.save(&pool, 8 * MIB);
    for (sct, sc) in [(2, 0x80), (0, 0x06)] {
        injectors[0].set(status(Operation::Write, sct, sc, EVERY));
        let pattern = Pattern::new(1, 8 * MIB);
        // Metadata is written to both drives, so only its commit meets the fault.
        let ended = save_disturbed(&pool, &"bad@1".parse().unwrap(), &pattern, || ()).unwrap();
        let detail = u32::from(sct) << 8 | u32::from(sc);
        assert_eq!(ended.failures().count(), 0, "chunks go to the other drive");
        assert_eq!((ended.commit.result, ended.commit.detail), (codes::IO, detail));
        injectors[0].set(Fault::Heal { operation: Operation::Write });
        bench.save(&pool, 8 * MIB);
    }
    injectors.iter().for_each(|injector| injector.set(status(Operation::Write, 2, 0x80, EVERY)));
    let pattern = Pattern::new(1, 2 * MIB);
    let ended = save_disturbed(&pool, &"bad@1".parse().unwrap(), &pattern, || ()).unwrap();
    assert_eq!(ended.status(), Err((codes::IO, 0x0280)), "no place will do");
    assert_eq!(ended.commit.result, codes::INCOMPLETE);
    bench.close(pool);
}

#[test]
fn a_full_or_protected_drive_takes_no_new_checkpoint_until_reopened() {
    let Some(mut bench) = Bench::new(2) else { return };
    // Capacity exceeded; namespace is write protected; write to a read-only range.
    for (sct, sc) in [(0, 0x81), (0, 0x20), (1, 0x82)] {
        let (pool, injectors) = bench.open_faulty();
        bench.save(&pool, 4 * MIB);
        injectors[1].set(status(Operation::Write, sct, sc, EVERY));
        let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(2, 8 * MIB));
        let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
        let detail = u32::from(sct) << 8 | u32::from(sc);
        assert_eq!(ended.status(), Err((codes::IO, detail)));
        let error = save(&pool, &name, &pattern).unwrap_err();
        let injected = IoError::Nvme { sct, sc, dnr: true };
        assert!(
            matches!(&error, Error::DriveUnfit { serial, source, .. }
                if serial == "STNDRIVE1" && source.nvme_status() == injected.nvme_status()),
            "{error}"
        );
        assert!(error.to_string().contains("takes no new data"), "{error}");
        bench.restore_all(&pool);
        // The drive works again, but the pool does not trust it until it is reopened.
        injectors[1].set(Fault::Heal { operation: Operation::Write });
        assert!(save(&pool, &name, &pattern).is_err());
        bench.close(pool);
    }
}

#[test]
fn a_reservation_conflict_stops_writes_to_every_drive() {
    let Some(mut bench) = Bench::new(2) else { return };
    let (pool, injectors) = bench.open_faulty();
    bench.save(&pool, 4 * MIB);
    let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(2, 32 * MIB));
    injectors[0].set(status(Operation::Write, 0, 0x83, 1));
    let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
    assert_eq!(ended.status(), Err((codes::IO, 0x0083)));
    // One command met it; commands that were not sent yet were not sent to either drive.
    assert!(ended.failures().count() > 8, "{}", ended.failures().count());
    assert!(ended.failures().all(|entry| entry.detail == 0x0083));
    for error in
        [save(&pool, &name, &pattern).unwrap_err(), pool.remove(&bench.newest().0).unwrap_err()]
    {
        assert!(matches!(error, Error::Poisoned { what: "reservation", .. }), "{error}");
        assert!(error.to_string().contains("STNDRIVE0"), "{error}");
    }
    bench.restore_all(&pool);
    bench.close(pool);
}

#[test]
fn a_failed_flush_or_root_write_poisons_and_loses_nothing() {
    let Some(mut bench) = Bench::new(2) else { return };
    for sc in [0x06, 0x82] {
        let (pool, injectors) = bench.open_faulty();
        bench.save(&pool, 4 * MIB);
        injectors[1].set(status(Operation::Flush, 0, sc, 1));
        let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(2, 4 * MIB));
        let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
        assert_eq!(ended.failures().count(), 0);
        assert_eq!((ended.commit.result, ended.commit.detail), (codes::IO, sc.into()));
        let error = save(&pool, &name, &pattern).unwrap_err();
        assert!(matches!(error, Error::Poisoned { what: "flush", .. }), "{error}");
        bench.close(pool);
    }
}

#[test]
fn a_command_that_never_ends_costs_its_drive_and_memory_comes_back() {
    let Some(mut bench) = Bench::new(2) else { return };
    bench.set_timeout(2);
    for operation in [Operation::Write, Operation::Flush] {
        let (pool, injectors) = bench.open_faulty();
        bench.save(&pool, 4 * MIB);
        injectors[0].set(Fault::Park { operation, hold: Duration::from_secs(600), count: 1 });
        let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(2, 32 * MIB));
        let start = Instant::now();
        let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
        let took = start.elapsed();
        assert!((2.0..20.0).contains(&took.as_secs_f64()), "{took:?}");
        assert_eq!(ended.status(), Err((codes::REMOVED, 0)));
        if operation == Operation::Write {
            let error = save(&pool, &name, &pattern).unwrap_err();
            assert!(
                matches!(&error, Error::DriveUnfit { serial, why: "is lost", .. }
                if serial == "STNDRIVE0"),
                "{error}"
            );
        }
        bench.close(pool);
    }
}

#[test]
fn errors_of_a_target_are_survived() {
    let Some(mut bench) = Bench::new(2) else { return };
    bench.put_error_device(1);
    let pool = bench.open();
    bench.save(&pool, 8 * MIB);
    let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(2, 8 * MIB));
    bench.rpc("bdev_error_inject_error EE_drive1 write failure -n 2");
    let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
    // Two of its four chunks met it, and were moved.
    assert_eq!(ended.status(), Ok(()));
    assert_eq!(common::restore(&pool, &name, &pattern), Ok(()));
    pool.remove(&name).unwrap();
    bench.rpc("bdev_error_inject_error EE_drive1 read failure -n 1");
    bench.restore_all(&pool);
    bench.save(&pool, 8 * MIB);
    bench.close(pool);
}

#[test]
fn a_namespace_that_is_taken_away_stops_its_drive() {
    let Some(mut bench) = Bench::new(2) else { return };
    let pool = bench.open();
    bench.save(&pool, 8 * MIB);
    let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(2, 40 * MIB));
    let ended = save_disturbed(&pool, &name, &pattern, || bench.remove_namespace(1)).unwrap();
    assert!(ended.status().is_err());
    let first = ended.failures().map(|entry| (entry.result, entry.detail)).next().unwrap();
    eprintln!("{} writes failed: {first:x?}", ended.failures().count());
    let error = save(&pool, &name, &pattern).unwrap_err();
    assert!(
        matches!(&error, Error::DriveUnfit { serial, why: "is lost", .. } if serial == "STNDRIVE1"),
        "{error}"
    );
    bench.add_namespace(1, "drive1");
    bench.close(pool);
}

#[test]
fn a_device_that_is_pulled_from_under_a_namespace_stops_its_drive() {
    let Some(mut bench) = Bench::new(2) else { return };
    let pool = bench.open();
    bench.save(&pool, 8 * MIB);
    let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(2, 40 * MIB));
    let pull = || {
        bench.rpc("bdev_raid_delete drive1");
        bench.rpc("bdev_aio_delete file1");
    };
    let ended = save_disturbed(&pool, &name, &pattern, pull).unwrap();
    assert!(ended.status().is_err());
    let error = save(&pool, &name, &pattern).unwrap_err();
    assert!(matches!(&error, Error::DriveUnfit { serial, .. } if serial == "STNDRIVE1"), "{error}");
    bench.rpc(&format!("bdev_aio_create {} file1 4096", bench.file(1).display()));
    bench.rpc("bdev_raid_create -n drive1 -z 1024 -r 0 -b file1");
    bench.add_namespace(1, "drive1");
    bench.close(pool);
}

#[test]
fn a_replaced_namespace_is_not_written_and_not_opened() {
    let Some(mut bench) = Bench::new(2) else { return };
    let pool = bench.open();
    bench.save(&pool, 8 * MIB);
    // Everything that the drives hold, so that some of it lies beyond the end of the smaller one.
    let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(2, 60 * MIB));
    bench.rpc("bdev_malloc_create -b small 24 4096");
    let swap = || {
        bench.remove_namespace(1);
        bench.add_namespace(1, "small");
    };
    let ended = save_disturbed(&pool, &name, &pattern, swap).unwrap();
    assert!(ended.status().is_err());
    assert!(ended.commit.result < 0);
    let error = save(&pool, &name, &pattern).unwrap_err();
    assert!(matches!(&error, Error::DriveUnfit { serial, .. } if serial == "STNDRIVE1"), "{error}");
    drop(pool);
    let error = bench.try_open().err().unwrap();
    assert!(error.to_string().contains("STNDRIVE1"), "{error}");
    bench.remove_namespace(1);
    bench.add_namespace(1, "drive1");
    bench.check();
}

#[test]
fn a_thin_drive_that_is_full_fails_its_checkpoint_and_goes_on_with_room() {
    // A file with holes on a small file system, like a thin namespace.
    let Some(mut bench) = Bench::thin(2, 60) else { return };
    let pool = bench.open();
    bench.save(&pool, 8 * MIB);
    bench.fill();
    let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(2, 40 * MIB));
    let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
    // SPDK's target reports it only as an internal error.
    assert_eq!(ended.status(), Err((codes::IO, 0x0006)));
    bench.restore_all(&pool);
    bench.make_room();
    bench.save(&pool, 24 * MIB);
    bench.close(pool);
}
