// SPDX-License-Identifier: Apache-2.0
//! A metadata object: where it lies, and its bytes.

use crate::limits::BLOCK_BYTES;

/// The longest metadata object, far above what the limits allow, so that no arithmetic on a
/// decoded extent can overflow.
pub(super) const MAX_META_OBJECT_BYTES: u64 = 1 << 43;

/// Bytes of the record of a chunk with that many copies.
pub(super) const fn chunk_record_bytes(copies: u8) -> u64 {
    8 + 8 * copies as u64
}

/// Where a metadata object lies, the same on every drive, and its hash.
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
    /// Blocks that it takes.
    pub fn blocks(&self) -> u64 {
        blocks_of(self.len_bytes)
    }

    /// Bytes that it takes on a drive, and that a decoder needs: the length in whole blocks.
    pub fn stored_bytes(&self) -> u64 {
        self.blocks() * BLOCK_BYTES
    }
}

/// Blocks that an object of `len_bytes` (as from an `encoded_bytes`) takes.
pub fn blocks_of(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(BLOCK_BYTES)
}

/// A metadata object as it is written to every drive. Only encoders make it, so its extent matches
/// its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Whole blocks, to be written at `extent.offset_bytes`.
    pub bytes: Vec<u8>,
    /// The record of this object in the structure that names it.
    pub extent: MetaExtent,
}
