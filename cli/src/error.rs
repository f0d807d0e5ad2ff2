// SPDX-License-Identifier: Apache-2.0
//! Why the command did not do all of what was asked, and its exit codes. docs/exit-codes.md has the
//! rules.

use std::io;

use stanchion_engine::{Error, ErrorKind};

/// Why the command did not do all of what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The engine says why.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The command line or the configuration is wrong.
    #[error("{0}")]
    Usage(String),
    /// Something outside of the engine failed.
    #[error("{0}")]
    Failed(String),
    /// Damage was found, and printed before.
    #[error("{0}")]
    Damaged(String),
    /// Only a part was done; it was printed before.
    #[error("{0}")]
    Partial(String),
    /// What was named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A live process uses it.
    #[error("{0}")]
    Busy(String),
    /// It could destroy data, or write where it must not.
    #[error("{0}")]
    Refused(String),
    /// The machine is not ready for it.
    #[error("{0}")]
    Environment(String),
    /// A signal ended it.
    #[error("interrupted: {0}")]
    Interrupted(String),
}

impl CommandError {
    /// A failed operating-system call, with what was being done.
    pub fn os(what: impl Into<String>, source: io::Error) -> CommandError {
        Error::os(what, source).into()
    }

    /// A failed call on a path that the user named: what does not exist is not found.
    pub fn path(what: impl Into<String>, source: io::Error) -> CommandError {
        match source.kind() {
            io::ErrorKind::NotFound => {
                CommandError::NotFound(format!("{}: no such file or directory", what.into()))
            }
            _ => CommandError::os(what, source),
        }
    }

    /// An error of this kind with a text.
    pub fn of_kind(kind: ErrorKind, text: String) -> CommandError {
        match kind {
            ErrorKind::Failed => CommandError::Failed(text),
            ErrorKind::Usage => CommandError::Usage(text),
            ErrorKind::Damaged => CommandError::Damaged(text),
            ErrorKind::NotFound => CommandError::NotFound(text),
            ErrorKind::Busy => CommandError::Busy(text),
            ErrorKind::Refused => CommandError::Refused(text),
            ErrorKind::Environment => CommandError::Environment(text),
        }
    }

    /// The name of its kind in JSON, and the exit code.
    pub fn kind_and_code(&self) -> (&'static str, u8) {
        let kind = match self {
            CommandError::Engine(error) => error.kind(),
            CommandError::Failed(_) => ErrorKind::Failed,
            CommandError::Usage(_) => ErrorKind::Usage,
            CommandError::Damaged(_) => ErrorKind::Damaged,
            CommandError::NotFound(_) => ErrorKind::NotFound,
            CommandError::Busy(_) => ErrorKind::Busy,
            CommandError::Refused(_) => ErrorKind::Refused,
            CommandError::Environment(_) => ErrorKind::Environment,
            CommandError::Partial(_) => return ("partial", 4),
            CommandError::Interrupted(_) => return ("interrupted", 130),
        };
        match kind {
            ErrorKind::Failed => ("failed", 1),
            ErrorKind::Usage => ("usage", 2),
            ErrorKind::Damaged => ("damaged", 3),
            ErrorKind::NotFound => ("not_found", 10),
            ErrorKind::Busy => ("busy", 11),
            ErrorKind::Refused => ("refused", 12),
            ErrorKind::Environment => ("environment", 13),
        }
    }
}
