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
//! | 96     | 40 each | segments: length 8, extent of the segment table 32  |
//! |        |         | name                                                |

use uuid::Uuid;

use super::catalogue::{check_name, check_participants};
use super::codec::{Magic, PROLOGUE_BYTES, Reader, Writer, corrupt};
use super::{CatalogueEntry, Encoded, FormatError, Layout, MetaExtent};
use crate::limits::{MAX_NAME_BYTES, MAX_SEGMENT_BYTES};

const MAGIC: Magic = *b"STN MANI";

const HEADER_BYTES: u64 = 32;
const SEGMENT_BYTES: u64 = 8 + MetaExtent::ENCODED_BYTES;

/// One participant's segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentRef {
    /// Its length.
    pub len_bytes: u64,
    /// Its table.
    pub table: MetaExtent,
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
        match self.segments.iter().find(|s| s.len_bytes > MAX_SEGMENT_BYTES) {
            Some(segment) => Err(format!("a segment of {} bytes", segment.len_bytes)),
            None => Ok(()),
        }
    }

    /// Bytes of the encoding, without the padding to whole blocks.
    pub fn encoded_bytes(name: &str, participants: u32) -> u64 {
        PROLOGUE_BYTES + HEADER_BYTES + u64::from(participants) * SEGMENT_BYTES + name.len() as u64
    }

    /// The bytes for every drive, to be written at `offset_bytes` in the metadata area.
    ///
    /// # Panics
    /// When [`Manifest::check`] fails: a manifest that no reader accepts must not be committed.
    pub fn encode(&self, offset_bytes: u64) -> Encoded {
        assert_eq!(self.check(), Ok(()), "an impossible manifest");
        let len_bytes = Self::encoded_bytes(&self.name, self.segments.len() as u32);
        let mut writer = Writer::new(MAGIC, self.pool, len_bytes);
        writer.uuid(self.checkpoint);
        writer.u64(self.step);
        writer.u32(self.segments.len() as u32);
        writer.u16(self.name.len() as u16);
        writer.zeros(2);
        for segment in &self.segments {
            writer.u64(segment.len_bytes);
            writer.extent(&segment.table);
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
            segments.push(SegmentRef { len_bytes: reader.u64()?, table: reader.extent()? });
        }
        let name = reader.text(name_bytes, MAX_NAME_BYTES)?;
        reader.finish()?;
        let manifest = Manifest { pool, checkpoint, name, step, segments };
        manifest.check().map_err(FormatError::Corrupt)?;
        Ok(manifest)
    }

    /// Whether it is what `entry` describes and its tables lie in the metadata area. Do not read
    /// their extents before this check.
    pub fn validate(&self, entry: &CatalogueEntry, layout: &Layout) -> Result<(), FormatError> {
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
        match self.segments.iter().position(|s| layout.meta_blocks_of(&s.table).is_none()) {
            Some(i) => Err(corrupt(format!("the table of segment {i} lies outside its area"))),
            None => Ok(()),
        }
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
    use crate::format::{Access, Attributes};
    use crate::units::Generation;

    const POOL: Uuid = Uuid::from_u128(0xABCD);
    const CHECKPOINT: Uuid = Uuid::from_u128(77);

    fn layout() -> Layout {
        Layout::plan(&[64 * MIB], MIB).unwrap()
    }

    fn manifest() -> Manifest {
        let segment = |len_bytes, block| SegmentRef {
            len_bytes,
            table: MetaExtent {
                offset_bytes: layout().meta_block_offset(block),
                len_bytes: 4000,
                hash: [block as u8; 16],
            },
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
            let expected = Manifest::encoded_bytes(&manifest.name, participants);
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
        assert_eq!(bytes[104..112], layout().meta_block_offset(3).to_le_bytes());
        assert_eq!(bytes[112..120], 4000_u64.to_le_bytes());
        assert_eq!(bytes[120..136], [3; 16]);
        assert_eq!(bytes[136..144], 0_u64.to_le_bytes());
        assert_eq!(bytes[176..182], *b"llama\0");
    }

    #[test]
    fn hostile_counts_are_checked_against_the_bytes() {
        let Encoded { bytes, extent } = manifest().encode(META_AT);
        let (bytes, hash) = edited(&bytes, |b| b[88..92].fill(0xFF));
        let named = MetaExtent { hash, ..extent };
        let refusal = Manifest::decode(&bytes, &named, POOL, CHECKPOINT).unwrap_err();
        assert_eq!(refusal, FormatError::Corrupt("4294967295 records where 2 fit".into()));
    }

    #[test]
    fn impossible_manifests_have_a_reason() {
        let mut manifest = manifest();
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
        assert_eq!(manifest.validate(&entry, &layout), Ok(()));
        let others = [
            CatalogueEntry { id: POOL, ..entry.clone() },
            CatalogueEntry { name: "other".into(), ..entry.clone() },
            CatalogueEntry { step: 501, ..entry.clone() },
            CatalogueEntry { bytes: 5001, ..entry.clone() },
            CatalogueEntry { participants: 3, ..entry.clone() },
        ];
        assert!(others.iter().all(|other| manifest.validate(other, &layout).is_err()));
        let mut outside = manifest.clone();
        outside.segments[1].table.offset_bytes = 0;
        assert!(outside.validate(&entry, &layout).is_err());
    }
}
