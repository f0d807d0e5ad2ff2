// SPDX-License-Identifier: Apache-2.0
//! Operations of our own that wait for nothing, one at a time on one thread: what `parts`
//! times and `instructions` counts.

use std::hint::black_box;

use stanchion_testing::internals::bench::{ReactorHarness, RecoveryHarness};
use stanchion_testing::internals::extent::ExtentMap;
use stanchion_testing::internals::format::{
    Access, Attributes, Catalogue, CatalogueEntry, ChunkRecord, MetaExtent, SegmentTable, TableRef,
    TableRun,
};
use stanchion_testing::internals::ring::{CompleteEntry, RingSizes, SubmitEntry, Transfer, pair};
use stanchion_testing::internals::units::{Copies, DriveIndex, Generation, Location};
use uuid::Uuid;

const MIB: u64 = 1 << 20;
const CATALOGUE_OFFSET_BYTES: u64 = 16 << 20;
const POOL: Uuid = Uuid::from_u128(1);

/// One operation.
pub struct Operation {
    /// Its name, as the committed counts have it.
    pub name: &'static str,
    /// Returns a closure that runs it once at each call.
    pub make: fn() -> Box<dyn FnMut()>,
}

/// All of them.
pub fn all() -> Vec<Operation> {
    let operation = |name, make| Operation { name, make };
    vec![
        operation("ring_round_trips_64", ring),
        operation("entry_decode", entry_decode),
        operation("allocate_1000_fragmented", allocate),
        operation("catalogue_encode_1000", catalogue_encode),
        operation("catalogue_decode_1000", catalogue_decode),
        operation("table_encode_16_gib", table_encode),
        operation("table_decode_16_gib", table_decode),
        operation("reactor_nop_64", reactor_nop),
        operation("reactor_write_16_chunks", reactor_write),
        operation("reactor_read_16_chunks", reactor_read),
        operation("recovery_1000_checkpoints", recovery),
    ]
}

/// 64 entries through a ring and back, both ends on one thread.
fn ring() -> Box<dyn FnMut()> {
    let (mut client, mut engine) = pair(RingSizes::new(64).unwrap()).unwrap();
    let entries = [SubmitEntry::nop(7); 64];
    let mut out = [CompleteEntry::default(); 64];
    Box::new(move || {
        assert_eq!(client.submit(black_box(&entries)).accepted, 64);
        while let Some(entry) = engine.take().unwrap() {
            engine.complete(CompleteEntry::success(entry.user_data, 0, 0));
        }
        let _ = engine.publish();
        assert_eq!(client.peek(&mut out), 64);
    })
}

fn entry_decode() -> Box<dyn FnMut()> {
    let transfer = Transfer {
        checkpoint: 3,
        buffer: 1,
        buffer_offset_bytes: 4096,
        len_bytes: MIB,
        segment_offset_bytes: 7 * MIB,
    };
    let entry = SubmitEntry::write(transfer, 9);
    Box::new(move || {
        black_box(black_box(&entry).decode().unwrap());
    })
}

/// Takes and gives back 1000 slots of a drive of 1 TB in chunks of 1 MiB, of whose first half every
/// other slot is used.
fn allocate() -> Box<dyn FnMut()> {
    let mut map = ExtentMap::new(1 << 20);
    (0..1 << 18).for_each(|i| map.mark_used(2 * i, 1).unwrap());
    let mut slots = Vec::with_capacity(1000);
    Box::new(move || {
        assert!(map.allocate_many(1000, &mut slots));
        slots.drain(..).for_each(|slot| map.release(slot, 1).unwrap());
    })
}

fn catalogue() -> Catalogue {
    let extent =
        MetaExtent { offset_bytes: CATALOGUE_OFFSET_BYTES, len_bytes: 4096, hash: [7; 16] };
    let entry = |step: u64| CatalogueEntry {
        id: Uuid::from_u128(u128::from(step) + 2),
        name: "llama".into(),
        step,
        bytes: 1 << 30,
        participants: 8,
        committed_unix_ns: 1,
        generation: Generation(step),
        manifest: extent,
        access: Access::of(0, 0),
        pinned: false,
        attributes: Attributes::default(),
    };
    let entries = (0..1000).map(entry).collect();
    Catalogue { pool: POOL, generation: Generation(1001), entries }
}

fn catalogue_encode() -> Box<dyn FnMut()> {
    let catalogue = catalogue();
    Box::new(move || {
        black_box(black_box(&catalogue).encode(CATALOGUE_OFFSET_BYTES));
    })
}

fn catalogue_decode() -> Box<dyn FnMut()> {
    let encoded = catalogue().encode(CATALOGUE_OFFSET_BYTES);
    Box::new(move || {
        black_box(Catalogue::decode(black_box(&encoded.bytes), &encoded.extent, POOL).unwrap());
    })
}

/// Of a segment of 16 GiB over eight drives.
fn table() -> SegmentTable {
    let chunk = |number: u64| {
        let location = Location { drive: DriveIndex((number % 8) as u16), slot: number / 8 };
        ChunkRecord { crc64: number, copies: Copies::one(location) }
    };
    SegmentTable {
        pool: POOL,
        checkpoint: Uuid::from_u128(2),
        participant: 0,
        len_bytes: 16 << 30,
        chunk_bytes: MIB,
        chunks: (0..16 << 10).map(chunk).collect(),
    }
}

fn table_encode() -> Box<dyn FnMut()> {
    let table = table();
    Box::new(move || {
        black_box(black_box(&table).encode());
    })
}

fn table_decode() -> Box<dyn FnMut()> {
    let table = table();
    let encoded = table.encode();
    let blocks = encoded.extent.blocks() as u32;
    let run = TableRun { drive: DriveIndex(0), copy: 0, blocks, first_block: 1 };
    let named = TableRef::of(&encoded.extent, vec![run]);
    Box::new(move || {
        let bytes = black_box(&encoded.bytes);
        let decoded = SegmentTable::decode(bytes, &named, POOL, table.checkpoint, 0);
        black_box(decoded.unwrap());
    })
}

/// 64 entries through a ring to a reactor, and their completions back.
fn reactor_nop() -> Box<dyn FnMut()> {
    let mut harness = ReactorHarness::new().unwrap();
    Box::new(move || harness.nops(64))
}

/// One entry through a ring to a reactor, which writes 16 chunks of 4 KiB to a drive in memory and
/// has their checksums computed.
fn reactor_write() -> Box<dyn FnMut()> {
    let mut harness = ReactorHarness::new().unwrap();
    Box::new(move || harness.write(16))
}

/// The same for 16 chunks that are read and compared.
fn reactor_read() -> Box<dyn FnMut()> {
    let mut harness = ReactorHarness::new().unwrap();
    Box::new(move || harness.read(16))
}

/// Opens, for writing, a pool of four drives in memory with 1000 checkpoints of 64 chunks.
fn recovery() -> Box<dyn FnMut()> {
    let mut harness = RecoveryHarness::new(1000).unwrap();
    Box::new(move || {
        black_box(harness.open());
    })
}
