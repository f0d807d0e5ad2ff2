//! Both ends together: against a model, under threads and processes, and with a client that lies.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::layout::Mapping;
use super::*;

fn sizes(submit: u32, complete: u32) -> RingSizes {
    RingSizes::with_complete(submit, complete).unwrap()
}

/// A request whose every word follows from its number, so that a torn one is seen.
fn request(number: u64) -> SubmitEntry {
    let transfer = Transfer {
        checkpoint: number.wrapping_mul(3),
        buffer: number as u32,
        buffer_offset_bytes: number ^ 0x55,
        len_bytes: number % 4096 + 1,
        segment_offset_bytes: number.rotate_left(7) >> 16,
    };
    SubmitEntry::write(transfer, number)
}

fn completion(number: u64) -> CompleteEntry {
    CompleteEntry {
        user_data: number,
        result: number as i64,
        flags: 0,
        detail: !number as u32,
        aux: number.wrapping_mul(5),
    }
}

/// Completes all that can be taken; how many, and whether to signal.
fn serve(engine: &mut Engine) -> (u64, bool) {
    let mut done = 0;
    while let Some(entry) = engine.take().unwrap() {
        assert_eq!(entry, request(entry.user_data));
        engine.complete(completion(entry.user_data));
        done += 1;
    }
    (done, engine.publish())
}

#[test]
fn only_powers_of_two_in_bounds() {
    for bad in [0, 3, 8192, u32::MAX] {
        assert!(RingSizes::new(bad).is_err(), "{bad}");
    }
    for (submit, complete) in [(4, 2), (4, 6), (4, 0), (1, MAX_COMPLETE_ENTRIES * 2)] {
        assert!(RingSizes::with_complete(submit, complete).is_err(), "{submit} {complete}");
    }
    assert_eq!(RingSizes::new(MAX_SUBMIT_ENTRIES).unwrap(), sizes(4096, 8192));
    let (mut client, _engine) = pair(RingSizes::new(MAX_SUBMIT_ENTRIES).unwrap()).unwrap();
    assert_eq!(client.free_slots(), MAX_SUBMIT_ENTRIES);
}

#[test]
fn full_is_a_value_and_outstanding_is_bounded() {
    let (mut client, mut engine) = pair(sizes(2, 4)).unwrap();
    let all: Vec<_> = (0..6).map(request).collect();
    assert_eq!(client.submit(&all).accepted, 2);
    assert_eq!(client.submit(&all[2..]).accepted, 0);
    assert_eq!(serve(&mut engine), (2, false));
    assert_eq!(client.submit(&all[2..]).accepted, 2);
    assert_eq!(serve(&mut engine), (2, false));
    // The submit ring is empty, but four completions are unread.
    assert_eq!(client.free_slots(), 0);
    assert_eq!(client.submit(&all[4..]).accepted, 0);
    let mut out = [CompleteEntry::default(); 3];
    assert_eq!(client.peek(&mut out), 3);
    assert_eq!(out, [0, 1, 2].map(completion));
    assert_eq!(client.submit(&all[4..]).accepted, 2);
    assert_eq!((client.outstanding(), engine.in_flight()), (3, 0));
    assert!(engine.has_work());
}

#[test]
fn completions_are_seen_only_when_published() {
    let (mut client, mut engine) = pair(sizes(4, 4)).unwrap();
    assert_eq!(client.submit(&[request(0), request(1)]).accepted, 2);
    let (first, second) = (engine.take().unwrap().unwrap(), engine.take().unwrap().unwrap());
    engine.complete(completion(second.user_data));
    engine.complete(completion(first.user_data));
    let mut out = [CompleteEntry::default(); 4];
    assert_eq!(client.peek(&mut out), 0);
    assert!(!engine.publish());
    assert_eq!(client.peek(&mut out), 2);
    assert_eq!(out[..2], [1, 0].map(completion));
}

#[test]
fn each_sleeper_is_reported_once() {
    let (mut client, mut engine) = pair(sizes(4, 8)).unwrap();
    assert!(!engine.prepare_sleep());
    assert!(client.submit(&[request(0)]).wake_engine);
    assert!(!client.submit(&[request(1)]).wake_engine);
    engine.finish_sleep();
    assert!(engine.prepare_sleep(), "there is work");
    assert!(!client.submit(&[request(2)]).wake_engine);

    assert!(!client.prepare_wait());
    assert_eq!(serve(&mut engine), (3, true));
    client.finish_wait();
    assert!(client.prepare_wait(), "there are completions");
    assert!(!engine.publish());
    drop(engine);
    assert_eq!(client.peek(&mut [CompleteEntry::default(); 8]), 3);
    assert!(client.prepare_wait(), "nobody would ever signal");
    assert_eq!(client.state(), RingState::Closed);
}

