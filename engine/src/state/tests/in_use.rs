// SPDX-License-Identifier: Apache-2.0
//! Checkpoints in use: what a hold keeps, and who may begin what while a removal runs.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::units::Location;

fn name(step: u64) -> CheckpointName {
    spec(step, 1, 0, 0).name
}

fn next(state: &mut State) {
    let planned = Plan::empty(state, None, 0).unwrap();
    state.adopt(planned.change);
}

/// A removal from its begin to its end, as the committer does it.
fn remove_checked(state: &mut State, step: u64) -> Result<(), Error> {
    let removal = state.begin_removal(&name(step))?;
    remove(state, step);
    state.end_removal(removal);
    Ok(())
}

#[test]
fn what_is_held_stays_reserved_until_the_last_hold_ends() {
    for what in [Use::Restore, Use::Inspect] {
        let mut state = state(2);
        let free = (state.free_slots(), state.free_meta_units());
        save(&mut state, 1, 4 * CHUNK);
        let used = (state.free_slots(), state.free_meta_units());
        let held = state.hold(&name(1), Use::Inspect).unwrap();
        // Not refused: it is a verification's. A restore would begin before or after the removal.
        remove_checked(&mut state, 1).unwrap();
        assert!(!state.is_current(&held));
        for _ in 0..3 {
            next(&mut state);
            assert_eq!((state.free_slots(), state.free_meta_units()), used, "it is held");
        }
        // The name is free for another checkpoint, which is not the one that is held.
        let second = begin(&mut state, &spec(1, 1, 0, CHUNK));
        state.mark_aborted(second);
        state.end_segment(second, 0);
        assert_eq!(state.hold(&name(1), what).unwrap_err(), NotHeld::NoSuchCheckpoint);
        state.end_hold(&held, Use::Inspect);
        assert_eq!((state.free_slots(), state.free_meta_units()), free);
        state.end_hold(&held, Use::Inspect);
        assert_eq!((state.free_slots(), state.free_meta_units()), free, "ended once");
    }
}

#[test]
fn a_hold_that_ends_early_frees_nothing_early() {
    let mut state = state(1);
    let free = state.free_slots();
    save(&mut state, 1, 4 * CHUNK);
    let used = state.free_slots();
    let held = state.hold(&name(1), Use::Inspect).unwrap();
    state.end_hold(&held, Use::Inspect);
    assert_eq!(state.free_slots(), used, "the pool has it");
    let held = state.hold(&name(1), Use::Inspect).unwrap();
    remove_checked(&mut state, 1).unwrap();
    state.end_hold(&held, Use::Inspect);
    assert_eq!(state.free_slots(), used, "the generation before has it");
    next(&mut state);
    assert_eq!(state.free_slots(), free);
}

#[test]
fn a_restore_and_a_removal_exclude_each_other() {
    let mut state = state(1);
    save(&mut state, 1, CHUNK);
    let held = state.hold(&name(1), Use::Restore).unwrap();
    assert!(matches!(state.begin_removal(&name(1)), Err(Error::Busy { .. })));
    assert!(state.is_current(&held));
    state.end_hold(&held, Use::Restore);
    let removal = state.begin_removal(&name(1)).unwrap();
    for what in [Use::Restore, Use::Inspect] {
        assert_eq!(state.hold(&name(1), what).unwrap_err(), NotHeld::BeingRemoved);
    }
    assert!(!state.is_current(&held), "nothing is repaired from now on");
    // The removal fails: the checkpoint stays.
    state.end_removal(removal);
    assert!(state.is_current(&held));
    state.hold(&name(1), Use::Restore).unwrap();
    assert!(matches!(state.begin_removal(&name(2)), Err(Error::NoSuchCheckpoint(_))));
}

#[test]
fn another_checkpoint_of_the_name_is_another_checkpoint() {
    let mut state = state(1);
    save(&mut state, 1, 2 * CHUNK);
    let old = state.hold(&name(1), Use::Inspect).unwrap();
    remove_checked(&mut state, 1).unwrap();
    next(&mut state);
    let number = state.begin(&spec(1, 1, 0, CHUNK), Uuid::from_u128(77)).unwrap();
    state.set_whole(number, 0);
    let planned = Plan::of_checkpoints(&state, &[number], &no_sums, 0).unwrap();
    state.adopt(planned.change);
    let new = state.hold(&name(1), Use::Restore).unwrap();
    assert!(state.is_current(&new) && !state.is_current(&old));
    // The old one's hold says nothing about the new one.
    state.end_hold(&old, Use::Inspect);
    assert!(matches!(state.begin_removal(&name(1)), Err(Error::Busy { .. })));
    state.end_hold(&new, Use::Restore);
    state.begin_removal(&name(1)).unwrap();
}

/// One step of a random life.
#[derive(Clone, Copy, Debug)]
enum Step {
    Save { chunks: u64 },
    Remove,
    Hold { restore: bool },
    EndHold,
    Next,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1..9_u64).prop_map(|chunks| Step::Save { chunks }),
        3 => Just(Step::Remove),
        3 => any::<bool>().prop_map(|restore| Step::Hold { restore }),
        2 => Just(Step::EndHold),
        2 => Just(Step::Next),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Whatever is saved, removed and held in which order: no slot that a holder may still read or
    /// write is given to another checkpoint, and at the end nothing has leaked.
    #[test]
    fn no_slot_of_a_held_checkpoint_is_given_away(steps in steps()) {
        let mut state = state(2);
        let free = (state.free_slots(), state.free_meta_units());
        let mut places: BTreeMap<u64, HashSet<Location>> = BTreeMap::new();
        let mut holds: Vec<(Arc<Committed>, Use)> = Vec::new();
        let mut last_step = 0;
        for (number, step) in steps.into_iter().enumerate() {
            let oldest = state.checkpoints().map(|c| c.entry.step).min();
            match step {
                Step::Save { chunks } => {
                    if state.free_slots().iter().sum::<u64>() < chunks {
                        continue;
                    }
                    last_step += 1;
                    let taken: HashSet<_> =
                        save(&mut state, last_step, chunks * CHUNK).iter().map(|c| c.first).collect();
                    for (held, _) in &holds {
                        prop_assert!(places[&held.entry.step].is_disjoint(&taken));
                    }
                    places.insert(last_step, taken);
                }
                Step::Remove => {
                    let Some(oldest) = oldest else { continue };
                    let restored = holds.iter().any(|(held, what)| {
                        held.entry.step == oldest && *what == Use::Restore
                    });
                    prop_assert_eq!(remove_checked(&mut state, oldest).is_err(), restored);
                }
                Step::Hold { restore } => {
                    let Some(oldest) = oldest else { continue };
                    let what = if restore { Use::Restore } else { Use::Inspect };
                    holds.push((state.hold(&name(oldest), what).unwrap(), what));
                }
                Step::EndHold if !holds.is_empty() => {
                    let (held, what) = holds.swap_remove(number % holds.len());
                    state.end_hold(&held, what);
                }
                Step::EndHold => {}
                Step::Next => next(&mut state),
            }
        }
        for (held, what) in holds {
            state.end_hold(&held, what);
        }
        while let Some(oldest) = state.checkpoints().map(|c| c.entry.step).min() {
            remove_checked(&mut state, oldest).unwrap();
        }
        next(&mut state);
        prop_assert_eq!((state.free_slots(), state.free_meta_units()), free);
    }
}
