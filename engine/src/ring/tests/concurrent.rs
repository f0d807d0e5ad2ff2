// SPDX-License-Identifier: Apache-2.0
//! Two honest ends at the same time: two threads that poll, two that sleep, two processes.

use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::{completion, request, serve, sizes};
use crate::ring::layout::Mapping;
use crate::ring::*;

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
    assert!(sleeps > 0 && waits > 0, "no end ever slept: nothing was tested");
}

const CHILD_ROLE: &str = "STANCHION_RING_TEST_CHILD";
const CHILD_ENTRIES: u64 = 20_000;

/// Runs [`child_process`] of this test program with the ring as its standard input.
pub(super) fn spawn_child(engine: &Engine, role: &str) -> Child {
    let memfd = engine.memfd().try_clone_to_owned().unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ring::tests::concurrent::child_process", "--nocapture"])
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
