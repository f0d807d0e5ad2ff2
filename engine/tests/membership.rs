// SPDX-License-Identifier: Apache-2.0
//! Taking drives in and out: a place is not given away while its own drive may be sound, a history
//! is not destroyed, and labels are found where they are.

#![allow(clippy::unwrap_used)]

use crate::common::{Pattern, restore, save};
use crate::mirror::{DRIVE_BYTES, MIB, Saved, devices, format, name, open, restore_all, sim};
use stanchion_testing::internals::admit_drive_on;
use stanchion_testing::internals::device::Device;
use stanchion_testing::internals::device::sim::{SimConfig, SimDrive};
use stanchion_testing::{Availability, DriveState, Error, Notice, PoolMode, Redundancy};

/// A mirror of this many drives with one checkpoint.
fn mirror_of(serials: &[&str]) -> (Vec<SimDrive>, Saved) {
    let sims: Vec<_> = serials.iter().map(|serial| sim(serial)).collect();
    format(&sims, Redundancy::Mirror);
    let saved = vec![(name("a@1"), Pattern::new(3, 9 * MIB))];
    save(&open(&sims, PoolMode::ReadWrite, false).unwrap(), &saved[0].0, &saved[0].1).unwrap();
    (sims, saved)
}

fn pick(sims: &[SimDrive], which: &[usize]) -> Vec<SimDrive> {
    which.iter().map(|drive| sims[*drive].clone()).collect()
}

fn device(sim: &SimDrive) -> Box<dyn Device> {
    Box::new(sim.open().unwrap())
}

fn fill(sims: &[SimDrive], degraded: bool) {
    let pool = open(sims, PoolMode::ReadWrite, degraded).unwrap();
    let report = pool.verify(None, true, &mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.rebuilt.len() == 1, "{report:?}");
}

#[test]
fn a_place_whose_drive_was_merely_not_named_is_not_given_away() {
    // (the drive that is dead, the healthy one that is not named, the order of the others)
    for (dead, unnamed, named) in [(3, 1, [0, 2]), (1, 3, [2, 0]), (0, 1, [3, 2]), (2, 0, [1, 3])] {
        let (sims, saved) = mirror_of(&["A", "B", "C", "D"]);
        let serials = ["A", "B", "C", "D"];
        let new = sim("NEW");
        let given = pick(&sims, &named);
        let admit = |replaces: Option<&str>, degraded| {
            admit_drive_on(devices(&given), device(&new), replaces, false, degraded)
        };
        let unclear = admit(None, true).unwrap_err();
        assert!(
            matches!(&unclear, Error::Usage(text) if text.contains("--replaces")
                && text.contains(serials[dead]) && text.contains(serials[unnamed])),
            "{unclear}"
        );
        let unknown = admit(Some("E"), true).unwrap_err();
        assert!(matches!(&unknown, Error::Usage(text) if text.contains("no drive E")), "{unknown}");
        let missing = admit(Some(serials[dead]), false).unwrap_err();
        assert!(
            matches!(&missing, Error::MissingDrives { missing, .. } if *missing == [serials[unnamed]]),
            "{missing}"
        );
        let admitted = admit(Some(serials[dead]), true).unwrap();
        assert_eq!(admitted.replaced_serial, serials[dead]);
        // The drive that was not named is a member as before, and what was on both is there.
        let all = [given, vec![sims[unnamed].clone(), new]].concat();
        fill(&all, false);
        let pool = open(&all, PoolMode::ReadOnly, false).unwrap();
        assert!(pool.info().drives.iter().all(|drive| drive.state == DriveState::Member));
        restore_all(&pool, &saved);
        assert_eq!(pool.find(&saved[0].0).unwrap().availability, Availability::Whole);
    }
}

