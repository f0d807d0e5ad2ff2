// SPDX-License-Identifier: Apache-2.0
//! The manifest: the segments of one checkpoint, in the order of their participants.
//!
//! | offset | size    | field                                               |
//! |--------|---------|-----------------------------------------------------|
//! | 64     | 16      | id of the checkpoint                                |
//! | 80     | 8       | step                                                |
//! | 88     | 4       | segments                                            |
//! | 92     | 2       | length of the name                                  |
//! | 94     | 2       | zero                                                |
//! | 96     |         | segments: length 8, then references (`table_ref`) to the segment table and the shard list |
//! |        |         | name                                                |

use uuid::Uuid;

use super::catalogue::{check_name, check_participants};
use super::codec::{Magic, PROLOGUE_BYTES, Reader, Writer, corrupt};
use super::{CatalogueEntry, Encoded, FormatError, Layout, MetaExtent, TableRef};
use crate::limits::{MAX_NAME_BYTES, MAX_SEGMENT_BYTES};

const MAGIC: Magic = *b"STN MANI";

const HEADER_BYTES: u64 = 32;
/// Bytes of a segment without the runs of its references.
const SEGMENT_BYTES: u64 = 8 + TableRef::encoded_bytes(2, 0);

/// One participant's segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentRef {
    /// Its length.
    pub len_bytes: u64,
    /// Its segment table.
    pub table: TableRef,
    /// Its shard list.
    pub list: TableRef,
}

impl SegmentRef {
    fn check(&self) -> Result<(), String> {
        if self.len_bytes > MAX_SEGMENT_BYTES {
            return Err(format!("a segment of {} bytes", self.len_bytes));
        }
        self.table.check()?;
        self.list.check()
    }
}

/// The segments of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// The pool.
    pub pool: Uuid,
    /// The id of the checkpoint.
    pub checkpoint: Uuid,
    /// The NAME of NAME@STEP.
    pub name: String,
    /// The STEP of NAME@STEP.
    pub step: u64,
    /// One for each participant, in their order.
    pub segments: Vec<SegmentRef>,
}

impl Manifest {
    /// Why a reader would refuse this manifest.
    pub fn check(&self) -> Result<(), String> {
        check_name(&self.name)?;
        check_participants(self.segments.len() as u64)?;
        self.segments.iter().try_for_each(SegmentRef::check)
    }

    /// Bytes of the encoding, without the padding to whole blocks. `runs` are those of all tables
    /// and lists.
    pub fn encoded_bytes(name: &str, participants: u32, runs: u64) -> u64 {
        PROLOGUE_BYTES
            + HEADER_BYTES
            + u64::from(participants) * SEGMENT_BYTES
            + TableRef::encoded_bytes(0, runs)
            + name.len() as u64
    }

    /// Runs of all tables and lists.
    fn runs(&self) -> u64 {
        self.segments.iter().map(|s| (s.table.runs.len() + s.list.runs.len()) as u64).sum()
    }

    /// The bytes for every drive, to be written at `offset_bytes` in the metadata area.
    ///
    /// # Panics
    /// When [`Manifest::check`] fails: a manifest that no reader accepts must not be committed.
    pub fn encode(&self, offset_bytes: u64) -> Encoded {
        assert_eq!(self.check(), Ok(()), "an impossible manifest");
        let len_bytes = Self::encoded_bytes(&self.name, self.segments.len() as u32, self.runs());
        let mut writer = Writer::new(MAGIC, self.pool, len_bytes);
        writer.uuid(self.checkpoint);
        writer.u64(self.step);
        writer.u32(self.segments.len() as u32);
        writer.u16(self.name.len() as u16);
        writer.zeros(2);
        for segment in &self.segments {
            writer.u64(segment.len_bytes);
            segment.table.encode(&mut writer);
            segment.list.encode(&mut writer);
        }
        writer.put(self.name.as_bytes());
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
    ) -> Result<Manifest, FormatError> {
        let mut reader = Reader::open_named(MAGIC, bytes, extent, pool)?;
        let found = reader.uuid()?;
        if found != checkpoint {
            return Err(corrupt(format!("of checkpoint {found}, where {checkpoint} is named")));
        }
        let step = reader.u64()?;
        let count = reader.u32()?;
        let name_bytes = usize::from(reader.u16()?);
        reader.zeros(2)?;
        let mut segments = Vec::with_capacity(reader.count(count.into(), SEGMENT_BYTES)?);
        for _ in 0..count {
            let len_bytes = reader.u64()?;
            let (table, list) = (TableRef::decode(&mut reader)?, TableRef::decode(&mut reader)?);
            segments.push(SegmentRef { len_bytes, table, list });
        }
        let name = reader.text(name_bytes, MAX_NAME_BYTES)?;
        reader.finish()?;
        let manifest = Manifest { pool, checkpoint, name, step, segments };
        manifest.check().map_err(FormatError::Corrupt)?;
        Ok(manifest)
    }

