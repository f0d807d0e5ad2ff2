// SPDX-License-Identifier: Apache-2.0
//! The parts of the path that are ours, one at a time: ring, allocator, checksum, metadata.
//!
//! For comparing a change with what was there before, on one machine:
//! `cargo bench --bench parts -- --save-baseline before`, then `-- --baseline before`.

#![allow(missing_docs, clippy::unwrap_used)]

mod operations;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam::queue::ArrayQueue;
use stanchion_testing::internals::format::crc64;

const MIB: usize = 1 << 20;

fn pure(c: &mut Criterion) {
    for operation in operations::all() {
        c.bench_function(operation.name, |b| b.iter((operation.make)()));
    }
}

/// What `ring_round_trips_64` is compared with.
fn crossbeam(c: &mut Criterion) {
    let (there, back) = (ArrayQueue::<[u64; 8]>::new(64), ArrayQueue::<[u64; 4]>::new(128));
    c.bench_function("array_queue_round_trips_64", |b| {
        b.iter(|| {
            (0..64).for_each(|_| there.push(black_box([7; 8])).unwrap());
            while let Some(entry) = there.pop() {
                back.push([entry[0]; 4]).unwrap();
            }
            let taken = std::iter::from_fn(|| back.pop()).count();
            assert_eq!(taken, 64);
        });
    });
}

fn checksum(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    let chunk: Vec<u8> = (0..MIB).map(|i| (i * 31) as u8).collect();
    group.throughput(Throughput::Bytes(MIB as u64));
    group.bench_function("crc64 of a chunk", |b| b.iter(|| crc64(black_box(&chunk))));
    group.finish();
}

criterion_group!(benches, pure, crossbeam, checksum);
criterion_main!(benches);
