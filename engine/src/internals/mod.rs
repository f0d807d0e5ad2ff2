// SPDX-License-Identifier: Apache-2.0
//! The engine from the inside, for its tests, benches and fuzzers: not part of the command or of
//! the library. Everything here may change at any time.

pub mod bench;
pub mod crash;
pub mod fuzz;

/// Drives: the interface and the back ends, the simulated one among them.
pub mod device {
    pub use crate::device::*;
}

/// Metadata commands on the calling thread.
pub mod direct {
    pub use crate::direct::*;
}

/// Errors.
pub mod error {
    pub use crate::error::*;
}

/// The allocator of slots and blocks.
pub mod extent {
    pub use crate::extent::*;
}

/// Structures on a drive and their bytes.
pub mod format {
    pub use crate::format::*;
}

/// Regions of huge pages, and the buffers cut from them.
pub mod memory {
    pub use crate::memory::*;
}

/// Bugs that a build may plant.
pub mod planted {
    pub use crate::planted::*;
}

/// Both ends of a ring.
pub mod ring {
    pub use crate::ring::*;
}

/// Small types.
pub mod units {
    pub use crate::units::*;
}

pub use crate::pool::{admit_on as admit_drive_on, format_on as format_pool_on};
