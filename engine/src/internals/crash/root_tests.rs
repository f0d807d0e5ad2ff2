// SPDX-License-Identifier: Apache-2.0
//! Roots and catalogues that cannot be read or written: nothing that was not read is written, an
//! older generation is opened on request only, and one bad block does not stop the pool.

use super::act::Act;
use super::check::same_names;
use super::explorer::Tally;
use super::lab::{Base, Lab, Shape};
use super::live::Live;
use super::recovery_tests::{
    PASSING, UNREADABLE, explorer, fail_reads, falling_back, is_opened_on_request_only, label_of,
    open, open_with, plain, saved,
};
use crate::device::Operation;
use crate::device::sim::{Effect, Fault, SimDrive, When};
use crate::error::IoError;
use crate::format::{Label, Zone};
use crate::limits::BLOCK_BYTES;
use crate::pool::Notice;
use crate::recover::opening::Opening;
use crate::recover::roots::{check_roots, repair_roots};
use crate::units::Generation;

/// What a drive says that cannot write a block.
const WRITE_FAULT: IoError = IoError::Nvme { sct: 2, sc: 0x80, dnr: true };

/// Both copies of a root on a drive.
fn root_offsets(label: &Label, drive: usize, generation: u64) -> [u64; 2] {
    let capacity_bytes = label.drives[drive].capacity_bytes;
    let of = |zone| label.layout.root_offset(zone, Generation(generation), capacity_bytes);
    [Zone::Front, Zone::Back].map(of)
}

fn fail_writes(sim: &SimDrive, offset_bytes: u64) {
    for operation in [Operation::Write, Operation::WriteDurable] {
        let fault = Fault::new(operation, When::From(0), Effect::Fail(WRITE_FAULT));
        sim.inject(fault.within(offset_bytes..offset_bytes + BLOCK_BYTES)).unwrap();
    }
}

#[test]
fn an_older_generation_is_shown_only_on_request() {
    let lab = Lab::default();
    for error in [PASSING, UNREADABLE] {
        let (sims, expected) = saved(&lab, 1);
        let label = label_of(&lab, &sims);
        let newest = expected.acknowledged;
        root_offsets(&label, 0, newest).iter().for_each(|at| fail_reads(&sims[0], *at, error));
        is_opened_on_request_only(&lab, &sims, newest);
        let (state, notices) = open_with(&lab, &sims, falling_back(false)).unwrap();
        assert!(notices.iter().any(|n| matches!(n, Notice::FellBack { .. })), "{notices:?}");
        assert!(!notices.iter().any(|n| n.to_string().contains("another copy is sound")));
        same_names(&state, &expected.history[&(newest - 1)]).unwrap();
        // Nothing was written: it is all there when it can be read again.
        sims[0].clear_faults();
        let (state, notices) = open(&lab, &sims, true).unwrap();
        assert_eq!(notices, []);
        same_names(&state, expected.contents()).unwrap();
    }
}

#[test]
fn a_root_that_can_be_read_again_after_it_was_given_up_does_not_count() {
    let lab = Lab::default();
    for drives in [1, 2, 3] {
        let (sims, expected) = saved(&lab, drives);
        let label = label_of(&lab, &sims);
        let given_up = expected.acknowledged;
        for (drive, sim) in sims.iter().enumerate() {
            root_offsets(&label, drive, given_up)
                .iter()
                .for_each(|at| fail_reads(sim, *at, PASSING));
        }
        let (state, _) = open_with(&lab, &sims, falling_back(true)).unwrap();
        // What was not read was not written, so its generation is passed over.
        assert_eq!(state.root().generation.0, given_up + 1);
        sims.iter().for_each(SimDrive::clear_faults);
        for writable in [false, true, false] {
            let (state, notices) = open(&lab, &sims, writable).unwrap();
            assert!(state.root().generation.0 > given_up, "{notices:?}");
            same_names(&state, &expected.history[&(given_up - 1)]).unwrap();
        }
    }
}

