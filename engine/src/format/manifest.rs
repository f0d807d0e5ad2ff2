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
    pub length_bytes: u64,
    /// Its table.
    pub table: MetaExtent,
}

/// What a checkpoint consists of.
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
    /// What a reader would hold against this manifest.
    pub fn check(&self) -> Result<(), String> {
        check_name(&self.name)?;
        check_participants(self.segments.len() as u64)?;
        match self.segments.iter().find(|s| s.length_bytes > MAX_SEGMENT_BYTES) {
            Some(segment) => Err(format!("a segment of {} bytes", segment.length_bytes)),
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
    /// When [`Manifest::check`] fails: what no reader accepts must not be committed.
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
            writer.u64(segment.length_bytes);
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
            segments.push(SegmentRef { length_bytes: reader.u64()?, table: reader.extent()? });
        }
        let name = reader.text(name_bytes, MAX_NAME_BYTES)?;
        reader.finish()?;
        let manifest = Manifest { pool, checkpoint, name, step, segments };
        manifest.check().map_err(FormatError::Corrupt)?;
        Ok(manifest)
    }

    /// Whether it is what `entry` describes and its tables lie in the metadata area. Until then
    /// their extents must not be read.
    pub fn validate(&self, entry: &CatalogueEntry, layout: &Layout) -> Result<(), FormatError> {
        // Lengths are below 2^50 and segments at most 2^16: no overflow in 128 bits.
        let bytes: u128 = self.segments.iter().map(|s| u128::from(s.length_bytes)).sum();
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
