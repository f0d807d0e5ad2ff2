// SPDX-License-Identifier: Apache-2.0
//! What the tests of every structure share: arbitrary values, and the three attacks that each
//! decoder must withstand: a flipped bit, cut bytes, and edited bytes under a right hash.

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use uuid::Uuid;

use super::{
    Access, AttributeType, Attributes, Catalogue, CatalogueEntry, ChunkRecord, DriveEntry,
    DriveState, Features, FormatError, Label, Layout, Manifest, MetaExtent, Owner, OwnerProcess,
    Root, SegmentRef, SegmentTable, Shard, ShardList, TableRef, TableRun, blocks_of, hash128,
    table_copies_of,
};
use crate::limits::MAX_NUMBER;
use crate::units::{Copies, DriveIndex, Generation, Location};

pub(super) const MIB: u64 = 1 << 20;

/// Where the tests place metadata: a block-aligned offset with many bits set.
pub(super) const META_AT: u64 = 0x0002_0304_0506_7000;

/// A damage of the tests: set the byte at this place of the structure to this value.
pub(super) type Edits = Vec<(prop::sample::Index, u8)>;

pub(super) fn edits() -> impl Strategy<Value = Edits> {
    let value = prop_oneof![Just(0), Just(1), Just(0xFF), any::<u8>()];
    vec((any::<prop::sample::Index>(), value), 1..4)
}

/// Gives edited bytes a right hash again, as a hostile drive would, and returns it.
pub(super) fn reseal(bytes: &mut [u8]) -> [u8; 16] {
    let hash = hash128(&bytes[24..]);
    bytes[8..24].copy_from_slice(&hash);
    hash
}

/// `bytes` with `edit` done under a right hash.
pub(super) fn edited(bytes: &[u8], edit: impl FnOnce(&mut [u8])) -> (Vec<u8>, [u8; 16]) {
    let mut bytes = bytes.to_vec();
    edit(&mut bytes);
    let hash = reseal(&mut bytes);
    (bytes, hash)
}

/// No bit of any byte, padding included, may change undetected.
pub(super) fn every_flip_is_noticed<T: Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, FormatError>,
) {
    assert!(decode(bytes).is_ok());
    let mut flipped = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        flipped[bit / 8] ^= 1 << (bit % 8);
        let error = decode(&flipped).expect_err("a flipped bit");
        assert!(
            if bit < 64 {
                error == FormatError::NotOurs
            } else {
                matches!(error, FormatError::Corrupt(_))
            },
            "bit {bit}: {error:?}"
        );
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
}

/// A prefix of sound bytes is an error, whether its hash is right or not.
pub(super) fn every_cut_is_noticed<T: Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8], [u8; 16]) -> Result<T, FormatError>,
) {
    for len in (0..bytes.len()).step_by(61) {
        let mut cut = bytes[..len].to_vec();
        assert!(decode(&cut, [0; 16]).is_err(), "cut to {len}");
        if len > 24 {
            let hash = reseal(&mut cut);
            assert!(decode(&cut, hash).is_err(), "cut to {len} under a right hash");
        }
    }
    // Cut, and filled up with zeros under a right hash: the result may be another value, but
    // decoding it must not panic.
    for len in (64..u64_at(bytes, 40) as usize).step_by(61) {
        let (cut, hash) = edited(bytes, |bytes| bytes[len..].fill(0));
        let _ = decode(&cut, hash);
    }
}

