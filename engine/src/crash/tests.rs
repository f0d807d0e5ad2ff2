//! A little of what `scripts/crash-test` looks at more of. Without optimization an image takes some
//! thirty times as long, so there is a choice of worlds for that.

use super::*;

/// Runs items of a round over pools of one and two drives.
fn run(items: &[usize], worlds: &[World], threads: usize) -> (u64, u64, u64) {
    let lab = Lab::default();
    let bases: Vec<Base> = (1..=2).map(|drives| Base::new(&lab, drives).unwrap()).collect();
    let tally = Tally::default();
    let options = CrashOptions { images: 1, seed: 3, threads, only: None };
    let run = Run { options, round: 0, bases: &bases, worlds, tally: &tally };
    let report = run.group(items).unwrap_or_else(|violation| panic!("{}", violation.what));
    (report.images, tally.distinct(), report.sequences)
}

/// One of each kind of ending, on one drive or two.
fn few_worlds() -> Vec<World> {
    let world = |drives, operations: &[Operation]| World { drives, operations: operations.into() };
    vec![
        world(1, &[Operation::SaveSmall]),
        world(2, &[Operation::SaveSmall, Operation::SaveSpanning]),
        world(2, &[Operation::SaveSmall, Operation::Remove]),
        world(1, &[Operation::SavePair, Operation::Reopen]),
    ]
}

#[test]
fn crashes_of_a_few_worlds() {
    let worlds = few_worlds();
    let (images, distinct, sequences) = run(&[0, 1, 2, 3], &worlds, 2);
    assert!(distinct > 100 && images >= distinct, "{images} images, {distinct} distinct");
    assert_eq!(sequences, 4);
}

#[test]
fn faults_on_one_drive_are_told() {
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

#[test]
fn one_seed_gives_one_run() {
    let worlds = few_worlds();
    assert_eq!(run(&[0, 3], &worlds, 1), run(&[3, 0], &worlds, 2));
}

#[test]
#[cfg_attr(debug_assertions, ignore = "for builds with optimization")]
fn thousands_of_crashes() {
    let options = CrashOptions { images: 5_000, seed: 1, threads: 2, only: None };
    let report = explore(options).unwrap_or_else(|violation| panic!("{}", violation.what));
    assert!(report.distinct >= 5_000 && report.images >= report.distinct);
}
