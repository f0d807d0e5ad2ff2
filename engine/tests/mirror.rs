// SPDX-License-Identifier: Apache-2.0
//! Pools that lose a drive: what is still there, what may be written, and how the pool becomes
//! whole again.

#![allow(clippy::unwrap_used)]

use crate::common::{Pattern, restore, save};
use stanchion_testing::DriveAddress;
use stanchion_testing::HugePages;
use stanchion_testing::internals::device::Device;
use stanchion_testing::internals::device::sim::{Effect, Fault, SimConfig, SimDrive, SimRng, When};
use stanchion_testing::internals::format::Layout;
use stanchion_testing::internals::{admit_drive_on, format_pool_on};
use stanchion_testing::{
    Availability, CheckpointName, DriveState, Error, FormatOptions, IoError, Notice, Pool,
    PoolMode, PoolOptions, Redundancy, Replacement, admit_drive, format_pool,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const DRIVE_BYTES: u64 = 48 * MIB;

pub(crate) fn name(text: &str) -> CheckpointName {
    text.parse().unwrap()
}

pub(crate) fn sim(serial: &str) -> SimDrive {
    let config =
        SimConfig { capacity_bytes: DRIVE_BYTES, serial: serial.into(), ..SimConfig::default() };
    SimDrive::new(config).unwrap()
}

pub(crate) fn devices(sims: &[SimDrive]) -> Vec<Box<dyn Device>> {
    sims.iter().map(|sim| Box::new(sim.open().unwrap()) as Box<dyn Device>).collect()
}

fn options(mode: PoolMode, degraded: bool) -> PoolOptions {
    PoolOptions { mode, degraded, huge_pages: HugePages::Off, ..PoolOptions::new(Vec::new()) }
}

pub(crate) fn open(sims: &[SimDrive], mode: PoolMode, degraded: bool) -> Result<Pool, Error> {
    Pool::open_on(devices(sims), &options(mode, degraded))
}

pub(crate) fn format(sims: &[SimDrive], redundancy: Redundancy) {
    let options = FormatOptions { redundancy, ..FormatOptions::new(Vec::new()) };
    format_pool_on(devices(sims), &options).unwrap();
}

fn without(sims: &[SimDrive], gone: usize) -> Vec<SimDrive> {
    let kept = (0..sims.len()).filter(|drive| *drive != gone);
    kept.map(|drive| sims[drive].clone()).collect()
}

/// Acknowledged checkpoints, and their contents.
pub(crate) type Saved = Vec<(CheckpointName, Pattern)>;

pub(crate) fn restore_all(pool: &Pool, saved: &Saved) {
    for (name, pattern) in saved {
        assert_eq!(restore(pool, name, pattern), Ok(()), "{name}");
    }
}

/// A drive of a mirror dies at some command of a save; the rest of its pool's life.
fn lose_a_drive(seed: u64, drives: usize) {
    let mut rng = SimRng::new(seed);
    let mut sims: Vec<_> = (0..drives).map(|number| sim(&format!("SIM{number}"))).collect();
    format(&sims, Redundancy::Mirror);
    let gone = rng.index(drives);
    let mut saved: Saved = vec![(name("run@1"), Pattern::new(seed, 6 * MIB + 77))];
    {
        let pool = open(&sims, PoolMode::ReadWrite, false).unwrap();
        save(&pool, &saved[0].0, &saved[0].1).unwrap();
        // A save is ten to twenty commands on each drive, commit included.
        let when = When::From(rng.index(20) as u64);
        let effect = Effect::Fail(IoError::Removed);
        sims[gone].inject(Fault { operation: None, range_bytes: None, when, effect }).unwrap();
        let during = (name("run@2"), Pattern::new(seed + 1, 6 * MIB + 5));
        if save(&pool, &during.0, &during.1).is_ok() {
            saved.push(during);
        }
        // Committed checkpoints can still be read, whichever copy is lost.
        restore_all(&pool, &saved);
    }
    let left = without(&sims, gone);
    restore_all(&open(&left, PoolMode::ReadOnly, false).unwrap(), &saved);
    assert!(matches!(
        open(&left, PoolMode::ReadWrite, false).err(),
        Some(Error::MissingDrives { missing, .. }) if missing == [format!("SIM{gone}")]
    ));
    let availability = {
        let pool = open(&left, PoolMode::ReadWrite, true).unwrap();
        let serial = format!("SIM{gone}");
        assert!(pool.notices().contains(&Notice::Missing { serial, written_without: true }));
        restore_all(&pool, &saved);
        let degraded = (name("run@3"), Pattern::new(seed + 2, 3 * MIB));
        save(&pool, &degraded.0, &degraded.1).unwrap();
        let availability = pool.find(&degraded.0).unwrap().availability;
        saved.push(degraded);
        restore_all(&pool, &saved);
        availability
    };
    // On two drives the remaining drive has the only copy; on more there are two.
    assert_eq!(availability, if drives == 2 { Availability::OneCopy } else { Availability::Whole });

    sims[gone].clear_faults();
    for mode in [PoolMode::ReadOnly, PoolMode::ReadWrite] {
        let back = open(&sims, mode, false).err();
        assert!(matches!(back, Some(Error::StaleDrive { .. })), "{back:?}");
    }
    let returning = rng.one_in(2);
    if !returning {
        sims[gone] = sim("NEW");
    }
    let newcomer = devices(&sims[gone..=gone]).remove(0);
    let admitted = admit_drive_on(devices(&left), newcomer, None, false, false).unwrap();
    assert_eq!((admitted.returning, admitted.replaced_serial), (returning, format!("SIM{gone}")));
    {
        let pool = open(&sims, PoolMode::ReadWrite, false).unwrap();
        assert_eq!(pool.info().drives[gone].state, DriveState::Rebuilding);
        restore_all(&pool, &saved);
        let report = pool.verify(None, true, &mut |_, _| ()).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.rebuilt, [admitted.serial]);
        assert_eq!(pool.info().drives[gone].state, DriveState::Member);
        let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
        assert!(report.is_clean() && report.repaired.is_empty(), "{report:?}");
    }
    // Now any other drive may fail.
    let next = (gone + 1) % drives;
    let pool = open(&without(&sims, next), PoolMode::ReadOnly, false).unwrap();
    if drives == 2 {
        let (single, _) = saved.pop().unwrap();
        assert!(matches!(pool.find(&single).unwrap().availability, Availability::Lost { .. }));
    }
    restore_all(&pool, &saved);
}

