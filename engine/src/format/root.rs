//! The root: names the one catalogue that is a generation's state. Writing it is the commit.
//!
//! | offset | size | field                                     |
//! |--------|------|-------------------------------------------|
//! | 64     | 16   | the drive that this copy was written for  |
//! | 80     | 8    | generation                                |
//! | 88     | 8    | open epoch                                |
//! | 96     | 16   | id of the root before                     |
//! | 112    | 32   | extent of the catalogue                   |
//! | 144    | 8    | committed, nanoseconds since 1970         |
//!
//! Bytes 80 to 152 are the same on every drive; the id is their hash, behind the pool's uuid. Two
//! roots of one generation with different ids are a fork: two owners wrote one pool.

use uuid::Uuid;

use super::codec::{Magic, Reader, Writer, corrupt};
use super::layout::{ROOT_STRIDE_BYTES, ROOT_ZONE_BYTES};
use super::{FormatError, Layout, MetaExtent, hash128};
use crate::limits::{BLOCK_BYTES, ROOT_SLOTS};
use crate::units::Generation;

const MAGIC: Magic = *b"STN ROOT";

/// The root of one generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// The pool.
    pub pool: Uuid,
    /// The generation that it commits.
    pub generation: Generation,
    /// Raised by every read-write open of the pool.
    pub epoch: u64,
    /// [`Root::id`] of the root before; zeros in the first.
    pub parent: [u8; 16],
    /// The catalogue of this generation.
    pub catalogue: MetaExtent,
    /// When, nanoseconds since 1970, by the clock of the owner.
    pub committed_unix_ns: u64,
}

impl Root {
    /// Identifies the root whichever drive it lies on.
    pub fn id(&self) -> [u8; 16] {
        let mut writer = Writer::new(MAGIC, self.pool, BLOCK_BYTES);
        writer.uuid(self.pool);
        self.encode_shared(&mut writer);
        hash128(writer.body())
    }

    fn encode_shared(&self, writer: &mut Writer) {
        writer.u64(self.generation.0);
        writer.u64(self.epoch);
        writer.put(&self.parent);
        writer.extent(&self.catalogue);
        writer.u64(self.committed_unix_ns);
    }

    /// One block for one drive, to be written at `offset_bytes`: [`Layout::root_offset`] of this
    /// generation.
    pub fn encode(&self, drive: Uuid, offset_bytes: u64) -> Vec<u8> {
        assert_eq!(offset_in_zone(self.generation), offset_bytes % ROOT_ZONE_BYTES);
        let mut writer = Writer::new(MAGIC, self.pool, BLOCK_BYTES);
        writer.uuid(drive);
        self.encode_shared(&mut writer);
        writer.seal(offset_bytes).bytes
    }

    /// Reads one block that was read from `drive` at `offset_bytes`.
    pub fn decode(
        bytes: &[u8],
        pool: Uuid,
        drive: Uuid,
        offset_bytes: u64,
    ) -> Result<Root, FormatError> {
        let mut reader = Reader::open(MAGIC, bytes, offset_bytes)?;
        reader.expect_pool(pool)?;
        if bytes.len() as u64 != BLOCK_BYTES {
            return Err(corrupt(format!("a root of {} bytes", bytes.len())));
        }
        let meant_for = reader.uuid()?;
        if meant_for != drive {
            return Err(corrupt(format!("meant for drive {meant_for}, found on drive {drive}")));
        }
        let root = Root {
            pool,
            generation: Generation(reader.u64()?),
            epoch: reader.u64()?,
            parent: reader.hash()?,
            catalogue: reader.extent()?,
            committed_unix_ns: reader.u64()?,
        };
        reader.finish()?;
        if offset_in_zone(root.generation) != offset_bytes % ROOT_ZONE_BYTES {
            return Err(corrupt(format!("generation {} in another's slot", root.generation)));
        }
        Ok(root)
    }

    /// Whether it fits the pool: the catalogue lies in the slot of this generation. Until then its
    /// extent must not be read.
    pub fn validate(&self, layout: &Layout) -> Result<(), FormatError> {
        let MetaExtent { offset_bytes, len_bytes, .. } = self.catalogue;
        let slot = layout.catalogue_offset(self.generation);
        if offset_bytes != slot || len_bytes > layout.catalogue_slot_bytes() {
            return Err(corrupt(format!(
                "a catalogue of {len_bytes} bytes at byte {offset_bytes}, its slot is at {slot}"
            )));
        }
        Ok(())
    }
}

/// Zones start at multiples of their size, so this holds for both.
fn offset_in_zone(generation: Generation) -> u64 {
    generation.0 % ROOT_SLOTS * ROOT_STRIDE_BYTES
}
