// SPDX-License-Identifier: Apache-2.0
//! The segment table: where the chunks of one participant's segment lie, their checksums, and the
//! shards of the segment.
//!
//! | offset | size    | field                                                       |
//! |--------|---------|-------------------------------------------------------------|
//! | 64     | 16      | id of the checkpoint                                        |
//! | 80     | 8       | length of the segment                                       |
//! | 88     | 8       | bytes of a chunk                                            |
//! | 96     | 8       | chunks                                                      |
//! | 104    | 4       | participant                                                 |
//! | 108    | 4       | shards                                                      |
//! | 112    | 1       | copies c of each chunk: 1 or 2                              |
//! | 113    | 15      | zero                                                        |
//! | 128    | 8 + 8 c | chunks: CRC-64 8, locations 8 each                          |
//! |        |         | shards                                                      |
//!
//! A shard: offset 8, length 8, length of the name 2, length of the dtype 1, dimensions 1, zero 4,
//! shape 8 each, name, dtype.
//!
//! A location has the slot in its low 48 bits and the drive in its high 16. The copies of a chunk
//! lie on different drives.

use uuid::Uuid;

use super::codec::{Magic, PROLOGUE_BYTES, Reader, Writer, corrupt};
use super::label::{DriveEntry, MAX_COPIES};
use super::object::MAX_META_OBJECT_BYTES;
use super::{Encoded, FormatError, Layout, MetaExtent};
use crate::limits::{
    MAX_CHUNK_BYTES, MAX_DTYPE_BYTES, MAX_PARTICIPANTS, MAX_SEGMENT_BYTES, MAX_SHARD_DIMENSIONS,
    MAX_SHARD_NAME_BYTES, MAX_SHARDS, MIN_CHUNK_BYTES,
};
use crate::units::{Copies, DriveIndex, Location};

const MAGIC: Magic = *b"STN SEGM";

const HEADER_BYTES: u64 = 64;
const SHARD_BYTES: u64 = 24;
const SLOT_BITS: u32 = 48;

/// Bytes of the record of a chunk with that many copies.
const fn chunk_record_bytes(copies: u8) -> u64 {
    8 + 8 * copies as u64
}

const _: () = {
    let most_chunks = MAX_SEGMENT_BYTES / MIN_CHUNK_BYTES * chunk_record_bytes(MAX_COPIES);
    let longest_shard =
        SHARD_BYTES as usize + 8 * MAX_SHARD_DIMENSIONS + MAX_SHARD_NAME_BYTES + MAX_DTYPE_BYTES;
    let most = PROLOGUE_BYTES + HEADER_BYTES + most_chunks + (MAX_SHARDS * longest_shard) as u64;
    assert!(most <= MAX_META_OBJECT_BYTES);
    assert!(MAX_DTYPE_BYTES <= u8::MAX as usize && MAX_SHARD_DIMENSIONS <= u8::MAX as usize);
    assert!(MAX_SHARD_NAME_BYTES <= u16::MAX as usize);
};

/// A named range of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Its name, unique in the segment.
    pub name: String,
    /// Where it starts in the segment.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Type of its elements, ASCII; empty when it is not a tensor.
    pub dtype: String,
    /// Its dimensions; empty for a scalar, or when it is not a tensor.
    pub shape: Vec<u64>,
}

impl Shard {
    fn encoded_bytes(&self) -> u64 {
        SHARD_BYTES + (8 * self.shape.len() + self.name.len() + self.dtype.len()) as u64
    }

    fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.len() > MAX_SHARD_NAME_BYTES {
            return Err(format!(
                "a shard's name of {} bytes; 1 to {MAX_SHARD_NAME_BYTES} are allowed",
                self.name.len()
            ));
        }
        if self.dtype.len() > MAX_DTYPE_BYTES || !self.dtype.is_ascii() {
            return Err(format!(
                "shard {}: dtype {:?} is not ASCII of at most {MAX_DTYPE_BYTES} bytes",
                self.name, self.dtype
            ));
        }
        if self.shape.len() > MAX_SHARD_DIMENSIONS {
            return Err(format!(
                "shard {}: {} dimensions; at most {MAX_SHARD_DIMENSIONS} are allowed",
                self.name,
                self.shape.len()
            ));
        }
        Ok(())
    }
}

/// Sorts shards into the order of a table.
#[cfg(any(test, feature = "internals"))]
pub fn sort_shards(shards: &mut [Shard]) {
    shards.sort_by_key(|s| (s.offset_bytes, s.len_bytes));
}

