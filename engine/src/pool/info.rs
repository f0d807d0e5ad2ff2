// SPDX-License-Identifier: Apache-2.0
//! Information about a pool and its checkpoints.

use uuid::Uuid;

use crate::error::Damage;
use crate::format::{DriveState, Redundancy, Shard};
use crate::name::CheckpointName;
use crate::state::Availability;
use crate::units::Generation;

/// A pool.
#[derive(Clone, Debug)]
pub struct PoolInfo {
    /// Its identity.
    pub pool: Uuid,
    /// The number of its committed state.
    pub generation: Generation,
    /// Grows with every opening for writing.
    pub epoch: u64,
    /// When it was formatted, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// The unit of striping.
    pub chunk_bytes: u64,
    /// The most checkpoints that it can hold.
    pub max_checkpoints: usize,
    /// Bytes of each drive that are for metadata.
    pub metadata_bytes: u64,
    /// About how many shards with names of some 60 characters it can hold, over all checkpoints.
    pub typical_shards: u64,
    /// Bytes of checkpoint data that its drives can hold together.
    pub capacity_bytes: u64,
    /// Copies of each chunk, each on another drive.
    pub redundancy: Redundancy,
    /// Bytes that new checkpoints may take, in whole chunks; `None` when the pool is open for
    /// reading only, where free space is not counted.
    pub free_bytes: Option<u64>,
    /// In the order of the drive table.
    pub drives: Vec<PoolDrive>,
}

/// A drive of a pool.
#[derive(Clone, Debug)]
pub struct PoolDrive {
    /// Its identity in the pool.
    pub uuid: Uuid,
    /// The serial that its label has.
    pub serial: String,
    /// The address it was opened by.
    pub address: String,
    /// Its model.
    pub model: String,
    /// The name of its back end.
    pub back_end: &'static str,
    /// Its capacity when it was formatted.
    pub capacity_bytes: u64,
    /// How it takes part.
    pub state: DriveState,
    /// Whether completed writes may be lost at a power cut before a flush.
    pub volatile_cache: Option<bool>,
    /// Whether the drive itself keeps other hosts out while one has the pool open for writing;
    /// `None` when only trying would show it.
    pub reservations: Option<bool>,
}

/// A committed checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointInfo {
    /// Its identity.
    pub id: Uuid,
    /// Its name.
    pub name: CheckpointName,
    /// Bytes of all its segments.
    pub bytes: u64,
    /// Its number of participants.
    pub participants: u32,
    /// When it was committed, nanoseconds since 1970.
    pub committed_unix_ns: u64,
    /// The generation that made it visible.
    pub generation: Generation,
    /// Why it cannot be restored, if its metadata cannot be read.
    pub damage: Option<Damage>,
    /// Whether its data is complete on the drives that are present.
    pub availability: Availability,
}

/// One participant's part of a checkpoint.
#[derive(Clone, Debug)]
pub struct SegmentInfo {
    /// The participant.
    pub participant: u32,
    /// Its length.
    pub len_bytes: u64,
    /// Its named ranges, ascending.
    pub shards: Vec<Shard>,
    /// By drive of the pool: data bytes of its chunks there; each copy counts.
    pub bytes_per_drive: Vec<u64>,
}
