// SPDX-License-Identifier: Apache-2.0
//! What a drive is opened for.

/// What a drive is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Reads and flushes; others may read too.
    ReadOnly,
    /// Everything; no other user of Stanchion may have it open.
    ReadWrite,
}
