// SPDX-License-Identifier: Apache-2.0
//! A drive of a mirror is rebuilt while eight participants save: how fast each is then, and alone.
//!
//! `cargo bench --bench rebuild -- ROUNDS BYTES SIZE DRIVE DRIVE SPARE` formats a mirror of the
//! first two drives, erases what they hold, and prints one JSON document. In each round the second
//! drive is lost and the spare takes its place; the next round it is the other way round. SIZE are
//! the bytes of drives that are new files; 0 for drives that exist.
//!
//! Each round measures saves, rebuilding, both at once, and saves again, on the same pool.

#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use stanchion::{
    BulkOptions, CheckpointName, CheckpointSpec, DriveAddress, Error, FormatOptions, Pool,
    PoolOptions, Redundancy, Replacement, admit_drive, format_pool,
};

const PARTICIPANTS: u32 = 8;
/// What each participant saves in one checkpoint.
const SEGMENT_BYTES: u64 = 4 << 20;
/// How long saves are measured alone.
const ALONE: Duration = Duration::from_secs(3);

/// Eight participants that save one checkpoint after the other, while `work` runs. Returns what it
/// returns, and the rate of the saves meanwhile in MB/s.
fn beside_saves<T>(pool: &Pool, steps: &AtomicU64, work: impl FnOnce() -> T) -> (T, f64) {
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let barrier = Barrier::new(PARTICIPANTS as usize);
    // Decided by one participant for all of them, once a checkpoint.
    let next: Mutex<Option<u64>> = Mutex::new(None);
    let save = |participant: u32| {
        let mut bulk = pool.bulk_session(&BulkOptions { memory_bytes: SEGMENT_BYTES }).unwrap();
        loop {
            if participant == 0 {
                let goes_on = !stop.load(Ordering::Relaxed);
                *next.lock().unwrap() = goes_on.then(|| steps.fetch_add(1, Ordering::Relaxed));
            }
            barrier.wait();
            let Some(step) = *next.lock().unwrap() else { return };
            let spec = CheckpointSpec {
                name: CheckpointName::new("saves", step).unwrap(),
                participants: PARTICIPANTS,
                participant,
                len_bytes: SEGMENT_BYTES,
                shards: Vec::new(),
            };
            let mut last = 0;
            let mut count = |done: u64| {
                written.fetch_add(done - last, Ordering::Relaxed);
                last = done;
                Ok::<(), Error>(())
            };
            bulk.save(&spec, &[], &mut |_, _| Ok::<(), Error>(()), &mut count).unwrap();
            barrier.wait();
            if participant == 0 {
                pool.remove(&spec.name).unwrap();
            }
        }
    };
    thread::scope(|scope| {
        let save = &save;
        (0..PARTICIPANTS).for_each(|participant| drop(scope.spawn(move || save(participant))));
        // Not from a standing start.
        while written.load(Ordering::Relaxed) < u64::from(PARTICIPANTS) * SEGMENT_BYTES {
            thread::sleep(Duration::from_millis(1));
        }
        let (before, started) = (written.load(Ordering::Relaxed), Instant::now());
        let result = work();
        let bytes = written.load(Ordering::Relaxed) - before;
        let rate = bytes as f64 / started.elapsed().as_secs_f64() / 1e6;
        stop.store(true, Ordering::Relaxed);
        (result, rate)
    })
}

fn rebuild(pool: &Pool) -> f64 {
    let started = Instant::now();
    let report = pool.rebuild(&mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.rebuilt.len() == 1, "{report:?}");
    let bytes: u64 = report.filled.iter().map(|filled| filled.data_bytes).sum();
    bytes as f64 / started.elapsed().as_secs_f64() / 1e6
}

/// The drives in use, and the spare one.
struct Drives {
    used: Vec<DriveAddress>,
    spare: DriveAddress,
}

impl Drives {
    fn open(&self) -> Pool {
        Pool::open(&PoolOptions::new(self.used.clone())).unwrap()
    }

    /// A pool with new bytes, whose second drive has been replaced by the spare one. The spare one
    /// has bytes of the round before, so all of it must be written.
    fn replaced(&mut self, round: u64, bytes: u64) -> Pool {
        let pool = self.open();
        let name = |round| CheckpointName::new("kept", round).unwrap();
        let data: Vec<u8> =
            (0..bytes / 8).flat_map(|word| (word ^ round << 40).to_le_bytes()).collect();
        if round > 0 {
            pool.remove(&name(round - 1)).unwrap();
        }
        pool.save(&CheckpointSpec::single(name(round), data.len() as u64), &data).unwrap();
        drop(pool);
        let lost = self.used.pop().unwrap();
        let left = PoolOptions { degraded: true, ..PoolOptions::new(self.used.clone()) };
        drop(Pool::open(&left).unwrap());
        let drive = self.spare.clone();
        admit_drive(&left, &Replacement { drive, replaces: None, force: true }).unwrap();
        self.used.push(std::mem::replace(&mut self.spare, lost));
        self.open()
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [rounds, bytes, size, one, other, spare] = &words[..] else {
        eprintln!("rebuild: ROUNDS BYTES SIZE DRIVE DRIVE SPARE");
        // Without arguments, as in `cargo bench` of all benches, there is nothing to do.
        return;
    };
    let (rounds, bytes, size): (u64, u64, u64) =
        (rounds.parse().unwrap(), bytes.parse().unwrap(), size.parse().unwrap());
    let address = |text: &String| text.parse::<DriveAddress>().unwrap();
    let mut drives = Drives { used: vec![address(one), address(other)], spare: address(spare) };
    let format = |addresses: Vec<DriveAddress>, redundancy| {
        let options = FormatOptions {
            redundancy,
            force: true,
            create_bytes: (size > 0).then_some(size),
            ..FormatOptions::new(addresses)
        };
        format_pool(&options).unwrap();
    };
    format(drives.used.clone(), Redundancy::Mirror);
    format(vec![drives.spare.clone()], Redundancy::None);
    let steps = AtomicU64::new(0);
    let mut saves = [Vec::new(), Vec::new(), Vec::new()];
    let mut rebuilds = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let pool = drives.replaced(2 * round, bytes);
        saves[0].push(beside_saves(&pool, &steps, || thread::sleep(ALONE)).1);
        rebuilds[0].push(rebuild(&pool));
        drop(pool);
        let pool = drives.replaced(2 * round + 1, bytes);
        let (rebuilt, saved) = beside_saves(&pool, &steps, || rebuild(&pool));
        rebuilds[1].push(rebuilt);
        saves[1].push(saved);
        saves[2].push(beside_saves(&pool, &steps, || thread::sleep(ALONE)).1);
    }
    let [alone, beside, again] = saves;
    let [rebuild_alone, rebuild_beside] = rebuilds;
    println!(
        "{{\"save_alone\":{alone:?},\"save_beside\":{beside:?},\"save_again\":{again:?},\
         \"rebuild_alone\":{rebuild_alone:?},\"rebuild_beside\":{rebuild_beside:?}}}"
    );
}