#[test]
fn a_drive_with_another_history_is_not_destroyed() {
    // Each half is opened without the other, that many times.
    for (one, other) in [(1, 1), (2, 1), (1, 3), (4, 2)] {
        let (sims, saved) = mirror_of(&["A", "B"]);
        for (half, times) in [(0, one), (1, other)] {
            for number in 0..times {
                // Each admission and opening without the newcomer changes the label.
                let alone = pick(&sims, &[half]);
                drop(open(&alone, PoolMode::ReadWrite, true).unwrap());
                if number > 0 {
                    let spare = sim("SPARE");
                    admit_drive_on(devices(&alone), device(&spare), None, false, false).unwrap();
                    drop(open(&alone, PoolMode::ReadWrite, true).unwrap());
                }
            }
            let pool = open(&pick(&sims, &[half]), PoolMode::ReadWrite, true).unwrap();
            save(&pool, &name(&format!("half@{half}")), &Pattern::new(9, MIB)).unwrap();
        }
        let both = open(&sims, PoolMode::ReadOnly, false).err().unwrap();
        assert!(matches!(&both, Error::Damaged(d) if d.detail.contains("histories")), "{both}");
        let (own, theirs) = (pick(&sims, &[0]), &sims[1]);
        let before = theirs.durable_digest();
        let refused =
            admit_drive_on(devices(&own), device(theirs), None, false, false).unwrap_err();
        assert!(
            matches!(&refused, Error::Refused { reason, .. } if reason.contains("another history")),
            "{one} {other}: {refused}"
        );
        assert!(theirs.durable_digest() == before, "a refused drive was written");
        let pool = open(&pick(&sims, &[1]), PoolMode::ReadOnly, false).unwrap();
        assert_eq!(restore(&pool, &name("half@1"), &Pattern::new(9, MIB)), Ok(()));
        drop(pool);
        let forced = admit_drive_on(devices(&own), device(theirs), None, true, false).unwrap();
        assert!(!forced.returning);
        let whole = [own, vec![theirs.clone()]].concat();
        fill(&whole, false);
        restore_all(&open(&whole, PoolMode::ReadOnly, false).unwrap(), &saved);
    }
}

#[test]
fn a_drive_with_a_later_state_is_not_destroyed_by_an_older_one() {
    let (sims, _) = mirror_of(&["A", "B", "C"]);
    // A snapshot of A from before a save, or from before the pool was written without B.
    for degraded in [false, true] {
        let old = sims[0].fork();
        let given = if degraded { pick(&sims, &[0, 2]) } else { sims.clone() };
        let pool = open(&given, PoolMode::ReadWrite, degraded).unwrap();
        let late = (name(&format!("late@{}", u8::from(degraded))), Pattern::new(6, 3 * MIB));
        save(&pool, &late.0, &late.1).unwrap();
        drop(pool);
        let refused = admit_drive_on(vec![device(&old)], device(&sims[2]), None, false, true);
        let refused = refused.unwrap_err();
        assert!(
            matches!(&refused, Error::Refused { reason, .. } | Error::Usage(reason)
                if reason.contains("a later") || reason.contains("--replaces")),
            "{refused}"
        );
        restore_all(&open(&given, PoolMode::ReadOnly, false).unwrap(), &vec![late]);
    }
}

/// The same content on a drive of another size.
fn resized(from: &SimDrive, serial: &str, capacity_bytes: u64) -> SimDrive {
    let config = SimConfig { capacity_bytes, serial: serial.into(), ..SimConfig::default() };
    let to = SimDrive::new(config).unwrap();
    for at in (0..DRIVE_BYTES.min(capacity_bytes)).step_by(4096) {
        let block = from.peek_durable(at, 4096).unwrap();
        if block.iter().any(|byte| *byte != 0) {
            to.overwrite(at, &block);
        }
    }
    to
}

#[test]
fn a_larger_replacement_has_no_label_of_an_earlier_pool_left() {
    for grown_mib in [1, 3, 16, 100] {
        let (sims, saved) = mirror_of(&["A", "B"]);
        // It was part of another pool, whose labels are at its real end, too.
        let large = sim("A");
        let large = resized(&large, "LARGE", DRIVE_BYTES + grown_mib * MIB);
        format(std::slice::from_ref(&large), Redundancy::None);
        let left = pick(&sims, &[1]);
        admit_drive_on(devices(&left), device(&large), None, true, false).unwrap();
        let whole = [vec![large], left].concat();
        fill(&whole, false);
        let pool = open(&whole, PoolMode::ReadWrite, false).unwrap();
        assert_eq!(pool.notices(), [], "{grown_mib} MiB");
        restore_all(&pool, &saved);
    }
}

