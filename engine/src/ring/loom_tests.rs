// SPDX-License-Identifier: Apache-2.0
//! Every interleaving and every allowed memory order of the two ends, on rings small enough to
//! wrap within a test. Takes minutes at most, with `LOOM_MAX_PREEMPTIONS=3` a second. Run:
//! `RUSTFLAGS="--cfg loom" cargo test -p stanchion-engine --release --lib ring::loom`

use ::loom::thread;

use super::{Client, CompleteEntry, Engine, RingSizes, RingState, SubmitEntry, pair_from};

/// Indices wrap in the middle of each test.
const START: u32 = u32::MAX;

fn small() -> (Client, Engine) {
    pair_from(RingSizes::with_complete(1, 1).unwrap(), START).unwrap()
}

fn request(number: u64) -> SubmitEntry {
    SubmitEntry { checkpoint: !number, ..SubmitEntry::commit(0, number) }
}

fn serve(engine: &mut Engine) -> (u64, bool) {
    let mut done = 0;
    while let Some(entry) = engine.take().unwrap() {
        assert_eq!(entry, request(entry.user_data), "a torn or stale request");
        engine.complete(CompleteEntry::success(entry.user_data, entry.user_data, entry.checkpoint));
        done += 1;
    }
    (done, engine.publish())
}

/// Entries are seen whole, in order and once. The second request goes into the first one's slot
/// while the first may be in flight: only the submit head says that the slot is free.
#[test]
fn entries_are_whole_and_in_order() {
    ::loom::model(|| {
        const COUNT: u64 = 2;
        let sizes = RingSizes::with_complete(1, 2).unwrap();
        let (mut client, mut engine) = pair_from(sizes, START).unwrap();
        let reactor = thread::spawn(move || {
            let mut done = 0;
            while done < COUNT {
                let (served, signal) = serve(&mut engine);
                assert!(!signal, "no end sleeps here");
                done += served;
                thread::yield_now();
            }
            engine
        });
        let mut submitted = 0;
        let mut received = 0;
        while received < COUNT {
            if submitted < COUNT {
                let outcome = client.submit(&[request(submitted)]);
                assert!(!outcome.wake_engine, "no end sleeps here");
                submitted += outcome.accepted as u64;
            }
            let mut out = [CompleteEntry::default()];
            if client.peek(&mut out) == 1 {
                assert_eq!(out[0], CompleteEntry::success(received, received, !received));
                received += 1;
            }
            thread::yield_now();
        }
        assert_eq!(client.outstanding(), 0);
        let engine = reactor.join().unwrap();
        assert_eq!(client.state(), RingState::Open);
        drop(engine);
        assert_eq!(client.state(), RingState::Closed);
    });
}

/// Two requests in one batch are seen together or not at all.
#[test]
fn a_batch_is_seen_whole() {
    ::loom::model(|| {
        let sizes = RingSizes::with_complete(2, 2).unwrap();
        let (mut client, mut engine) = pair_from(sizes, START).unwrap();
        let reactor = thread::spawn(move || {
            let first = engine.take().unwrap();
            if let Some(first) = first {
                assert_eq!(first, request(0));
                assert_eq!(engine.take().unwrap(), Some(request(1)));
            }
        });
        assert_eq!(client.submit(&[request(0), request(1), request(2)]).accepted, 2);
        reactor.join().unwrap();
    });
}

/// The engine sleeps with no timeout: loom reports a deadlock if a wake-up is ever lost.
#[test]
fn the_engine_is_woken() {
    ::loom::model(|| {
        const COUNT: u64 = 2;
        let (mut client, mut engine) = small();
        let reactor = thread::spawn(move || {
            let mut done = 0;
            while done < COUNT {
                done += serve(&mut engine).0;
                if done < COUNT && !engine.prepare_sleep() {
                    thread::park();
                    engine.finish_sleep();
                }
            }
        });
        let mut submitted = 0;
        while submitted < COUNT {
            let outcome = client.submit(&[request(submitted)]);
            submitted += outcome.accepted as u64;
            if outcome.wake_engine {
                reactor.thread().unpark();
            }
            let mut out = [CompleteEntry::default()];
            if client.peek(&mut out) == 0 {
                thread::yield_now();
            }
        }
        reactor.join().unwrap();
    });
}

/// Both ends sleep with no timeout.
#[test]
fn both_ends_are_woken() {
    ::loom::model(|| {
        let (mut client, mut engine) = small();
        let trainer = thread::current();
        let reactor = thread::spawn(move || {
            loop {
                let (done, signal) = serve(&mut engine);
                if signal {
                    trainer.unpark();
                }
                if done != 0 {
                    return engine;
                }
                if !engine.prepare_sleep() {
                    thread::park();
                    engine.finish_sleep();
                }
            }
        });
        let outcome = client.submit(&[request(0)]);
        assert_eq!(outcome.accepted, 1);
        if outcome.wake_engine {
            reactor.thread().unpark();
        }
        let mut out = [CompleteEntry::default()];
        while client.peek(&mut out) == 0 {
            if !client.prepare_wait() {
                thread::park();
                client.finish_wait();
            }
        }
        assert_eq!(out[0], CompleteEntry::success(0, 0, !0));
        drop(reactor.join().unwrap());
    });
}