/// Edits under a right hash give an error, or a value that encodes to the same bytes: no byte is
/// read in two ways or ignored.
pub(super) fn edits_give_an_error_or_another_value<T>(
    bytes: &[u8],
    edits: &Edits,
    decode: impl Fn(&[u8], &MetaExtent) -> Result<T, FormatError>,
    encode: impl Fn(&T, u64) -> Vec<u8>,
) -> Result<(), TestCaseError> {
    let len_bytes = u64_at(bytes, 40) as usize;
    let (bytes, hash) = edited(bytes, |bytes| {
        for (at, value) in edits {
            bytes[24 + at.index(len_bytes - 24)] = *value;
        }
    });
    let offset_bytes = u64_at(&bytes, 32);
    let extent = MetaExtent { offset_bytes, len_bytes: u64_at(&bytes, 40), hash };
    let same_version =
        bytes[24..28] == [super::MAJOR.to_le_bytes(), super::MINOR.to_le_bytes()].concat();
    if let Ok(value) = decode(&bytes, &extent)
        && same_version
    {
        prop_assert_eq!(encode(&value, offset_bytes), bytes);
    }
    Ok(())
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The label of a new pool without copies, of drives "SIM0", "SIM1" and so on.
pub(crate) fn striped_label(capacity_bytes: u64, chunk_bytes: u64, drives: usize) -> Label {
    let entry = |number: usize| DriveEntry {
        uuid: Uuid::from_u128(number as u128 + 1),
        serial: format!("SIM{number}"),
        capacity_bytes,
        state: DriveState::Member,
    };
    Label {
        pool: Uuid::from_u128(9),
        epoch: 1,
        ancestors: Vec::new(),
        created_unix_ns: 0,
        features: Features::default(),
        copies: 1,
        table_copies: table_copies_of(drives),
        index: DriveIndex(0),
        drives: (0..drives).map(entry).collect(),
        layout: Layout::plan(&vec![capacity_bytes; drives], chunk_bytes).unwrap(),
    }
}

/// The label of a mirror of small drives in these states, with serials S1, S2 ...
pub(crate) fn mirror_label(states: &[DriveState]) -> Label {
    let drive = |(n, state): (u128, &DriveState)| DriveEntry {
        uuid: Uuid::from_u128(n),
        serial: format!("S{n}"),
        capacity_bytes: 64 * MIB,
        state: *state,
    };
    Label {
        pool: Uuid::from_u128(99),
        epoch: 1,
        ancestors: Vec::new(),
        created_unix_ns: 0,
        features: Features::default(),
        copies: 2,
        table_copies: table_copies_of(states.len()),
        index: DriveIndex(0),
        drives: (1..).zip(states).map(drive).collect(),
        layout: Layout::plan(&vec![64 * MIB; states.len()], MIB).unwrap(),
    }
}

pub(super) fn any_uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(|n| Uuid::from_u128(n | 1))
}

pub(super) fn any_extent() -> impl Strategy<Value = MetaExtent> {
    (0..1_u64 << 40, 64..1_u64 << 43, any::<[u8; 16]>()).prop_map(|(block, len_bytes, hash)| {
        MetaExtent { offset_bytes: block * 4096, len_bytes, hash }
    })
}

/// A reference to an object with one copy, somewhere.
pub(crate) fn reference_to(object: &MetaExtent) -> TableRef {
    let blocks = blocks_of(object.len_bytes).min(u32::MAX.into()) as u32;
    let run = TableRun { drive: DriveIndex(0), copy: 0, blocks, first_block: 1 };
    TableRef::of(object, vec![run])
}

/// Copies on different drives, each in several runs.
fn any_reference() -> impl Strategy<Value = TableRef> {
    let cuts = vec(any::<prop::sample::Index>(), 0..4);
    let copy = (cuts, vec(0..1_u64 << 44, 4));
    let numbers = (64..1_u64 << 30, any::<[u8; 16]>(), 0..1000_u16);
    (numbers, vec(copy, 1..=4)).prop_map(|((len_bytes, hash, drive), copies)| {
        let blocks = blocks_of(len_bytes) as u32;
        let mut runs = Vec::new();
        for (copy, (cuts, places)) in (0..).zip(copies) {
            let mut ends: Vec<u32> =
                cuts.iter().map(|cut| cut.index(blocks as usize) as u32).collect();
            ends.extend([0, blocks]);
            ends.sort_unstable();
            ends.dedup();
            runs.extend(ends.windows(2).zip(places).map(|(ends, first_block)| TableRun {
                drive: DriveIndex(drive + copy),
                copy: copy as u8,
                blocks: ends[1] - ends[0],
                first_block,
            }));
        }
        TableRef { len_bytes, hash, runs }
    })
}

pub(super) fn any_name() -> impl Strategy<Value = String> {
    // At most 4 bytes a character.
    "\\PC{1,32}"
}

