// SPDX-License-Identifier: Apache-2.0
//! What a drive holds, by its bytes and by what the kernel knows: before it is formatted, or takes
//! a place in a pool.
//!
//! - A label counts only on a drive that holds nothing else: its copies outlive a file system or a
//!   partition table that was made over the pool.
//! - A drive without a label is blank only if no root of a pool with checkpoints is on it, either.

use uuid::Uuid;

use crate::device::DriveInfo;
use crate::drives::Drives;
use crate::error::Error;
use crate::format::Layout;
use crate::host::safety::Findings;
use crate::limits::BLOCK_BYTES;
use crate::pool::foreign::{beside_label, own_blocks, read_ends};
use crate::recover::labels::read_labels;
use crate::recover::one_drive;
use crate::recover::unlabelled::{has_tombstone, leftover};

/// What a drive holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file that does not exist yet.
    Absent,
    /// Nothing: it can be formatted.
    Blank,
    /// A Stanchion pool.
    Pool {
        /// Its identity.
        pool: Uuid,
        /// Drives in it.
        drives: usize,
        /// Checkpoints in it; `None` when that cannot be read.
        checkpoints: Option<usize>,
    },
    /// Other data; what it looks like.
    Foreign(String),
}

/// A drive before it is formatted.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Its address.
    pub address: String,
    /// The drive; `None` when it was not opened: a file that does not exist, or a drive in use.
    pub info: Option<DriveInfo>,
    /// What it holds.
    pub content: Content,
    /// What uses it.
    pub in_use: Findings,
}

impl Survey {
    /// The drive's serial number; empty when it was not opened.
    pub fn serial(&self) -> &str {
        self.info.as_ref().map_or("", |info| &info.serial)
    }

    pub(super) fn of(info: &DriveInfo, content: Content, in_use: Findings) -> Survey {
        Survey { address: info.address.clone(), info: Some(info.clone()), content, in_use }
    }

    /// Whether it can be formatted. [`crate::format_pool()`] checks again, because the drive may
    /// change until then.
    ///
    /// # Errors
    /// [`Error::Busy`] for a drive that a running process has open; [`Error::Refused`] with the
    /// reason, and with the option that overrides it, if there is one.
    pub fn check(&self, force: bool) -> Result<(), Error> {
        let (address, serial) = (self.address.clone(), self.serial().to_owned());
        if let Some(locked) = self.in_use.0.iter().find(|finding| finding.what == "locked") {
            let (what, owner) = (format!("drive {address}"), locked.evidence.clone());
            return Err(Error::Busy { what, owner });
        }
        match self.refusal(force) {
            None => Ok(()),
            Some(reason) => Err(Error::Refused { address, serial, reason }),
        }
    }

    fn refusal(&self, force: bool) -> Option<String> {
        if let Some(finding) = self.in_use.never_overridable().next() {
            return Some(format!(
                "{} ({}); nothing overrides this",
                finding.what, finding.evidence
            ));
        }
        if force {
            return None;
        }
        if let Some(finding) = self.in_use.0.first() {
            return Some(format!(
                "{} ({}); --force overrides this",
                finding.what, finding.evidence
            ));
        }
        match &self.content {
            Content::Absent | Content::Blank | Content::Pool { checkpoints: Some(0), .. } => None,
            Content::Pool { pool, checkpoints: Some(count), .. } => Some(format!(
                "it belongs to pool {pool}, which holds checkpoints ({count}); --force destroys them"
            )),
            Content::Pool { pool, checkpoints: None, .. } => Some(format!(
                "it belongs to pool {pool}, whose checkpoints cannot be read; --force destroys them"
            )),
            Content::Foreign(what) => Some(format!("it holds {what}; --force destroys it")),
        }
    }
}

/// What the drive at `index` holds, by its bytes.
pub(crate) fn read_content(drives: &mut dyn Drives, index: usize) -> Result<Content, Error> {
    match read_labels(drives, index) {
        Ok(labels) => {
            let label = &labels.label;
            let checkpoints = one_drive::count_checkpoints(drives, index, label);
            if let Some(what) = beside_label(drives, index, label)? {
                let count = checkpoints.map_or_else(|| "?".to_owned(), |count| count.to_string());
                let pool = label.pool;
                let over = format!("{what}, made over pool {pool} (its checkpoints: {count})");
                return Ok(Content::Foreign(over));
            }
            let drives = label.drives.len();
            Ok(Content::Pool { pool: label.pool, drives, checkpoints })
        }
        Err(Error::NotFormatted { .. }) => without_label(drives, index),
        // Roots without any label: of a pool whose labels are gone, or that was never finished.
        Err(Error::Damaged(_)) if !has_label_block(drives, index)? => without_label(drives, index),
        Err(error @ (Error::Io { .. } | Error::Os { .. } | Error::Environment(_))) => Err(error),
        Err(error) => {
            Ok(Content::Foreign(format!("a stanchion pool that cannot be opened ({error})")))
        }
    }
}

/// Whether a block at a label's place starts like a label.
fn has_label_block(drives: &mut dyn Drives, index: usize) -> Result<bool, Error> {
    let (ends, _) = read_ends(drives, index)?;
    let blocks = own_blocks(&ends, drives.info()[index].capacity_bytes);
    Ok(blocks.into_iter().any(|block| ends.at(block, 8) == Some(b"STNLABEL".as_slice())))
}

/// What a drive holds on which there is no label.
fn without_label(drives: &mut dyn Drives, index: usize) -> Result<Content, Error> {
    let (mut ends, lost_count) = read_ends(drives, index)?;
    let capacity_bytes = drives.info()[index].capacity_bytes;
    if let Some(left) = leftover(drives, index)? {
        let count = left.checkpoints.map_or_else(|| "unreadable".to_owned(), |n| n.to_string());
        let what = format!("pool {}, whose labels are gone (its checkpoints: {count})", left.pool);
        return Ok(Content::Foreign(what));
    }
    // A pool without checkpoints, or one that was never finished. Its first label may be torn, even
    // without its start.
    let mut own = own_blocks(&ends, capacity_bytes);
    if has_tombstone(drives, index)? {
        own.extend(Layout::label_offsets(capacity_bytes));
    }
    for block in own {
        ends.clear(block..block + BLOCK_BYTES);
    }
    let unread = || {
        let blocks = format!("{lost_count} blocks at its ends that cannot be read");
        (lost_count > 0).then_some(blocks)
    };
    Ok(ends.content().or_else(unread).map_or(Content::Blank, Content::Foreign))
}
