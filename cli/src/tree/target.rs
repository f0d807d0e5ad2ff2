// SPDX-License-Identifier: Apache-2.0
//! A shard that a restore writes.

use super::entry::Entry;

/// A shard that becomes a file or a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The participant that has it.
    pub participant: u32,
    /// Where it starts in the participant's segment.
    pub start_bytes: u64,
    /// Where it ends.
    pub end_bytes: u64,
    /// Its path below the output directory.
    pub path: String,
    /// What it is.
    pub entry: Entry,
}
