// SPDX-License-Identifier: Apache-2.0
//! The segment table: where the chunks of one participant's segment lie, and their checksums. Its
//! shards are in the shard list.
//!
//! | offset | size    | field                                                       |
//! |--------|---------|-------------------------------------------------------------|
//! | 64     | 16      | id of the checkpoint                                        |
//! | 80     | 8       | length of the segment                                       |
//! | 88     | 8       | bytes of a chunk                                            |
//! | 96     | 8       | chunks                                                      |
//! | 104    | 4       | participant                                                 |
//! | 108    | 4       | zero                                                        |
//! | 112    | 1       | copies c of each chunk: 1 or 2                              |
//! | 113    | 15      | zero                                                        |
//! | 128    | 8 + 8 c | chunks: CRC-64 8, locations 8 each                          |
//!
//! A location has the slot in its low 48 bits and the drive in its high 16. The copies of a chunk
//! lie on different drives.

use uuid::Uuid;

use super::codec::{Magic, PROLOGUE_BYTES, Reader, Writer, corrupt};
use super::label::{DriveEntry, MAX_COPIES};
use super::object::{MAX_META_OBJECT_BYTES, chunk_record_bytes};
use super::table_ref::{NO_OFFSET, check_segment, same_segment};
use super::{Encoded, FormatError, Layout, TableRef};
use crate::limits::{MAX_CHUNK_BYTES, MAX_SEGMENT_BYTES, MIN_CHUNK_BYTES};
use crate::units::{Copies, DriveIndex, Location};

const MAGIC: Magic = *b"STN SEGM";

const HEADER_BYTES: u64 = 64;
const SLOT_BITS: u32 = 48;

const _: () = {
    let most_chunks = MAX_SEGMENT_BYTES / MIN_CHUNK_BYTES * chunk_record_bytes(MAX_COPIES);
    assert!(PROLOGUE_BYTES + HEADER_BYTES + most_chunks <= MAX_META_OBJECT_BYTES);
};

/// One chunk: its checksum and where its copies lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkRecord {
    /// [`super::crc64`] of its real bytes.
    pub crc64: u64,
    /// Where it lies; the same number of places for each chunk of a segment.
    pub copies: Copies,
}

/// Where one participant's segment lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentTable {
    /// The pool.
    pub pool: Uuid,
    /// The id of the checkpoint.
    pub checkpoint: Uuid,
    /// The participant, from 0.
    pub participant: u32,
    /// Length of the segment.
    pub len_bytes: u64,
    /// Bytes of a chunk; the last one may be shorter.
    pub chunk_bytes: u64,
    /// In the order of the segment's bytes.
    pub chunks: Vec<ChunkRecord>,
}

impl SegmentTable {
    /// Why a reader would refuse this table.
    pub fn check(&self) -> Result<(), String> {
        let chunk_known = (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&self.chunk_bytes)
            && self.chunk_bytes.is_power_of_two();
        if !chunk_known {
            return Err(format!("a chunk of {} bytes", self.chunk_bytes));
        }
        check_segment(self.len_bytes, self.participant)?;
        if self.chunks.len() as u64 != self.len_bytes.div_ceil(self.chunk_bytes) {
            return Err(format!("{} chunks for {} bytes", self.chunks.len(), self.len_bytes));
        }
        let is_wrong = |location: Location| location.slot >> SLOT_BITS != 0;
        for (number, ChunkRecord { copies, .. }) in self.chunks.iter().enumerate() {
            if is_wrong(copies.first) || copies.second.is_some_and(is_wrong) {
                return Err(format!("a slot of chunk {number} that no drive can have"));
            }
            if copies.count() != self.copies() {
                return Err("chunks with different numbers of copies".into());
            }
            if let Some(second) = copies.second
                && second.drive == copies.first.drive
            {
                return Err(format!("two copies of a chunk on drive {}", second.drive));
            }
        }
        Ok(())
    }

