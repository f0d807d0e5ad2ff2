// SPDX-License-Identifier: Apache-2.0
//! The steps of a commit, and what the failure of one means for the pool.

use crate::error::{Error, IoError};

/// The step of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Metadata,
    /// Of the metadata, only the catalogue could not be written.
    Catalogue,
    Flush,
    /// The ring could not be read.
    Look,
    /// The pool has another owner.
    Ownership,
    Root,
}

/// A commit that failed.
#[derive(Debug)]
pub(super) struct CommitFailure {
    pub(super) stage: Stage,
    pub(super) error: Error,
}

impl CommitFailure {
    /// Whether the next generation, whose catalogue and roots lie elsewhere, may succeed where this
    /// one failed. After a root write that holds only for the generation that an opening makes: it
    /// has the same checkpoints as the one before, so it does not matter which of the two is found.
    pub(super) fn is_of_one_place(&self, is_opening: bool) -> bool {
        let is_gone = matches!(self.error, Error::Io { source: IoError::Removed, .. });
        match self.stage {
            Stage::Catalogue => !is_gone,
            Stage::Root => is_opening && !is_gone,
            Stage::Metadata | Stage::Flush | Stage::Look | Stage::Ownership => false,
        }
    }

    /// The reason to poison the pool; `None` when the failure left it as it was.
    pub(super) fn poison(&self) -> Option<&'static str> {
        match self.stage {
            Stage::Metadata | Stage::Catalogue | Stage::Look => None,
            Stage::Ownership => Some("check of the owner"),
            Stage::Flush => Some("flush"),
            Stage::Root => Some("root write"),
        }
    }
}