#[test]
fn one_place_that_cannot_be_read_hides_nothing() {
    let lab = Lab::default();
    // (drives, the drive at fault, which copy, generations behind the newest)
    for (drives, at_fault, copy, behind) in
        [(1, 0, 0, 0), (1, 0, 1, 0), (2, 1, 0, 0), (3, 2, 1, 0), (1, 0, 0, -1), (2, 0, 1, -1)]
    {
        let (sims, expected) = saved(&lab, drives);
        let label = label_of(&lab, &sims);
        let generation = expected.acknowledged.saturating_add_signed(-behind);
        let at = root_offsets(&label, at_fault, generation)[copy];
        let before = sims[at_fault].peek_durable(at, BLOCK_BYTES).unwrap();
        fail_reads(&sims[at_fault], at, PASSING);
        for writable in [false, true] {
            let (state, _) = open(&lab, &sims, writable).unwrap();
            same_names(&state, expected.contents()).unwrap();
        }
        assert!(sims[at_fault].peek_durable(at, BLOCK_BYTES).unwrap() == before, "it was written");
    }
}

#[test]
fn a_repair_never_zeroes_a_root_that_it_could_not_read() {
    let lab = Lab::default();
    for (drives, error) in [(1, PASSING), (1, UNREADABLE), (2, PASSING), (2, UNREADABLE)] {
        let (sims, _) = saved(&lab, drives);
        let (state, _) = open(&lab, &sims, true).unwrap();
        let label = state.label().clone();
        let newest = state.root().generation.0;
        let of_both = |generation| {
            let of = |drive| root_offsets(&label, drive, generation).map(|at| (drive, at));
            (0..drives).flat_map(of).collect::<Vec<_>>()
        };
        let places = [of_both(newest), of_both(newest - 1)].concat();
        let read = || -> Vec<_> {
            places.iter().map(|(drive, at)| sims[*drive].peek(*at, BLOCK_BYTES).unwrap()).collect()
        };
        let before = read();
        places.iter().for_each(|(drive, at)| fail_reads(&sims[*drive], *at, error));
        let mut direct = lab.drive(&sims).unwrap();
        let roots = check_roots(&mut direct, &label, state.root(), false).unwrap();
        let (notices, unusable) = repair_roots(&mut direct, &label, &roots, true);
        drop(direct);
        // The newest root is known, and is written; that of the one before is only reported.
        assert_eq!(notices.len(), 4 * drives, "{notices:?}");
        let repaired = notices.iter().filter(|n| matches!(n, Notice::Repaired(_))).count();
        assert_eq!((repaired, unusable.len()), (2 * drives, 1), "{notices:?}");
        assert!(read() == before, "a root was lost");
        sims.iter().for_each(SimDrive::clear_faults);
        let (again, notices) = open(&lab, &sims, false).unwrap();
        assert_eq!((again.root(), notices.as_slice()), (state.root(), &[][..]));
    }
}

#[test]
fn an_open_pool_puts_its_newest_root_back_where_it_was_lost() {
    let lab = Lab::default();
    let (sims, _) = saved(&lab, 2);
    let (state, _) = open(&lab, &sims, true).unwrap();
    let label = state.label().clone();
    for (drive, sim) in sims.iter().enumerate() {
        for at in root_offsets(&label, drive, state.root().generation.0) {
            sim.zero(at, BLOCK_BYTES);
        }
    }
    let mut direct = lab.drive(&sims).unwrap();
    let roots = check_roots(&mut direct, &label, state.root(), false).unwrap();
    let (notices, _) = repair_roots(&mut direct, &label, &roots, true);
    assert!(notices.len() == 4 && notices.iter().all(|n| matches!(n, Notice::Repaired(_))));
    drop(direct);
    assert_eq!(open(&lab, &sims, false).unwrap().0.root(), state.root());
}

/// Every state in which a commit can stop is no damage to a reader; every other one is.
#[test]
fn a_reader_takes_an_interrupted_commit_for_no_damage() {
    let lab = Lab::default();
    // Written so far: the front rings of all drives first, then their back rings.
    for (is_commit, written) in [
        (true, [[true, false], [false, false]]),
        (true, [[true, false], [true, false]]),
        (true, [[true, true], [true, false]]),
        (false, [[true, true], [false, false]]),
        (false, [[false, true], [false, true]]),
    ] {
        let (sims, _) = saved(&lab, 2);
        let (state, _) = open(&lab, &sims, true).unwrap();
        let label = state.label().clone();
        for (drive, sim) in sims.iter().enumerate() {
            let offsets = root_offsets(&label, drive, state.root().generation.0);
            let places = offsets.into_iter().zip(written[drive]);
            places
                .filter(|(_, is_written)| !is_written)
                .for_each(|(at, _)| sim.zero(at, BLOCK_BYTES));
        }
        let mut direct = lab.drive(&sims).unwrap();
        let mut damaged = |is_reader| {
            let roots = check_roots(&mut direct, &label, state.root(), is_reader).unwrap();
            roots.bad.len()
        };
        let lost = written.as_flattened().iter().filter(|is_written| !**is_written).count();
        assert_eq!(damaged(false), lost, "{written:?}");
        assert_eq!(damaged(true), if is_commit { 0 } else { lost }, "{written:?}");
        drop(direct);
        let (again, notices) = open(&lab, &sims, false).unwrap();
        assert_eq!(again.root(), state.root());
        if is_commit {
            assert_eq!(notices, [Notice::Unfinished(state.root().generation)], "{written:?}");
        }
    }
}

