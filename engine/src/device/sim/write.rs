// SPDX-License-Identifier: Apache-2.0
//! Writes that a power cut may drop or tear.

use std::ops::Range;

/// A write of one drive, numbered from 0 in the order of submission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteId(pub u64);

/// How far a write came that a power cut may drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteState {
    /// Completed, and not flushed.
    Volatile,
    /// Submitted, and not completed.
    InFlight,
    /// Its submitter is gone or got an error, and it may still land.
    Stray,
}

/// A write that a power cut may drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtRisk {
    /// The write.
    pub id: WriteId,
    /// Where it goes.
    pub offset_bytes: u64,
    /// How long it is.
    pub len_bytes: u64,
    /// How far it came.
    pub state: WriteState,
}

/// A write of which a power cut leaves only some sectors of 512 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torn {
    /// The write; it need not be among the kept ones.
    pub id: WriteId,
    /// The sectors that arrive, counted from the start of the write.
    pub sectors: Range<u64>,
}