    /// Whether it is what `entry` describes and its tables lie in the metadata areas of the pool's
    /// drives. Do not read them before this check.
    pub fn validate(
        &self,
        entry: &CatalogueEntry,
        layout: &Layout,
        drives: usize,
    ) -> Result<(), FormatError> {
        // Lengths are below 2^50 and segments at most 2^16: no overflow in 128 bits.
        let bytes: u128 = self.segments.iter().map(|s| u128::from(s.len_bytes)).sum();
        let same = (self.checkpoint, &self.name, self.step) == (entry.id, &entry.name, entry.step)
            && self.segments.len() as u64 == u64::from(entry.participants)
            && bytes == u128::from(entry.bytes);
        if !same {
            return Err(corrupt(format!(
                "{}@{} of {} segments and {bytes} bytes, where {}@{} of {} and {} is recorded",
                self.name,
                self.step,
                self.segments.len(),
                entry.name,
                entry.step,
                entry.participants,
                entry.bytes
            )));
        }
        self.segments.iter().try_for_each(|segment| {
            segment.table.validate(layout, drives)?;
            segment.list.validate(layout, drives)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{
        META_AT, MIB, any_manifest, edited, edits, edits_give_an_error_or_another_value,
        every_cut_is_noticed, every_flip_is_noticed,
    };
    use super::*;
    use crate::format::{Access, Attributes, TableRun};
    use crate::limits::BLOCK_BYTES;
    use crate::units::{DriveIndex, Generation};

    const POOL: Uuid = Uuid::from_u128(0xABCD);
    const CHECKPOINT: Uuid = Uuid::from_u128(77);

    fn layout() -> Layout {
        Layout::plan(&[64 * MIB], MIB).unwrap()
    }

    fn manifest() -> Manifest {
        let reference = |unit, len_bytes, hash| {
            let first_block = layout().meta_unit_offset(unit) / BLOCK_BYTES;
            let copies = [(0, first_block), (1, first_block + 16)];
            let runs = copies.map(|(drive, first_block)| TableRun {
                drive: DriveIndex(drive),
                copy: drive as u8,
                blocks: 1,
                first_block,
            });
            TableRef { len_bytes, hash: [hash; 16], runs: runs.into() }
        };
        let segment = |len_bytes, unit| SegmentRef {
            len_bytes,
            table: reference(unit, 4000, unit as u8),
            list: reference(unit, 100, unit as u8 + 1),
        };
        Manifest {
            pool: POOL,
            checkpoint: CHECKPOINT,
            name: "llama".into(),
            step: 500,
            segments: vec![segment(5000, 3), segment(0, 4)],
        }
    }

    proptest! {
        #[test]
        fn round_trip(manifest in any_manifest()) {
            let Encoded { bytes, extent } = manifest.encode(META_AT);
            let participants = manifest.segments.len() as u32;
            let expected = Manifest::encoded_bytes(&manifest.name, participants, manifest.runs());
            prop_assert_eq!(extent.len_bytes, expected);
            prop_assert_eq!(extent.stored_bytes(), bytes.len() as u64);
            let decoded = Manifest::decode(&bytes, &extent, manifest.pool, manifest.checkpoint);
            prop_assert_eq!(decoded, Ok(manifest));
        }

        #[test]
        fn edits_under_a_right_hash(manifest in any_manifest(), edits in edits()) {
            let Manifest { pool, checkpoint, .. } = manifest;
            edits_give_an_error_or_another_value(
                &manifest.encode(META_AT).bytes,
                &edits,
                |bytes, extent| Manifest::decode(bytes, extent, pool, checkpoint),
                |manifest, at| manifest.encode(at).bytes,
            )?;
        }
    }

    #[test]
    fn damage_is_detected() {
        let Encoded { bytes, extent } = manifest().encode(META_AT);
        every_flip_is_noticed(&bytes, |b| Manifest::decode(b, &extent, POOL, CHECKPOINT));
        every_cut_is_noticed(&bytes, |bytes, hash| {
            Manifest::decode(bytes, &MetaExtent { hash, ..extent }, POOL, CHECKPOINT)
        });
        let other = Manifest::decode(&bytes, &extent, POOL, Uuid::from_u128(78));
        assert!(matches!(other, Err(FormatError::Corrupt(t)) if t.contains("of checkpoint")));
    }

    #[test]
    fn fields_lie_as_specified() {
        let bytes = manifest().encode(META_AT).bytes;
        assert_eq!(bytes[..8], *b"STN MANI");
        assert_eq!(bytes[64..80], *CHECKPOINT.as_bytes());
        assert_eq!(bytes[80..88], 500_u64.to_le_bytes());
        assert_eq!(bytes[88..96], [2, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(bytes[96..104], 5000_u64.to_le_bytes());
        let table = &bytes[104..];
        assert_eq!(table[..8], 4000_u64.to_le_bytes());
        assert_eq!(table[8..24], [3; 16]);
        assert_eq!(table[24..32], [2, 0, 0, 0, 0, 0, 0, 0]);
        let first_block = layout().meta_unit_offset(3) / BLOCK_BYTES;
        assert_eq!(table[32..40], [0, 0, 0, 0, 1, 0, 0, 0], "drive, copy and blocks");
        assert_eq!(table[40..48], first_block.to_le_bytes());
        assert_eq!(table[48..56], [1, 0, 1, 0, 1, 0, 0, 0]);
        assert_eq!(table[56..64], (first_block + 16).to_le_bytes());
        let list = &table[64..];
        assert_eq!(list[..8], 100_u64.to_le_bytes());
        assert_eq!(list[8..24], [4; 16]);
        assert_eq!(list[64..72], 0_u64.to_le_bytes(), "the length of the second segment");
        assert_eq!(bytes[96 + 2 * 136..][..6], *b"llama\0");
    }

    #[test]
    fn hostile_counts_are_checked_against_the_bytes() {
        let Encoded { bytes, extent } = manifest().encode(META_AT);
        let (bytes, hash) = edited(&bytes, |b| b[88..92].fill(0xFF));
        let named = MetaExtent { hash, ..extent };
        let refusal = Manifest::decode(&bytes, &named, POOL, CHECKPOINT).unwrap_err();
        assert_eq!(refusal, FormatError::Corrupt("4294967295 records where 3 fit".into()));
    }

    #[test]
    fn impossible_manifests_have_a_reason() {
        let mut manifest = manifest();
        manifest.segments[1].list.runs.clear();
        assert!(manifest.check().unwrap_err().contains("without a copy"));
        manifest.segments[0].len_bytes = MAX_SEGMENT_BYTES + 1;
        assert!(manifest.check().unwrap_err().contains("a segment of"));
        manifest.segments.clear();
        assert!(manifest.check().unwrap_err().contains("participants"));
    }

    #[test]
    fn validate_compares_it_with_entry_and_layout() {
        let (manifest, layout) = (manifest(), layout());
        let entry = CatalogueEntry {
            id: CHECKPOINT,
            name: "llama".into(),
            step: 500,
            bytes: 5000,
            participants: 2,
            committed_unix_ns: 0,
            generation: Generation(1),
            manifest: manifest.encode(META_AT).extent,
            access: Access::of(0, 0),
            pinned: false,
            attributes: Attributes::default(),
        };
        assert_eq!(manifest.validate(&entry, &layout, 2), Ok(()));
        let others = [
            CatalogueEntry { id: POOL, ..entry.clone() },
            CatalogueEntry { name: "other".into(), ..entry.clone() },
            CatalogueEntry { step: 501, ..entry.clone() },
            CatalogueEntry { bytes: 5001, ..entry.clone() },
            CatalogueEntry { participants: 3, ..entry.clone() },
        ];
        assert!(others.iter().all(|other| manifest.validate(other, &layout, 2).is_err()));
        assert!(manifest.validate(&entry, &layout, 1).is_err(), "a drive that does not exist");
        let mut outside = manifest.clone();
        outside.segments[1].table.runs[1].first_block = 0;
        assert!(outside.validate(&entry, &layout, 2).is_err());
        let mut outside = manifest.clone();
        outside.segments[0].list.runs[0].first_block = 0;
        assert!(outside.validate(&entry, &layout, 2).is_err());
    }
}
