//! The parts of the path that are ours, one at a time: ring, allocator, checksum, metadata.
//!
//! For comparing a change with what was there before, on one machine:
//! `cargo bench --bench parts -- --save-baseline before`, then `-- --baseline before`.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam::queue::ArrayQueue;
use stanchion::extent::ExtentMap;
use stanchion::format::{
    Catalogue, CatalogueEntry, ChunkRecord, MetaExtent, SegmentTable, Shard, crc64,
};
use stanchion::ring::{CompleteEntry, RingSizes, SubmitEntry, pair};
use stanchion::units::{Copies, DriveIndex, Generation, Location};

const MIB: usize = 1 << 20;
const CATALOGUE_OFFSET_BYTES: u64 = 16 << 20;

fn ring(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    group.throughput(Throughput::Elements(64));
    let (mut client, mut engine) = pair(RingSizes::new(64).unwrap()).unwrap();
    let entries = [SubmitEntry::nop(7); 64];
    let mut out = [CompleteEntry::default(); 64];
    group.bench_function("round trips of 64, one thread", |b| {
        b.iter(|| {
            assert_eq!(client.submit(black_box(&entries)).accepted, 64);
            while let Some(entry) = engine.take().unwrap() {
                engine.complete(CompleteEntry::success(entry.user_data, 0, 0));
            }
            let _ = engine.publish();
            assert_eq!(client.peek(&mut out), 64);
        });
    });
    let (there, back) = (ArrayQueue::<[u64; 8]>::new(64), ArrayQueue::<[u64; 4]>::new(128));
    group.bench_function("the same over a pair of crossbeam's ArrayQueue", |b| {
        b.iter(|| {
            (0..64).for_each(|_| there.push(black_box([7; 8])).unwrap());
            while let Some(entry) = there.pop() {
                back.push([entry[0]; 4]).unwrap();
            }
            let taken = std::iter::from_fn(|| back.pop()).count();
            assert_eq!(taken, 64);
        });
    });
    group.finish();
}

fn checksum(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    let chunk: Vec<u8> = (0..MIB).map(|i| (i * 31) as u8).collect();
    group.throughput(Throughput::Bytes(MIB as u64));
    group.bench_function("crc64 of a chunk", |b| b.iter(|| crc64(black_box(&chunk))));
    group.finish();
}

fn allocator(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocator");
    // A drive of 8 TB in chunks of 1 MiB, every other slot of its first half used.
    let mut map = ExtentMap::new(8 << 20);
    (0..2 << 20).for_each(|i| map.mark_used(2 * i, 1).unwrap());
    group.bench_function("1000 slots on a fragmented drive", |b| {
        b.iter_batched_ref(
            || (map.clone(), Vec::with_capacity(1000)),
            |(map, out)| assert!(map.allocate_many(1000, out)),
            criterion::BatchSize::LargeInput,
        );
    });
    group.finish();
}

fn metadata(c: &mut Criterion) {
    let mut group = c.benchmark_group("metadata");
    let pool = uuid::Uuid::from_u128(1);
    let extent =
        MetaExtent { offset_bytes: CATALOGUE_OFFSET_BYTES, len_bytes: 4096, hash: [7; 16] };
    let entry = |step: u64| CatalogueEntry {
        id: uuid::Uuid::from_u128(u128::from(step) + 2),
        name: "llama".into(),
        step,
        bytes: 1 << 30,
        participants: 8,
        committed_unix_ns: 1,
        generation: Generation(step),
        manifest: extent,
    };
    let catalogue =
        Catalogue { pool, generation: Generation(1001), entries: (0..1000).map(entry).collect() };
    group.bench_function("encode a catalogue of 1000", |b| {
        b.iter(|| black_box(&catalogue).encode(CATALOGUE_OFFSET_BYTES));
    });
    let encoded = catalogue.encode(CATALOGUE_OFFSET_BYTES);
    group.bench_function("decode a catalogue of 1000", |b| {
        b.iter(|| Catalogue::decode(black_box(&encoded.bytes), &encoded.extent, pool).unwrap());
    });
    let table = SegmentTable {
        pool,
        checkpoint: uuid::Uuid::from_u128(2),
        participant: 0,
        length_bytes: 16 << 30,
        chunk_bytes: MIB as u64,
        shards: (0..200)
            .map(|i| Shard {
                name: format!("layer.{i}"),
                offset_bytes: i << 20,
                length_bytes: 1 << 20,
                dtype: "F16".into(),
                shape: vec![1 << 19],
            })
            .collect(),
        chunks: (0..16 << 10)
            .map(|slot| {
                let drive = DriveIndex((slot % 8) as u16);
                let location = Location { drive, slot: slot / 8 };
                ChunkRecord { crc64: slot, copies: Copies::one(location) }
            })
            .collect(),
    };
    group.bench_function("encode the table of a 16 GiB segment", |b| {
        b.iter(|| black_box(&table).encode(CATALOGUE_OFFSET_BYTES));
    });
    group.finish();
}

criterion_group!(benches, ring, checksum, allocator, metadata);
criterion_main!(benches);
