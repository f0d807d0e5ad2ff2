// SPDX-License-Identifier: Apache-2.0
//! A small part of what `scripts/crash-test` checks.

use super::*;

/// The places in [`SHAPES`] of pools of one and two drives, and of a mirror of two.
const FEW: [usize; 3] = [0, 1, 4];

/// Runs items of a round over all pools.
fn run(items: &[usize], worlds: &[World], threads: usize) -> (u64, u64, u64) {
    let stories = &Story::all();
    let lab = Lab::default();
    let bases: Vec<Base> = SHAPES.iter().map(|shape| Base::new(&lab, *shape).unwrap()).collect();
    let tally = Tally::default();
    let options = CrashOptions { images: 1, seed: 3, threads, only: None };
    let (bases, tally) = (&bases, &tally);
    let run = Run { options, round: 0, bases, worlds, stories, tally };
    let report = run.group(items).unwrap_or_else(|violation| panic!("{}", violation.what));
    (report.images, tally.distinct(), report.sequences)
}

/// All sequences of up to two acts on few drives.
fn few_worlds() -> Vec<World> {
    let few = |world: &World| FEW.contains(&world.shape) && world.acts.len() <= 2;
    small_worlds().into_iter().filter(few).collect()
}

#[test]
fn crashes_of_a_few_worlds() {
    let worlds = few_worlds();
    let all: Vec<usize> = (0..worlds.len()).collect();
    let (images, distinct, sequences) = run(&all, &worlds, 2);
    assert!(distinct > 1_000 && images >= distinct, "{images} images, {distinct} distinct");
    assert_eq!(sequences, 3 * (6 + 36 + 6));
}

#[test]
fn faults_on_one_drive_are_reported() {
    let worlds = few_worlds();
    let first = worlds.len() + LONG_RUNS;
    run(&[first, first + 1, first + 2, first + 3], &worlds, 2);
}

#[test]
fn every_command_of_a_save_and_an_opening_fails_once() {
    let worlds = few_worlds();
    let first = worlds.len() + LONG_RUNS + FAULTY_RUNS;
    // Over one drive: a save of two participants, and an opening.
    run(&[first + 2, first + 5], &worlds, 2);
}

/// The first item of those with late writes.
fn first_late(worlds: &[World]) -> usize {
    worlds.len() + LONG_RUNS + FAULTY_RUNS + SWEEPS
}

#[test]
fn late_writes_of_a_killed_owner_land_at_every_place_of_a_successors_life() {
    let worlds = few_worlds();
    let acts = late::KILLED_IN.len();
    // A save over one drive, and an opening of a mirror; `scripts/crash-test` does all.
    let items = [0, 4 * acts + acts - 1].map(|number| first_late(&worlds) + number);
    let (landings, ..) = run(&items, &worlds, 2);
    println!("{landings} landings");
    assert!(landings > 100, "{landings}");
}

#[test]
fn late_writes_land_one_by_one() {
    let worlds = few_worlds();
    let first = first_late(&worlds) + LATE_SWEEPS;
    let (landings, ..) = run(&(first..first + 12).collect::<Vec<_>>(), &worlds, 2);
    println!("{landings} landings");
    assert!(landings > 1, "{landings}");
}

/// Some stories of each kind; `scripts/crash-test` plays all.
#[test]
fn stories_of_few_drives() {
    let worlds = few_worlds();
    let first = worlds.len() + OTHERS;
    let is_chosen = |story: &Story| match *story {
        Story::Format { shape, .. } => shape == 0,
        Story::Replace { shape, gone, .. } => shape == 4 && gone == 0,
        Story::NotNamed { lost, .. } => lost == 2,
        Story::Repair { shape, .. } => shape == 0 || shape == 4,
        Story::Race { shape, .. } => shape == 1,
    };
    let items = (first..).zip(Story::all()).filter(|(_, story)| is_chosen(story));
    let (images, distinct, stories) =
        run(&items.map(|(item, _)| item).collect::<Vec<_>>(), &worlds, 2);
    println!("{images} images, {distinct} distinct, {stories} stories");
    assert!(distinct > 400, "{images} images, {distinct} distinct");
    assert_eq!(stories, 3 + 2 + 2 + 8 + 10);
}

#[test]
fn one_seed_gives_one_run() {
    let worlds = few_worlds();
    assert_eq!(run(&[7, 50, 83], &worlds, 1), run(&[83, 7, 50], &worlds, 2));
}
