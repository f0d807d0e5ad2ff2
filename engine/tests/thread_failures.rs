// SPDX-License-Identifier: Apache-2.0
//! A thread of the engine that panics: no one waits in vain, what was acknowledged stays, and the
//! pool can be closed and opened again.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::shaped::{Shape, Shaped};
use crate::common::{self, Pattern};
use stanchion_testing::internals::device::Device;
use stanchion_testing::internals::device::sim::{SimConfig, SimDrive};
use stanchion_testing::internals::format_pool_on;
use stanchion_testing::internals::ring::{CompleteEntry, SubmitEntry, codes};
use stanchion_testing::{
    CheckpointName, CheckpointSpec, FormatOptions, HugePages, Pool, PoolOptions, Session,
    SessionOptions,
};

const MIB: u64 = 1 << 20;
const DRIVES: usize = 3;
const TRAINERS: u64 = 3;
/// The promise is one second; a loaded machine gets more.
const SOON: Duration = Duration::from_secs(5);

/// Simulated drives, each with a shape.
struct Rig {
    drives: Vec<SimDrive>,
    shapes: Vec<Arc<Shape>>,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let config = |number: usize| SimConfig {
            capacity_bytes: 96 << 20,
            serial: format!("SIM{number}"),
            seed,
            ..SimConfig::default()
        };
        let drives: Vec<_> = (0..DRIVES).map(|n| SimDrive::new(config(n)).unwrap()).collect();
        let rig = Rig { drives, shapes: (0..DRIVES).map(|_| Arc::default()).collect() };
        format_pool_on(rig.devices(), &FormatOptions::new(Vec::new())).unwrap();
        rig
    }

    fn devices(&self) -> Vec<Box<dyn Device>> {
        let pairs = self.drives.iter().zip(&self.shapes);
        let shaped = pairs.map(|(drive, shape)| {
            Box::new(Shaped::new(Box::new(drive.open().unwrap()), shape)) as Box<dyn Device>
        });
        shaped.collect()
    }

    fn open(&self) -> Pool {
        let options = PoolOptions {
            huge_pages: HugePages::Off,
            reactors: Some(DRIVES),
            ..PoolOptions::new(Vec::new())
        };
        Pool::open_on(self.devices(), &options).unwrap()
    }
}

/// A checkpoint that was acknowledged.
type Acknowledged = (CheckpointName, Pattern);

/// What the trainers of one run report.
struct Load {
    acknowledged: Vec<Acknowledged>,
    /// Codes of the operations that failed.
    codes: Vec<i64>,
    /// When each trainer met a failure and had all its answers.
    ended: Vec<Instant>,
}

/// Saves checkpoints from several threads until a save fails, or each has saved `rounds`.
fn save_until_it_fails(pool: &Pool, rounds: u64) -> Load {
    let trainer = |number: u64| {
        let mut load = Load { acknowledged: vec![], codes: vec![], ended: vec![] };
        for round in 0..rounds {
            let name = CheckpointName::new(&format!("t{number}"), round).unwrap();
            let pattern = Pattern::new(number << 32 | round, 5 * MIB + 4096 * number);
            let Ok(ended) = common::save_disturbed(pool, &name, &pattern, || ()) else {
                load.ended.push(Instant::now());
                break;
            };
            load.codes.extend(ended.failures().map(|entry| entry.result));
            if ended.commit.result == 0 {
                load.acknowledged.push((name, pattern));
            } else {
                load.codes.push(ended.commit.result);
                load.ended.push(Instant::now());
                break;
            }
        }
        load
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..TRAINERS).map(|n| scope.spawn(move || trainer(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(
            Load { acknowledged: vec![], codes: vec![], ended: vec![] },
            |mut all, one| {
                all.acknowledged.extend(one.acknowledged);
                all.codes.extend(one.codes);
                all.ended.extend(one.ended);
                all
            },
        )
    })
}

/// The pool opens, and everything acknowledged is there.
fn opens_again(rig: &Rig, acknowledged: &[Acknowledged]) {
    let pool = rig.open();
    for (name, pattern) in acknowledged {
        common::restore(&pool, name, pattern).unwrap();
    }
    common::save(&pool, &CheckpointName::new("after", 1).unwrap(), &Pattern::new(9, MIB)).unwrap();
}

/// What begins, allocates and closes afterwards ends soon, with an error where it needs a drive.
fn later_calls_fail_soon(pool: &Pool) {
    let start = Instant::now();
    for number in 0..4 {
        let Ok(mut session) = pool.session(&SessionOptions::default()) else { continue };
        assert!(begin(&mut session, &format!("later@{number}"), 1, 0).is_err());
        let _ = session.alloc(MIB);
    }
    assert!(start.elapsed() < SOON, "later calls took {:?}", start.elapsed());
}

fn begin(
    session: &mut Session,
    name: &str,
    participants: u32,
    participant: u32,
) -> Result<u64, stanchion_testing::Error> {
    let name = name.parse().unwrap();
    session.begin(&CheckpointSpec {
        name,
        participants,
        participant,
        len_bytes: 4 * MIB,
        shards: Vec::new(),
    })
}

fn drop_soon(pool: Pool) {
    let start = Instant::now();
    drop(pool);
    assert!(start.elapsed() < SOON, "closing took {:?}", start.elapsed());
}

/// A number below `below` for a seed.
fn random(seed: u64, below: u64) -> u64 {
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)) % below
}

