// SPDX-License-Identifier: Apache-2.0
//! Small types that keep different integers apart.

use std::fmt;

use crate::limits::BLOCK_BYTES;

/// The number of a pool's committed state. Every commit, delete and prune makes the next one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation(pub u64);

impl Generation {
    /// The generation that follows.
    pub fn next(self) -> Self {
        Generation(self.0 + 1)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The place of a drive in its pool's drive table; not its place on a command line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DriveIndex(pub u16);

impl DriveIndex {
    /// For indexing a table of drives.
    pub fn as_usize(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for DriveIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Where a chunk lies: the number of a chunk-sized slot in a drive's data area.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Location {
    /// The drive.
    pub drive: DriveIndex,
    /// The chunk slot in the drive's data area, below 2^48.
    pub slot: u64,
}

/// Where the copies of one chunk lie: one, or two on different drives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Copies {
    /// The copy that is read first.
    pub first: Location,
    /// The copy that is read when the first cannot be read.
    pub second: Option<Location>,
}

impl Copies {
    /// A chunk with one copy.
    pub fn one(location: Location) -> Copies {
        Copies { first: location, second: None }
    }

    /// Every place, the first one first.
    pub fn iter(self) -> impl Iterator<Item = Location> {
        std::iter::once(self.first).chain(self.second)
    }

    /// How many there are.
    pub fn count(self) -> u8 {
        1 + u8::from(self.second.is_some())
    }
}

/// `value` rounded up to a multiple of `unit`, or `None` on overflow. `unit` is a power of two.
pub fn round_up(value: u64, unit: u64) -> Option<u64> {
    debug_assert!(unit.is_power_of_two());
    value.checked_add(unit - 1).map(|v| v & !(unit - 1))
}

/// `value` rounded down to a multiple of `unit`, a power of two.
pub fn round_down(value: u64, unit: u64) -> u64 {
    debug_assert!(unit.is_power_of_two());
    value & !(unit - 1)
}

/// Whether `value` is a whole number of blocks.
pub fn is_block_aligned(value: u64) -> bool {
    value.is_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding() {
        assert_eq!(round_up(0, 4096), Some(0));
        assert_eq!(round_up(1, 4096), Some(4096));
        assert_eq!(round_up(4096, 4096), Some(4096));
        assert_eq!(round_up(u64::MAX, 4096), None);
        assert_eq!(round_down(4097, 4096), 4096);
    }
}
