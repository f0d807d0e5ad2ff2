// SPDX-License-Identifier: Apache-2.0
//! The record of the commands that a simulated drive got.

use crate::device::Operation;
use crate::error::IoError;

/// One event in a drive's trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// Order over all drives of the same `SimWorld`.
    pub at: u64,
    /// The command's operation.
    pub operation: Operation,
    /// The command's offset.
    pub offset_bytes: u64,
    /// The command's length.
    pub len_bytes: u32,
    /// The command's tag.
    pub tag: u64,
    /// `None`: it was submitted. Otherwise it ended, or was refused, with this status.
    pub ended: Option<Result<(), IoError>>,
}
