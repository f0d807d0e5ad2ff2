// SPDX-License-Identifier: Apache-2.0
//! Sessions that share a reactor and its drives: each gets its turn, whatever the others ask for.

#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::shaped::{Shape, Shaped};
use crate::common::{self, Pattern};
use stanchion_testing::internals::device::Device;
use stanchion_testing::internals::device::sim::{SimConfig, SimDrive};
use stanchion_testing::internals::format_pool_on;
use stanchion_testing::internals::ring::{CompleteEntry, SubmitEntry, Transfer};
use stanchion_testing::{
    CheckpointName, FormatOptions, HugePages, Pool, PoolOptions, Session, SessionBuffer,
    SessionOptions,
};

const CHUNK_BYTES: u64 = 16 << 10;
const CHUNKS: u64 = 256;
const LONG: Duration = Duration::from_secs(30);

/// A pool with one reactor, and the shapes of its drives.
fn pool(drives: usize) -> (Vec<Arc<Shape>>, Pool) {
    let config = |number| SimConfig {
        capacity_bytes: 128 << 20,
        serial: format!("SIM{number}"),
        // A sparse one writes zeroes before the bytes that it reads.
        dense: true,
        volatile_cache: false,
        ..SimConfig::default()
    };
    let sims: Vec<_> = (0..drives).map(|number| SimDrive::new(config(number)).unwrap()).collect();
    let open = |sim: &SimDrive| Box::new(sim.open().unwrap()) as Box<dyn Device>;
    let options =
        FormatOptions { chunk_bytes: Some(CHUNK_BYTES), ..FormatOptions::new(Vec::new()) };
    format_pool_on(sims.iter().map(open).collect(), &options).unwrap();
    let shapes: Vec<Arc<Shape>> = (0..drives).map(|_| Arc::default()).collect();
    let shaped = sims.iter().zip(&shapes);
    let shaped = shaped.map(|(sim, shape)| Box::new(Shaped::new(open(sim), shape)) as _).collect();
    let options = PoolOptions {
        huge_pages: HugePages::Off,
        reactors: Some(1),
        ..PoolOptions::new(Vec::new())
    };
    let pool = Pool::open_on(shaped, &options).unwrap();
    (shapes, pool)
}

/// A session that restores a checkpoint again and again.
struct Reader {
    session: Session,
    handle: u64,
    buffer: SessionBuffer,
    /// Chunks of one entry.
    chunks: u64,
    /// Where it reads.
    range: Range<u64>,
    next: u64,
}

impl Reader {
    fn new(pool: &Pool, name: &CheckpointName, chunks: u64, entries: u32) -> Reader {
        let options = SessionOptions { memory_bytes: 4 << 20, ring_entries: entries };
        let mut session = pool.session(&options).unwrap();
        let opened = session.open(name, 0).unwrap();
        let buffer = session.alloc(chunks * CHUNK_BYTES).unwrap();
        let range = 0..opened.len_bytes / CHUNK_BYTES;
        Reader { session, handle: opened.handle, buffer, chunks, range, next: 0 }
    }

    /// Reads only this chunk of the checkpoint.
    fn only(self, chunk: u64) -> Reader {
        Reader { range: chunk..chunk + 1, next: chunk, ..self }
    }

    fn addresses(&self) -> Range<u64> {
        let start = self.buffer.as_ptr().as_ptr() as u64;
        start..start + self.chunks * CHUNK_BYTES
    }

    /// Fills the ring. All entries read into the same memory: all chunks are the same.
    fn submit(&mut self) {
        loop {
            let transfer = Transfer {
                checkpoint: self.handle,
                buffer: self.buffer.key(),
                buffer_offset_bytes: 0,
                len_bytes: self.chunks * CHUNK_BYTES,
                segment_offset_bytes: self.next * CHUNK_BYTES,
            };
            if self.session.submit(&[SubmitEntry::read(transfer, 0)]) == 0 {
                return;
            }
            self.next += self.chunks;
            if self.next >= self.range.end {
                self.next = self.range.start;
            }
        }
    }

    /// Keeps the ring full until `stop`; every entry must succeed.
    fn run(&mut self, stop: &AtomicBool) {
        let mut out = [CompleteEntry::default(); 256];
        while !stop.load(Ordering::Relaxed) {
            self.submit();
            let count = self.session.wait(&mut out, 1, Duration::from_millis(10));
            assert!(out[..count].iter().all(|entry| entry.result > 0), "{:?}", &out[..count]);
        }
    }
}

fn save(pool: &Pool, name: &str, chunks: u64) -> CheckpointName {
    let name: CheckpointName = name.parse().unwrap();
    let chunk = Pattern::new(1, CHUNK_BYTES).repeated(chunks);
    common::save(pool, &name, &chunk).unwrap();
    name
}

