// SPDX-License-Identifier: Apache-2.0
//! The state on its own: what is free when, and who may join which checkpoint.

use uuid::Uuid;

use super::holding::Run;
use super::*;
use crate::commit::Plan;
use crate::error::Error;
use crate::format::testing::{mirror_label, striped_label};
use crate::format::{
    Access, Attributes, CatalogueEntry, DriveState, Label, MetaExtent, Owner, Root, Shard,
};
use crate::limits::{CATALOGUE_SLOTS, MAX_DRIVE_BYTES, MAX_SHARD_LIST_BYTES, ROOT_SLOTS};
use crate::name::CheckpointName;
use crate::units::{Copies, Generation};

mod capacity;
mod in_use;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = MIB;

fn label(drives: usize) -> Label {
    striped_label(64 * MIB, CHUNK, drives)
}

fn root(label: &Label, generation: u64) -> Root {
    let generation = Generation(generation);
    Root {
        pool: label.pool,
        generation,
        epoch: 1,
        parent: [0; 16],
        catalogue: MetaExtent {
            offset_bytes: label.layout.catalogue_offset(generation),
            len_bytes: 80,
            hash: [0; 16],
        },
        committed_unix_ns: 0,
        owner: Owner::default(),
    }
}

fn state(drives: usize) -> State {
    let label = label(drives);
    let root = root(&label, 1);
    State::new(label, root, None, Generation(1), Vec::new())
}

fn spec(step: u64, participants: u32, participant: u32, len_bytes: u64) -> CheckpointSpec {
    let name = CheckpointName::new("run", step).unwrap();
    CheckpointSpec { name, participants, participant, len_bytes, shards: Vec::new() }
}

fn begin(state: &mut State, spec: &CheckpointSpec) -> u64 {
    state.begin(spec, Uuid::from_u128(spec.name.step.into())).unwrap()
}

/// Zero for every chunk: no test reads them here.
fn no_sums(_: u64, _: u32) -> Vec<u64> {
    vec![0; 64]
}

/// Saves a checkpoint of one segment and returns where its chunks lie.
fn save(state: &mut State, step: u64, len_bytes: u64) -> Vec<Copies> {
    let number = begin(state, &spec(step, 1, 0, len_bytes));
    let locations = state.copies_of(number, 0).unwrap().to_vec();
    assert_eq!(state.set_whole(number, 0), Readiness::Ready);
    let planned = Plan::of_checkpoints(state, &[number], &no_sums, 0).unwrap();
    state.adopt(planned.change);
    locations
}

fn remove(state: &mut State, step: u64) {
    let planned = Plan::of_removal(state, &spec(step, 1, 0, 0).name, 0).unwrap();
    state.adopt(planned.change);
}

#[test]
fn what_a_generation_removes_is_free_one_generation_later() {
    let mut state = state(2);
    let (free, free_meta) = (state.free_slots(), state.free_meta_units());
    let gone = save(&mut state, 1, 4 * CHUNK);
    assert_eq!(state.free_slots(), [free[0] - 2, free[1] - 2]);
    remove(&mut state, 1);
    assert_eq!(state.free_slots(), [free[0] - 2, free[1] - 2], "the generation before needs them");
    // All that is free now goes to the next checkpoint; none of it belonged to the removed one.
    let all: u64 = state.free_slots().iter().sum();
    let rest = begin(&mut state, &spec(2, 1, 0, all * CHUNK));
    let taken = state.copies_of(rest, 0).unwrap();
    assert!(taken.iter().all(|location| !gone.contains(location)));
    state.mark_aborted(rest);
    state.end_segment(rest, 0);

    let planned = Plan::empty(&state, None, 0).unwrap();
    assert_eq!(state.free_slots(), [free[0] - 2, free[1] - 2], "planned is not durable");
    state.adopt(planned.change);
    assert_eq!((state.free_slots(), state.free_meta_units()), (free, free_meta));
}