#[test]
fn a_mirror_loses_a_drive_at_any_moment_of_a_save() {
    let first_seed: u64 = 4000;
    for round in 0..21 {
        let drives = 2 + round % 3;
        println!("seed {} with {drives} drives", first_seed + round as u64);
        lose_a_drive(first_seed + round as u64, drives);
    }
}

#[test]
fn a_damaged_copy_is_skipped_and_repaired() {
    let sims = [sim("A"), sim("B")];
    format(&sims, Redundancy::Mirror);
    let pool = open(&sims, PoolMode::ReadWrite, false).unwrap();
    let saved = vec![(name("a@1"), Pattern::new(7, 6 * MIB))];
    save(&pool, &saved[0].0, &saved[0].1).unwrap();
    // All data of one drive is corrupted.
    let layout = Layout::plan(&[DRIVE_BYTES; 2], pool.info().chunk_bytes).unwrap();
    let slots = layout.data_slots(DRIVE_BYTES);
    sims[0].corrupt(layout.slot_offset(0), slots * pool.info().chunk_bytes, 9);
    restore_all(&pool, &saved);
    let report = pool.verify(None, true, &mut |_, _| ()).unwrap();
    assert!(report.is_clean() && !report.repaired.is_empty(), "{report:?}");
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.repaired.is_empty(), "{report:?}");
}

#[test]
fn without_copies_a_missing_drive_takes_its_data_with_it() {
    let sims = [sim("A"), sim("B"), sim("C")];
    format(&sims, Redundancy::None);
    let mut saved = Saved::new();
    {
        let pool = open(&sims, PoolMode::ReadWrite, false).unwrap();
        // One chunk, on the first drive; and one that spans all.
        for (number, len_bytes) in [(1, MIB), (2, 9 * MIB)] {
            let one = (name(&format!("a@{number}")), Pattern::new(number, len_bytes));
            save(&pool, &one.0, &one.1).unwrap();
            saved.push(one);
        }
    }
    let pool = open(&sims[..2], PoolMode::ReadOnly, false).unwrap();
    assert_eq!(pool.find(&saved[0].0).unwrap().availability, Availability::Whole);
    assert_eq!(restore(&pool, &saved[0].0, &saved[0].1), Ok(()));
    let lost = pool.find(&saved[1].0).unwrap().availability;
    assert_eq!(lost, Availability::Lost { chunks: 3, drives: vec!["C".into()] });
    assert_eq!(
        restore(&pool, &saved[1].0, &saved[1].1),
        Err(stanchion_testing::internals::ring::codes::REMOVED)
    );
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert_eq!(report.damages.len(), 1, "{report:?}");
    assert!(report.damages[0].detail.contains("3 chunks"), "{report:?}");
    drop(pool);
    // Nothing was written without it, so it is accepted when it comes back.
    restore_all(&open(&sims, PoolMode::ReadWrite, false).unwrap(), &saved);
}