#[test]
fn a_catalogue_slot_that_cannot_be_written_is_passed_over() {
    let lab = Lab::default();
    for slot in 0..4 {
        for drives in [1, 2] {
            let tally = Tally::default();
            let base = Base::new(&lab, Shape { drives, copies: 1 }).unwrap();
            let mut live = Live::start(explorer(&lab, &tally, &base), &base).unwrap();
            let at = live.state().label().layout.catalogue_offset(Generation(slot));
            fail_writes(&live.explorer.sims[drives - 1], at);
            for _ in 0..3 {
                for act in [Act::SaveSmall, Act::Reclaim, Act::SaveSmall, Act::Remove, Act::Reopen]
                {
                    live.perform(act).unwrap_or_else(|stop| panic!("slot {slot}, {act:?}: {stop}"));
                }
            }
            live.power_cut().unwrap();
            live.save_again().unwrap();
        }
    }
}

#[test]
fn a_root_slot_that_cannot_be_written_does_not_stop_an_opening() {
    let lab = Lab::default();
    for (drives, at_fault, copy) in [(1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 1, 1), (3, 1, 0)] {
        let (sims, expected) = saved(&lab, drives);
        let label = label_of(&lab, &sims);
        let at = root_offsets(&label, at_fault, expected.acknowledged + 1)[copy];
        fail_writes(&sims[at_fault], at);
        for _ in 0..3 {
            let (state, notices) = open(&lab, &sims, true).unwrap();
            same_names(&state, expected.contents()).unwrap();
            assert!(state.root().generation.0 > expected.acknowledged + 1, "{notices:?}");
        }
        let (state, _) = open(&lab, &sims, false).unwrap();
        same_names(&state, expected.contents()).unwrap();
    }
}

#[test]
fn saves_go_on_once_a_damaged_checkpoint_is_removed() {
    let lab = Lab::default();
    let tally = Tally::default();
    for drives in [1, 2] {
        let base = Base::new(&lab, Shape { drives, copies: 1 }).unwrap();
        let mut live = Live::start(explorer(&lab, &tally, &base), &base).unwrap();
        live.explorer.guards = false;
        live.explorer.protected.clear();
        live.perform(Act::SaveSmall).unwrap();
        let manifest = live.state().latest("c").unwrap().entry.manifest.offset_bytes;
        live.explorer.sims.iter().for_each(|sim| sim.zero(manifest, BLOCK_BYTES));
        live.perform(Act::Reopen).unwrap();
        assert!(live.state().latest("c").unwrap().damage.is_some());
        assert!(live.perform(Act::SaveSmall).is_err(), "its space is not known");
        live.perform(Act::Remove).unwrap();
        // One more generation is made, and then its space is known to be free.
        live.perform(Act::SaveSmall).unwrap();
    }
}

#[test]
fn a_label_copy_that_cannot_be_written_does_not_stop_an_opening() {
    let lab = Lab::default();
    let (sims, expected) = saved(&lab, 2);
    let at = crate::format::Layout::front_label_offsets()[1];
    sims[0].corrupt(at, BLOCK_BYTES, 1);
    fail_writes(&sims[0], at);
    let (state, notices) = open(&lab, &sims, true).unwrap();
    assert!(notices.iter().any(|n| matches!(n, Notice::DamagedCopy(d) if d.what == "label")));
    same_names(&state, expected.contents()).unwrap();
    let reading = Opening { degraded: true, ..plain() };
    open_with(&lab, &sims, reading).unwrap();
}
