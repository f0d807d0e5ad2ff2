// SPDX-License-Identifier: Apache-2.0
//! Both ends together: by hand, and against a model.

mod concurrent;
mod hostile;

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;

fn sizes(submit: u32, complete: u32) -> RingSizes {
    RingSizes::with_complete(submit, complete).unwrap()
}

/// A request whose every word follows from its number, so that a torn one is detected.
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

/// Completes all that can be taken; returns how many, and whether to signal.
fn serve(engine: &mut Engine) -> (u64, bool) {
    let mut done = 0;
    while let Some(entry) = engine.take().unwrap() {
        assert_eq!(entry, request(entry.user_data));
        engine.complete(completion(entry.user_data));
        done += 1;
    }
    (done, engine.publish())
}

/// Each end may move to the thread that will own it.
const _: () = {
    const fn moves<T: Send>() {}
    moves::<Client>();
    moves::<Engine>();
};

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
    assert!(client.prepare_wait(), "no end would ever signal");
    assert_eq!(client.state(), RingState::Closed);
}

#[test]
#[should_panic(expected = "a completion without a request")]
fn a_completion_without_a_request_panics() {
    let (_client, mut engine) = pair(sizes(1, 1)).unwrap();
    engine.complete(completion(0));
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
    assert!(Client::attach(short.memfd().unwrap().try_clone_to_owned().unwrap()).is_err());
    // Each word of the identity, changed, is an error and not a wild mapping.
    for (offset, value) in [(0, 0), (8, 2), (12, 32), (16, 64), (20, 3), (20, 4096), (24, 65_536)] {
        let engine = Engine::create(sizes(4, 8)).unwrap();
        let file = std::fs::File::from(engine.memfd().try_clone_to_owned().unwrap());
        file.write_all_at(&u32::to_le_bytes(value), offset).unwrap();
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
}
