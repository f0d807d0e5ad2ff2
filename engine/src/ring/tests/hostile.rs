// SPDX-License-Identifier: Apache-2.0
//! A malicious peer, through a second mapping of the same memory: indices that jump, entries that
//! change while they are read, another process that overwrites memory and dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::concurrent::spawn_child;
use super::{completion, request, sizes};
use crate::ring::layout::Mapping;
use crate::ring::*;

/// The same memory, mapped once more: what a hostile client can reach.
fn second_mapping(engine: &Engine) -> Mapping {
    Mapping::attach(engine.memfd().try_clone_to_owned().unwrap()).unwrap()
}

#[test]
fn a_jumped_submit_tail_poisons_for_good() {
    for jump in [5, 1 << 31, u32::MAX] {
        let mut engine = Engine::create(sizes(4, 8)).unwrap();
        let hostile = second_mapping(&engine);
        hostile.control().submit_tail.0.store(jump, Ordering::Release);
        assert!(engine.has_work());
        let poisoned = engine.take().unwrap_err();
        assert_eq!((poisoned.index, poisoned.found), ("submit tail", jump));
        hostile.control().submit_tail.0.store(1, Ordering::Release);
        assert_eq!(engine.take().unwrap_err(), poisoned);
        assert!(!engine.has_work());
        let state = hostile.control().state.0.load(Ordering::Acquire);
        assert_eq!(RingState::from_word(state), RingState::Poisoned);
    }
}

#[test]
fn a_jumped_complete_head_poisons_and_what_is_in_flight_still_completes() {
    for jump in [2, 1 << 31, u32::MAX] {
        let (mut client, mut engine) = pair(sizes(2, 2)).unwrap();
        let hostile = second_mapping(&engine);
        assert_eq!(client.submit(&[request(0), request(1)]).accepted, 2);
        let first = engine.take().unwrap().unwrap();
        let second = engine.take().unwrap().unwrap();
        engine.complete(completion(first.user_data));
        let _ = engine.publish();
        // One was published: a head of 1 is possible, one of 2 is not.
        hostile.control().complete_head.0.store(jump, Ordering::Release);
        hostile.control().submit_tail.0.store(3, Ordering::Release);
        assert_eq!(engine.take().unwrap_err().index, "complete head");
        engine.complete(completion(second.user_data));
        let _ = engine.publish();
        assert!(client.prepare_wait());
        assert_eq!(client.state(), RingState::Poisoned);
    }
}

#[test]
fn a_client_that_reads_no_completions_stalls_only_itself() {
    let mut engine = Engine::create(sizes(2, 2)).unwrap();
    let hostile = second_mapping(&engine);
    hostile.control().submit_tail.0.store(2, Ordering::Release);
    for _ in 0..2 {
        let entry = engine.take().unwrap().unwrap();
        engine.complete(completion(entry.user_data));
    }
    let _ = engine.publish();
    hostile.control().submit_tail.0.store(4, Ordering::Release);
    assert_eq!(engine.take(), Ok(None));
    assert!(!engine.has_work(), "the reactor must not spin for it");
    assert!(!engine.prepare_sleep());
    hostile.control().complete_head.0.store(1, Ordering::Release);
    assert!(engine.has_work());
    assert!(engine.take().unwrap().is_some());
    assert_eq!(engine.take(), Ok(None));
}

#[test]
fn a_client_survives_indices_of_a_broken_engine() {
    for (submit_head, complete_tail) in [(3, 0), (u32::MAX, 0), (0, 3), (0, u32::MAX)] {
        let (mut client, engine) = pair(sizes(4, 4)).unwrap();
        let broken = second_mapping(&engine);
        assert_eq!(client.submit(&[request(0), request(1)]).accepted, 2);
        broken.control().submit_head.0.store(submit_head, Ordering::Release);
        broken.control().complete_tail.0.store(complete_tail, Ordering::Release);
        let mut out = [CompleteEntry::default(); 8];
        assert_eq!(client.peek(&mut out), 0);
        let _ = client.free_slots();
        assert_eq!(client.state(), RingState::Poisoned, "{submit_head} {complete_tail}");
        assert_eq!(client.submit(&[request(2)]).accepted, 0);
        assert!(client.prepare_wait());
    }
}

proptest! {
    /// Whatever a client does to its indices: no panic, never more in flight than there are slots,
    /// and once poisoned always poisoned.
    #[test]
    fn index_storms_are_survived(
        storm in prop::collection::vec((0..4u8, prop_oneof![0..12u32, any::<u32>()]), 0..200),
    ) {
        let mut engine = Engine::create(sizes(4, 8)).unwrap();
        let hostile = second_mapping(&engine);
        let mut poisoned = false;
        for (what, value) in storm {
            match what {
                0 => hostile.control().submit_tail.0.store(value, Ordering::Relaxed),
                1 => hostile.control().complete_head.0.store(value, Ordering::Relaxed),
                2 => if engine.in_flight() > 0 { engine.complete(completion(0)) },
                _ => drop(engine.publish()),
            }
            let taken = engine.take();
            prop_assert!(!poisoned || taken.is_err());
            poisoned = taken.is_err();
            prop_assert!(engine.in_flight() <= 8);
        }
    }
}

/// A client whose memory changes while the engine reads it gets answers to the values read.
#[test]
fn entries_that_change_under_the_engine() {
    let mut engine = Engine::create(sizes(4, 4)).unwrap();
    let hostile = second_mapping(&engine);
    let stop = Arc::new(AtomicBool::new(false));
    let scribbler = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                hostile.store_submit(number as u32, request(number));
                hostile.store_submit(number as u32, SubmitEntry { opcode: 99, ..request(!number) });
                let head = hostile.control().submit_head.0.load(Ordering::Acquire);
                hostile.control().submit_tail.0.store(head.wrapping_add(4), Ordering::Release);
                let tail = hostile.control().complete_tail.0.load(Ordering::Acquire);
                hostile.control().complete_head.0.store(tail, Ordering::Release);
            }
        }
    });
    let (mut accepted, mut rejected) = (0u64, 0u64);
    let deadline = Instant::now() + Duration::from_secs(10);
    while (accepted < 1000 || rejected < 1000) && Instant::now() < deadline {
        // The writer's head and tail are correct, if racing: the values read may be one step old.
        if let Ok(Some(entry)) = engine.take() {
            match entry.decode() {
                Ok(Request::Write(transfer)) => {
                    assert!(transfer.len_bytes > 0);
                    accepted += 1;
                    engine.complete(completion(entry.user_data));
                }
                Ok(_) => engine.complete(completion(entry.user_data)),
                Err(code) => {
                    rejected += 1;
                    engine.complete(CompleteEntry::failure(entry.user_data, code.code(), 0));
                }
            }
            let _ = engine.publish();
        }
    }
    stop.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
    assert!(accepted > 0 && rejected > 0, "{accepted} accepted, {rejected} rejected");
}

#[test]
fn another_process_that_overwrites_memory_and_dies() {
    let mut engine = Engine::create(sizes(16, 32)).unwrap();
    let mut child = spawn_child(&engine, "scribble");
    assert!(!child.wait().unwrap().success());
    assert_eq!(engine.take().unwrap_err().found, 0xdead_beef);
}
