// SPDX-License-Identifier: Apache-2.0
//! A checkpoint that is being written.

use uuid::Uuid;

use crate::format::{Access, Shard, TableRun};
use crate::name::CheckpointName;
use crate::state::holding::{Holding, Run};
use crate::units::Copies;

/// One participant's part of an open checkpoint.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) len_bytes: u64,
    pub(crate) shards: Vec<Shard>,
    pub(crate) copies: Vec<Copies>,
    /// Blocks reserved for the copies of its segment table.
    pub(crate) table: Vec<TableRun>,
    /// The same for its shard list.
    pub(crate) list: Vec<TableRun>,
    /// Every byte is written.
    pub(crate) whole: bool,
    /// No write of it is in flight or can begin.
    pub(crate) ended: bool,
}

/// What a checkpoint gets from the participant that begins it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) id: Uuid,
    pub(crate) access: Access,
}

/// A checkpoint of root's.
#[cfg(any(test, feature = "internals"))]
impl From<Uuid> for Identity {
    fn from(id: Uuid) -> Identity {
        Identity { id, access: Access::of(0, 0) }
    }
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub(crate) struct OpenCheckpoint {
    pub(crate) identity: Identity,
    pub(crate) name: CheckpointName,
    pub(crate) segments: Vec<Option<OpenSegment>>,
    /// Units reserved for its manifest, the same on every drive. Its size depends on the tables of
    /// all participants, so the last one to join reserves them.
    pub(crate) manifest: Option<Run>,
    /// The space of its segments and its manifest.
    pub(crate) holding: Holding,
    /// It will not be committed. Its space is free once every segment has ended.
    pub(crate) aborted: bool,
}

/// What a participant declares when it joins a checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointSpec {
    /// The checkpoint.
    pub name: CheckpointName,
    /// The number of participants; the same for each of them.
    pub participants: u32,
    /// Which of them this is, from 0.
    pub participant: u32,
    /// The length of this participant's segment.
    pub len_bytes: u64,
    /// Named ranges of the segment, in ascending order.
    pub shards: Vec<Shard>,
}

impl CheckpointSpec {
    /// A checkpoint of one participant, without shards.
    pub fn single(name: CheckpointName, len_bytes: u64) -> CheckpointSpec {
        CheckpointSpec { name, participants: 1, participant: 0, len_bytes, shards: Vec::new() }
    }
}

/// The progress of a checkpoint after a participant reported that its segment is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Readiness {
    /// Other participants are not done.
    Waiting,
    /// All participants are done: commit it.
    Ready,
    /// It was aborted.
    Aborted,
}

/// One copy of a chunk of an open checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkPlace {
    pub(crate) checkpoint: u64,
    pub(crate) participant: u32,
    pub(crate) chunk: u64,
    /// It is the second copy, not the first.
    pub(crate) second: bool,
}
