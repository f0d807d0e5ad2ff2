// SPDX-License-Identifier: Apache-2.0
//! The regions of memory that a device's commands may name.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::Region;

/// Regions that commands may name, with the back end's own data for each.
///
/// Each command looks its memory up, so they are kept in the order of their addresses: the time
/// hardly grows with the number of regions.
#[derive(Debug)]
pub(crate) struct Regions<T>(Vec<(Arc<Region>, T)>);

impl<T> Regions<T> {
    pub(crate) fn new() -> Self {
        Regions(Vec::new())
    }

    pub(crate) fn holds(&self, region: &Region) -> bool {
        self.0.iter().any(|(known, _)| known.id() == region.id())
    }

    pub(crate) fn add(&mut self, region: &Arc<Region>, extra: T) {
        let place = self.0.partition_point(|(known, _)| known.base() <= region.base());
        self.0.insert(place, (Arc::clone(region), extra));
    }

    pub(crate) fn remove(&mut self, region: &Region) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| known.id() == region.id())?;
        Some(self.0.remove(at).1)
    }

    /// The region that these bytes lie in.
    pub(crate) fn find(&self, address: NonNull<u8>, len_bytes: u64) -> Option<(&Region, &T)> {
        let end = self.0.partition_point(|(known, _)| known.base() <= address);
        // The nearest one, unless regions overlap: a caller may register the same memory twice.
        let mut before = self.0[..end].iter().rev();
        let (region, extra) = before.find(|(known, _)| known.contains(address, len_bytes))?;
        Some((region, extra))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HugePages;

    #[test]
    fn memory_is_found_among_many_regions_in_any_order_and_in_no_other() {
        let regions: Vec<_> =
            (0..50).map(|_| Arc::new(Region::new(1, HugePages::Off).unwrap())).collect();
        let mut known = Regions::new();
        for number in (0..50).map(|number| number * 7 % 50) {
            known.add(&regions[number], number);
        }
        let len_bytes = regions[0].len_bytes();
        let find = |known: &Regions<usize>, number: usize, at, len| {
            let address = regions[number].at(at, 1)?;
            known.find(address, len).map(|(_, found)| *found)
        };
        for number in 0..50 {
            assert_eq!(find(&known, number, 0, len_bytes), Some(number));
            assert_eq!(find(&known, number, len_bytes - 1, 1), Some(number));
            assert_eq!(find(&known, number, 1, len_bytes), None, "it reaches beyond");
        }
        for number in (0..50).step_by(2) {
            assert_eq!(known.remove(&regions[number]), Some(number));
            assert_eq!(known.remove(&regions[number]), None);
        }
        for number in 0..50 {
            let expected = (number % 2 == 1).then_some(number);
            assert_eq!(find(&known, number, 4096, 4096), expected);
        }
    }

    #[test]
    #[allow(unsafe_code)]
    fn of_overlapping_regions_one_that_holds_all_bytes_is_found() {
        let whole = Arc::new(Region::new(1, HugePages::Off).unwrap());
        let inner = whole.at(8192, 4096).unwrap();
        // SAFETY: it lies within the region above, which lives longer.
        let inner = Arc::new(unsafe { Region::foreign(inner, 4096) }.unwrap());
        let mut known = Regions::new();
        known.add(&whole, "whole");
        known.add(&inner, "inner");
        let find = |at, len| known.find(whole.at(at, 1).unwrap(), len).map(|(_, found)| *found);
        assert_eq!(find(8192, 4096), Some("inner"));
        assert_eq!(find(8192, 8192), Some("whole"));
        assert_eq!(find(16384, 4096), Some("whole"));
    }
}