#[test]
fn labels_of_another_pool_at_the_end_of_a_larger_drive_do_not_count() {
    let (sims, saved) = mirror_of(&["A", "B"]);
    let large = resized(&sim("L"), "L", DRIVE_BYTES + 7 * MIB);
    format(std::slice::from_ref(&large), Redundancy::None);
    let grown = resized(&sims[0], "A", DRIVE_BYTES + 7 * MIB);
    let end = DRIVE_BYTES + 7 * MIB;
    for at in [end - 2 * MIB, end - MIB] {
        grown.overwrite(at, &large.peek_durable(at, 4096).unwrap());
    }
    let whole = vec![grown, sims[1].clone()];
    restore_all(&open(&whole, PoolMode::ReadWrite, false).unwrap(), &saved);
    // Where a label of this pool belongs, another pool's is damage, and nothing decides.
    let at = DRIVE_BYTES - MIB;
    let other = [sim("X")];
    format(&other, Redundancy::None);
    sims[1].overwrite(at, &other[0].peek_durable(at, 4096).unwrap());
    let refused = open(&sims[1..], PoolMode::ReadOnly, false).err().unwrap();
    assert!(matches!(&refused, Error::Damaged(d) if d.detail.contains("names pool")), "{refused}");
}

#[test]
fn a_drive_that_grew_has_its_labels_read_and_repaired() {
    for grown_mib in [1, 2, 5, 64] {
        let (sims, saved) = mirror_of(&["A", "B"]);
        let grown = resized(&sims[0], "A", DRIVE_BYTES + grown_mib * MIB);
        let whole = vec![grown.clone(), sims[1].clone()];
        assert_eq!(open(&whole, PoolMode::ReadOnly, false).unwrap().notices(), []);
        // One of its last labels is damaged, then all of its first ones are lost.
        grown.corrupt(DRIVE_BYTES - MIB, 4096, 1);
        let pool = open(&whole, PoolMode::ReadWrite, false).unwrap();
        assert!(matches!(pool.notices(), [Notice::Repaired(d)] if d.what == "label"));
        drop(pool);
        [MIB, 2 * MIB].iter().for_each(|at| grown.zero(*at, 4096));
        // By itself it is no blank drive. One that grew by 1 MiB has a last label in a new place.
        match open(&whole[..1], PoolMode::ReadOnly, false) {
            Ok(_) => assert_eq!(grown_mib, 1),
            Err(Error::Damaged(damage)) => assert!(damage.detail.contains("do not format")),
            Err(other) => panic!("{grown_mib} MiB: {other}"),
        }
        let pool = open(&whole, PoolMode::ReadWrite, false).unwrap();
        restore_all(&pool, &saved);
        drop(pool);
        assert_eq!(open(&whole[..1], PoolMode::ReadOnly, false).unwrap().info().drives.len(), 2);
    }
}

#[test]
fn a_pool_whose_only_drive_left_is_being_rebuilt_is_read() {
    for filled in [false, true] {
        let (sims, saved) = mirror_of(&["A", "B"]);
        let new = sim("NEW");
        let left = pick(&sims, &[0]);
        admit_drive_on(devices(&left), device(&new), None, false, false).unwrap();
        let whole = [left, vec![new.clone()]].concat();
        {
            let pool = open(&whole, PoolMode::ReadWrite, false).unwrap();
            if filled {
                // A checkpoint of its own cannot be repaired, so the drive stays in that state.
                let report = pool.verify(Some(&saved[0].0), true, &mut |_, _| ()).unwrap();
                assert!(report.is_clean() && report.rebuilt.is_empty(), "{report:?}");
            }
        }
        let alone = std::slice::from_ref(&new);
        let pool = open(alone, PoolMode::ReadOnly, false).unwrap();
        assert_eq!(pool.list().len(), 1);
        if filled {
            restore_all(&pool, &saved);
        } else {
            let unknown = pool.segments(&saved[0].0).unwrap_err();
            assert!(matches!(unknown, Error::Damaged(_)), "{unknown}");
        }
        drop(pool);
        let writing = open(alone, PoolMode::ReadWrite, true).err().unwrap();
        assert!(matches!(writing, Error::MissingDrives { .. }), "{writing}");
    }
}
