// SPDX-License-Identifier: Apache-2.0
//! What a session promises in addition to moving bytes: when its event is readable, how long a
//! buffer is in flight, which session's keys are valid, and that it keeps its pool open.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{self, BackEnd, Pattern, restore, save};
use stanchion_testing::internals::memory::{HugePages, Region};
use stanchion_testing::internals::ring::{CompleteEntry, SubmitEntry, codes};
use stanchion_testing::{CheckpointSpec, Error, Pool, Session, SessionOptions};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(10);

fn pool() -> (BackEnd, Pool) {
    let back_end = BackEnd::sim(2);
    back_end.format();
    let pool = back_end.open();
    (back_end, pool)
}

fn begin(session: &mut Session, name: &str, len_bytes: u64) -> u64 {
    let spec = CheckpointSpec {
        name: name.parse().unwrap(),
        participants: 1,
        participant: 0,
        len_bytes,
        shards: Vec::new(),
    };
    session.begin(&spec).unwrap()
}

fn is_readable(fd: BorrowedFd<'_>, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
}

#[test]
fn the_event_is_readable_while_there_are_completions() {
    let (_back_end, pool) = pool();
    let mut session = pool.session(&SessionOptions::default()).unwrap();
    let mut out = [CompleteEntry::default(); 8];
    // Some completions are there before the event is requested.
    assert_eq!(session.submit(&[SubmitEntry::nop(1), SubmitEntry::nop(2)]), 2);
    assert!(is_readable(session.event_fd().unwrap(), 10_000));
    assert_eq!(session.wait(&mut out, 2, LONG), 2);
    let started = Instant::now();
    let mut rounds = 0;
    while started.elapsed() < Duration::from_secs(2) || rounds < 300 {
        rounds += 1;
        let entries =
            [SubmitEntry::nop(rounds), SubmitEntry::nop(rounds), SubmitEntry::nop(rounds)];
        assert_eq!(session.submit(&entries), 3);
        let mut taken = 0;
        while taken < 3 {
            assert!(is_readable(session.event_fd().unwrap(), 10_000), "lost after {rounds}");
            // Waiting in between must not break it.
            if rounds % 5 == 4 {
                taken += session.wait(&mut out[..1], 1, LONG);
            }
            taken += session.peek(&mut out[..1]);
        }
        // A signal may still be in flight; the check itself must make it quiet.
        let quiet = (0..1000)
            .any(|_| session.peek(&mut out) == 0 && !is_readable(session.event_fd().unwrap(), 0));
        assert!(quiet, "readable forever after {rounds}");
        if rounds % 50 == 0 {
            // Let the reactor park.
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}

#[test]
fn a_buffer_is_in_flight_from_submit_to_peek() {
    let (_back_end, pool) = pool();
    let mut session = pool.session(&SessionOptions::default()).unwrap();
    let handle = begin(&mut session, "a@1", MIB);
    let mut buffer = session.alloc(MIB).unwrap();
    buffer.as_mut_slice().unwrap().fill(1);
    let entry = common::write(handle, buffer.key(), MIB, 0, 5);
    assert_eq!(session.submit(&[entry]), 1);
    assert!(buffer.as_mut_slice().is_err());
    std::thread::sleep(Duration::from_millis(200));
    assert!(buffer.as_slice().is_err(), "completed long ago, but not taken yet");
    let mut out = [CompleteEntry::default(); 1];
    assert_eq!(session.wait(&mut out, 1, LONG), 1);
    assert_eq!((out[0].user_data, out[0].result), (5, MIB as i64));
    buffer.as_mut_slice().unwrap().fill(2);
}

#[test]
fn keys_and_handles_of_another_session_name_nothing() {
    let (_back_end, pool) = pool();
    let mut sessions: Vec<_> =
        (0..20).map(|_| pool.session(&SessionOptions::default()).unwrap()).collect();
    let mut own = Vec::new();
    for (number, session) in sessions.iter_mut().enumerate() {
        let handle = begin(session, &format!("s@{number}"), MIB);
        own.push((handle, session.alloc(MIB).unwrap()));
    }
    let mut out = [CompleteEntry::default(); 1];
    for (number, session) in sessions.iter_mut().enumerate() {
        for (other, (handle, buffer)) in own.iter().enumerate() {
            if other == number {
                continue;
            }
            for (handle, key) in [(*handle, own[number].1.key()), (own[number].0, buffer.key())] {
                assert_eq!(session.submit(&[common::write(handle, key, MIB, 0, 1)]), 1);
                assert_eq!(session.wait(&mut out, 1, LONG), 1);
                assert_eq!(out[0].result, codes::BAD_HANDLE, "{number} with {other}'s");
            }
        }
    }
}

#[test]
fn memory_of_the_caller_is_a_buffer_until_it_is_unregistered() {
    for back_end in [BackEnd::sim(2), BackEnd::files(2)] {
        back_end.format();
        let pool = back_end.open();
        let none = SessionOptions { memory_bytes: 0, ring_entries: 8 };
        let mut session = pool.session(&none).unwrap();
        assert!(matches!(session.alloc(4096), Err(Error::Usage(_))));
        let region = Arc::new(Region::new(2 * MIB, HugePages::Off).unwrap());
        let mut buffer = session.register(Arc::clone(&region)).unwrap();
        buffer.as_mut_slice().unwrap().fill(7);
        let handle = begin(&mut session, "own@1", 2 * MIB);
        let entries =
            [common::write(handle, buffer.key(), 2 * MIB, 0, 1), SubmitEntry::commit(handle, 2)];
        assert_eq!(session.submit(&entries), 2);
        let key = buffer.key();
        let buffer = session.unregister(buffer).expect_err("it is in flight");
        let mut out = [CompleteEntry::default(); 2];
        assert_eq!(session.wait(&mut out, 2, LONG), 2);
        assert_eq!((out[0].result, out[1].result), (2 * MIB as i64, 0));
        session.unregister(buffer).unwrap();
        let stale = common::write(handle, key, 2 * MIB, 0, 3);
        assert_eq!(session.submit(&[stale]), 1);
        assert_eq!(session.wait(&mut out, 1, LONG), 1);
        assert_eq!(out[0].result, codes::BAD_HANDLE);
        // A buffer of the session's own is not of that kind.
        let mut session = pool.session(&SessionOptions::default()).unwrap();
        let own = session.alloc(4096).unwrap();
        assert!(session.unregister(own).is_err());
    }
}

#[test]
fn a_session_keeps_its_pool_open() {
    let (back_end, pool) = pool();
    let pattern = Pattern::new(3, 3 * MIB);
    save(&pool, &"kept@1".parse().unwrap(), &pattern).unwrap();
    let mut session = pool.session(&SessionOptions::default()).unwrap();
    drop(pool);
    let opened = session.open(&"kept@1".parse().unwrap(), 0).unwrap();
    assert_eq!(opened.len_bytes, 3 * MIB);
    assert!(session.is_served());
    let mut out = [CompleteEntry::default(); 1];
    assert_eq!(session.submit(&[SubmitEntry::nop(9)]), 1);
    assert_eq!(session.wait(&mut out, 1, LONG), 1);
    drop(session);
    // Now the lock is free again.
    let pool = back_end.open();
    assert_eq!(restore(&pool, &"kept@1".parse().unwrap(), &pattern), Ok(()));
}

#[test]
fn a_commit_that_comes_during_another_one_is_not_forgotten() {
    let (_back_end, pool) = pool();
    let mut session = pool.session(&SessionOptions::default()).unwrap();
    let buffer = session.alloc(MIB).unwrap();
    let mut out = [CompleteEntry::default(); 2];
    for round in 0..400_u64 {
        let handles =
            ["first", "second"].map(|name| begin(&mut session, &format!("{name}@{round}"), MIB));
        for handle in handles {
            session.submit(&[common::write(handle, buffer.key(), MIB, 0, handle)]);
            assert_eq!(session.wait(&mut out, 1, LONG), 1);
        }
        // The second commit comes at another moment of the first one each time. Nothing else wakes
        // the keeper afterwards.
        session.submit(&[SubmitEntry::commit(handles[0], 0)]);
        let started = Instant::now();
        while started.elapsed() < Duration::from_micros(round) {
            std::hint::spin_loop();
        }
        session.submit(&[SubmitEntry::commit(handles[1], 1)]);
        assert_eq!(session.wait(&mut out, 2, LONG), 2, "round {round}");
        assert!(out.iter().all(|completion| completion.result == 0), "{out:?}");
        handles.iter().for_each(|handle| session.close(*handle).unwrap());
        for name in ["first", "second"] {
            pool.remove(&format!("{name}@{round}").parse().unwrap()).unwrap();
        }
    }
}

#[test]
fn a_buffer_is_unregistered_by_its_own_session_only() {
    let (_back_end, pool) = pool();
    let mut sessions = [0, 1].map(|_| pool.session(&SessionOptions::default()).unwrap());
    let [first, second] = &mut sessions;
    let region = Arc::new(Region::new(2 * MIB, HugePages::Off).unwrap());
    let of_first = first.register(Arc::clone(&region)).unwrap();
    let twice = first.register(Arc::clone(&region)).unwrap();
    let of_second = second.register(Arc::clone(&region)).unwrap();
    // Both have registered the region, but each its own buffer.
    let of_second = first.unregister(of_second).expect_err("it is another session's");
    let of_first = second.unregister(of_first).expect_err("it is another session's");
    first.unregister(of_first).unwrap();
    first.unregister(twice).unwrap();
    let mut out = [CompleteEntry::default(); 1];
    let handle = begin(second, "s@1", MIB);
    assert_eq!(second.submit(&[common::write(handle, of_second.key(), MIB, 0, 1)]), 1);
    assert_eq!(second.wait(&mut out, 1, LONG), 1);
    assert_eq!(out[0].result, MIB as i64);
}
