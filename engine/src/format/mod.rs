//! Structures on a drive and their bytes. Pure: no I/O, no clock, no threads.
//!
//! `docs/on-disk-format.md` is the specification; this is the only code that follows it.
//!
//! Invariants:
//! - Integers are little-endian; every structure starts with the same 64-byte prologue
//!   (`codec`) and fills whole blocks.
//! - Every byte of every block counts: the hash covers all that follows it, padding included, and
//!   the magic before it is compared. No bit can change unnoticed.
//! - Fields are read through a `codec::Reader`, which exists only for bytes whose hash is right;
//!   unverified bytes cannot be used by mistake. Right bytes are still checked field by field.
//! - A count is held against the bytes that are there before anything is allocated for it.
//! - What `decode` returns is whole in itself. Whether it fits the pool (drives, slots, areas) is
//!   said by `validate`, and callers use neither locations nor extents before that.

pub mod catalogue;
mod codec;
pub mod label;
pub mod layout;
pub mod manifest;
pub mod root;
pub mod segment;
#[cfg(test)]
pub(crate) mod testing;

pub use catalogue::{Catalogue, CatalogueEntry};
pub use label::{DriveEntry, DriveState, Features, Label, MAX_SERIAL_BYTES, Redundancy};
pub use layout::{Layout, Zone};
pub use manifest::{Manifest, SegmentRef};
pub use root::Root;
pub use segment::{ChunkRecord, SegmentTable, Shard};

use crc_fast::CrcAlgorithm;

use crate::limits::BLOCK_BYTES;

/// The format's major version: a reader of an older major understands nothing behind the prologue.
pub const MAJOR: u16 = 1;
/// The format's minor version: a newer minor adds only what an older reader may pass over.
pub const MINOR: u16 = 0;

/// The longest metadata object, far above what the limits allow, so that no arithmetic on a
/// decoded extent can overflow.
const MAX_META_OBJECT_BYTES: u64 = 1 << 43;

/// Why bytes were not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Only zeros: nothing was ever written here.
    #[error("blank")]
    Blank,
    /// Another magic number, or a sound structure of another pool.
    #[error("not a structure of this pool")]
    NotOurs,
    /// Sound bytes of a newer format.
    #[error("format {found} is newer than {supported}, the newest that this program reads")]
    Newer {
        /// What the bytes say.
        found: String,
        /// What this program reads.
        supported: String,
    },
    /// Ours, and not what was written; the text says what does not match.
    #[error("{0}")]
    Corrupt(String),
}

/// Where a metadata object lies, the same on every drive, and the hash that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MetaExtent {
    /// Where it starts on each drive; whole blocks.
    pub offset_bytes: u64,
    /// Its length without the padding to whole blocks.
    pub len_bytes: u64,
    /// The hash in its prologue.
    pub hash: [u8; 16],
}

impl MetaExtent {
    /// Bytes of a [`MetaExtent`] inside another structure.
    pub const ENCODED_BYTES: u64 = 32;

    /// Blocks that it takes.
    pub fn blocks(&self) -> u64 {
        blocks_of(self.len_bytes)
    }

    /// Bytes that it takes on a drive, and that a decoder wants: the length in whole blocks.
    pub fn stored_bytes(&self) -> u64 {
        self.blocks() * BLOCK_BYTES
    }
}

/// Blocks that an object of `len_bytes` (as from an `encoded_bytes`) takes.
pub fn blocks_of(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(BLOCK_BYTES)
}

/// A metadata object as it goes to every drive. Made by encoders only, so its extent tells the
/// truth about its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Whole blocks, to be written at `extent.offset_bytes`.
    pub bytes: Vec<u8>,
    /// What the structure that names this one records.
    pub extent: MetaExtent,
}

/// The hash of metadata: XXH3-128, least significant byte first.
pub fn hash128(bytes: &[u8]) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(bytes).to_le_bytes()
}

/// The checksum of data: CRC-64/NVME of a chunk's real bytes, without the padding of a last chunk.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc64_is_the_published_one() {
        // The check value in the NVMe specification's Rocksoft model.
        assert_eq!(crc64(b"123456789"), 0xAE8B_1486_0A79_9888);
        assert_eq!(crc64(&[0; 4096]), 0x6482_D367_EB22_B64E);
        assert_eq!(crc64(&[0xFF; 4096]), 0xC0DD_BA73_02EC_A3AC);
    }

    #[test]
    fn hash128_is_the_published_one() {
        // XXH3-128 of nothing, seed 0: high 99aa06d3014798d8, low 6001c324468d497f.
        assert_eq!(hash128(b""), 0x99AA_06D3_0147_98D8_6001_C324_468D_497F_u128.to_le_bytes());
    }
}