#[test]
fn a_drive_that_nobody_has_seen_takes_no_memory() {
    let mut label = mirror_label(&[DriveState::Member, DriveState::Member, DriveState::Absent]);
    // A map of it would have 2 TiB with the smallest chunks.
    label.drives[2].capacity_bytes = MAX_DRIVE_BYTES;
    let mut holding = Holding::new(3);
    holding.data[0].push(Run { start: 0, count: 4 });
    holding.data[2].push(Run { start: 1 << 30, count: 4 });
    let root = root(&label, 1);
    let entry = CatalogueEntry {
        id: Uuid::from_u128(1),
        name: "run".into(),
        step: 1,
        bytes: 4 * CHUNK,
        participants: 1,
        committed_unix_ns: 0,
        generation: Generation(1),
        manifest: root.catalogue,
        access: Access::of(0, 0),
        pinned: false,
        attributes: Attributes::default(),
    };
    let committed = Committed { entry, holding, damage: None };
    let mut state = State::new(label, root, None, Generation(1), vec![committed]);
    let free = state.free_slots();
    assert_eq!((free[0] + 4, free[2]), (free[1], 0));
    remove(&mut state, 1);
    state.adopt(Plan::empty(&state, None, 0).unwrap().change);
    assert_eq!(state.free_slots()[0], free[1], "its runs on the absent drive do not matter");
}

#[test]
fn what_two_checkpoints_name_is_free_when_neither_does() {
    let label = label(1);
    let checkpoint = |step: u64, start: u64| {
        let mut holding = Holding::new(1);
        holding.data[0].push(Run { start, count: 4 });
        let entry = CatalogueEntry {
            id: Uuid::from_u128(step.into()),
            name: "run".into(),
            step,
            bytes: 4 * CHUNK,
            participants: 1,
            committed_unix_ns: 0,
            generation: Generation(1),
            manifest: root(&label, 1).catalogue,
            access: Access::of(0, 0),
            pinned: false,
            attributes: Attributes::default(),
        };
        Committed { entry, holding, damage: None }
    };
    // Units 2 and 3 belong to both, as after an error.
    let both = vec![checkpoint(1, 0), checkpoint(2, 2)];
    let mut state = State::new(label.clone(), root(&label, 1), None, Generation(1), both);
    let free = state.free_slots()[0];
    let next = |state: &mut State| {
        let planned = Plan::empty(state, None, 0).unwrap();
        state.adopt(planned.change);
        state.free_slots()[0] - free
    };
    remove(&mut state, 1);
    assert_eq!(next(&mut state), 2, "two of its units are the other's too");
    remove(&mut state, 2);
    assert_eq!(next(&mut state), 6);
}

#[test]
fn no_room_differs_from_room_after_one_more_commit() {
    let mut state = state(1);
    let slots = state.free_slots()[0];
    save(&mut state, 1, slots * CHUNK);
    let wants = spec(2, 1, 0, CHUNK);
    assert!(matches!(
        state.begin(&wants, Uuid::nil()),
        Err(BeginError::Failed(Error::NoSpace { needed_bytes: CHUNK, free_bytes: 0 }))
    ));
    remove(&mut state, 1);
    assert!(matches!(state.begin(&wants, Uuid::nil()), Err(BeginError::Reclaim { .. })));
    let planned = Plan::empty(&state, None, 0).unwrap();
    state.adopt(planned.change);
    begin(&mut state, &wants);
}

#[test]
fn a_reservation_is_whole_or_none() {
    let mut state = state(2);
    let before = (state.free_slots(), state.free_meta_units());
    let too_much = (before.0.iter().sum::<u64>() + 1) * CHUNK;
    assert!(state.begin(&spec(1, 1, 0, too_much), Uuid::nil()).is_err());
    assert_eq!((state.free_slots(), state.free_meta_units()), before);
    assert_eq!(state.open.len(), 0);

    // Enough slots, but more blocks of metadata than there are: a segment of very many shards.
    let shards =
        (0..300_000).map(|number| Shard { name: format!("shard-{number}"), ..Shard::default() });
    let long = CheckpointSpec { shards: shards.collect(), ..spec(1, 1, 0, CHUNK) };
    assert!(matches!(
        state.begin(&long, Uuid::nil()),
        Err(BeginError::Failed(Error::NoMetadataSpace))
    ));
    assert_eq!((state.free_slots(), state.free_meta_units()), before);
}

