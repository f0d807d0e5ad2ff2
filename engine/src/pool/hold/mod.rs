// SPDX-License-Identifier: Apache-2.0
//! A checkpoint that is read, verified or repaired: see [`crate::state`] on what is in use.

use std::sync::Arc;

use crate::name::CheckpointName;
use crate::pool::context::PoolContext;
use crate::state::{Committed, NotHeld, Use};

/// Holds a checkpoint until it is dropped: until then its space stays reserved. Drop it when
/// nothing is in flight for it any more, and never while the state is borrowed.
pub(crate) struct Hold {
    context: Arc<PoolContext>,
    committed: Arc<Committed>,
    what: Use,
}

impl Hold {
    /// Holds the checkpoint of this name, unless its removal has begun.
    pub(super) fn try_new(
        context: &Arc<PoolContext>,
        name: &CheckpointName,
        what: Use,
    ) -> Result<Hold, NotHeld> {
        let committed = context.state().hold(name, what)?;
        Ok(Hold { context: Arc::clone(context), committed, what })
    }

    pub(crate) fn committed(&self) -> &Committed {
        &self.committed
    }

    /// For another thread, while this lives: what [`Hold::is_current`] says.
    pub(super) fn watch(&self) -> impl Fn() -> bool + Send + 'static {
        let (context, committed) = (Arc::clone(&self.context), Arc::clone(&self.committed));
        move || context.state().is_current(&committed)
    }

    /// Whether the pool still has the checkpoint, and it is not being removed.
    pub(crate) fn is_current(&self) -> bool {
        self.context.state().is_current(&self.committed)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.context.state().end_hold(&self.committed, self.what);
    }
}

#[cfg(test)]
mod tests;
