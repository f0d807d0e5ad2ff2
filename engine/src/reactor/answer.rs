// SPDX-License-Identifier: Apache-2.0
//! Answers to the requests of a reactor or the keeper: who gets them, and what they contain.
//!
//! An answer is a plain value of a fixed size. It carries the asker's token and owns nothing, so
//! that taking it frees nothing.

use crate::error::{Error, IoError};
use crate::ring::{CompleteEntry, codes};
use crate::units::Location;

/// Who gets the answer to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// Index into `Queues::answers`: a reactor's number, or beyond those one for each remote drive.
    pub(crate) to: u16,
    /// The asker's own token.
    pub(crate) token: u64,
}

/// An answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// A drive finished a request.
    Io { token: u64, status: Result<(), IoError> },
    /// A drive that could not be fenced may still carry out the request.
    Unfenced { token: u64 },
    /// A helper finished a checksum.
    Checksum { token: u64, crc64: u64, padding_is_zero: bool },
    /// A helper failed at a checksum.
    NoChecksum { token: u64 },
    /// The keeper gives another place for a chunk, or the error stands.
    Moved { token: u64, to: Result<Location, IoError> },
}

/// The keeper finished a commit or an abort.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) token: u64,
    pub(crate) outcome: Outcome,
}

/// The result of an entry, for its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Zero and above is success; see [`codes`].
    pub(crate) result: i64,
    /// The NVMe status, where a drive gave one.
    pub(crate) detail: u32,
    /// More data, by the entry and the result.
    pub(crate) aux: u64,
}

impl Outcome {
    pub(crate) const CANCELED: Outcome = Outcome { result: codes::CANCELED, detail: 0, aux: 0 };

    pub(crate) const REMOVED: Outcome = Outcome { result: codes::REMOVED, detail: 0, aux: 0 };
    pub(crate) const POISONED: Outcome = Outcome { result: codes::POISONED, detail: 0, aux: 0 };

    pub(crate) fn success(result: i64, aux: u64) -> Outcome {
        Outcome { result, detail: 0, aux }
    }

    pub(crate) fn of_io_error(error: IoError, aux: u64) -> Outcome {
        let (result, detail) = codes::of_io_error(error);
        Outcome { result, detail, aux }
    }

    pub(crate) fn of_error(error: &Error) -> Outcome {
        match error {
            Error::Io { source, .. } => Outcome::of_io_error(*source, 0),
            Error::Poisoned { .. } => Outcome::POISONED,
            _ => Outcome::of_io_error(IoError::Os(libc::EIO), 0),
        }
    }

    /// The completion of the entry with this user data.
    pub(crate) fn completion(self, user_data: u64) -> CompleteEntry {
        let Outcome { result, detail, aux } = self;
        CompleteEntry { user_data, result, detail, aux, ..Default::default() }
    }
}
