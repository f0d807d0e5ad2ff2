// SPDX-License-Identifier: Apache-2.0
//! Beginning and ending the uses of checkpoints: see [`super::in_use`].

use std::sync::Arc;

use uuid::Uuid;

use crate::error::Error;
use crate::name::CheckpointName;
use crate::state::holding::Committed;
use crate::state::in_use::{Held, NotHeld, Use};
use crate::state::pool_state::State;

impl State {
    /// Holds a checkpoint. Each hold ends with [`State::end_hold`].
    pub(crate) fn hold(
        &mut self,
        name: &CheckpointName,
        what: Use,
    ) -> Result<Arc<Committed>, NotHeld> {
        let committed = self.current.get(name).ok_or(NotHeld::NoSuchCheckpoint)?;
        let id = committed.entry.id;
        if self.in_use.removing.contains(&id) {
            return Err(NotHeld::BeingRemoved);
        }
        let held = self.in_use.held.entry(id).or_insert_with(|| Held {
            committed: Arc::clone(committed),
            restores: 0,
            inspections: 0,
        });
        match what {
            Use::Restore => held.restores += 1,
            Use::Inspect => held.inspections += 1,
        }
        Ok(Arc::clone(committed))
    }

    /// Ends a hold: nothing of the checkpoint is in flight any more for its holder. The last one
    /// frees the space of a checkpoint that no generation needs.
    pub(crate) fn end_hold(&mut self, committed: &Committed, what: Use) {
        let id = committed.entry.id;
        let Some(held) = self.in_use.held.get_mut(&id) else { return };
        match what {
            Use::Restore => held.restores -= 1,
            Use::Inspect => held.inspections -= 1,
        }
        if held.restores + held.inspections > 0 {
            return;
        }
        let Some(Held { committed, .. }) = self.in_use.held.remove(&id) else { return };
        if !self.is_kept(&committed) {
            self.forget(&[committed]);
        }
    }

    /// Whether the pool still has this checkpoint, and it is not being removed. Bytes of one that
    /// is held may be written while this holds.
    pub(crate) fn is_current(&self, committed: &Committed) -> bool {
        let current = self.current.get(&committed.name());
        let is_same = current.is_some_and(|current| current.entry.id == committed.entry.id);
        is_same && !self.in_use.removing.contains(&committed.entry.id)
    }

    /// Begins the removal of a checkpoint, unless a restore holds it. [`State::end_removal`] ends
    /// it, whether the checkpoint was removed or not.
    pub(crate) fn begin_removal(&mut self, name: &CheckpointName) -> Result<Uuid, Error> {
        self.check_poison()?;
        let found = self.current.get(name).map(|committed| committed.entry.id);
        let id = found.ok_or_else(|| Error::NoSuchCheckpoint(name.to_string()))?;
        if self.in_use.held.get(&id).is_some_and(|held| held.restores > 0) {
            return Err(Error::Busy {
                what: format!("checkpoint {name}"),
                owner: "a restore in this process".into(),
            });
        }
        self.in_use.removing.insert(id);
        Ok(id)
    }

    /// The removal has ended: the checkpoint is gone, or it stays.
    pub(crate) fn end_removal(&mut self, id: Uuid) {
        self.in_use.removing.remove(&id);
    }

    /// Whether one of the two newest generations has the checkpoint.
    fn is_kept(&self, committed: &Committed) -> bool {
        let id = committed.entry.id;
        let current = self.current.get(&committed.name());
        current.is_some_and(|current| current.entry.id == id)
            || self.retired.iter().any(|retired| retired.entry.id == id)
    }

    /// Checkpoints that only their holders keep.
    pub(super) fn held_only(&self) -> Vec<Arc<Committed>> {
        let held = self.in_use.held.values().map(|held| &held.committed);
        held.filter(|committed| !self.is_kept(committed)).cloned().collect()
    }
}