    /// Copies of each chunk.
    pub fn copies(&self) -> u8 {
        self.chunks.first().map_or(1, |chunk| chunk.copies.count())
    }

    /// Bytes of the encoding, without the padding to whole blocks; known before the content.
    /// `chunk_bytes` is that of the pool.
    pub fn encoded_bytes(len_bytes: u64, chunk_bytes: u64, copies: u8) -> u64 {
        let chunks = len_bytes.div_ceil(chunk_bytes);
        PROLOGUE_BYTES + HEADER_BYTES + chunks * chunk_record_bytes(copies)
    }

    /// The bytes of every copy.
    ///
    /// # Panics
    /// When [`SegmentTable::check`] fails: a table that no reader accepts must not be committed.
    pub fn encode(&self) -> Encoded {
        assert_eq!(self.check(), Ok(()), "an impossible segment table");
        let copies = self.copies();
        let len_bytes = Self::encoded_bytes(self.len_bytes, self.chunk_bytes, copies);
        let mut writer = Writer::new(MAGIC, self.pool, len_bytes);
        writer.uuid(self.checkpoint);
        writer.u64(self.len_bytes);
        writer.u64(self.chunk_bytes);
        writer.u64(self.chunks.len() as u64);
        writer.u32(self.participant);
        writer.zeros(4);
        writer.u8(copies);
        writer.zeros(15);
        for chunk in &self.chunks {
            writer.u64(chunk.crc64);
            for Location { drive, slot } in chunk.copies.iter() {
                writer.u64(u64::from(drive.0) << SLOT_BITS | slot);
            }
        }
        let encoded = writer.seal(NO_OFFSET);
        debug_assert_eq!(encoded.extent.len_bytes, len_bytes);
        encoded
    }

    /// Reads the blocks of a copy.
    pub fn decode(
        bytes: &[u8],
        reference: &TableRef,
        pool: Uuid,
        checkpoint: Uuid,
        participant: u32,
    ) -> Result<SegmentTable, FormatError> {
        let mut reader = Reader::open_named(MAGIC, bytes, &reference.named(), pool)?;
        let found = reader.uuid()?;
        let (len_bytes, chunk_bytes) = (reader.u64()?, reader.u64()?);
        let chunk_count = reader.u64()?;
        let found_participant = reader.u32()?;
        same_segment((found, found_participant), (checkpoint, participant))?;
        reader.zeros(4)?;
        let copies = reader.u8()?;
        if copies == 0 || copies > MAX_COPIES || (copies > 1 && chunk_count == 0) {
            return Err(corrupt(format!("{copies} copies of each of {chunk_count} chunks")));
        }
        reader.zeros(15)?;
        let record_bytes = chunk_record_bytes(copies);
        let mut chunks = Vec::with_capacity(reader.count(chunk_count, record_bytes)?);
        for _ in 0..chunk_count {
            let crc64 = reader.u64()?;
            let first = decode_location(reader.u64()?);
            let second = if copies > 1 { Some(decode_location(reader.u64()?)) } else { None };
            chunks.push(ChunkRecord { crc64, copies: Copies { first, second } });
        }
        reader.finish()?;
        let table = SegmentTable { pool, checkpoint, participant, len_bytes, chunk_bytes, chunks };
        table.check().map_err(FormatError::Corrupt)?;
        Ok(table)
    }

    /// Whether it fits the pool: its chunks have the pool's size and lie in slots that the drives
    /// have. Do not use its locations before this check.
    pub fn validate(&self, layout: &Layout, drives: &[DriveEntry]) -> Result<(), FormatError> {
        if self.chunk_bytes != layout.chunk_bytes() {
            return Err(corrupt(format!(
                "chunks of {} bytes in a pool of {}",
                self.chunk_bytes,
                layout.chunk_bytes()
            )));
        }
        let slots: Vec<u64> = drives.iter().map(|d| layout.data_slots(d.capacity_bytes)).collect();
        for (number, chunk) in self.chunks.iter().enumerate() {
            let is_lost = |location: Location| {
                let slots = slots.get(location.drive.as_usize());
                slots.is_none_or(|slots| location.slot >= *slots)
            };
            let Copies { first, second } = chunk.copies;
            if is_lost(first) || second.is_some_and(is_lost) {
                return Err(corrupt(format!(
                    "chunk {number} lies in a slot that the pool does not have: {:?}",
                    chunk.copies
                )));
            }
        }
        Ok(())
    }
}

