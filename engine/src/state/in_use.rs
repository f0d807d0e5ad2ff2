// SPDX-License-Identifier: Apache-2.0
//! Checkpoints in use: those that are read, verified or repaired, and those that are being removed.
//!
//! - Who reads or repairs the bytes of a checkpoint holds it first. What a held checkpoint names
//!   stays reserved until the last hold ends, also when the checkpoint was removed long before. So
//!   no one else's bytes are ever read in its place, and a repair never writes over them.
//! - A removal begins only while no restore holds the checkpoint. From then until the removal has
//!   ended no one can begin to hold it: who wants to waits, and then finds it or does not.
//! - An inspection refuses no removal. It learns that its checkpoint is gone
//!   ([`crate::state::State::is_current`]), and ends its hold soon.
//! - All of it lies under the state's lock, as what it protects does. Nothing of it is on a drive:
//!   a hold ends with its process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use crate::state::holding::Committed;

/// What a checkpoint is held for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Its bytes go to a caller: it is not removed meanwhile.
    Restore,
    /// Its metadata is read, or its copies are checked and repaired: it may be removed meanwhile.
    Inspect,
}

/// Why a checkpoint cannot be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotHeld {
    /// There is none of that name.
    NoSuchCheckpoint,
    /// Its removal has begun and not ended. Then it is gone, or it stays because the removal
    /// failed.
    BeingRemoved,
}

/// The uses of all checkpoints, by id: a name may be used again for another checkpoint.
#[derive(Debug, Default)]
pub(super) struct InUse {
    pub(super) held: BTreeMap<Uuid, Held>,
    pub(super) removing: BTreeSet<Uuid>,
}

/// One that is held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) committed: Arc<Committed>,
    pub(super) restores: usize,
    pub(super) inspections: usize,
}

impl InUse {
    /// Whether the space of a checkpoint that is free otherwise stays reserved.
    pub(super) fn holds(&self, committed: &Committed) -> bool {
        self.held.contains_key(&committed.entry.id)
    }
}
