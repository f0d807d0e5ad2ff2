// SPDX-License-Identifier: Apache-2.0
//! Memory of the caller that drives access without a copy, in `stn_save` and `stn_restore`.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use stanchion_engine::Lent;
use stanchion_engine::Region;
use stanchion_engine::limits::BLOCK_BYTES;

/// The memory of a pool's sessions, which its drives know already. SPDK does not register memory
/// twice: a range of it is lent as a part of the same region.
#[derive(Default)]
pub(crate) struct KnownRegions(Mutex<Vec<Weak<Region>>>);

impl KnownRegions {
    /// A session has this region, from now on until it drops it.
    pub(crate) fn add(&self, region: &Arc<Region>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.strong_count() > 0);
        if !known.iter().any(|known| known.as_ptr() == Arc::as_ptr(region)) {
            known.push(Arc::downgrade(region));
        }
    }

    /// The region that has all of some memory, and where the memory starts in it.
    fn find(&self, address: NonNull<u8>, len_bytes: u64) -> Option<(Arc<Region>, u64)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut regions = known.iter().filter_map(Weak::upgrade);
        let region = regions.find(|region| region.contains(address, len_bytes))?;
        let offset_bytes = address.as_ptr() as u64 - region.base().as_ptr() as u64;
        Some((region, offset_bytes))
    }

    /// Memory that holds a range of a segment, or is to hold it, as drives can reach it: the whole
    /// chunks of the range, if they start on a block in memory.
    ///
    /// # Safety
    /// The memory has the length of the range, stays mapped as long as the result lives, and is
    /// reached through no Rust reference meanwhile.
    pub(crate) unsafe fn lend(
        &self,
        address: NonNull<u8>,
        segment: Range<u64>,
        chunk_bytes: u64,
    ) -> Option<Lent> {
        let start = segment.start.checked_next_multiple_of(chunk_bytes)?;
        let end = segment.end / chunk_bytes * chunk_bytes;
        if start >= end {
            return None;
        }
        // SAFETY: start lies within the range, whose length the memory has.
        let address = unsafe { address.add((start - segment.start) as usize) };
        if !(address.as_ptr() as u64).is_multiple_of(BLOCK_BYTES) {
            return None;
        }
        let (region, region_offset_bytes) = match self.find(address, end - start) {
            Some(found) => found,
            None => {
                // SAFETY: the caller's promise.
                let region = unsafe { Region::foreign(address, end - start) }.ok()?;
                (Arc::new(region), 0)
            }
        };
        Some(Lent { segment: start..end, region, region_offset_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stanchion_engine::HugePages;

    const CHUNK: u64 = 1 << 20;

    #[test]
    fn memory_of_a_session_is_lent_as_a_part_of_its_region() {
        let known = KnownRegions::default();
        let region = Arc::new(Region::new(4 * CHUNK, HugePages::Off).unwrap());
        let inside = region.at(4096, 0).unwrap();
        // SAFETY: the region outlives what is lent of it, and there is no reference to its bytes.
        let lend = |segment| unsafe { known.lend(inside, segment, CHUNK) };
        let foreign = lend(0..2 * CHUNK + 5).unwrap();
        assert_eq!((foreign.segment, foreign.region_offset_bytes), (0..2 * CHUNK, 0));
        assert_ne!(foreign.region.id(), region.id());
        known.add(&region);
        known.add(&region);
        assert_eq!(known.0.lock().unwrap().len(), 1);
        let own = lend(CHUNK - 4096..3 * CHUNK).unwrap();
        assert_eq!((own.segment, own.region_offset_bytes), (CHUNK..3 * CHUNK, 8192));
        assert_eq!(own.region.id(), region.id());
        // Not on a block, and no whole chunk.
        assert!(lend(CHUNK - 1..3 * CHUNK).is_none());
        assert!(lend(1..2 * CHUNK - 1).is_none());
        assert!(lend(u64::MAX - 1..u64::MAX).is_none());
    }
}
