// SPDX-License-Identifier: Apache-2.0
//! How a pool handles a drive's statuses, on simulated drives: it survives transient ones, an error
//! names the drive by its serial, and acknowledged checkpoints stay. The same through SPDK:
//! `spdk_faults.rs`.

#![allow(clippy::unwrap_used)]

use crate::common::{BackEnd, Pattern, restore, save, save_disturbed};
use stanchion_testing::internals::device::Operation;
use stanchion_testing::internals::device::sim::{Effect, Fault, SimDrive, When};
use stanchion_testing::internals::ring::codes;
use stanchion_testing::{CheckpointName, Error, IoError, Pool};

const MIB: u64 = 1 << 20;

struct Bench {
    back_end: BackEnd,
    old: (CheckpointName, Pattern),
}

impl Bench {
    fn new() -> (Bench, Pool) {
        let back_end = BackEnd::sim(2);
        back_end.format();
        let pool = back_end.open();
        let old = ("old@1".parse().unwrap(), Pattern::new(1, 6 * MIB));
        save(&pool, &old.0, &old.1).unwrap();
        (Bench { back_end, old }, pool)
    }

    fn drive(&self, number: usize) -> &SimDrive {
        let BackEnd::Sim(drives) = &self.back_end else { unreachable!() };
        &drives[number]
    }

    fn fail(&self, operation: Operation, when: When, status: IoError) {
        self.drive(1).inject(Fault::new(operation, when, Effect::Fail(status))).unwrap();
    }

    /// Without the fault, and opened again, everything works.
    fn check_recovered(&self, pool: Pool) {
        assert_eq!(restore(&pool, &self.old.0, &self.old.1), Ok(()));
        drop(pool);
        self.drive(1).clear_faults();
        let pool = self.back_end.open();
        assert_eq!(restore(&pool, &self.old.0, &self.old.1), Ok(()));
        let (name, pattern) = new();
        save(&pool, &name, &pattern).unwrap();
        assert_eq!(restore(&pool, &name, &pattern), Ok(()));
        assert!(pool.verify(None, false, &mut |_, _| ()).unwrap().is_clean());
    }
}

fn nvme(sct: u8, sc: u8) -> IoError {
    IoError::Nvme { sct, sc, dnr: false }
}

fn new() -> (CheckpointName, Pattern) {
    ("new@1".parse().unwrap(), Pattern::new(2, 12 * MIB))
}

#[test]
fn transient_statuses_are_survived() {
    let (bench, pool) = Bench::new();
    for operation in [Operation::Read, Operation::Write, Operation::WriteDurable] {
        bench.fail(operation, When::OneIn(2), nvme(0, 0x82));
    }
    bench.fail(Operation::Read, When::Nth(3), nvme(2, 0x81));
    let (name, pattern) = ("more@1".parse().unwrap(), Pattern::new(5, 12 * MIB));
    save(&pool, &name, &pattern).unwrap();
    assert_eq!(restore(&pool, &name, &pattern), Ok(()));
    pool.remove(&name).unwrap();
    bench.check_recovered(pool);
}

#[test]
fn a_drive_that_takes_no_new_data_is_named_and_the_next_begin_refused() {
    let full = [nvme(0, 0x81), nvme(0, 0x20), nvme(1, 0x82), IoError::Os(libc::ENOSPC)];
    for status in full {
        let (bench, pool) = Bench::new();
        bench.fail(Operation::Write, When::From(0), status);
        let (name, pattern) = new();
        let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
        assert!(ended.status().is_err() && ended.commit.result < 0);
        let error = save(&pool, &name, &pattern).unwrap_err();
        assert!(
            matches!(&error, Error::DriveUnfit { serial, source, .. }
                if serial == "SIM1" && *source == status),
            "{error}"
        );
        bench.check_recovered(pool);
    }
}

#[test]
fn a_changed_drive_gets_no_more_commands() {
    for status in [nvme(0, 0x80), nvme(0, 0x0b), IoError::Removed] {
        let (bench, pool) = Bench::new();
        bench.fail(Operation::Write, When::Nth(0), status);
        let (name, pattern) = new();
        let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
        assert!(ended.status().is_err() && ended.commit.result < 0);
        let error = save(&pool, &name, &pattern).unwrap_err();
        assert!(
            matches!(&error, Error::DriveUnfit { serial, why: "is lost", .. } if serial == "SIM1"),
            "{error}"
        );
        // Not even a read, although the drive could still answer it.
        let (code, _) = codes::of_io_error(status);
        assert_eq!(restore(&pool, &bench.old.0, &bench.old.1), Err(code));
        drop(pool);
        bench.check_recovered(bench.back_end.open());
    }
}

#[test]
fn a_reservation_conflict_poisons_the_pool() {
    let (bench, pool) = Bench::new();
    bench.fail(Operation::Write, When::Nth(0), nvme(0, 0x83));
    let (name, pattern) = new();
    let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
    assert_eq!(ended.status(), Err((codes::IO, 0x0083)));
    // The other drive would take them; it gets no more writes.
    bench.drive(0).start_trace(4096);
    for error in [save(&pool, &name, &pattern).unwrap_err(), pool.remove(&bench.old.0).unwrap_err()]
    {
        assert!(matches!(error, Error::Poisoned { what: "reservation", .. }), "{error}");
        assert!(error.to_string().contains("SIM1"), "{error}");
    }
    let writes = bench.drive(0).take_trace();
    assert!(writes.iter().all(|event| event.operation == Operation::Read), "{writes:?}");
    bench.check_recovered(pool);
}

#[test]
fn a_flush_is_never_sent_again() {
    let (bench, pool) = Bench::new();
    bench.fail(Operation::Flush, When::Nth(0), nvme(0, 0x82));
    let (name, pattern) = new();
    let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
    assert_eq!((ended.failures().count(), ended.commit.result), (0, codes::IO));
    let error = save(&pool, &name, &pattern).unwrap_err();
    assert!(matches!(error, Error::Poisoned { what: "flush", .. }), "{error}");
    bench.check_recovered(pool);
}