#[test]
#[should_panic(expected = "a completion without a request")]
fn a_completion_too_many_is_a_bug_of_the_reactor() {
    let (_client, mut engine) = pair(sizes(1, 1)).unwrap();
    engine.complete(completion(0));
}

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
    assert!(!engine.has_work(), "or the reactor would spin for it");
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

#[test]
fn only_an_unused_ring_of_this_version_is_attached() {
    let engine = Engine::create(sizes(4, 8)).unwrap();
    let fd = || engine.memfd().try_clone_to_owned().unwrap();
    let mut client = Client::attach(fd()).unwrap();
    assert_eq!(client.sizes(), sizes(4, 8));
    assert_eq!(client.submit(&[request(0)]).accepted, 1);
    assert!(matches!(Client::attach(fd()), Err(Error::Usage(_))));

    let short = crate::memory::Region::ordinary(4096).unwrap();
    assert!(Client::attach(short.memfd().try_clone_to_owned().unwrap()).is_err());
    // Each word of the identity, changed, is an error and not a wild mapping.
    for (offset, value) in [(0, 0), (8, 2), (12, 32), (16, 64), (20, 3), (20, 4096), (24, 65_536)] {
        let engine = Engine::create(sizes(4, 8)).unwrap();
        let mut file = std::fs::File::from(engine.memfd().try_clone_to_owned().unwrap());
        std::os::unix::fs::FileExt::write_all_at(&file, &u32::to_le_bytes(value), offset).unwrap();
        file.flush().unwrap();
        assert!(Client::attach(file.into()).is_err(), "{offset} {value}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Submit(usize),
    Peek(usize),
    Take,
    Complete(usize),
    Publish,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..10usize).prop_map(Step::Submit),
        3 => (0..10usize).prop_map(Step::Peek),
        8 => Just(Step::Take),
        8 => any::<usize>().prop_map(Step::Complete),
        3 => Just(Step::Publish),
    ];
    prop::collection::vec(step, 0..300)
}

