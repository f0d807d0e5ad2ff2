// SPDX-License-Identifier: Apache-2.0
//! A part of a copy of a segment table or shard list.

use crate::limits::BLOCK_BYTES;
use crate::units::DriveIndex;

/// Consecutive blocks of one copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableRun {
    /// The drive.
    pub drive: DriveIndex,
    /// Which copy, from 0.
    pub copy: u8,
    /// How many blocks.
    pub blocks: u32,
    /// The first one: its offset on the drive, in blocks.
    pub first_block: u64,
}

impl TableRun {
    /// Where it starts on its drive.
    pub fn offset_bytes(&self) -> u64 {
        self.first_block * BLOCK_BYTES
    }

    /// Its length.
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }
}
