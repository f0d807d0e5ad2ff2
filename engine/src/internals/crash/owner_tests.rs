// SPDX-License-Identifier: Apache-2.0
//! Owners that replace each other, and drives from another time: a late root is a bad place, a
//! break in the history is reported with both owners, and a copy of a member from an earlier time
//! is not taken for the member.

use uuid::Uuid;

use super::act::Act;
use super::check::same_names;
use super::contents::verify_checkpoint;
use super::explorer::Tally;
use super::lab::{Base, Lab, Shape};
use super::live::Live;
use super::recovery_tests::{
    explorer, falling_back, is_opened_on_request_only, open, open_with, plain, saved_in,
};
use crate::commit::Committer;
use crate::device::sim::SimDrive;
use crate::error::{Error, Stale};
use crate::format::{DriveState, Owner, OwnerProcess, Root, Zone};
use crate::pool::Notice;
use crate::recover::opening::Opening;
use crate::state::State;
use crate::units::DriveIndex;

fn owner(number: u128, host: &str) -> Owner {
    let process = OwnerProcess { pid: number as u32, ..OwnerProcess::default() };
    Owner::new(Uuid::from_u128(number), process, host, "trainer")
}

fn opened_by(lab: &Lab, sims: &[SimDrive], owner: Owner) -> State {
    open_with(lab, sims, Opening { writable: true, owner, ..plain() }).unwrap().0
}

/// Makes a generation in which nothing changes, as the owner of this state.
fn commit(lab: &Lab, sims: &[SimDrive], state: &std::cell::RefCell<State>) -> Root {
    let mut drives = lab.drive(sims).unwrap();
    Committer::new(state).reclaim(&mut drives, 5).unwrap();
    state.borrow().root().clone()
}

/// Writes a root into some of its places.
fn put(sims: &[SimDrive], state: &State, root: &Root, places: &[(usize, Zone)]) {
    let label = state.label();
    for (drive, zone) in places {
        let entry = &label.drives[*drive];
        let at = label.layout.root_offset(*zone, root.generation, entry.capacity_bytes);
        sims[*drive].overwrite(at, &root.encode(entry.uuid, at));
    }
}

const SHAPE: Shape = Shape { drives: 2, copies: 1 };

#[test]
fn a_late_root_of_the_same_generation_is_a_bad_place() {
    let lab = Lab::default();
    for places in [
        vec![(0, Zone::Front)],
        vec![(1, Zone::Back)],
        vec![(0, Zone::Front), (1, Zone::Front)],
        vec![(0, Zone::Back), (1, Zone::Back)],
    ] {
        let (sims, expected) = saved_in(&lab, SHAPE);
        // The first owner was about to make the next generation; its successor made it.
        let (seen, _) = open(&lab, &sims, false).unwrap();
        let successor = opened_by(&lab, &sims, owner(2, "b"));
        let late = Root {
            epoch: seen.root().epoch,
            parent: seen.root().id(),
            owner: owner(1, "a"),
            ..successor.root().clone()
        };
        put(&sims, &successor, &late, &places);
        let (state, notices) = open(&lab, &sims, false).unwrap();
        assert_eq!(state.root(), successor.root());
        assert_eq!(notices.len(), places.len(), "{notices:?}");
        let (state, notices) = open(&lab, &sims, true).unwrap();
        same_names(&state, expected.contents()).unwrap();
        assert!(notices.iter().all(|n| matches!(n, Notice::Repaired(d) if d.what == "root")));
        assert_eq!(open(&lab, &sims, false).unwrap().1, []);
    }
}