#[test]
fn participants_agree_on_who_they_are() {
    let mut state = state(1);
    let number = begin(&mut state, &spec(1, 2, 0, CHUNK));
    let join = |state: &mut State, spec: CheckpointSpec| match state.begin(&spec, Uuid::nil()) {
        Ok(number) => Ok(number),
        Err(BeginError::Failed(error)) => Err(error),
        Err(BeginError::Reclaim { no_space }) => Err(no_space),
    };
    assert!(matches!(join(&mut state, spec(1, 3, 1, 0)), Err(Error::Usage(_))));
    assert!(matches!(join(&mut state, spec(1, 2, 2, 0)), Err(Error::Usage(_))));
    assert!(matches!(join(&mut state, spec(1, 0, 0, 0)), Err(Error::Usage(_))));
    assert!(matches!(join(&mut state, spec(1, 2, 0, 0)), Err(Error::CheckpointExists(_))));
    assert_eq!(join(&mut state, spec(1, 2, 1, 2 * CHUNK)).unwrap(), number);
    assert_eq!(state.set_whole(number, 0), Readiness::Waiting);
    assert_eq!(state.set_whole(number, 1), Readiness::Ready);
    let planned = Plan::of_checkpoints(&state, &[number], &no_sums, 0).unwrap();
    state.adopt(planned.change);
    assert!(matches!(join(&mut state, spec(1, 2, 0, 0)), Err(Error::CheckpointExists(_))));
    let entry = &state.latest("run").unwrap().entry;
    assert_eq!((entry.bytes, entry.participants, entry.generation), (3 * CHUNK, 2, Generation(2)));
}

#[test]
fn an_aborted_checkpoint_keeps_its_space_until_every_segment_ended() {
    let mut state = state(1);
    let free = (state.free_slots(), state.free_meta_units());
    let number = begin(&mut state, &spec(1, 3, 0, CHUNK));
    begin(&mut state, &spec(1, 3, 1, CHUNK));
    state.mark_aborted(number);
    assert!(matches!(
        state.begin(&spec(1, 3, 2, CHUNK), Uuid::nil()),
        Err(BeginError::Failed(Error::Busy { .. }))
    ));
    state.end_segment(number, 0);
    assert_eq!(state.free_slots()[0], free.0[0] - 2, "participant 1 may still write");
    assert_eq!(state.set_whole(number, 1), Readiness::Aborted);
    assert_eq!((state.free_slots(), state.free_meta_units()), free);
    assert_eq!(state.set_whole(number, 1), Readiness::Aborted, "it is gone");
    begin(&mut state, &spec(1, 1, 0, CHUNK));
}

#[test]
fn a_commit_takes_only_what_it_planned() {
    let mut state = state(1);
    let first = begin(&mut state, &spec(1, 1, 0, CHUNK));
    assert_eq!(state.set_whole(first, 0), Readiness::Ready);
    let planned = Plan::of_checkpoints(&state, &[first], &no_sums, 0).unwrap();
    // While the plan is carried out, other checkpoints begin, end and are aborted.
    let second = begin(&mut state, &spec(2, 1, 0, CHUNK));
    let third = begin(&mut state, &spec(3, 1, 0, CHUNK));
    state.mark_aborted(third);
    state.end_segment(third, 0);
    assert_eq!(state.adopt(planned.change), Generation(2));
    assert_eq!(state.checkpoints().count(), 1);
    assert_eq!((state.open.len(), state.set_whole(second, 0)), (1, Readiness::Ready));
    let label = label(1);
    let slots = label.layout.data_slots(label.drives[0].capacity_bytes);
    assert_eq!(state.free_slots()[0], slots - 2);
}

