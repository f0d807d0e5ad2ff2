// SPDX-License-Identifier: Apache-2.0
//! The handles of one session: what each stands for, and what ends with it.
//!
//! A segment that is open in the pool for this session has its entry here, or the call that opens
//! it releases it again: a session that ends, even halfway through a call, leaves nothing open.

use crate::error::Error;
use crate::pool::hold::Hold;
use crate::pool::keeper::Keeper;
use crate::pool::open_pool::OpenPool;

/// What a handle stands for.
pub(super) enum Opened {
    /// A participant's segment of an open checkpoint.
    Save { checkpoint: u64, participant: u32 },
    /// A segment of a committed checkpoint, which is held until the handle is released.
    Restore { hold: Hold },
}

impl Opened {
    /// The first step of its end, while entries may still be in flight: an open checkpoint will not
    /// be committed, so that no commit waits for other participants. A committed one stays
    /// committed.
    pub(super) fn abandon(&self, pool: &OpenPool) {
        if let Opened::Save { checkpoint, .. } = *self {
            // If the keeper is gone, no commit can happen any more.
            let _ = pool.on_keeper(move |keeper| keeper.give_up(checkpoint, None));
        }
    }

    /// Whether what was read still counts: see [`OpenPool::require_current`].
    pub(super) fn check(&self, pool: &OpenPool) -> Result<(), Error> {
        match self {
            Opened::Save { .. } => Ok(()),
            Opened::Restore { hold } => pool.require_current(hold.committed()),
        }
    }

    /// The last step, when no entry is in flight: its space or its name is free for others.
    pub(super) fn release(self, pool: &OpenPool) {
        match self {
            Opened::Save { checkpoint, participant } => {
                let end = move |keeper: &mut Keeper| keeper.give_up(checkpoint, Some(participant));
                let _ = pool.on_keeper(end);
            }
            Opened::Restore { .. } => {}
        }
    }
}

/// The session's handles.
#[derive(Default)]
pub(super) struct Handles(Vec<(u64, Opened)>);

impl Handles {
    pub(super) fn add(&mut self, handle: u64, opened: Opened) {
        self.0.push((handle, opened));
    }

    /// Removes a handle; returns what it stood for.
    pub(super) fn take(&mut self, handle: u64) -> Result<Opened, Error> {
        let place = self.0.iter().position(|(known, _)| *known == handle);
        let Some(place) = place else {
            return Err(Error::Usage(format!("handle {handle:#x} is not open in this session")));
        };
        Ok(self.0.swap_remove(place).1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Opened> {
        self.0.iter().map(|(_, opened)| opened)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Opened> {
        self.0.drain(..).map(|(_, opened)| opened)
    }
}
