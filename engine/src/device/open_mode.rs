//! What a drive is opened for.

/// What a drive is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Reads and flushes; others may read as well.
    ReadOnly,
    /// Everything; nobody else may have it open through Stanchion.
    ReadWrite,
}