#[test]
fn two_openings_that_began_the_same_epoch_say_the_same() {
    let lab = Lab::default();
    let (sims, expected) = saved_in(&lab, SHAPE);
    let successor = opened_by(&lab, &sims, owner(2, "b"));
    let late = Root { owner: owner(1, "a"), committed_unix_ns: 7, ..successor.root().clone() };
    put(&sims, &successor, &late, &[(0, Zone::Front), (1, Zone::Front)]);
    let (state, _) = open(&lab, &sims, false).unwrap();
    same_names(&state, expected.contents()).unwrap();
    // Once one of them has a successor, it is the one that counts.
    let successor = std::cell::RefCell::new(successor);
    let next = commit(&lab, &sims, &successor);
    let (state, notices) = open(&lab, &sims, false).unwrap();
    assert_eq!(state.root(), &next);
    assert!(!notices.iter().any(|n| matches!(n, Notice::OtherOwner { .. })), "{notices:?}");
    // Two that say different things are two owners at once.
    let other = Root { owner: owner(1, "a"), parent: [9; 16], ..next };
    put(&sims, &successor.borrow(), &other, &[(1, Zone::Front)]);
    let refused = open(&lab, &sims, false).map(|_| ()).unwrap_err();
    assert!(matches!(&refused, Error::Damaged(d) if d.detail.contains("two owners")), "{refused}");
}

#[test]
fn a_break_by_another_owner_is_reported_with_both_names() {
    let lab = Lab::default();
    // Generations that the first owner makes after the second has opened the pool.
    for (by_first, by_second) in [(1, 1), (1, 3), (2, 4)] {
        let (sims, _) = saved_in(&lab, SHAPE);
        let first = std::cell::RefCell::new(opened_by(&lab, &sims, owner(1, "alpha")));
        let second = std::cell::RefCell::new(opened_by(&lab, &sims, owner(2, "beta")));
        let mut last = None;
        (0..by_second).for_each(|_| last = Some(commit(&lab, &sims, &second)));
        // In moments in which neither looked, the first one wrote these.
        let mut before = first.borrow().root().clone();
        for _ in 0..by_first {
            let (generation, parent) = (before.generation.next(), before.id());
            before = Root { generation, parent, ..before };
            before.catalogue.offset_bytes =
                first.borrow().label().layout.catalogue_offset(generation);
            let all = [(0, Zone::Front), (0, Zone::Back), (1, Zone::Front), (1, Zone::Back)];
            put(&sims, &first.borrow(), &before, &all);
        }
        for writable in [false, true] {
            let (state, notices) = open(&lab, &sims, writable).unwrap();
            assert!(state.root() == last.as_ref().unwrap() || writable);
            let named = notices.iter().any(|notice| match notice {
                Notice::OtherOwner { owner, owner_after, .. } => {
                    owner.contains("pid 1) on alpha") && owner_after.contains("pid 2) on beta")
                }
                _ => false,
            });
            assert!(named, "{by_first} {by_second}: {notices:?}");
        }
    }
}

/// The drive at `clone` as it was some acts ago.
fn with_a_clone(
    lab: &Lab,
    shape: Shape,
    clone: usize,
    missed: &[Act],
) -> (Vec<SimDrive>, super::model::Expected) {
    let tally = Tally::default();
    let base = Base::new(lab, shape).unwrap();
    let mut live = Live::start(explorer(lab, &tally, &base), &base).unwrap();
    live.perform(Act::SaveSpanning).unwrap();
    let old = live.explorer.sims[clone].fork();
    for act in missed {
        live.perform(*act).unwrap();
    }
    let (mut sims, expected) = live.end();
    sims[clone] = old;
    sims.iter().for_each(|sim| sim.crash_keeping(&[], None));
    (sims, expected)
}

