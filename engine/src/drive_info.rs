// SPDX-License-Identifier: Apache-2.0
//! What the engine knows of an open drive.

use std::ops::Range;

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
    /// Whether the drive itself keeps every other host out while one writes to it; `None` when only
    /// trying would show it.
    pub reservations: Option<bool>,
    /// Whether the kernel or another thread waits for the drive, so that polling may pause without
    /// delaying it.
    pub interrupt_driven: bool,
    /// Whether commands may name memory in huge pages only.
    pub needs_huge_pages: bool,
    /// Where its bytes lie.
    pub origin: Origin,
}

/// Where the bytes of a drive lie, as far as its back end knows.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Origin {
    /// The physical drive or the file behind it: what fails at once. Empty when it is not known.
    pub medium: String,
    /// The names of this namespace of the medium, which it has on every path; none if it has no
    /// namespaces.
    pub names: Vec<String>,
    /// Which of its bytes.
    pub extent: Range<u64>,
    /// The network over which the kernel reaches it. The kernel reconnects without telling anybody.
    pub fabric: Option<String>,
}

impl Origin {
    /// Of an NVMe namespace. The numbers are zero where the drive does not have them.
    pub fn nvme_namespace(
        model: &str,
        serial: &str,
        namespace: u32,
        nguid: [u8; 16],
        eui64: [u8; 8],
    ) -> Origin {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut names = Vec::new();
        if nguid != [0; 16] {
            names.push(format!("nguid {}", hex(&nguid)));
        }
        if eui64 != [0; 8] {
            names.push(format!("eui {}", hex(&eui64)));
        }
        if names.is_empty() {
            names.push(format!("namespace {namespace}"));
        }
        Origin { medium: nvme_medium(model, serial), names, extent: 0..u64::MAX, fabric: None }
    }

    /// Whether a write to one changes the other.
    pub fn is_same(&self, other: &Origin) -> bool {
        let one_namespace = self.names.is_empty()
            || other.names.is_empty()
            || self.names.iter().any(|name| other.names.contains(name));
        let overlap =
            self.extent.start.max(other.extent.start) < self.extent.end.min(other.extent.end);
        self.shares_medium(other) && one_namespace && overlap
    }

    /// Whether one physical drive holds both.
    pub fn shares_medium(&self, other: &Origin) -> bool {
        !self.medium.is_empty() && self.medium == other.medium
    }
}

/// The medium of a namespace; empty without a serial.
pub(crate) fn nvme_medium(model: &str, serial: &str) -> String {
    match serial.trim() {
        "" => String::new(),
        serial => format!("nvme {} {serial}", model.trim()),
    }
}
