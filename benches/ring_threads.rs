// SPDX-License-Identifier: Apache-2.0
//! Round trips between two threads: the submit and complete rings compared with two of
//! crossbeam's `ArrayQueue`, which carry the same 64 bytes there and 32 bytes back.
//!
//! Both are driven alike: one thread keeps as many requests outstanding as fit and takes the
//! answers, the other one answers. Samples of the two take turns (A B A), so that a machine whose
//! speed drifts slows both; what is compared is the ratio within a turn, and A with A says how far
//! to trust it. Prints one JSON document: `cargo bench --bench ring_threads [-- SAMPLES]`.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::spin_loop;
use std::sync::Barrier;
use std::time::Instant;

use core_affinity::CoreId;
use crossbeam::queue::ArrayQueue;
use stanchion_testing::internals::ring::{CompleteEntry, RingSizes, SubmitEntry, pair};

/// Requests outstanding at most, and the most that either side moves at once.
const WINDOW: usize = 64;
/// Round trips in a sample: some ten milliseconds.
const ROUND_TRIPS: u64 = 200_000;

/// Times `client` while `engine` runs on another core; million round trips per second.
fn sample(cores: &[CoreId], client: impl FnOnce() + Send, engine: impl FnOnce() + Send) -> f64 {
    let both_there = Barrier::new(2);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            pin(cores, 1);
            both_there.wait();
            engine();
        });
        pin(cores, 0);
        both_there.wait();
        let started = Instant::now();
        client();
        let seconds = started.elapsed().as_secs_f64();
        answering.join().unwrap();
        ROUND_TRIPS as f64 / seconds / 1e6
    })
}

fn pin(cores: &[CoreId], number: usize) {
    if cores.len() > 1 {
        core_affinity::set_for_current(cores[number]);
    }
}

fn ring(cores: &[CoreId]) -> f64 {
    let (mut client, mut engine) = pair(RingSizes::new(WINDOW as u32).unwrap()).unwrap();
    let ask = move || {
        let entries: [SubmitEntry; WINDOW] = std::array::from_fn(|i| SubmitEntry::nop(i as u64));
        let mut out = [CompleteEntry::default(); WINDOW];
        let (mut asked, mut answered, mut sum) = (0, 0, 0);
        while answered < ROUND_TRIPS {
            let room = (WINDOW as u64 - (asked - answered)).min(ROUND_TRIPS - asked) as usize;
            asked += client.submit(&entries[..room]).accepted as u64;
            let count = client.peek(&mut out);
            sum += out[..count].iter().map(|done| done.user_data).sum::<u64>();
            answered += count as u64;
            if count == 0 {
                spin_loop();
            }
        }
        assert!(sum > 0);
    };
    let answer = move || {
        let mut answered = 0;
        while answered < ROUND_TRIPS {
            let mut taken = 0;
            while taken < WINDOW as u64
                && let Some(entry) = engine.take().unwrap()
            {
                engine.complete(CompleteEntry::success(entry.user_data, 0, 0));
                taken += 1;
            }
            let _ = engine.publish();
            answered += taken;
            if taken == 0 {
                spin_loop();
            }
        }
    };
    sample(cores, ask, answer)
}

fn array_queues(cores: &[CoreId]) -> f64 {
    // Like the ring: twice as many places for answers as for requests.
    let (there, back) =
        (ArrayQueue::<[u64; 8]>::new(WINDOW), ArrayQueue::<[u64; 4]>::new(2 * WINDOW));
    let ask = || {
        let (mut asked, mut answered, mut sum) = (0, 0, 0);
        while answered < ROUND_TRIPS {
            while asked - answered < WINDOW as u64 && asked < ROUND_TRIPS {
                if there.push([asked; 8]).is_err() {
                    break;
                }
                asked += 1;
            }
            let before = answered;
            while let Some(done) = back.pop() {
                sum += done[0];
                answered += 1;
            }
            if answered == before {
                spin_loop();
            }
        }
        assert!(sum > 0);
    };
    let answer = || {
        let mut answered = 0;
        while answered < ROUND_TRIPS {
            let Some(entry) = there.pop() else {
                spin_loop();
                continue;
            };
            back.push([entry[0]; 4]).unwrap();
            answered += 1;
        }
    };
    sample(cores, ask, answer)
}

fn main() {
    // Cargo adds --bench; the first number is ours.
    let samples: usize = std::env::args().find_map(|text| text.parse().ok()).unwrap_or(31);
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (mut ours, mut theirs, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..samples.max(1) {
        ours.push(ring(&cores));
        theirs.push(array_queues(&cores));
        again.push(ring(&cores));
    }
    println!(
        "{{\"round_trips_per_sample\":{ROUND_TRIPS},\"window\":{WINDOW},\"ours\":{ours:?},\"peer\":{theirs:?},\"again\":{again:?}}}"
    );
}