#[test]
fn a_reactor_that_panics_in_its_drive_ends_with_errors_and_never_with_silence() {
    let mut longest = Duration::ZERO;
    for seed in 0..12 {
        println!("seed {seed}");
        let rig = Rig::new(seed);
        let pool = rig.open();
        let shape = &rig.shapes[random(seed, DRIVES as u64) as usize];
        let at = 1 + random(seed + 100, 40);
        let counter =
            if seed % 2 == 0 { &shape.panic_at_submit } else { &shape.panic_at_completion };
        counter.store(at, Ordering::SeqCst);
        let load = save_until_it_fails(&pool, 8);
        let panicked = shape.panicked.lock().unwrap().expect("it was asked to panic");
        assert_eq!(
            load.ended.len(),
            TRAINERS as usize,
            "seed {seed}: a save succeeded without a drive"
        );
        let late =
            load.ended.iter().map(|at| at.saturating_duration_since(panicked)).max().unwrap();
        longest = longest.max(late);
        assert!(late < SOON, "seed {seed}: the last answer came after {late:?}");
        let known = [codes::REMOVED, codes::POISONED, codes::CANCELED, codes::INCOMPLETE];
        assert!(
            load.codes.iter().all(|code| known.contains(code)),
            "seed {seed}: {:?}",
            load.codes
        );
        later_calls_fail_soon(&pool);
        drop_soon(pool);
        opens_again(&rig, &load.acknowledged);
    }
    println!("the last answer came {longest:?} after the panic, at most");
}

#[test]
fn a_commit_that_waits_for_others_ends_when_a_reactor_fails() {
    let rig = Rig::new(1);
    let pool = rig.open();
    let mut sessions: Vec<_> =
        (0..DRIVES).map(|_| pool.session(&SessionOptions::default()).unwrap()).collect();
    let mut buffers = Vec::new();
    for (number, session) in (0..).zip(&mut sessions) {
        let handle = begin(session, "w@1", DRIVES as u32 + 1, number).unwrap();
        let buffer = session.alloc(4 * MIB).unwrap();
        let write = common::write(handle, buffer.key(), 4 * MIB, 0, 1);
        buffers.push(buffer);
        let mut out = [CompleteEntry::default(); 2];
        assert_eq!(session.submit(&[write]), 1);
        assert_eq!(session.wait(&mut out, 1, SOON), 1);
        assert_eq!(session.submit(&[SubmitEntry::commit(handle, 2)]), 1);
        assert_eq!(session.wait(&mut out, 1, Duration::from_millis(50)), 0, "one is missing");
    }
    rig.shapes[0].panic_at_submit.store(1, Ordering::SeqCst);
    // Whatever uses the drive.
    let _ = common::save(&pool, &"x@1".parse().unwrap(), &Pattern::new(1, 4 * MIB));
    for session in &mut sessions {
        let mut out = [CompleteEntry::default(); 2];
        assert_eq!(session.wait(&mut out, 1, SOON), 1, "a commit is not answered");
        assert!(out[0].user_data == 2 && out[0].result < 0, "{out:?}");
    }
    let start = Instant::now();
    drop((sessions, buffers));
    assert!(start.elapsed() < SOON);
    drop_soon(pool);
    opens_again(&rig, &[]);
}

