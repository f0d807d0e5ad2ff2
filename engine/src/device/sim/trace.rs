//! The record of what commands a simulated drive got.

use crate::device::Operation;
use crate::error::IoError;

/// One event in a drive's trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// Order over all drives of the same `SimWorld`.
    pub at: u64,
    /// What the command was.
    pub operation: Operation,
    /// Where, as the command said.
    pub offset_bytes: u64,
    /// How long.
    pub len_bytes: u32,
    /// The command's tag.
    pub tag: u64,
    /// `None`: it was submitted. Otherwise it ended like this, or was refused like this.
    pub ended: Option<Result<(), IoError>>,
}