#[test]
fn a_no_op_beside_a_deep_ring_is_answered_soon() {
    let (shapes, pool) = pool(2);
    let name = save(&pool, "deep@1", CHUNKS);
    shapes.iter().for_each(|shape| shape.bytes_per_second.store(64 << 20, Ordering::Relaxed));
    let mut deep = Reader::new(&pool, &name, 4, 1024);
    let mut other = pool.session(&SessionOptions::default()).unwrap();
    let stop = AtomicBool::new(false);
    let (mut worst, mut count) = (Duration::ZERO, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| deep.run(&stop));
        std::thread::sleep(Duration::from_millis(300));
        let end = Instant::now() + Duration::from_secs(3);
        let mut out = [CompleteEntry::default(); 1];
        while Instant::now() < end {
            let start = Instant::now();
            assert_eq!(other.submit(&[SubmitEntry::nop(1)]), 1);
            assert_eq!(other.wait(&mut out, 1, LONG), 1);
            worst = worst.max(start.elapsed());
            count += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{count} no-ops beside a ring of 1024 entries, the slowest took {worst:?}");
    assert!(worst < Duration::from_millis(50) && count > 100, "{count}, {worst:?}");
}

#[test]
fn two_sessions_share_a_drive_in_halves_whatever_the_size_of_their_entries() {
    for (left, right) in [(64, 1), (16, 2), (4, 4)] {
        let (shapes, pool) = pool(1);
        let name = save(&pool, "half@1", CHUNKS);
        shapes[0].bytes_per_second.store(12 << 20, Ordering::Relaxed);
        let mut readers = [left, right].map(|chunks| Reader::new(&pool, &name, chunks, 256));
        let addresses = [0, 1].map(|number: usize| readers[number].addresses());
        let moved = || addresses.clone().map(|of| shapes[0].moved_in(of));
        let stop = AtomicBool::new(false);
        let [first, second] = std::thread::scope(|scope| {
            for reader in &mut readers {
                let stop = &stop;
                scope.spawn(move || reader.run(stop));
            }
            std::thread::sleep(Duration::from_secs(1));
            let before = moved();
            std::thread::sleep(Duration::from_secs(3));
            let after = moved();
            stop.store(true, Ordering::Relaxed);
            shapes[0].bytes_per_second.store(0, Ordering::Relaxed);
            [0, 1].map(|number: usize| after[number] - before[number])
        });
        let share = first as f64 / (first + second) as f64;
        println!(
            "entries of {left} and {right} chunks: {} and {} KiB, the first has {:.1} %",
            first >> 10,
            second >> 10,
            100.0 * share
        );
        assert!((share - 0.5).abs() < 0.025, "{share}");
    }
}

#[test]
fn a_slow_drive_does_not_slow_what_does_not_need_it() {
    let (shapes, pool) = pool(2);
    // One chunk on each drive.
    let name = save(&pool, "two@1", 2);
    let rate = 16 << 20;
    shapes.iter().for_each(|shape| shape.bytes_per_second.store(rate, Ordering::Relaxed));
    let mut fast = Reader::new(&pool, &name, 1, 256).only(0);
    let alone = measure(&mut fast, &shapes);
    // The drive that the first chunk lies on was measured; the other one becomes slow.
    let is_fast = |shape: &&Arc<Shape>| shape.moved_in(fast.addresses()) > 0;
    let slow_drive = shapes.iter().find(|shape| !is_fast(shape)).unwrap();
    slow_drive.bytes_per_second.store(rate / 100, Ordering::Relaxed);
    let mut slow = Reader::new(&pool, &name, 1, 1024).only(1);
    let stop = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        scope.spawn(|| slow.run(&stop));
        std::thread::sleep(Duration::from_millis(300));
        let beside = measure(&mut fast, &shapes);
        stop.store(true, Ordering::Relaxed);
        slow_drive.bytes_per_second.store(0, Ordering::Relaxed);
        beside
    });
    println!("KiB of a drive in two seconds: alone {alone}, beside one at a hundredth {beside}");
    assert!(beside * 10 > alone * 9, "{beside} of {alone}");
}

/// KiB that a reader reads in two seconds.
fn measure(reader: &mut Reader, shapes: &[Arc<Shape>]) -> u64 {
    let addresses = reader.addresses();
    let moved = || shapes.iter().map(|shape| shape.moved_in(addresses.clone())).sum::<u64>();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| reader.run(&stop));
        std::thread::sleep(Duration::from_millis(500));
        let before = moved();
        std::thread::sleep(Duration::from_secs(2));
        let after = moved();
        stop.store(true, Ordering::Relaxed);
        (after - before) >> 10
    })
}