/// Whether these are the shards of a segment of this length: inside it, ascending, without overlap,
/// each name once. Gaps are allowed, and so are empty shards between others.
pub fn check_shards(shards: &[Shard], len_bytes: u64) -> Result<(), String> {
    if shards.len() > MAX_SHARDS {
        return Err(format!("{} shards; at most {MAX_SHARDS} are allowed", shards.len()));
    }
    let mut free_from = 0;
    for shard in shards {
        shard.check()?;
        let end = shard.offset_bytes.checked_add(shard.len_bytes);
        let end = end.filter(|end| *end <= len_bytes).ok_or_else(|| {
            format!("shard {} reaches beyond the segment's {len_bytes} bytes", shard.name)
        })?;
        if shard.offset_bytes < free_from {
            return Err(format!("shard {} overlaps the one before it", shard.name));
        }
        free_from = end;
    }
    let mut names: Vec<&str> = shards.iter().map(|s| s.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two shards have the name {}", pair[0])),
        None => Ok(()),
    }
}

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
    /// Ascending by offset (`sort_shards`).
    pub shards: Vec<Shard>,
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
        if self.len_bytes > MAX_SEGMENT_BYTES {
            return Err(format!("a segment of {} bytes", self.len_bytes));
        }
        if self.participant >= MAX_PARTICIPANTS {
            return Err(format!("participant {}", self.participant));
        }
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
        check_shards(&self.shards, self.len_bytes)
    }

    /// Copies of each chunk.
    pub fn copies(&self) -> u8 {
        self.chunks.first().map_or(1, |chunk| chunk.copies.count())
    }

    /// Bytes of the encoding, without the padding to whole blocks; known before the content.
    /// `chunk_bytes` is that of the pool.
    pub fn encoded_bytes(len_bytes: u64, chunk_bytes: u64, copies: u8, shards: &[Shard]) -> u64 {
        PROLOGUE_BYTES
            + HEADER_BYTES
            + len_bytes.div_ceil(chunk_bytes) * chunk_record_bytes(copies)
            + shards.iter().map(Shard::encoded_bytes).sum::<u64>()
    }

    /// The bytes for every drive, to be written at `offset_bytes` in the metadata area.
    ///
    /// # Panics
    /// When [`SegmentTable::check`] fails: a table that no reader accepts must not be committed.
    pub fn encode(&self, offset_bytes: u64) -> Encoded {
        assert_eq!(self.check(), Ok(()), "an impossible segment table");
        let copies = self.copies();
        let len_bytes = Self::encoded_bytes(self.len_bytes, self.chunk_bytes, copies, &self.shards);
        let mut writer = Writer::new(MAGIC, self.pool, len_bytes);
        writer.uuid(self.checkpoint);
        writer.u64(self.len_bytes);
        writer.u64(self.chunk_bytes);
        writer.u64(self.chunks.len() as u64);
        writer.u32(self.participant);
        writer.u32(self.shards.len() as u32);
        writer.u8(copies);
        writer.zeros(15);
        for chunk in &self.chunks {
            writer.u64(chunk.crc64);
            for Location { drive, slot } in chunk.copies.iter() {
                writer.u64(u64::from(drive.0) << SLOT_BITS | slot);
            }
        }
        for shard in &self.shards {
            encode_shard(shard, &mut writer);
        }
        let encoded = writer.seal(offset_bytes);
        debug_assert_eq!(encoded.extent.len_bytes, len_bytes);
        encoded
    }

    /// Reads the blocks of `extent`.
    pub fn decode(
        bytes: &[u8],
        extent: &MetaExtent,
        pool: Uuid,
        checkpoint: Uuid,
        participant: u32,
    ) -> Result<SegmentTable, FormatError> {
        let mut reader = Reader::open_named(MAGIC, bytes, extent, pool)?;
        let found = reader.uuid()?;
        let (len_bytes, chunk_bytes) = (reader.u64()?, reader.u64()?);
        let chunk_count = reader.u64()?;
        let found_participant = reader.u32()?;
        if (found, found_participant) != (checkpoint, participant) {
            return Err(corrupt(format!(
                "of checkpoint {found}, participant {found_participant}, where {checkpoint}, {participant} is named"
            )));
        }
        let shard_count = reader.u32()?;
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
        let mut shards = Vec::with_capacity(reader.count(shard_count.into(), SHARD_BYTES)?);
        for _ in 0..shard_count {
            shards.push(decode_shard(&mut reader)?);
        }
        reader.finish()?;
        let table =
            SegmentTable { pool, checkpoint, participant, len_bytes, chunk_bytes, shards, chunks };
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

    /// The shard that contains this byte of the segment.
    #[cfg(any(test, feature = "internals"))]
    pub fn shard_at(&self, offset_bytes: u64) -> Option<&Shard> {
        let after = self.shards.partition_point(|s| s.offset_bytes <= offset_bytes);
        let shard = self.shards[..after].last()?;
        (offset_bytes - shard.offset_bytes < shard.len_bytes).then_some(shard)
    }
}

