// SPDX-License-Identifier: Apache-2.0
//! The drives of a pool as metadata code sees them: batches of small reads, writes and flushes.
//!
//! The commit order consists of batches: the commands of one batch are unordered, and a batch is
//! complete before the next one starts. There are two implementations: [`crate::direct`], which
//! polls the devices on the calling thread (format, recovery, the simulator), and the keeper's,
//! which goes through the reactors while a pool is open.

use crate::drive_info::DriveInfo;
use crate::error::{Error, IoError};
use crate::units::DriveIndex;

/// One metadata command. Offsets and lengths are whole blocks.
#[derive(Debug)]
pub enum DriveCommand<'a> {
    /// Drive to memory.
    Read {
        /// The drive.
        drive: DriveIndex,
        /// Where on the drive.
        offset_bytes: u64,
        /// Filled on success, undefined on failure.
        into: &'a mut [u8],
    },
    /// Memory to drive.
    Write {
        /// The drive.
        drive: DriveIndex,
        /// Where on the drive.
        offset_bytes: u64,
        /// What to write.
        data: &'a [u8],
        /// Durable when it completes.
        durable: bool,
    },
    /// Makes durable what completed before this batch.
    Flush {
        /// The drive.
        drive: DriveIndex,
    },
}

impl DriveCommand<'_> {
    /// The drive of the command.
    pub fn drive(&self) -> DriveIndex {
        match self {
            DriveCommand::Read { drive, .. }
            | DriveCommand::Write { drive, .. }
            | DriveCommand::Flush { drive } => *drive,
        }
    }

    /// Where on the drive; 0 for a flush.
    pub fn offset_bytes(&self) -> u64 {
        match self {
            DriveCommand::Read { offset_bytes, .. } | DriveCommand::Write { offset_bytes, .. } => {
                *offset_bytes
            }
            DriveCommand::Flush { .. } => 0,
        }
    }

    /// For messages.
    pub fn what(&self) -> &'static str {
        match self {
            DriveCommand::Read { .. } => "read",
            DriveCommand::Write { .. } => "write",
            DriveCommand::Flush { .. } => "flush",
        }
    }
}

/// The drives of a pool, in the order of `DriveIndex`.
pub trait Drives {
    /// What is known of each drive.
    fn info(&self) -> &[DriveInfo];

    /// Runs a batch to its end. Returns one status per command, in the batch's order; a failed
    /// command does not stop the others.
    fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), IoError>>;
}

/// Flushes these drives.
pub(crate) fn flush_all(
    drives: &mut dyn Drives,
    which: impl Iterator<Item = DriveIndex>,
) -> Result<(), Error> {
    let mut batch: Vec<_> = which.map(|drive| DriveCommand::Flush { drive }).collect();
    run_all(drives, &mut batch)
}

/// Runs a batch; the first failure becomes an error that names drive, place and status.
pub(crate) fn run_all(
    drives: &mut dyn Drives,
    batch: &mut [DriveCommand<'_>],
) -> Result<(), Error> {
    let statuses = drives.run(batch);
    for (command, status) in batch.iter().zip(statuses) {
        if let Err(source) = status {
            return Err(io_error(drives, command, source));
        }
    }
    Ok(())
}

/// The error of one failed command.
pub(crate) fn io_error(drives: &dyn Drives, command: &DriveCommand<'_>, source: IoError) -> Error {
    error_at(drives, command.drive(), command.what(), command.offset_bytes(), source)
}

/// The error of a read that failed.
pub(crate) fn read_error(
    drives: &dyn Drives,
    drive: DriveIndex,
    offset_bytes: u64,
    source: IoError,
) -> Error {
    error_at(drives, drive, "read", offset_bytes, source)
}

fn error_at(
    drives: &dyn Drives,
    drive: DriveIndex,
    what: &'static str,
    offset_bytes: u64,
    source: IoError,
) -> Error {
    let info = &drives.info()[drive.as_usize()];
    let (serial, address) = (info.serial.clone(), info.address.clone());
    Error::Io { serial, address, what, offset_bytes, source }
}
