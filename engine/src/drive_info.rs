// SPDX-License-Identifier: Apache-2.0
//! What the engine knows of an open drive.

/// What is known of a drive; does not change while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveInfo {
    /// The address it was opened by.
    pub address: String,
    /// Serial number that the drive reports, trimmed; for a file, its device and inode number.
    pub serial: String,
    /// Model that the drive reports, trimmed; "file" for a file.
    pub model: String,
    /// The back end, for people: "spdk", "io_uring", "threads", "sim", or "none" for a missing
    /// drive.
    pub back_end: &'static str,
    /// Whole capacity, rounded down to a whole number of blocks.
    pub capacity_bytes: u64,
    /// The largest command that the back end accepts.
    pub max_transfer_bytes: u64,
    /// Commands that may be in flight at once.
    pub queue_depth: u32,
    /// Whether completed writes may be lost at a power cut; `None` when that is unknown.
    pub volatile_cache: Option<bool>,
    /// Whether the kernel or another thread waits for the drive, so that polling may pause without
    /// delaying it.
    pub interrupt_driven: bool,
    /// Whether commands may name memory in huge pages only.
    pub needs_huge_pages: bool,
}
