// SPDX-License-Identifier: Apache-2.0
//! The regions of memory that a device's commands may name.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::Region;

/// Regions that commands may name, with the back end's own data for each.
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
        self.0.push((Arc::clone(region), extra));
    }

    pub(crate) fn remove(&mut self, region: &Region) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| known.id() == region.id())?;
        Some(self.0.swap_remove(at).1)
    }

    /// A device has few regions, so a linear search is fastest.
    pub(crate) fn find(&self, address: NonNull<u8>, len_bytes: u64) -> Option<(&Region, &T)> {
        let (region, extra) = self.0.iter().find(|(r, _)| r.contains(address, len_bytes))?;
        Some((region, extra))
    }
}