#[test]
fn memory_of_a_drive_that_cannot_be_fenced_is_never_given_back() {
    for reactor in 0..DRIVES {
        let rig = Rig::new(2);
        let pool = rig.open();
        // Sessions go to the reactors in turn; the drive that fails is that of reactor 1.
        let mut sessions: Vec<_> =
            (0..=reactor).map(|_| pool.session(&SessionOptions::default()).unwrap()).collect();
        let mut session = sessions.pop().unwrap();
        let handle = begin(&mut session, "u@1", 1, 0).unwrap();
        let buffer = session.alloc(4 * MIB).unwrap();
        rig.shapes[1].panic_at_drop.store(true, Ordering::SeqCst);
        rig.shapes[1].panic_at_completion.store(1, Ordering::SeqCst);
        assert_eq!(session.submit(&[common::write(handle, buffer.key(), 4 * MIB, 0, 1)]), 1);
        let mut out = [CompleteEntry::default(); 2];
        let start = Instant::now();
        assert_eq!(session.wait(&mut out, 1, 4 * SOON), 0, "{out:?}");
        assert!(start.elapsed() < 2 * SOON && !session.is_served(), "the client waits in vain");
        assert!(buffer.as_slice().is_err(), "the drive may still touch it");
        let start = Instant::now();
        drop((session, sessions, buffer));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        rig.shapes[1].panic_at_drop.store(false, Ordering::SeqCst);
        drop_soon(pool);
    }
}

/// With the planted panics of `engine/src/planted.rs`: at places where something is half done.
#[cfg(feature = "planted-bugs")]
mod planted {
    use stanchion_testing::internals::planted::{Victim, panics_left, plant_panic};

    use super::*;

    fn seeds() -> std::ops::Range<u64> {
        let count = std::env::var("STANCHION_SEEDS").ok().and_then(|text| text.parse().ok());
        0..count.unwrap_or(20)
    }

    /// One run; returns what the trainers saw, and whether the panic came.
    fn run(victim: Victim, seed: u64, places: u64) -> Option<Load> {
        let rig = Rig::new(seed);
        let pool = rig.open();
        let place = 1 + random(seed, places);
        println!("{victim:?}, seed {seed}: place {place}");
        plant_panic(victim, place);
        let started = Instant::now();
        let mut load = save_until_it_fails(&pool, 5);
        println!("  {} acknowledged in {:?}", load.acknowledged.len(), started.elapsed());
        let came = !panics_left();
        if came && victim != Victim::Helper {
            later_calls_fail_soon(&pool);
        } else if came {
            let name = CheckpointName::new("later", 1).unwrap();
            let pattern = Pattern::new(seed, 3 * MIB);
            common::save(&pool, &name, &pattern).unwrap();
            load.acknowledged.push((name, pattern));
        }
        // One that has not come yet may come while the pool closes.
        drop_soon(pool);
        plant_panic(victim, 0);
        opens_again(&rig, &load.acknowledged);
        came.then_some(load)
    }

    fn last_answer_is_soon(load: &Load) {
        let (first, last) = (load.ended.iter().min().unwrap(), load.ended.iter().max().unwrap());
        assert!(*last - *first < SOON, "from the first failure to the last: {:?}", *last - *first);
    }

    #[test]
    fn a_reactor_that_panics_anywhere_ends_with_errors() {
        let came = seeds().filter_map(|seed| run(Victim::Reactor, seed, 400));
        let count = came.inspect(last_answer_is_soon).count();
        assert!(count > 0, "no panic came");
        println!("{count} reactors panicked");
    }

    #[test]
    fn a_keeper_that_panics_anywhere_ends_with_errors() {
        let came = seeds().filter_map(|seed| run(Victim::Keeper, seed, 150));
        let count = came.inspect(last_answer_is_soon).count();
        assert!(count > 0, "no panic came");
        println!("{count} keepers panicked");
    }

    #[test]
    fn a_helper_that_panics_costs_one_operation() {
        let came = seeds().filter_map(|seed| run(Victim::Helper, seed, 60));
        let failed = |load: Load| {
            let (own, rest): (Vec<i64>, Vec<i64>) =
                load.codes.iter().partition(|code| **code == codes::NOT_RECOVERABLE);
            assert_eq!(own.len(), 1, "{:?}", load.codes);
            assert!(rest.iter().all(|code| *code == codes::INCOMPLETE), "{:?}", load.codes);
        };
        let count = came.map(failed).count();
        assert!(count > 0, "no panic came");
        println!("{count} helpers panicked");
    }
}
