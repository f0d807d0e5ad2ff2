// SPDX-License-Identifier: Apache-2.0
//! Stands for a drive that the pool knows but that is not present: every command fails at once.
//!
//! It keeps the other drives at the numbers that the pool's drive table gives them. Nothing is
//! written in its place: a commit names only the drives that take part.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::device::{Command, Completion, Device, DriveInfo, SubmitError};
use crate::error::{Error, IoError};
use crate::format::DriveEntry;
use crate::limits::DEFAULT_CHUNK_BYTES;
use crate::memory::Region;

/// A drive that is not present.
pub(crate) struct MissingDrive {
    info: DriveInfo,
}

impl MissingDrive {
    /// The drive that the pool's drive table describes.
    pub(crate) fn new(entry: &DriveEntry) -> MissingDrive {
        MissingDrive {
            info: DriveInfo {
                address: "missing".into(),
                serial: entry.serial.clone(),
                model: String::new(),
                back_end: "none",
                capacity_bytes: entry.capacity_bytes,
                max_transfer_bytes: DEFAULT_CHUNK_BYTES,
                queue_depth: 1,
                volatile_cache: None,
                reservations: Some(false),
                interrupt_driven: true,
                needs_huge_pages: false,
                origin: crate::drive_info::Origin::default(),
            },
        }
    }
}

impl Device for MissingDrive {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn register(&mut self, _: &Arc<Region>) -> Result<(), Error> {
        Ok(())
    }

    fn unregister(&mut self, _: &Arc<Region>) {}

    unsafe fn submit(&mut self, _: Command) -> Result<(), SubmitError> {
        Err(SubmitError::Failed(IoError::Removed))
    }

    fn poll(&mut self, _: &mut [Completion]) -> usize {
        0
    }

    fn in_flight(&self) -> u32 {
        0
    }
}