#[test]
fn a_drive_that_comes_back_brings_its_checkpoints() {
    let sims = [sim("A"), sim("B")];
    format(&sims, Redundancy::None);
    let saved = vec![(name("a@1"), Pattern::new(3, 8 * MIB))];
    save(&open(&sims, PoolMode::ReadWrite, false).unwrap(), &saved[0].0, &saved[0].1).unwrap();
    drop(open(&sims[..1], PoolMode::ReadWrite, true).unwrap());
    let newcomer = devices(&sims[1..]).remove(0);
    assert!(admit_drive_on(devices(&sims[..1]), newcomer, None, false, false).unwrap().returning);
    let pool = open(&sims, PoolMode::ReadWrite, false).unwrap();
    let report = pool.verify(None, true, &mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.rebuilt == ["B"], "{report:?}");
    restore_all(&pool, &saved);
    assert_eq!(pool.find(&saved[0].0).unwrap().availability, Availability::Whole);
}

#[test]
fn a_drive_that_may_hold_data_or_is_not_needed_is_not_admitted() {
    let sims = [sim("A"), sim("B")];
    format(&sims, Redundancy::Mirror);
    let admit = |given: &[SimDrive], newcomer: &SimDrive, force| {
        admit_drive_on(devices(given), Box::new(newcomer.open().unwrap()), None, force, false)
    };
    let unneeded = admit(&sims, &sim("C"), false).unwrap_err();
    assert!(matches!(&unneeded, Error::Usage(text) if text.contains("no drive is missing")));
    let foreign = [sim("X"), sim("Y")];
    format(&foreign, Redundancy::None);
    let pattern = Pattern::new(5, MIB);
    save(&open(&foreign, PoolMode::ReadWrite, false).unwrap(), &name("x@1"), &pattern).unwrap();
    let refused = admit(&sims[..1], &foreign[0], false).unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    let small = SimDrive::new(SimConfig {
        capacity_bytes: DRIVE_BYTES - MIB,
        serial: "SMALL".into(),
        ..SimConfig::default()
    });
    let small = admit(&sims[..1], &small.unwrap(), true).unwrap_err();
    assert!(matches!(&small, Error::Usage(text) if text.contains("SMALL")), "{small}");
    // A refused drive is unchanged.
    open(&sims, PoolMode::ReadWrite, false).unwrap();
    let pool = open(&foreign, PoolMode::ReadOnly, false).unwrap();
    assert_eq!(restore(&pool, &name("x@1"), &pattern), Ok(()));
}

#[test]
fn a_file_that_is_gone_is_a_missing_drive() {
    let directory = tempfile::tempdir().unwrap();
    let path = |file: &str| directory.path().join(file);
    let drives: Vec<DriveAddress> =
        ["a", "b", "c"].map(|file| DriveAddress::Path(path(file))).to_vec();
    format_pool(&FormatOptions {
        redundancy: Redundancy::Mirror,
        create_bytes: Some(DRIVE_BYTES),
        ..FormatOptions::new(drives.clone())
    })
    .unwrap();
    let as_given =
        |mode, degraded| PoolOptions { drives: drives.clone(), ..options(mode, degraded) };
    let saved = vec![(name("a@1"), Pattern::new(3, 8 * MIB))];
    let pool = Pool::open(&as_given(PoolMode::ReadWrite, false)).unwrap();
    save(&pool, &saved[0].0, &saved[0].1).unwrap();
    drop(pool);
    std::fs::remove_file(path("b")).unwrap();
    let pool = Pool::open(&as_given(PoolMode::ReadOnly, false)).unwrap();
    assert!(
        matches!(&pool.notices()[0], Notice::Unreachable { address, .. } if address.ends_with('b'))
    );
    restore_all(&pool, &saved);
    drop(pool);
    let refused = Pool::open(&as_given(PoolMode::ReadWrite, false)).err().unwrap();
    assert!(matches!(refused, Error::DriveNotFound { .. }), "{refused}");
    drop(Pool::open(&as_given(PoolMode::ReadWrite, true)).unwrap());
    let new = std::fs::File::create(path("new")).unwrap();
    new.set_len(DRIVE_BYTES).unwrap();
    let replacement = DriveAddress::Path(path("new"));
    let admitted = Replacement { drive: replacement.clone(), replaces: None, force: false };
    admit_drive(&as_given(PoolMode::ReadWrite, false), &admitted).unwrap();
    let mut whole = as_given(PoolMode::ReadWrite, false);
    whole.drives[1] = replacement;
    let pool = Pool::open(&whole).unwrap();
    assert!(pool.verify(None, true, &mut |_, _| ()).unwrap().is_clean());
    restore_all(&pool, &saved);
}
