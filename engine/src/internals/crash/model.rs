// SPDX-License-Identifier: Apache-2.0
//! What must be found after a crash.

use std::collections::BTreeMap;

use crate::device::sim::SimRng;
use crate::name::CheckpointName;

/// The contents of a checkpoint of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stored {
    /// Only there to use space; its data is not checked.
    Ballast,
    /// One segment for each participant, of bytes that follow from the seed.
    Segments { seed: u64, lengths_bytes: Vec<u64> },
}

/// All checkpoints of one generation.
pub(super) type Contents = BTreeMap<CheckpointName, Stored>;

/// What the pool has promised so far.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// By generation, from the one before the first acknowledged: what it holds.
    pub(super) history: BTreeMap<u64, Contents>,
    /// The newest generation that was acknowledged, or that a recovery has shown.
    pub(super) acknowledged: u64,
    /// The newest generation that was acknowledged: every drive has it. A generation that a
    /// recovery has shown may be on a single drive until that recovery has committed.
    pub(super) promised: u64,
    /// The generation being committed: after a crash all of it is there, or none.
    pub(super) pending: Option<u64>,
}

impl Expected {
    pub(super) fn contents(&self) -> &Contents {
        &self.history[&self.acknowledged]
    }

    /// Begins a commit that leads to these contents.
    pub(super) fn begin(&mut self, generation: u64, contents: Contents) {
        self.history.insert(generation, contents);
        self.pending = Some(generation);
    }

    /// The pending generation was made under this number: one is passed over where its places
    /// cannot be written.
    pub(super) fn was_made(&mut self, generation: u64) -> bool {
        let Some(pending) = self.pending else { return false };
        if generation > pending {
            let contents = self.history.remove(&pending).unwrap_or_default();
            self.history.insert(generation, contents);
            self.pending = Some(generation);
        }
        (pending..pending + 8).contains(&generation)
    }

    /// The pending generation is durable on every drive.
    pub(super) fn acknowledge(&mut self, generation: u64) {
        self.see(generation);
        self.promised = generation;
    }

    /// A recovery opened this generation, and may have shown it to a user.
    pub(super) fn see(&mut self, generation: u64) {
        self.pending = None;
        self.acknowledged = generation;
        self.history.retain(|known, _| *known <= generation);
        while self.history.len() > 2 {
            self.history.pop_first();
        }
    }

    /// Whether recovery may open this generation.
    pub(super) fn allows(&self, generation: u64) -> bool {
        generation == self.acknowledged || Some(generation) == self.pending
    }
}

/// The bytes of one chunk of a participant's segment.
pub(super) fn chunk_bytes(seed: u64, participant: u32, chunk: u64, len_bytes: usize) -> Vec<u8> {
    let mut rng = SimRng::new(seed ^ u64::from(participant) << 40 ^ chunk << 48);
    let mut bytes = Vec::with_capacity(len_bytes.next_multiple_of(8));
    while bytes.len() < len_bytes {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}