fn decode_location(location: u64) -> Location {
    let drive = DriveIndex((location >> SLOT_BITS) as u16);
    Location { drive, slot: location & ((1 << SLOT_BITS) - 1) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{
        MIB, any_table, edited, edits, edits_give_an_error_or_another_value, every_cut_is_noticed,
        every_flip_is_noticed, reference_to,
    };
    use super::*;
    use crate::format::DriveState;

    const POOL: Uuid = Uuid::from_u128(0xABCD);
    const CHECKPOINT: Uuid = Uuid::from_u128(77);

    fn at(drive: u16, slot: u64) -> Location {
        Location { drive: DriveIndex(drive), slot }
    }

    fn table() -> SegmentTable {
        let chunk =
            |crc64, drive, slot| ChunkRecord { crc64, copies: Copies::one(at(drive, slot)) };
        SegmentTable {
            pool: POOL,
            checkpoint: CHECKPOINT,
            participant: 3,
            len_bytes: MIB + 100,
            chunk_bytes: MIB,
            chunks: vec![chunk(11, 1, 5), chunk(12, 0, 6)],
        }
    }

    fn decode(bytes: &[u8], reference: &TableRef) -> Result<SegmentTable, FormatError> {
        SegmentTable::decode(bytes, reference, POOL, CHECKPOINT, 3)
    }

    proptest! {
        #[test]
        fn round_trip(table in any_table()) {
            let SegmentTable { pool, checkpoint, participant, len_bytes, chunk_bytes, .. } = table;
            let Encoded { bytes, extent } = table.encode();
            let copies = table.copies();
            let expected = SegmentTable::encoded_bytes(len_bytes, chunk_bytes, copies);
            prop_assert_eq!(extent.len_bytes, expected);
            prop_assert_eq!(extent.stored_bytes(), bytes.len() as u64);
            let named = reference_to(&extent);
            let decoded = SegmentTable::decode(&bytes, &named, pool, checkpoint, participant);
            prop_assert_eq!(decoded, Ok(table));
        }

        #[test]
        fn edits_under_a_right_hash(table in any_table(), edits in edits()) {
            let SegmentTable { pool, checkpoint, participant, .. } = table;
            edits_give_an_error_or_another_value(
                &table.encode().bytes,
                &edits,
                |b, extent| {
                    SegmentTable::decode(b, &reference_to(extent), pool, checkpoint, participant)
                },
                |table, _| table.encode().bytes,
            )?;
        }
    }

    #[test]
    fn damage_is_detected() {
        let Encoded { bytes, extent } = table().encode();
        let named = reference_to(&extent);
        every_flip_is_noticed(&bytes, |bytes| decode(bytes, &named));
        every_cut_is_noticed(&bytes, |bytes, hash| {
            decode(bytes, &TableRef { hash, ..named.clone() })
        });
        let other = SegmentTable::decode(&bytes, &named, POOL, CHECKPOINT, 4);
        assert!(matches!(other, Err(FormatError::Corrupt(t)) if t.contains("participant 3")));
    }

    #[test]
    fn fields_lie_as_specified() {
        let bytes = table().encode().bytes;
        assert_eq!(bytes[..8], *b"STN SEGM");
        assert_eq!(bytes[64..80], *CHECKPOINT.as_bytes());
        assert_eq!(bytes[80..88], (MIB + 100).to_le_bytes());
        assert_eq!(bytes[88..96], MIB.to_le_bytes());
        assert_eq!(bytes[96..104], 2_u64.to_le_bytes());
        assert_eq!(bytes[104..112], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[112..128], 1_u128.to_le_bytes());
        assert_eq!(bytes[128..136], 11_u64.to_le_bytes());
        assert_eq!(bytes[136..144], [5, 0, 0, 0, 0, 0, 1, 0], "slot, then drive");
        assert_eq!(bytes.len(), 4096);
        let bytes = mirrored().encode().bytes;
        assert_eq!(bytes[112..128], 2_u128.to_le_bytes());
        assert_eq!(bytes[136..144], [5, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(bytes[144..152], [7, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// The same with a second copy of each chunk.
    fn mirrored() -> SegmentTable {
        let mut table = table();
        table.chunks[0].copies.second = Some(at(0, 7));
        table.chunks[1].copies.second = Some(at(1, 8));
        table
    }

    #[test]
    fn copies_of_a_chunk_are_on_different_drives() {
        assert_eq!((table().copies(), mirrored().copies()), (1, 2));
        let mut together = mirrored();
        together.chunks[0].copies.second = Some(at(1, 9));
        assert!(together.check().unwrap_err().contains("two copies"));
        let mut uneven = mirrored();
        uneven.chunks[1].copies.second = None;
        assert!(uneven.check().unwrap_err().contains("different numbers"));
        let layout = Layout::plan(&[64 * MIB; 2], MIB).unwrap();
        let drive = DriveEntry {
            uuid: POOL,
            serial: String::new(),
            capacity_bytes: 64 * MIB,
            state: DriveState::Member,
        };
        let drives = [drive.clone(), drive];
        assert_eq!(mirrored().validate(&layout, &drives), Ok(()));
        let mut lost = mirrored();
        lost.chunks[1].copies.second = Some(at(1, 64));
        assert!(lost.validate(&layout, &drives).is_err());
    }

    #[test]
    fn hostile_counts_are_checked_against_the_bytes() {
        let Encoded { bytes, extent } = table().encode();
        let refusal = |at: usize, value: &[u8]| {
            let (bytes, hash) = edited(&bytes, |b| b[at..at + value.len()].copy_from_slice(value));
            decode(&bytes, &TableRef { hash, ..reference_to(&extent) }).unwrap_err().to_string()
        };
        assert!(refusal(96, &[0xFF; 8]).starts_with("18446744073709551615 records where"));
        assert!(refusal(108, &[1]).contains("reserved"));
        assert!(refusal(112, &[0]).contains("copies"));
        assert!(refusal(112, &[3]).contains("copies"));
        assert!(refusal(80, &[0; 8]).contains("2 chunks for 0 bytes"));
        assert!(refusal(88, &[0; 8]).contains("a chunk of 0 bytes"));
    }

    #[test]
    fn validate_compares_it_with_the_drives() {
        let capacity_bytes = 64 * MIB;
        let layout = Layout::plan(&[capacity_bytes; 2], MIB).unwrap();
        let state = DriveState::Member;
        let drive = DriveEntry { uuid: POOL, serial: String::new(), capacity_bytes, state };
        let drives = [drive.clone(), drive];
        let with = |drive, slot| {
            let mut table = table();
            table.chunks[1].copies = Copies::one(at(drive, slot));
            table
        };
        let slots = layout.data_slots(capacity_bytes);
        assert_eq!(with(1, slots - 1).validate(&layout, &drives), Ok(()));
        assert!(with(1, slots).validate(&layout, &drives).is_err());
        assert!(with(2, 0).validate(&layout, &drives).is_err());
        let other_chunks = Layout::plan(&[capacity_bytes; 2], MIB / 2).unwrap();
        assert!(table().validate(&other_chunks, &drives).is_err());
        assert!(with(1, 1 << 48).check().is_err());
    }
}
