// SPDX-License-Identifier: Apache-2.0
//! How a command is split into the pieces that a controller accepts. Pure arithmetic.

use crate::limits::{BLOCK_BYTES, MAX_CHUNK_BYTES};
use crate::units::is_block_aligned;

/// SPDK's own largest PCIe transfer is a list of 503 pages; it would split a longer one unevenly.
const MAX_PIECE_BYTES: u64 = 503 * 4096;
/// One command uses at most this many pieces; larger commands are refused.
const MAX_PIECES: u64 = 256;

/// Where to split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Split {
    /// The longest piece; a power of two, at least a block.
    piece_bytes: u64,
    /// Pieces do not cross multiples of it; 0 when the drive has none.
    boundary_bytes: u64,
}

impl Split {
    /// For a controller's largest transfer and a namespace's preferred boundary (NOIOB; 0: none).
    /// `None` when the controller takes less than a block at once.
    pub(super) fn new(max_transfer_bytes: u64, boundary_bytes: u64) -> Option<Split> {
        let largest = max_transfer_bytes.min(MAX_PIECE_BYTES);
        if largest < BLOCK_BYTES {
            return None;
        }
        // A power of two splits every chunk evenly. A boundary inside a block cannot be kept,
        // because pieces are whole blocks; then SPDK splits once more.
        let keeps = boundary_bytes != 0 && is_block_aligned(boundary_bytes);
        Some(Split {
            piece_bytes: 1 << largest.ilog2(),
            boundary_bytes: if keeps { boundary_bytes } else { 0 },
        })
    }

    /// The length of the piece that starts at `offset_bytes` of the drive when `left_bytes` remain.
    pub(super) fn next(&self, offset_bytes: u64, left_bytes: u32) -> u32 {
        let mut length = u64::from(left_bytes).min(self.piece_bytes);
        if self.boundary_bytes != 0 {
            length = length.min(self.boundary_bytes - offset_bytes % self.boundary_bytes);
        }
        length as u32 // at most left_bytes
    }

    /// The most pieces that a command of `len_bytes` may need, wherever it lies.
    pub(super) fn max_pieces(&self, len_bytes: u64) -> u64 {
        if self.boundary_bytes == 0 {
            return len_bytes.div_ceil(self.piece_bytes);
        }
        // Each boundary inside it ends one piece early.
        len_bytes / self.piece_bytes + len_bytes.div_ceil(self.boundary_bytes) + 1
    }

    /// The largest command to accept.
    pub(super) fn max_command_bytes(&self) -> u64 {
        let mut length = MAX_CHUNK_BYTES;
        while length > BLOCK_BYTES && self.max_pieces(length) > MAX_PIECES {
            length /= 2;
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(split: Split, offset: u64, length: u32) -> Vec<u32> {
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < length {
            let piece = split.next(offset + u64::from(done), length - done);
            assert!(piece > 0);
            pieces.push(piece);
            done += piece;
        }
        pieces
    }

    #[test]
    fn transfers_beyond_the_controller_are_cut_evenly() {
        let split = Split::new(128 << 10, 0).unwrap();
        assert_eq!(pieces(split, 4096, 512 << 10), [128 << 10; 4]);
        assert_eq!(split.max_command_bytes(), MAX_CHUNK_BYTES);
        // 503 pages: one MiB, not 503 + 9.
        let split = Split::new(u64::from(u32::MAX), 0).unwrap();
        assert_eq!(pieces(split, 0, 2 << 20), [1 << 20; 2]);
        assert!(Split::new(4095, 0).is_none());
        // With such small transfers, a large command would have too many pieces.
        assert_eq!(Split::new(4096, 0).unwrap().max_command_bytes(), 1 << 20);
    }

    #[test]
    fn boundaries_are_kept() {
        let split = Split::new(1 << 20, 384 << 10).unwrap();
        assert_eq!(pieces(split, 256 << 10, 1 << 20), [131_072, 393_216, 393_216, 131_072]);
        let split = Split::new(1 << 20, 128 << 20).unwrap();
        assert_eq!(pieces(split, (128 << 20) - 4096, 1 << 20), [4096, (1 << 20) - 4096]);
        // A boundary that is not a whole block is left to SPDK.
        assert_eq!(Split::new(1 << 20, 512), Split::new(1 << 20, 0));
    }

    proptest::proptest! {
        #[test]
        fn there_are_never_more_pieces_than_computed(
            transfer in 4096_u64..4 << 20,
            boundary_blocks in 0_u64..2000,
            offset_blocks in 0_u64..100_000,
            blocks in 1_u64..4096,
        ) {
            let split = Split::new(transfer, boundary_blocks * BLOCK_BYTES).unwrap();
            let length = (blocks * BLOCK_BYTES).min(split.max_command_bytes());
            let found = pieces(split, offset_blocks * BLOCK_BYTES, length as u32);
            proptest::prop_assert!(found.len() as u64 <= split.max_pieces(length));
            proptest::prop_assert!(found.len() as u64 <= MAX_PIECES);
            proptest::prop_assert!(found.iter().all(|p| u64::from(*p) <= transfer && is_block_aligned(u64::from(*p))));
        }
    }
}
