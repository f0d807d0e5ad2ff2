// SPDX-License-Identifier: Apache-2.0
//! The checkpoint that a bench saves.

use stanchion_engine::{CheckpointName, Pool};

use crate::error::CommandError;

/// Removes the scratch checkpoint, if there is one.
pub struct Scratch<'pool> {
    pool: &'pool Pool,
    pub(super) name: CheckpointName,
    /// Whether it was saved and not removed yet.
    pub exists: bool,
}

impl<'pool> Scratch<'pool> {
    /// One that is not saved yet.
    pub fn new(pool: &'pool Pool, name: CheckpointName) -> Scratch<'pool> {
        Scratch { pool, name, exists: false }
    }

    /// Removes it, if it was saved.
    ///
    /// # Errors
    /// As [`Pool::remove`].
    pub fn remove(&mut self) -> Result<(), CommandError> {
        if std::mem::take(&mut self.exists) {
            self.pool.remove(&self.name)?;
        }
        Ok(())
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Err(failure) = self.remove() {
            tracing::warn!("{} was not removed: {failure}", self.name);
        }
    }
}
