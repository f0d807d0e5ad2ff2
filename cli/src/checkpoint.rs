// SPDX-License-Identifier: Apache-2.0
//! Checkpoints as they are named on the command line, and their bytes on each drive.

use serde::Serialize;
use stanchion_engine::{CheckpointName, Error, Pool, check_base_name};

use crate::error::CommandError;

/// `NAME@STEP`, or the newest step of `NAME`.
///
/// # Errors
/// [`Error::NoSuchCheckpoint`], and [`Error::Usage`] for what is not a name.
pub fn resolve(pool: &Pool, text: &str) -> Result<CheckpointName, CommandError> {
    if text.contains('@') {
        return Ok(pool.find(&text.parse()?)?.name);
    }
    check_base_name(text)?;
    let newest = pool.latest(text).ok_or_else(|| Error::NoSuchCheckpoint(text.to_owned()))?;
    Ok(newest.name)
}

/// Bytes of a checkpoint on one drive.
#[derive(Serialize)]
pub struct DriveBytes {
    /// The drive's serial.
    pub serial: String,
    /// Its address.
    pub address: String,
    /// Data bytes of the checkpoint there; each copy counts.
    pub data_bytes: u64,
}

/// Bytes of a checkpoint by drive, in the order of the pool's drive table.
///
/// # Errors
/// When its metadata cannot be read.
pub fn bytes_by_drive(pool: &Pool, name: &CheckpointName) -> Result<Vec<DriveBytes>, CommandError> {
    let info = pool.info();
    let mut drives: Vec<DriveBytes> = info
        .drives
        .into_iter()
        .map(|drive| DriveBytes { serial: drive.serial, address: drive.address, data_bytes: 0 })
        .collect();
    for segment in pool.segments(name)? {
        for (drive, bytes) in drives.iter_mut().zip(segment.bytes_per_drive) {
            drive.data_bytes += bytes;
        }
    }
    Ok(drives)
}