proptest! {
    /// Any order of calls does what plain queues would do, also where the indices wrap.
    #[test]
    fn the_ring_is_two_queues(
        steps in steps(), submit in 0..4u32, more in 0..3u32, before_wrap in 0..40u32,
    ) {
        let sizes = sizes(1 << submit, 1 << (submit + more));
        let (mut client, mut engine) = pair_from(sizes, 0u32.wrapping_sub(before_wrap)).unwrap();
        let (submit, complete) = (sizes.submit_entries() as usize, sizes.complete_entries() as usize);
        let mut next = 0;
        let mut submitted = VecDeque::new();
        let mut in_flight = Vec::new();
        let mut written = VecDeque::new();
        let mut published = VecDeque::new();
        for step in steps {
            let outstanding =
                submitted.len() + in_flight.len() + written.len() + published.len();
            prop_assert_eq!(client.outstanding() as usize, outstanding);
            match step {
                Step::Submit(count) => {
                    let entries: Vec<_> = (next..next + count as u64).map(request).collect();
                    let room = (submit - submitted.len()).min(complete - outstanding);
                    let outcome = client.submit(&entries);
                    prop_assert_eq!(outcome.accepted, count.min(room));
                    prop_assert!(!outcome.wake_engine);
                    for _ in 0..outcome.accepted {
                        submitted.push_back(next);
                        next += 1;
                    }
                }
                Step::Peek(count) => {
                    let mut out = vec![CompleteEntry::default(); count];
                    let got = client.peek(&mut out);
                    prop_assert_eq!(got, count.min(published.len()));
                    for entry in &out[..got] {
                        prop_assert_eq!(Some(*entry), published.pop_front().map(completion));
                    }
                }
                Step::Take => {
                    prop_assert_eq!(engine.has_work(), !submitted.is_empty());
                    let taken = submitted.pop_front();
                    prop_assert_eq!(engine.take().unwrap(), taken.map(request));
                    in_flight.extend(taken);
                }
                Step::Complete(which) => if !in_flight.is_empty() {
                    let number = in_flight.swap_remove(which % in_flight.len());
                    engine.complete(completion(number));
                    written.push_back(number);
                },
                Step::Publish => {
                    prop_assert!(!engine.publish());
                    published.append(&mut written);
                }
            }
        }
    }

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

/// A million entries through two threads that never sleep: order and content.
#[test]
fn two_threads_a_million_entries() {
    const COUNT: u64 = 1_000_000;
    let (mut client, mut engine) = pair_from(sizes(64, 128), u32::MAX - 1000).unwrap();
    let reactor = thread::spawn(move || {
        let mut done = 0;
        while done < COUNT {
            let (served, _) = serve(&mut engine);
            done += served;
            if served == 0 {
                thread::yield_now();
            }
        }
    });
    let mut batch = Vec::with_capacity(17);
    let mut out = [CompleteEntry::default(); 32];
    let (mut submitted, mut received) = (0, 0);
    while received < COUNT {
        batch.clear();
        batch.extend((submitted..COUNT.min(submitted + 1 + submitted % 17)).map(request));
        let accepted = client.submit(&batch).accepted;
        submitted += accepted as u64;
        let got = client.peek(&mut out);
        for entry in &out[..got] {
            assert_eq!(*entry, completion(received));
            received += 1;
        }
        if accepted + got == 0 {
            thread::yield_now();
        }
    }
    reactor.join().unwrap();
    assert_eq!(client.outstanding(), 0);
}

/// Parks until unparked. A wake-up that takes this long was lost.
fn park(who: &str) {
    const LOST_AFTER: Duration = Duration::from_secs(20);
    let start = Instant::now();
    thread::park_timeout(LOST_AFTER);
    assert!(start.elapsed() < LOST_AFTER, "the wake-up of the {who} was lost");
}

/// A few hundred nanoseconds at most, different every time.
fn jitter(state: &mut u64) {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    for _ in 0..(*state >> 56) {
        std::hint::spin_loop();
    }
}

/// Both ends sleep whenever they may, with real parking, at every distance between the two.
#[test]
fn no_wake_up_is_lost() {
    const COUNT: u64 = 200_000;
    let (mut client, mut engine) = pair(sizes(2, 2)).unwrap();
    let trainer = thread::current();
    let reactor = thread::spawn(move || {
        let (mut done, mut sleeps, mut random) = (0, 0u64, 1);
        while done < COUNT {
            let (served, signal) = serve(&mut engine);
            done += served;
            if signal {
                trainer.unpark();
            }
            jitter(&mut random);
            if done < COUNT && !engine.prepare_sleep() {
                sleeps += 1;
                park("engine");
                engine.finish_sleep();
            }
        }
        sleeps
    });
    let (mut submitted, mut received, mut waits, mut random) = (0, 0, 0u64, 2);
    let mut out = [CompleteEntry::default(); 2];
    while received < COUNT {
        let end = COUNT.min(submitted + 1 + submitted % 2);
        let batch: Vec<_> = (submitted..end).map(request).collect();
        let outcome = client.submit(&batch);
        submitted += outcome.accepted as u64;
        if outcome.wake_engine {
            reactor.thread().unpark();
        }
        jitter(&mut random);
        let got = client.peek(&mut out);
        for entry in &out[..got] {
            assert_eq!(*entry, completion(received));
            received += 1;
        }
        if got == 0 && !client.prepare_wait() {
            waits += 1;
            park("client");
            client.finish_wait();
        }
    }
    let sleeps = reactor.join().unwrap();
    assert!(sleeps > 0 && waits > 0, "nobody ever slept: nothing was tested");
}

/// A client whose memory changes while the engine reads it gets answers to whatever was read.
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
        // The scribbler's head and tail are honest, if racing: what it read may be one step old.
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

const CHILD_ROLE: &str = "STANCHION_RING_TEST_CHILD";
const CHILD_ENTRIES: u64 = 50_000;

/// Runs [`child_process`] of this test program with the ring as its standard input.
fn spawn_child(engine: &Engine, role: &str) -> std::process::Child {
    let memfd = engine.memfd().try_clone_to_owned().unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ring::tests::child_process", "--nocapture"])
        .env(CHILD_ROLE, role)
        .stdin(Stdio::from(memfd))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test of its own: the other process of the tests below.
#[test]
fn child_process() {
    let Ok(role) = std::env::var(CHILD_ROLE) else { return };
    let memfd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    if role == "scribble" {
        let mapping = Mapping::attach(memfd).unwrap();
        mapping.control().submit_tail.0.store(0xdead_beef, Ordering::Release);
        std::process::abort();
    }
    let mut client = Client::attach(memfd).unwrap();
    let mut out = [CompleteEntry::default(); 8];
    let (mut submitted, mut received) = (0, 0);
    while received < CHILD_ENTRIES {
        let batch: Vec<_> = (submitted..CHILD_ENTRIES.min(submitted + 5)).map(request).collect();
        let accepted = client.submit(&batch).accepted;
        submitted += accepted as u64;
        let got = client.peek(&mut out);
        for entry in &out[..got] {
            assert_eq!(*entry, completion(received));
            received += 1;
        }
        if accepted + got == 0 {
            thread::yield_now();
        }
    }
}

#[test]
fn two_processes() {
    let mut engine = Engine::create(sizes(16, 32)).unwrap();
    let mut child = spawn_child(&engine, "client");
    let mut done = 0;
    while done < CHILD_ENTRIES {
        let (served, _) = serve(&mut engine);
        done += served;
        if served == 0 {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the child ended early: {status}");
            }
            thread::yield_now();
        }
    }
    assert!(child.wait().unwrap().success());
}

#[test]
fn another_process_that_scribbles_and_dies() {
    let mut engine = Engine::create(sizes(16, 32)).unwrap();
    let mut child = spawn_child(&engine, "scribble");
    assert!(!child.wait().unwrap().success());
    assert_eq!(engine.take().unwrap_err().found, 0xdead_beef);
}