pub(super) fn any_attributes() -> impl Strategy<Value = Attributes> {
    let unknown = (6..=u16::MAX, vec(any::<u8>(), 0..40));
    let known = (any::<[bool; 5]>(), any::<u32>(), any::<i64>(), 0..=2_u8, "\\PC{1,20}");
    (vec(unknown, 0..3), known).prop_map(|(unknown, (which, mode, modified, kind, target))| {
        let mut records: Vec<(AttributeType, Vec<u8>)> = vec![
            (AttributeType::FILE_MODE, mode.to_le_bytes().into()),
            (AttributeType::FILE_MODIFIED, modified.to_le_bytes().into()),
            (AttributeType::FILE_KIND, vec![kind]),
            (AttributeType::LINK_TARGET, target.into_bytes()),
            (AttributeType::MAY_HAVE_CHANGED, Vec::new()),
        ];
        let mut which = which.into_iter();
        records.retain(|_| which.next() == Some(true));
        records.extend(unknown.into_iter().map(|(kind, bytes)| (AttributeType(kind), bytes)));
        let mut attributes = Attributes::default();
        for (kind, content) in records {
            attributes.push(kind, &content).unwrap();
        }
        attributes
    })
}

/// Mostly none, as in a pool.
fn some_attributes() -> impl Strategy<Value = Attributes> {
    prop_oneof![3 => Just(Attributes::default()), 1 => any_attributes()]
}

fn any_owner() -> impl Strategy<Value = Owner> {
    let process = (any::<u128>(), any::<u64>(), any::<u32>(), any::<u64>()).prop_map(
        |(boot_id, pid_namespace, pid, started_ticks)| OwnerProcess {
            boot_id: Uuid::from_u128(boot_id),
            pid_namespace,
            pid,
            started_ticks,
        },
    );
    let texts = ("\\PC{0,30}", "\\PC{0,16}");
    (any::<u128>(), process, any::<[u8; 16]>(), any::<u64>(), texts).prop_map(
        |(open_id, process, host_id, reservation_key, (host_name, command))| Owner {
            host_id,
            reservation_key,
            ..Owner::new(Uuid::from_u128(open_id), process, &host_name, &command)
        },
    )
}

pub(crate) fn any_label() -> impl Strategy<Value = Label> {
    let state = prop_oneof![
        Just(DriveState::Member),
        Just(DriveState::Absent),
        Just(DriveState::Rebuilding)
    ];
    let drive = ("\\PC{0,16}", 32 * MIB..1 << 45, any_uuid(), state);
    let drives = vec(drive, 1..=32).prop_map(|drives| {
        let drives = drives.into_iter().enumerate().map(|(i, drive)| {
            let (serial, capacity_bytes, uuid, state) = drive;
            // A pool has at least one member.
            let state = if i == 0 { DriveState::Member } else { state };
            // Distinct, whatever was drawn.
            let uuid = Uuid::from_u128(uuid.as_u128() & !0xFF | (i as u128 + 1));
            DriveEntry { uuid, serial, capacity_bytes, state }
        });
        drives.collect::<Vec<_>>()
    });
    let numbers = (1..=MAX_NUMBER, any::<u64>(), any::<u64>(), any::<u64>());
    let choices = (any::<prop::sample::Index>(), 12..=24_u32, 1..=2_u8, 1..=8_u8);
    let ancestors = vec(any_uuid().prop_map(Uuid::into_bytes), 0..=32);
    (any_uuid(), numbers, drives, choices, ancestors).prop_map(
        |(pool, (epoch, created_unix_ns, compat, ro_compat), drives, choices, mut ancestors)| {
            let (index, chunk_log2, copies, table_copies) = choices;
            ancestors.truncate(epoch.saturating_sub(1) as usize);
            let capacities: Vec<u64> = drives.iter().map(|d| d.capacity_bytes).collect();
            Label {
                pool,
                epoch,
                ancestors,
                created_unix_ns,
                features: Features { compat, ro_compat },
                copies: copies.min(drives.len() as u8),
                table_copies: table_copies.min(drives.len() as u8),
                index: DriveIndex(index.index(drives.len()) as u16),
                drives,
                layout: Layout::plan(&capacities, 1 << chunk_log2).unwrap(),
            }
        },
    )
}

pub(crate) fn any_root() -> impl Strategy<Value = Root> {
    let numbers = (1..=MAX_NUMBER, 1..=MAX_NUMBER, any::<u64>());
    (any_uuid(), numbers, any::<[u8; 16]>(), any_extent(), any_owner()).prop_map(
        |(pool, (generation, epoch, committed_unix_ns), parent, catalogue, owner)| Root {
            pool,
            generation: Generation(generation),
            epoch,
            parent,
            catalogue,
            committed_unix_ns,
            owner,
        },
    )
}

