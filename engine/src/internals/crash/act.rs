// SPDX-License-Identifier: Apache-2.0
//! The acts on an open pool, and the reasons why one ends early.

use crate::error::Error;

/// An act on the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// Save a checkpoint of one chunk.
    SaveSmall,
    /// Save a checkpoint with chunks on every drive.
    SaveSpanning,
    /// Save a checkpoint of two participants.
    SavePair,
    /// Save a checkpoint while another is begun, which is committed with the next of these.
    SaveOverlapping,
    /// Save a checkpoint; while it is being committed, another is begun and written, which is
    /// committed with the next of these.
    SaveMeanwhile,
    /// Begin a checkpoint, write it, and give it up.
    Abandon,
    /// Remove the oldest checkpoint.
    Remove,
    /// Commit an empty generation.
    Reclaim,
    /// Open the pool again, for writing.
    Reopen,
}

impl Act {
    /// The acts of the small worlds.
    pub(super) const SMALL: [Act; 6] =
        [Act::SaveSmall, Act::SaveSpanning, Act::SavePair, Act::Remove, Act::Reclaim, Act::Reopen];
    /// Long runs do these, too.
    pub(super) const ALL: [Act; 9] = [
        Act::SaveSmall,
        Act::SaveSpanning,
        Act::SavePair,
        Act::Remove,
        Act::Reclaim,
        Act::Reopen,
        Act::SaveOverlapping,
        Act::SaveMeanwhile,
        Act::Abandon,
    ];
}

/// Why an act ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The engine refused it; the pool continues.
    Refused(Error),
    /// The power failed.
    PowerCut,
    /// Something is wrong.
    Violation(String),
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stop::Refused(error) => write!(f, "refused: {error}"),
            Stop::PowerCut => write!(f, "a power cut"),
            Stop::Violation(what) => write!(f, "{what}"),
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Refused(error)
    }
}

impl From<String> for Stop {
    fn from(what: String) -> Stop {
        Stop::Violation(what)
    }
}
