// SPDX-License-Identifier: Apache-2.0
//! Random commands against a model that knows only when each began and ended.

use proptest::prelude::*;

use super::*;
use crate::device::sim::content::SECTOR;

#[derive(Clone, Debug)]
enum Step {
    Submit(Operation, u64),
    Poll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let operation = prop_oneof![
        4 => Just(Operation::Write),
        1 => Just(Operation::WriteDurable),
        1 => Just(Operation::Flush),
        1 => Just(Operation::Read),
    ];
    let step = prop_oneof![
        3 => (operation, 0..6u64).prop_map(|(operation, block)| Step::Submit(operation, block)),
        2 => Just(Step::Poll),
    ];
    proptest::collection::vec(step, 1..60)
}

/// What is known of one write, recorded independently of the drive.
#[derive(Clone, Copy)]
struct Known {
    block: u64,
    byte: u8,
    durable: bool,
    submitted: usize,
    completed: Option<usize>,
}

/// Runs the steps; returns the drive as it then is, every write, and for every completed flush the
/// time at which it was submitted. Times are numbers of events.
fn play(config: SimConfig, steps: &[Step]) -> (Rig, Vec<Known>, Vec<usize>) {
    let mut rig = Rig::new(config);
    let mut writes: Vec<Known> = Vec::new();
    let mut flushes = Vec::new();
    let mut pending: Vec<(u64, Operation, usize, usize)> = Vec::new();
    let mut time = 0;
    for (tag, step) in (0..).zip(steps) {
        time += 1;
        match *step {
            Step::Submit(operation, block) => {
                let byte = tag as u8 + 1;
                rig.fill(tag, byte);
                if rig.submit(operation, block, tag).is_err() {
                    continue;
                }
                pending.push((tag, operation, writes.len(), time));
                if matches!(operation, Operation::Write | Operation::WriteDurable) {
                    let durable = operation == Operation::WriteDurable;
                    writes.push(Known { block, byte, durable, submitted: time, completed: None });
                }
            }
            Step::Poll => {
                for (tag, status) in rig.poll() {
                    time += 1;
                    assert_eq!(status, Ok(()));
                    let place = pending.iter().position(|p| p.0 == tag).expect("completed once");
                    let (_, operation, write, submitted) = pending.remove(place);
                    match operation {
                        Operation::Flush => flushes.push(submitted),
                        Operation::Read => {}
                        _ => writes[write].completed = Some(time),
                    }
                }
            }
        }
        assert_eq!(rig.device.in_flight() as usize, pending.len());
    }
    (rig, writes, flushes)
}

/// Whether a sector of a crash image may hold `byte`: the value of a write there that no later
/// durable write covers for certain, or zero if there is no durable write at all.
fn allowed(writes: &[Known], flushes: &[usize], has_cache: bool, block: u64, byte: u8) -> bool {
    let is_durable = |write: &Known| {
        write.completed.is_some_and(|completed| {
            write.durable || !has_cache || flushes.iter().any(|flush| completed < *flush)
        })
    };
    let here = || writes.iter().filter(|write| write.block == block);
    // A durable write hides everything that completed before it did.
    let newest_durable = here().filter(|w| is_durable(w)).filter_map(|w| w.completed).max();
    let newest_durable = newest_durable.unwrap_or(0);
    (byte == 0 && newest_durable == 0)
        || here().any(|w| w.byte == byte && w.completed.is_none_or(|done| done >= newest_durable))
}

fn config_of(seed: u64, shuffled: bool, volatile_cache: bool) -> SimConfig {
    let order = if shuffled { CompletionOrder::Shuffled } else { CompletionOrder::InOrder };
    SimConfig { seed, order, volatile_cache, queue_depth: 8, ..small() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn crash_images_hold_only_what_the_model_allows(
        steps in steps(), seed: u64, shuffled: bool, cache: bool,
    ) {
        let (rig, writes, flushes) = play(config_of(seed, shuffled, cache), &steps);
        for crash in 0..8 {
            let image = rig.drive.fork();
            image.crash(seed ^ crash);
            prop_assert_eq!(image.peek(0, 16 * B), image.peek_durable(0, 16 * B));
            for block in 0..16 {
                let bytes = image.peek(block * B, B).unwrap();
                for sector in bytes.chunks(SECTOR) {
                    prop_assert!(sector.iter().all(|byte| *byte == sector[0]));
                    prop_assert!(
                        allowed(&writes, &flushes, cache, block, sector[0]),
                        "block {} holds {}", block, sector[0],
                    );
                }
            }
        }
    }

    #[test]
    fn reads_see_the_newest_completed_write(steps in steps(), seed: u64, shuffled: bool) {
        let (rig, writes, _) = play(config_of(seed, shuffled, true), &steps);
        for block in 0..16 {
            let newest = writes.iter().filter(|write| write.block == block);
            let newest = newest.filter_map(|w| Some((w.completed?, w.byte))).max();
            let wanted = newest.map_or(0, |(_, byte)| byte);
            prop_assert_eq!(rig.drive.peek(block * B, B).unwrap(), vec![wanted; B as usize]);
        }
    }

    #[test]
    fn writes_at_risk_are_those_that_no_flush_covers(steps in steps(), seed: u64, shuffled: bool) {
        let (rig, writes, flushes) = play(config_of(seed, shuffled, true), &steps);
        let wanted = writes.iter().filter(|write| match write.completed {
            None => true,
            Some(done) => !write.durable && !flushes.iter().any(|flush| done < *flush),
        });
        let at_risk = rig.drive.volatile_writes();
        prop_assert_eq!(at_risk.len(), wanted.count());
        let in_flight = at_risk.iter().filter(|write| write.state == WriteState::InFlight);
        prop_assert_eq!(in_flight.count(), writes.iter().filter(|w| w.completed.is_none()).count());
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes(steps in steps(), seed: u64, crash: u64) {
        let digests = [0, 1].map(|_| {
            let (rig, writes, _) = play(config_of(seed, true, true), &steps);
            let order: Vec<_> = writes.iter().map(|w| (w.submitted, w.completed)).collect();
            rig.drive.crash(crash);
            (rig.drive.durable_digest(), order)
        });
        prop_assert_eq!(&digests[0], &digests[1]);
    }
}