pub(crate) fn any_catalogue() -> impl Strategy<Value = Catalogue> {
    let entry = (
        (any_uuid(), any_name(), any::<u64>(), any::<u64>()),
        (1..=65_536_u32, any::<u64>(), any::<u64>(), any_extent()),
        (any::<u32>(), any::<u32>(), 0..=0o777_u16, any::<bool>(), some_attributes()),
    );
    (any_uuid(), any::<u64>(), vec(entry, 0..30)).prop_map(|(pool, generation, entries)| {
        let mut entries: Vec<CatalogueEntry> = entries
            .into_iter()
            .map(|((id, name, step, bytes), numbers, (uid, gid, mode, pinned, attributes))| {
                let (participants, time, before, manifest) = numbers;
                CatalogueEntry {
                    id,
                    name,
                    step,
                    bytes,
                    participants,
                    committed_unix_ns: time,
                    generation: Generation(generation.saturating_sub(before)),
                    manifest,
                    access: Access { uid, gid, mode },
                    pinned,
                    attributes,
                }
            })
            .collect();
        entries.sort_by(|a, b| a.key().cmp(&b.key()));
        entries.dedup_by(|a, b| a.key() == b.key());
        Catalogue { pool, generation: Generation(generation), entries }
    })
}

pub(crate) fn any_manifest() -> impl Strategy<Value = Manifest> {
    let segment = (0..=1_u64 << 50, any_reference(), any_reference())
        .prop_map(|(len_bytes, table, list)| SegmentRef { len_bytes, table, list });
    (any_uuid(), any_uuid(), any_name(), any::<u64>(), vec(segment, 1..60)).prop_map(
        |(pool, checkpoint, name, step, segments)| Manifest {
            pool,
            checkpoint,
            name,
            step,
            segments,
        },
    )
}

pub(crate) fn any_table() -> impl Strategy<Value = SegmentTable> {
    let chunk = (any::<u64>(), any::<u16>(), 0..1_u64 << 48).prop_map(|(crc64, drive, slot)| {
        ChunkRecord { crc64, copies: Copies::one(Location { drive: DriveIndex(drive), slot }) }
    });
    // The second copy of each chunk is that many drives further.
    let mirror = prop::option::of(1..=u16::MAX);
    let numbers = (0..65_536_u32, 12..=24_u32, any::<prop::sample::Index>());
    let chunks = (vec(chunk, 0..200), mirror).prop_map(|(mut chunks, mirror)| {
        for chunk in &mut chunks {
            let first = chunk.copies.first;
            chunk.copies.second = mirror.map(|further| Location {
                drive: DriveIndex(first.drive.0.wrapping_add(further)),
                slot: first.slot / 2,
            });
        }
        chunks
    });
    (any_uuid(), any_uuid(), numbers, chunks).prop_map(
        |(pool, checkpoint, (participant, chunk_log2, last), chunks)| {
            let chunk_bytes = 1 << chunk_log2;
            // The last chunk has 1 to `chunk_bytes` bytes.
            let missing = last.index(chunk_bytes) as u64;
            let chunk_bytes = chunk_bytes as u64;
            let len_bytes = (chunks.len() as u64 * chunk_bytes).saturating_sub(missing);
            SegmentTable { pool, checkpoint, participant, len_bytes, chunk_bytes, chunks }
        },
    )
}

pub(crate) fn any_list() -> impl Strategy<Value = ShardList> {
    let shard = (
        ("\\PC{0,30}", 0..3_u64, 0..5000_u64),
        ("[a-z0-9]{0,16}", vec(any::<u64>(), 0..=16), some_attributes()),
    );
    let numbers = (0..65_536_u32, 0..100_000_u64);
    (any_uuid(), any_uuid(), numbers, vec(shard, 0..20)).prop_map(
        |(pool, checkpoint, (participant, len_bytes), shards)| {
            let mut from = 0;
            let mut placed = Vec::new();
            for (i, shard) in shards.into_iter().enumerate() {
                let ((name, gap, length), (dtype, shape, attributes)) = shard;
                let offset_bytes = from + gap;
                if offset_bytes + length > len_bytes {
                    break;
                }
                from = offset_bytes + length;
                let name = format!("{i}.{name}");
                let len_bytes = length;
                placed.push(Shard { name, offset_bytes, len_bytes, dtype, shape, attributes });
            }
            ShardList { pool, checkpoint, participant, len_bytes, shards: placed }
        },
    )
}