#[test]
fn a_copy_of_a_member_from_an_earlier_time_is_no_member() {
    use Act::{Reclaim, Remove, Reopen, SaveSmall, SaveSpanning};
    let lab = Lab::default();
    for (drives, copies) in [(2, 2), (3, 2), (2, 1)] {
        for clone in [0, drives - 1] {
            for missed in
                [&[Reclaim][..], &[SaveSmall], &[SaveSpanning, Remove], &[Reopen], &[SaveSmall; 3]]
            {
                let shape = Shape { drives, copies };
                let (sims, expected) = with_a_clone(&lab, shape, clone, missed);
                let context = format!("{shape:?}, drive {clone}, {missed:?}");
                let (state, notices) = open(&lab, &sims, false).unwrap();
                assert_eq!(state.label().drives[clone].state, DriveState::Rebuilding, "{context}");
                assert!(
                    notices.iter().any(|n| matches!(n, Notice::Outdated { .. })),
                    "{notices:?}"
                );
                same_names(&state, expected.contents()).unwrap();
                let refused = open(&lab, &sims, true).map(|_| ()).unwrap_err();
                assert!(
                    matches!(&refused, Error::StaleDrive { why: Stale::MissedCommits, serial, .. }
                        if *serial == format!("SIM{clone}")),
                    "{context}: {refused}"
                );
                let degraded = Opening { writable: true, degraded: true, ..plain() };
                let (state, _) = open_with(&lab, &sims, degraded).unwrap();
                assert_eq!(state.label().drives[clone].state, DriveState::Absent, "{context}");
                same_names(&state, expected.contents()).unwrap();
                if copies == 1 {
                    continue;
                }
                let gone = DriveIndex(clone as u16);
                let mut direct = lab.drive(&sims).unwrap();
                let mut left = super::lab::Without { drives: &mut direct, gone };
                for committed in state.checkpoints() {
                    let stored = &expected.contents()[&committed.name()];
                    let damage =
                        verify_checkpoint(&mut left, &sims, state.label(), committed, stored)
                            .unwrap();
                    assert!(damage.is_none(), "{context}: {damage:?}");
                }
            }
        }
    }
}

#[test]
fn a_member_whose_newest_roots_are_damaged_is_still_a_member() {
    let lab = Lab::default();
    let (sims, expected) = saved_in(&lab, Shape { drives: 3, copies: 2 });
    let (state, _) = open(&lab, &sims, false).unwrap();
    let label = state.label();
    for zone in [Zone::Front, Zone::Back] {
        let capacity_bytes = label.drives[1].capacity_bytes;
        let at = label.layout.root_offset(zone, state.root().generation, capacity_bytes);
        sims[1].corrupt(at, 4096, 3);
    }
    let (state, notices) = open(&lab, &sims, true).unwrap();
    assert_eq!(state.label().members().count(), 3, "{notices:?}");
    same_names(&state, expected.contents()).unwrap();
}

/// A late root in the successor's opening, after its catalogue and before its root, when the power
/// fails: nothing is lost. The same bytes are left when the drive forgot the catalogue of a commit
/// that was acknowledged, and an interrupted opening had written one there before. So the older
/// generation is opened on request only.
#[test]
fn the_catalogue_of_another_owner_does_not_show_which_was_later() {
    let lab = Lab::default();
    let tally = Tally::default();
    for drives in [1, 2] {
        let base = Base::new(&lab, Shape { drives, copies: 1 }).unwrap();
        let mut live = Live::start(explorer(&lab, &tally, &base), &base).unwrap();
        live.perform(Act::SaveSmall).unwrap();
        let before: Vec<SimDrive> = live.explorer.sims.iter().map(SimDrive::fork).collect();
        live.perform(Act::SaveSmall).unwrap();
        let (sims, expected) = live.end();
        let newest = expected.acknowledged;
        // The catalogue that an opening wrote which saw the generation before.
        let opened = opened_by(&lab, &before, owner(2, "b"));
        assert_eq!(opened.root().generation.0, newest);
        let layout = &opened.label().layout;
        let at = layout.catalogue_offset(opened.root().generation);
        for (sim, opened) in sims.iter().zip(&before) {
            sim.overwrite(at, &opened.peek(at, layout.catalogue_slot_bytes()).unwrap());
        }
        is_opened_on_request_only(&lab, &sims, newest);
        let (state, _) = open_with(&lab, &sims, falling_back(true)).unwrap();
        same_names(&state, &expected.history[&(newest - 1)]).unwrap();
    }
}