#[test]
fn a_poisoned_state_plans_and_begins_nothing() {
    let mut state = state(1);
    save(&mut state, 1, CHUNK);
    state.poison("flush", "the first".into());
    state.poison("root write", "the second".into());
    let refused = |error: Error| matches!(error, Error::Poisoned { what: "flush", .. });
    assert!(refused(Plan::empty(&state, None, 0).err().unwrap()));
    assert!(refused(Plan::of_removal(&state, &spec(1, 1, 0, 0).name, 0).err().unwrap()));
    assert!(refused(Plan::of_checkpoints(&state, &[], &no_sums, 0).err().unwrap()));
    let Err(BeginError::Failed(error)) = state.begin(&spec(2, 1, 0, 0), Uuid::nil()) else {
        panic!("begun")
    };
    assert!(refused(error));
}

#[test]
fn catalogues_of_the_two_newest_generations_are_never_written() {
    let label = label(1);
    let slot = |generation: Generation| generation.0 % CATALOGUE_SLOTS;
    // Any distance that giving up generations can leave between the two newest and the last trace.
    for (before, root_generation, newest_seen) in
        [(9, 10, 10), (9, 10, 11), (9, 10, 12), (9, 10, 13), (7, 10, 10), (7, 10, 12), (6, 9, 9)]
    {
        let mut state = State::new(
            label.clone(),
            root(&label, root_generation),
            Some(Generation(before)),
            Generation(newest_seen),
            Vec::new(),
        );
        let mut kept = [Generation(before), Generation(root_generation)];
        for _ in 0..6 {
            let planned = Plan::empty(&state, None, 0).unwrap();
            let next = planned.generation();
            assert!(next > kept[1] && next.0 > newest_seen);
            assert!(kept.iter().all(|kept| slot(*kept) != slot(next)), "{kept:?} {next}");
            state.adopt(planned.change);
            kept = [kept[1], next];
        }
    }
}

#[test]
fn where_no_root_can_be_written_the_catalogues_of_the_two_newest_generations_stay() {
    let label = label(1);
    let slot = |generation: Generation| generation.0 % CATALOGUE_SLOTS;
    let kept = [Generation(9), Generation(10)];
    let root = root(&label, kept[1].0);
    let mut state = State::new(label, root, Some(kept[0]), kept[1], Vec::new());
    state.skip_root_slots((0..ROOT_SLOTS).collect());
    for _ in 0..6 {
        let next = state.next_generation();
        assert!(kept.iter().all(|kept| slot(*kept) != slot(next)), "{next}");
        state.skip_generation();
    }
}

/// Refused before any space is reserved, and by the bytes, not by the number of shards.
#[test]
fn a_list_of_too_many_bytes_is_refused_at_begin() {
    let mut state = state(2);
    let (free, free_meta) = (state.free_slots(), state.free_meta_units());
    let name = |number: u64| format!("{number:0>1000}");
    let shard = |number| Shard {
        name: name(number),
        offset_bytes: number,
        len_bytes: 1,
        ..Shard::default()
    };
    let count = MAX_SHARD_LIST_BYTES / 1000;
    let shards = (0..count).map(shard).collect();
    let refused =
        state.begin(&CheckpointSpec { shards, ..spec(1, 1, 0, CHUNK) }, Uuid::from_u128(1));
    let Err(BeginError::Failed(Error::Usage(why))) = refused else { panic!("{refused:?}") };
    assert!(why.contains("run@1") && why.contains(&format!("{count} shards")), "{why}");
    assert!(why.contains("merge small shards"), "{why}");
    assert_eq!((state.free_slots(), state.free_meta_units()), (free, free_meta));
    // Nothing of it is left: the same name begins with fewer.
    begin(&mut state, &spec(1, 1, 0, CHUNK));
}
