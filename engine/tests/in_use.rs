// SPDX-License-Identifier: Apache-2.0
//! Saves, removals, restores, verifications with repair, and rot, all at once and at random
//! instants: whatever they meet, no one gets or writes another checkpoint's bytes.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use stanchion_testing::internals::device::Device;
use stanchion_testing::internals::device::sim::{SimConfig, SimDrive, SimRng};
use stanchion_testing::internals::format::Layout;
use stanchion_testing::internals::format_pool_on;
use stanchion_testing::{
    BulkOptions, CheckpointName, CheckpointSpec, Error, FormatOptions, HugePages, Pool, PoolMode,
    PoolOptions, Redundancy, SessionOptions,
};

const MIB: u64 = 1 << 20;
const DRIVE_BYTES: u64 = 34 * MIB;
const CHUNK_BYTES: u64 = 64 << 10;
/// Checkpoints that are kept, so that space is short and slots are used again at once.
const KEPT: u64 = 2;
const LEN_CHUNKS: u64 = 12;

/// A checkpoint's bytes follow from its step.
fn bytes_of(step: u64, len: usize) -> Vec<u8> {
    let word = step.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut bytes = word.repeat(len.div_ceil(word.len()));
    bytes.truncate(len);
    bytes
}

fn name(step: u64) -> CheckpointName {
    CheckpointName::new("run", step).unwrap()
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::NoSuchCheckpoint(_))
}

/// One pool's life: `saves` checkpoints come and go beside everything else.
fn live(seed: u64, saves: u64) {
    println!("seed {seed}");
    let sims: Vec<SimDrive> = (0..2)
        .map(|number| {
            let serial = format!("SIM{number}");
            let config =
                SimConfig { capacity_bytes: DRIVE_BYTES, serial, seed, ..Default::default() };
            SimDrive::new(config).unwrap()
        })
        .collect();
    let devices = |sims: &[SimDrive]| -> Vec<Box<dyn Device>> {
        sims.iter().map(|sim| Box::new(sim.open().unwrap()) as Box<dyn Device>).collect()
    };
    let format = FormatOptions {
        redundancy: Redundancy::Mirror,
        chunk_bytes: Some(CHUNK_BYTES),
        ..FormatOptions::new(Vec::new())
    };
    format_pool_on(devices(&sims), &format).unwrap();
    let options = PoolOptions { huge_pages: HugePages::Off, ..PoolOptions::new(Vec::new()) };
    let pool = Pool::open_on(devices(&sims), &options).unwrap();
    // A save that never ends leaves room for one checkpoint more than are kept: a slot that is
    // freed is taken by the next save.
    let len = (LEN_CHUNKS * CHUNK_BYTES) as usize - 100;
    let rest = pool.info().free_bytes.unwrap() - (KEPT + 1) * LEN_CHUNKS * CHUNK_BYTES;
    let mut ballast = pool.session(&SessionOptions { memory_bytes: 0, ring_entries: 8 }).unwrap();
    ballast.begin(&CheckpointSpec::single(name(u64::MAX), rest)).unwrap();
    let layout = Layout::plan(&[DRIVE_BYTES; 2], CHUNK_BYTES).unwrap();
    let slots = layout.data_slots(DRIVE_BYTES);
    let (stop, restored, verified, repaired) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let running = || !stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let pool = &pool;
        scope.spawn(|| {
            // Also when this thread fails.
            struct Stop<'a>(&'a AtomicBool);
            impl Drop for Stop<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let _stop = Stop(&stop);
            for step in 1..=saves {
                loop {
                    let spec = CheckpointSpec::single(name(step), len as u64);
                    match pool.save(&spec, &bytes_of(step, len)) {
                        Ok(_) => break,
                        // A reader still holds what was removed.
                        Err(Error::NoSpace { .. }) => thread::yield_now(),
                        Err(error) => panic!("step {step}: {error}"),
                    }
                }
                let Some(oldest) = step.checked_sub(KEPT).filter(|oldest| *oldest > 0) else {
                    continue;
                };
                loop {
                    match pool.remove(&name(oldest)) {
                        Ok(_) => break,
                        Err(Error::Busy { .. }) => thread::yield_now(),
                        Err(error) => panic!("step {step}: {error}"),
                    }
                }
            }
        });
        {
            let (running, restored) = (&running, &restored);
            scope.spawn(move || {
                let mut rng = SimRng::new(seed);
                // Two chunks at once, and a slow consumer: the restore outlasts some commits.
                let memory_bytes = 2 * CHUNK_BYTES;
                let mut bulk = pool.bulk_session(&BulkOptions { memory_bytes }).unwrap();
                let mut bytes = vec![0; len];
                while running() {
                    // The oldest, which is removed next: the removal waits for this pause.
                    thread::sleep(Duration::from_micros(rng.below(3000)));
                    let Some(one) = pool.list().into_iter().next() else { continue };
                    let mut consume = |part: &[u8], at: u64| {
                        bytes[at as usize..at as usize + part.len()].copy_from_slice(part);
                        thread::sleep(Duration::from_micros(500));
                        Ok::<(), Error>(())
                    };
                    let whole = 0..len as u64;
                    let ranges = std::slice::from_ref(&whole);
                    match bulk.restore(&one.name, 0, ranges, &[], &mut consume, &mut |_| Ok(())) {
                        Ok(()) => {
                            let right = bytes_of(one.name.step, len);
                            assert!(bytes == right, "{}: other bytes", one.name);
                            restored.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => assert!(is_gone(&error), "{}: {error}", one.name),
                    }
                }
            });
        }
        let (verified, repaired) = (&verified, &repaired);
        let (running, sims) = (&running, &sims);
        scope.spawn(move || {
            while running() {
                let mut slowly = |_, _| thread::sleep(Duration::from_micros(300));
                let report = pool.verify(None, true, &mut slowly).unwrap();
                assert!(report.is_clean(), "{report:?}");
                verified.fetch_add(1, Ordering::Relaxed);
                repaired.fetch_add(report.repaired_count, Ordering::Relaxed);
            }
        });
        scope.spawn(move || {
            let mut rng = SimRng::new(seed + 77);
            while running() {
                // On one drive only: there is always a sound copy.
                let slot = rng.below(slots);
                sims[0].corrupt(layout.slot_offset(slot), 4096, seed + slot);
                thread::sleep(Duration::from_micros(300));
            }
        });
    });
    let report = pool.verify(None, true, &mut |_, _| ()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.repaired_count == 0, "{report:?}");
    drop(ballast);
    drop(pool);
    println!(
        "{saves} saves, {restored:?} restores, {verified:?} verifications, {repaired:?} repaired"
    );
    // Each drive alone has all of it.
    for sim in &sims {
        let one = PoolOptions { mode: PoolMode::ReadOnly, ..options.clone() };
        let pool = Pool::open_on(devices(std::slice::from_ref(sim)), &one).unwrap();
        let mut bytes = vec![0; len];
        for step in saves - KEPT + 1..=saves {
            pool.restore(&name(step), 0, 0, &mut bytes).unwrap();
            assert!(bytes == bytes_of(step, len), "step {step}");
        }
    }
}

#[test]
fn nobody_gets_or_writes_another_checkpoints_bytes() {
    let seed = std::env::var("STANCHION_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let first = seed.unwrap_or_else(|| u64::from(std::process::id()));
    for round in 0..2 {
        live(first + round, 15);
    }
}