fn decode_location(location: u64) -> Location {
    let drive = DriveIndex((location >> SLOT_BITS) as u16);
    Location { drive, slot: location & ((1 << SLOT_BITS) - 1) }
}

fn encode_shard(shard: &Shard, writer: &mut Writer) {
    writer.u64(shard.offset_bytes);
    writer.u64(shard.len_bytes);
    writer.u16(shard.name.len() as u16);
    writer.u8(shard.dtype.len() as u8);
    writer.u8(shard.shape.len() as u8);
    writer.zeros(4);
    for dimension in &shard.shape {
        writer.u64(*dimension);
    }
    writer.put(shard.name.as_bytes());
    writer.put(shard.dtype.as_bytes());
}

fn decode_shard(reader: &mut Reader<'_>) -> Result<Shard, FormatError> {
    let (offset_bytes, len_bytes) = (reader.u64()?, reader.u64()?);
    let name_bytes = usize::from(reader.u16()?);
    let dtype_bytes = usize::from(reader.u8()?);
    let dimensions = reader.u8()?;
    reader.zeros(4)?;
    let mut shape = Vec::with_capacity(reader.count(dimensions.into(), 8)?);
    for _ in 0..dimensions {
        shape.push(reader.u64()?);
    }
    let name = reader.text(name_bytes, MAX_SHARD_NAME_BYTES)?;
    let dtype = reader.text(dtype_bytes, MAX_DTYPE_BYTES)?;
    Ok(Shard { name, offset_bytes, len_bytes, dtype, shape })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{
        META_AT, MIB, any_table, edited, edits, edits_give_an_error_or_another_value,
        every_cut_is_noticed, every_flip_is_noticed,
    };
    use super::*;
    use crate::format::DriveState;

    const POOL: Uuid = Uuid::from_u128(0xABCD);
    const CHECKPOINT: Uuid = Uuid::from_u128(77);

    fn shard(name: &str, offset_bytes: u64, len_bytes: u64) -> Shard {
        Shard { name: name.into(), offset_bytes, len_bytes, dtype: "f32".into(), shape: vec![2] }
    }

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
            shards: vec![shard("w", 0, 1000), shard("empty", 1000, 0), shard("b", 2000, 500)],
            chunks: vec![chunk(11, 1, 5), chunk(12, 0, 6)],
        }
    }

    fn decode(bytes: &[u8], extent: &MetaExtent) -> Result<SegmentTable, FormatError> {
        SegmentTable::decode(bytes, extent, POOL, CHECKPOINT, 3)
    }

    proptest! {
        #[test]
        fn round_trip(table in any_table()) {
            let SegmentTable { pool, checkpoint, participant, len_bytes, chunk_bytes, .. } = table;
            let Encoded { bytes, extent } = table.encode(META_AT);
            let copies = table.copies();
            let expected =
                SegmentTable::encoded_bytes(len_bytes, chunk_bytes, copies, &table.shards);
            prop_assert_eq!(extent.len_bytes, expected);
            prop_assert_eq!(extent.stored_bytes(), bytes.len() as u64);
            let decoded = SegmentTable::decode(&bytes, &extent, pool, checkpoint, participant);
            prop_assert_eq!(decoded, Ok(table));
        }

        #[test]
        fn edits_under_a_right_hash(table in any_table(), edits in edits()) {
            let SegmentTable { pool, checkpoint, participant, .. } = table;
            edits_give_an_error_or_another_value(
                &table.encode(META_AT).bytes,
                &edits,
                |b, extent| SegmentTable::decode(b, extent, pool, checkpoint, participant),
                |table, at| table.encode(at).bytes,
            )?;
        }

        #[test]
        fn shard_at_agrees_with_a_walk(table in any_table(), at in any::<prop::sample::Index>()) {
            let offset = at.index(table.len_bytes.clamp(1, 20_000) as usize) as u64;
            let walked = table.shards.iter().find(|s| {
                s.offset_bytes <= offset && offset < s.offset_bytes + s.len_bytes
            });
            prop_assert_eq!(table.shard_at(offset), walked);
        }
    }

    #[test]
    fn damage_is_detected() {
        let Encoded { bytes, extent } = table().encode(META_AT);
        every_flip_is_noticed(&bytes, |bytes| decode(bytes, &extent));
        every_cut_is_noticed(&bytes, |bytes, hash| decode(bytes, &MetaExtent { hash, ..extent }));
        let other = SegmentTable::decode(&bytes, &extent, POOL, CHECKPOINT, 4);
        assert!(matches!(other, Err(FormatError::Corrupt(t)) if t.contains("participant 3")));
    }

    #[test]
    fn fields_lie_as_specified() {
        let bytes = table().encode(META_AT).bytes;
        assert_eq!(bytes[..8], *b"STN SEGM");
        assert_eq!(bytes[64..80], *CHECKPOINT.as_bytes());
        assert_eq!(bytes[80..88], (MIB + 100).to_le_bytes());
        assert_eq!(bytes[88..96], MIB.to_le_bytes());
        assert_eq!(bytes[96..104], 2_u64.to_le_bytes());
        assert_eq!(bytes[104..112], [3, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[112..128], 1_u128.to_le_bytes());
        assert_eq!(bytes[128..136], 11_u64.to_le_bytes());
        assert_eq!(bytes[136..144], [5, 0, 0, 0, 0, 0, 1, 0], "slot, then drive");
        let shard = &bytes[160..];
        assert_eq!(shard[8..16], 1000_u64.to_le_bytes());
        assert_eq!(shard[16..24], [1, 0, 3, 1, 0, 0, 0, 0]);
        assert_eq!(shard[24..32], 2_u64.to_le_bytes());
        assert_eq!(shard[32..36], *b"wf32");
        let bytes = mirrored().encode(META_AT).bytes;
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
        let Encoded { bytes, extent } = table().encode(META_AT);
        let refusal = |at: usize, value: &[u8]| {
            let (bytes, hash) = edited(&bytes, |b| b[at..at + value.len()].copy_from_slice(value));
            decode(&bytes, &MetaExtent { hash, ..extent }).unwrap_err().to_string()
        };
        assert!(refusal(96, &[0xFF; 8]).starts_with("18446744073709551615 records where"));
        assert!(refusal(108, &[0xFF; 4]).starts_with("4294967295 records where"));
        assert!(refusal(160 + 19, &[0xFF]).starts_with("255 records where"));
        assert!(refusal(160 + 16, &[0xFF; 2]).starts_with("a text of 65535"));
        assert!(refusal(112, &[0]).contains("copies"));
        assert!(refusal(112, &[3]).contains("copies"));
        assert!(refusal(80, &[0; 8]).contains("2 chunks for 0 bytes"));
        assert!(refusal(88, &[0; 8]).contains("a chunk of 0 bytes"));
    }

    #[test]
    fn impossible_shards_have_a_reason() {
        let reason = |shards: &[Shard]| check_shards(shards, 1000).unwrap_err();
        assert!(reason(&[shard("a", 0, 1001)]).contains("beyond"));
        assert!(reason(&[shard("a", u64::MAX, 2)]).contains("beyond"));
        assert!(reason(&[shard("a", 0, 10), shard("b", 9, 10)]).contains("overlaps"));
        assert!(reason(&[shard("a", 10, 10), shard("b", 0, 10)]).contains("overlaps"));
        assert!(reason(&[shard("a", 0, 10), shard("a", 10, 10)]).contains("two shards"));
        assert!(reason(&[shard("", 0, 10)]).contains("name"));
        assert!(reason(&[shard(&"n".repeat(1025), 0, 10)]).contains("name"));
        let with = |dtype: &str, dimensions| Shard {
            dtype: dtype.into(),
            shape: vec![1; dimensions],
            ..shard("a", 0, 1)
        };
        assert!(reason(&[with("f\u{fc}nf", 1)]).contains("dtype"));
        assert!(reason(&[with("seventeen-letters", 1)]).contains("dtype"));
        assert!(reason(&[with("f32", 17)]).contains("dimensions"));
    }

    #[test]
    fn sorted_shards_are_accepted_in_any_order() {
        let mut shards = vec![shard("c", 10, 5), shard("empty", 10, 0), shard("a", 0, 10)];
        sort_shards(&mut shards);
        assert_eq!(check_shards(&shards, 15), Ok(()));
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
