// SPDX-License-Identifier: Apache-2.0
//! How much a pool holds: what follows from its drives, before and after it is made.

use crate::error::Error;
use crate::format::{Label, Layout, Redundancy, table_copies_of};
use crate::placement;

/// How much a pool holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolSizing {
    /// The unit of striping.
    pub chunk_bytes: u64,
    /// Bytes of checkpoint data, while all drives take part.
    pub capacity_bytes: u64,
    /// Bytes of each drive that are for metadata: tables, names and shapes of shards.
    pub metadata_bytes: u64,
    /// Checkpoints at most.
    pub max_checkpoints: usize,
    /// About how many shards with names of some 60 characters, over all checkpoints.
    pub typical_shards: u64,
}

impl PoolSizing {
    /// Of a new pool of drives with these capacities. What is not given is as `format` chooses it.
    ///
    /// # Errors
    /// [`Error::Usage`] for drives or sizes that cannot make a pool.
    pub fn plan(
        capacities_bytes: &[u64],
        redundancy: Redundancy,
        chunk_bytes: Option<u64>,
        metadata_bytes: Option<u64>,
    ) -> Result<PoolSizing, Error> {
        let chunk_bytes =
            chunk_bytes.unwrap_or_else(|| Layout::default_chunk_bytes(capacities_bytes));
        let layout = Layout::plan_sized(capacities_bytes, chunk_bytes, metadata_bytes)?;
        let table_copies = table_copies_of(capacities_bytes.len());
        Ok(PoolSizing::new(&layout, capacities_bytes, redundancy.copies(), table_copies))
    }

    pub(super) fn of(label: &Label) -> PoolSizing {
        let capacities: Vec<u64> = label.drives.iter().map(|drive| drive.capacity_bytes).collect();
        PoolSizing::new(&label.layout, &capacities, label.copies, label.table_copies)
    }

    fn new(layout: &Layout, capacities_bytes: &[u64], copies: u8, table_copies: u8) -> PoolSizing {
        let slots: Vec<u64> =
            capacities_bytes.iter().map(|bytes| layout.data_slots(*bytes)).collect();
        PoolSizing {
            chunk_bytes: layout.chunk_bytes(),
            capacity_bytes: placement::capacity(copies, &slots) * layout.chunk_bytes(),
            metadata_bytes: layout.metadata_bytes(),
            max_checkpoints: layout.max_checkpoints(),
            typical_shards: layout.typical_shards(capacities_bytes, copies, table_copies),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TB: u64 = 1_000_000_000_000;

    /// Checkpoints of 100,000 tensors of 100 KB, which many tools make.
    #[test]
    fn the_names_of_small_tensors_fit_while_their_data_does() {
        for (drives, bytes) in [(4, 7 * TB), (8, 15 * TB), (16, 30 * TB)] {
            let capacities = vec![bytes; drives];
            let sizing = PoolSizing::plan(&capacities, Redundancy::None, None, None).unwrap();
            let tensors = sizing.capacity_bytes / 100_000;
            assert!(sizing.typical_shards > tensors, "{sizing:?}: {tensors}");
        }
    }

    #[test]
    fn a_given_size_is_kept() {
        let plan =
            |metadata| PoolSizing::plan(&[TB; 2], Redundancy::Mirror, Some(1 << 22), metadata);
        let sizing = plan(Some(20 << 30)).unwrap();
        assert_eq!((sizing.chunk_bytes, sizing.metadata_bytes), (4 << 20, 20 << 30));
        assert!(sizing.capacity_bytes < TB - (20 << 30) && sizing.capacity_bytes > TB / 10 * 9);
        assert!(plan(Some(TB)).is_err());
    }
}
