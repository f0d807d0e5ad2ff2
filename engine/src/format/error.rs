// SPDX-License-Identifier: Apache-2.0
//! Why bytes of a drive were not accepted.

/// Why bytes were not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Only zeros: nothing was ever written here.
    #[error("blank")]
    Blank,
    /// Another magic number, or a sound structure of another pool.
    #[error("not a structure of this pool")]
    NotOurs,
    /// Sound bytes of a newer format.
    #[error("format {found} is newer than {supported}, the newest that this program reads")]
    Newer {
        /// What the bytes say.
        found: String,
        /// What this program reads.
        supported: String,
    },
    /// Sound bytes of an older format.
    #[error("format {found} is older than {supported}, the oldest that this program reads")]
    Older {
        /// What the bytes say.
        found: String,
        /// What this program reads.
        supported: String,
    },
    /// A structure of this pool, but not the bytes that were written; the text says what does not
    /// match.
    #[error("{0}")]
    Corrupt(String),
}
