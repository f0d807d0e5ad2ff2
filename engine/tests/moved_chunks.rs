// SPDX-License-Identifier: Apache-2.0
//! A place on a drive that cannot be written costs that place, not the checkpoint.

#![allow(clippy::unwrap_used)]

use crate::common::{Pattern, restore, save};
use stanchion_testing::HugePages;
use stanchion_testing::internals::device::sim::{Effect, Fault, SimConfig, SimDrive, When};
use stanchion_testing::internals::device::{Device, Operation};
use stanchion_testing::internals::format::Layout;
use stanchion_testing::internals::format_pool_on;
use stanchion_testing::{CheckpointName, FormatOptions, IoError, Pool, PoolOptions, Redundancy};

const MIB: u64 = 1 << 20;
const DRIVE_BYTES: u64 = 48 * MIB;
const WRITE_FAULT: IoError = IoError::Nvme { sct: 2, sc: 0x80, dnr: true };

fn name(text: &str) -> CheckpointName {
    text.parse().unwrap()
}

fn pool(drives: usize, redundancy: Redundancy) -> (Vec<SimDrive>, Pool) {
    let config = |number: usize| SimConfig {
        capacity_bytes: DRIVE_BYTES,
        serial: format!("SIM{number}"),
        ..SimConfig::default()
    };
    let sims: Vec<_> = (0..drives).map(|number| SimDrive::new(config(number)).unwrap()).collect();
    let devices = || sims.iter().map(|sim| Box::new(sim.open().unwrap()) as Box<dyn Device>);
    let options = FormatOptions { redundancy, ..FormatOptions::new(Vec::new()) };
    format_pool_on(devices().collect(), &options).unwrap();
    let options = PoolOptions { huge_pages: HugePages::Off, ..PoolOptions::new(Vec::new()) };
    let pool = Pool::open_on(devices().collect(), &options).unwrap();
    (sims, pool)
}

/// Makes slots of a drive's data area fail every write.
fn spoil(sim: &SimDrive, drives: usize, slots: std::ops::Range<u64>) {
    let layout = Layout::plan(&vec![DRIVE_BYTES; drives], MIB).unwrap();
    let fault = Fault::new(Operation::Write, When::From(0), Effect::Fail(WRITE_FAULT));
    sim.inject(fault.within(layout.slot_offset(slots.start)..layout.slot_offset(slots.end)))
        .unwrap();
}

#[test]
fn a_chunk_moves_and_its_bad_place_is_not_used_again() {
    for redundancy in [Redundancy::None, Redundancy::Mirror] {
        for drives in 1..=3 {
            if usize::from(redundancy.copies()) > drives {
                continue;
            }
            let (sims, pool) = pool(drives, redundancy);
            spoil(&sims[0], drives, 1..2);
            let pattern = Pattern::new(3, 9 * MIB + 100);
            let free = pool.info().free_bytes.unwrap();
            save(&pool, &name("a@1"), &pattern).unwrap();
            assert_eq!(restore(&pool, &name("a@1"), &pattern), Ok(()));
            pool.remove(&name("a@1")).unwrap();
            // Two generations later everything is free again except the bad place.
            save(&pool, &name("a@2"), &pattern).unwrap();
            assert_eq!(restore(&pool, &name("a@2"), &pattern), Ok(()));
            pool.remove(&name("a@2")).unwrap();
            save(&pool, &name("b@1"), &Pattern::new(4, 1)).unwrap();
            let b = MIB;
            let left = pool.info().free_bytes.unwrap() + b;
            // In a mirror the place costs a chunk only where another drive has no more room either.
            assert!(left == free - MIB || (drives > 2 && left == free), "{left} of {free}");
            let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
            assert!(report.is_clean(), "{report:?}");
        }
    }
}

#[test]
fn a_drive_that_writes_nothing_fails_the_save_in_the_end() {
    let (sims, pool) = pool(1, Redundancy::None);
    spoil(&sims[0], 1, 0..30);
    assert!(save(&pool, &name("a@1"), &Pattern::new(3, 9 * MIB)).is_err());
    sims[0].clear_faults();
    // The pool is as usable as before, except for the places that were tried.
    let pattern = Pattern::new(5, 4 * MIB);
    save(&pool, &name("a@1"), &pattern).unwrap();
    assert_eq!(restore(&pool, &name("a@1"), &pattern), Ok(()));
}

#[test]
fn a_full_pool_has_no_other_place() {
    let (sims, pool) = pool(2, Redundancy::None);
    let all = pool.info().free_bytes.unwrap();
    spoil(&sims[0], 2, 3..4);
    let failed = save(&pool, &name("a@1"), &Pattern::new(3, all)).unwrap_err().to_string();
    assert!(failed.contains("drive"), "{failed}");
    assert!(pool.list().is_empty());
    let pattern = Pattern::new(4, all - 2 * MIB);
    save(&pool, &name("a@2"), &pattern).unwrap();
    assert_eq!(restore(&pool, &name("a@2"), &pattern), Ok(()));
}
