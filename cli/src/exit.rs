//! How the command ends: failures, their exit codes, and how they are told.
//!
//! | code | meaning                                                        |
//! |------|----------------------------------------------------------------|
//! | 0    | done                                                           |
//! | 1    | failed                                                         |
//! | 2    | the command line makes no sense                                |
//! | 3    | data is damaged                                                |
//! | 10   | no such checkpoint, drive or pool                              |
//! | 11   | a live process uses it                                         |
//! | 12   | refused, because it could destroy data                         |
//! | 13   | the machine is not set up for it                               |
//! | 130  | interrupted                                                    |

use std::io::{self, Write as _};

use serde_json::json;
use stanchion_engine::{Error, ErrorKind};

use crate::output::plain;

/// Why the command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The engine says why.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The command line or the configuration makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Something that is not the engine's failed.
    #[error("{0}")]
    Failed(String),
    /// Damage was found, and told before.
    #[error("{0}")]
    Damaged(String),
    /// What was named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It could destroy data, or write where it must not.
    #[error("{0}")]
    Refused(String),
    /// The user, or whoever sent the signal, ended it.
    #[error("interrupted: {0}")]
    Interrupted(String),
}

impl Failure {
    /// A failed operating-system call, with what was being done.
    pub fn os(what: impl Into<String>, source: io::Error) -> Failure {
        Error::os(what, source).into()
    }

    fn kind_and_code(&self) -> (&'static str, u8) {
        match self {
            Failure::Engine(error) => match error.kind() {
                ErrorKind::Failed => ("failed", 1),
                ErrorKind::Usage => ("usage", 2),
                ErrorKind::Damaged => ("damaged", 3),
                ErrorKind::NotFound => ("not_found", 10),
                ErrorKind::Busy => ("busy", 11),
                ErrorKind::Refused => ("refused", 12),
                ErrorKind::Environment => ("environment", 13),
            },
            Failure::Failed(_) => ("failed", 1),
            Failure::Usage(_) => ("usage", 2),
            Failure::Damaged(_) => ("damaged", 3),
            Failure::NotFound(_) => ("not_found", 10),
            Failure::Refused(_) => ("refused", 12),
            Failure::Interrupted(_) => ("interrupted", 130),
        }
    }

    /// Tells the failure on stderr and gives the exit code.
    pub fn tell(&self, as_json: bool) -> u8 {
        let (kind, code) = self.kind_and_code();
        // The engine's messages are one line, and may hold names that come from a drive.
        let message = match self {
            Failure::Engine(error) => plain(&error.to_string()),
            other => other.to_string(),
        };
        let line = if as_json {
            json!({"error": {"kind": kind, "message": message, "exit_code": code}}).to_string()
        } else {
            format!("stanchion: error: {message}")
        };
        // A stderr that is closed leaves only the exit code.
        let _ = writeln!(io::stderr(), "{line}");
        code
    }
}
