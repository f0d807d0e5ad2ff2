//! Facts about a drive, as its back end tells them.

/// Facts about a drive that do not change while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveInfo {
    /// The address it was opened by.
    pub address: String,
    /// Serial number as the drive tells it, trimmed; for a file, its device and inode number.
    pub serial: String,
    /// Model as the drive tells it, trimmed; "file" for a file.
    pub model: String,
    /// The back end that drives it, for people: "spdk", "io_uring", "threads", "sim".
    pub back_end: &'static str,
    /// Whole capacity, rounded down to a whole number of blocks.
    pub capacity_bytes: u64,
    /// The largest command that the back end accepts.
    pub max_transfer_bytes: u64,
    /// Commands that may be in flight at once.
    pub queue_depth: u32,
    /// Whether completed writes may be lost at a power cut; `None` when it cannot be known.
    pub volatile_cache: Option<bool>,
    /// Whether somebody else (the kernel) waits for the device, so that polling may sleep briefly
    /// without delaying it.
    pub interrupt_driven: bool,
}
