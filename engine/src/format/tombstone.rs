// SPDX-License-Identifier: Apache-2.0
//! Tombstone: one block at each front place of a label, from the first write of a format, or of the
//! admission of a drive, until the new label. It says that nothing else on the drive counts, roots
//! neither: its removal was confirmed, and a part may be gone.

use uuid::Uuid;

use crate::format::codec::{Magic, Reader, Writer};
use crate::limits::BLOCK_BYTES;

/// How a tombstone starts.
pub(crate) const TOMBSTONE_MAGIC: Magic = *b"STNERASE";

/// One block, to be written at `offset_bytes`, in the name of the pool that the drive will join.
pub(crate) fn encode_tombstone(pool: Uuid, offset_bytes: u64) -> Vec<u8> {
    Writer::new(TOMBSTONE_MAGIC, pool, BLOCK_BYTES).seal(offset_bytes).bytes
}

/// Whether the block that was read at `offset_bytes` is a tombstone.
pub(crate) fn is_tombstone(block: &[u8], offset_bytes: u64) -> bool {
    let is_empty = |reader: Reader<'_>| reader.finish().is_ok();
    block.len() as u64 == BLOCK_BYTES
        && Reader::open(TOMBSTONE_MAGIC, block, offset_bytes).is_ok_and(is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_tombstone_in_its_place_counts() {
        let block = encode_tombstone(Uuid::from_u128(7), 1 << 20);
        assert_eq!(block.len() as u64, BLOCK_BYTES);
        assert!(is_tombstone(&block, 1 << 20));
        assert!(!is_tombstone(&block, 2 << 20), "in another place");
        assert!(!is_tombstone(&[0; 4096], 1 << 20));
        assert!(!is_tombstone(&block[..64], 1 << 20));
        let mut torn = block;
        torn[50] ^= 1;
        assert!(!is_tombstone(&torn, 1 << 20));
    }
}
