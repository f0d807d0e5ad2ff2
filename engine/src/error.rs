// SPDX-License-Identifier: Apache-2.0
//! Every error: what happened, to what, and what to run.

use std::fmt;
use std::io;

use uuid::Uuid;

use crate::units::Generation;

/// How one command on one drive failed. Small and `Copy`, because it travels through queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoError {
    /// The drive completed the command with an NVMe status.
    Nvme {
        /// Status code type.
        sct: u8,
        /// Status code.
        sc: u8,
        /// Do not retry.
        dnr: bool,
    },
    /// The operating system refused or failed the command.
    Os(i32),
    /// Fewer bytes moved than asked: the file is shorter than the drive it stands for.
    Short {
        /// Bytes that moved.
        moved_bytes: u32,
    },
    /// The drive is gone or its connection is lost.
    Removed,
}

impl IoError {
    /// NVMe status as `sct << 8 | sc`, 0 when the failure has none.
    pub fn nvme_status(self) -> u16 {
        match self {
            IoError::Nvme { sct, sc, .. } => u16::from(sct) << 8 | u16::from(sc),
            _ => 0,
        }
    }
}

impl IoError {
    /// Whether the drive refused a command because another host has reserved it.
    pub fn is_reservation_conflict(self) -> bool {
        match self {
            IoError::Nvme { sct, sc, .. } => (sct, sc) == (0, 0x83),
            IoError::Os(errno) => errno == libc::EBADE,
            IoError::Short { .. } | IoError::Removed => false,
        }
    }

    /// Whether the drive says that the bytes themselves cannot be had any more, as opposed to a
    /// failure that another try, or another cable, may not have.
    pub fn is_damage(self) -> bool {
        match self {
            // Media and data integrity errors; what the kernel makes of them.
            IoError::Nvme { sct, .. } => sct == 2,
            IoError::Os(errno) => errno == libc::ENODATA || errno == libc::EILSEQ,
            IoError::Short { .. } => true,
            IoError::Removed => false,
        }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            IoError::Nvme { sct, sc, dnr } => {
                write!(
                    f,
                    "NVMe status {sct:02x}/{sc:02x}{}",
                    if dnr { ", do not retry" } else { "" }
                )
            }
            IoError::Os(errno) => write!(f, "{}", io::Error::from_raw_os_error(errno)),
            IoError::Short { moved_bytes } => {
                write!(f, "short transfer ({moved_bytes} bytes): the file has become shorter")
            }
            IoError::Removed => write!(f, "the drive is gone"),
        }
    }
}

impl std::error::Error for IoError {}

/// What an error means to the caller that has to act on it.
///
/// The command's exit codes follow from the kind alone. C's error numbers refine it, and never
/// cross it: two errors of one number have one kind, but for `STN_E_DRIVES` (drives that are
/// missing, or of another pool) and the system's own numbers. docs/exit-codes.md has the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The operation failed.
    Failed,
    /// The call, the command line or the configuration is wrong; a drive named twice is, too.
    Usage,
    /// Bytes on a drive are not what was written.
    Damaged,
    /// What was named does not exist, or is not formatted.
    NotFound,
    /// A live process uses it.
    Busy,
    /// Refused for safety: it could destroy data, or mix the data of two pools.
    Refused,
    /// The machine is not ready for it.
    Environment,
}

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call's argument is wrong.
    #[error("{0}")]
    Usage(String),
    /// The machine lacks something; the text says what to run.
    #[error("{0}")]
    Environment(String),
    /// An operating-system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What was being done, to what.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A command on a drive failed.
    #[error("drive {serial} ({address}): {what} at byte {offset_bytes}: {source}")]
    Io {
        /// The drive's serial.
        serial: String,
        /// The drive's address.
        address: String,
        /// "read", "write", "flush" ...
        what: &'static str,
        /// Where on the drive.
        offset_bytes: u64,
        /// How it failed.
        source: IoError,
    },
    /// The address names nothing that can be opened.
    #[error("drive {address}: not found: {detail}")]
    DriveNotFound {
        /// The address.
        address: String,
        /// Why, and what to do.
        detail: String,
    },
    /// The drive has no label.
    #[error(
        "drive {address} ({serial}): not formatted: no label of a pool is on it; `stanchion drives --drive {address}` shows what it holds, and `stanchion format` makes pools of blank drives"
    )]
    NotFormatted {
        /// The address.
        address: String,
        /// The serial.
        serial: String,
    },
    /// The drive's format is newer than this program.
    #[error(
        "drive {address} ({serial}): format version {found} is newer than {supported}, the newest that this program reads; use a newer stanchion"
    )]
    NewerFormat {
        /// The address.
        address: String,
        /// The serial.
        serial: String,
        /// What the label says.
        found: String,
        /// What is supported.
        supported: String,
    },
    /// The drive's format is older than this program reads.
    #[error(
        "drive {address} ({serial}): format version {found} is older than {supported}, the oldest that this program reads; restore its checkpoints with the release of stanchion that wrote them, then make a new pool with `stanchion format --force`"
    )]
    OlderFormat {
        /// The address.
        address: String,
        /// The serial.
        serial: String,
        /// What the label says.
        found: String,
        /// What is supported.
        supported: String,
    },
    /// Drives of different pools were named together.
    #[error(
        "drive {address} ({serial}) belongs to pool {found}, not to pool {expected}; name the drives of one pool only"
    )]
    ForeignDrive {
        /// The address.
        address: String,
        /// The serial.
        serial: String,
        /// The pool of this drive.
        found: Uuid,
        /// The pool of the drives named before it.
        expected: Uuid,
    },
    /// The pool was written without this drive.
    #[error(
        "drive {address} ({serial}): {why}; leave it out, or re-admit it with `stanchion verify --repair --replacement {address}`"
    )]
    StaleDrive {
        /// The address.
        address: String,
        /// The serial.
        serial: String,
        /// Why it is out of date.
        why: Stale,
    },
    /// Drives of the pool were not named or not found.
    #[error(
        "pool {pool}: {} of its {total} drives missing: {}; name every drive of the pool, or pass --degraded to write without them",
        missing.len(), missing.join(", ")
    )]
    MissingDrives {
        /// The pool.
        pool: Uuid,
        /// Serials of the drives that are missing.
        missing: Vec<String>,
        /// Drives of the pool.
        total: usize,
    },
    /// One drive was named twice.
    #[error("drive {address} ({serial}) is named twice; name each drive of the pool once")]
    DuplicateDrive {
        /// The second address.
        address: String,
        /// The serial.
        serial: String,
    },
    /// The drive is smaller than its label says.
    #[error(
        "drive {address} ({serial}): {actual_bytes} bytes, shorter than the {expected_bytes} bytes it was formatted with: data beyond its end is lost; replace it with `stanchion verify --repair --replacement ADDRESS`"
    )]
    ShortDrive {
        /// The address.
        address: String,
        /// The serial.
        serial: String,
        /// The length found.
        actual_bytes: u64,
        /// The length declared in the label.
        expected_bytes: u64,
    },
    /// The newest generation cannot be read, or may be in a place that cannot be read.
    #[error(
        "generation {lost} cannot be read: {damage}; generation {older} can be opened with --fall-back: what was committed or removed after it is lost then, if the pool is opened for writing"
    )]
    NewestUnreadable {
        /// The generation.
        lost: Generation,
        /// The newest one that can be read.
        older: Generation,
        /// What cannot be read.
        damage: Box<Damage>,
    },
    /// A live process owns the pool or the drive.
    #[error("{what} is in use by {owner}; stop it first")]
    Busy {
        /// The pool or drive.
        what: String,
        /// Who holds it.
        owner: String,
    },
    /// Refused because it may destroy data.
    #[error("drive {address} ({serial}): refused: {reason}")]
    Refused {
        /// The address.
        address: String,
        /// The serial.
        serial: String,
        /// What was found there, and what would override it if anything does.
        reason: String,
    },
    /// No such checkpoint.
    #[error("no checkpoint {0} in this pool; `stanchion list` shows those that it has")]
    NoSuchCheckpoint(String),
    /// The checkpoint is there already.
    #[error("checkpoint {0} exists; remove it with `stanchion rm {0}`, or save under another step")]
    CheckpointExists(String),
    /// The pool was opened for reading only.
    #[error("the pool was opened for reading only; open it for writing")]
    ReadOnly,
    /// A bound of the engine is reached.
    #[error("too many {what}: the limit is {limit}; {}", below_limit(.what))]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The most there may be.
        limit: u64,
    },
    /// The pool has no room.
    #[error(
        "no space: {needed_bytes} bytes needed, {free_bytes} bytes free; remove checkpoints with `stanchion rm`"
    )]
    NoSpace {
        /// Bytes that the request needs.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// The pool has room for the data, but not for what describes it.
    #[error("no space: the pool's metadata area is full; remove checkpoints with `stanchion rm`")]
    NoMetadataSpace,
    /// Bytes on a drive are not what was written there.
    #[error("{0}")]
    Damaged(Box<Damage>),
    /// A drive of the open pool turned out not to take new checkpoints.
    #[error(
        "drive {serial} ({address}) {why}: {source}; repair or replace the drive, then open the pool again"
    )]
    DriveUnfit {
        /// The drive's serial.
        serial: String,
        /// The drive's address.
        address: String,
        /// "takes no new data" or "is lost".
        why: &'static str,
        /// The status that says so.
        source: IoError,
    },
    /// A flush or a root write failed, or another host reserved a drive: what is durable is unknown
    /// until the pool is opened again.
    #[error(
        "pool refuses writes after a failed {what}: {detail}; close the pool and open it again"
    )]
    Poisoned {
        /// "flush", "root write" or "reservation".
        what: &'static str,
        /// The failure.
        detail: String,
    },
    /// Another owner has written the pool while this one had it open.
    #[error(
        "pool {pool} has another owner: {detail}; nothing was committed, and a commit just before may be lost; stop one of the two, open the pool again and compare `stanchion list` with what was saved"
    )]
    LostOwnership {
        /// The pool.
        pool: Uuid,
        /// What shows it.
        detail: String,
    },
    /// A checkpoint was removed while it was read, by the process that owns the pool.
    #[error(
        "stale: checkpoint {0} was removed, or the pool was formatted, while it was read; nothing of it counts: run `stanchion list`, and read again what is there; a program that has the pool open opens it again first"
    )]
    Stale(String),
    /// The commit, and everything it covers, failed without harm to what was committed before.
    #[error("checkpoint {checkpoint} was not committed: {reason}")]
    NotCommitted {
        /// The checkpoint.
        checkpoint: String,
        /// Why.
        reason: String,
    },
    /// The pool or session is closed.
    #[error("{0} is closed")]
    Closed(&'static str),
}

/// Why a drive of a pool is out of date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stale {
    /// The pool was written without it.
    WrittenWithout,
    /// Another drive has its place.
    Replaced,
    /// It is a copy of itself from an earlier time.
    MissedCommits,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stale::WrittenWithout => "the pool was written without it, so its data is out of date",
            Stale::Replaced => "another drive has taken its place in the pool",
            Stale::MissedCommits => {
                "it missed a commit: it is a copy of itself from an earlier time, such as a snapshot"
            }
        })
    }
}

/// What is damaged, and where, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The kind of bytes: "data", "segment table", "manifest", "catalogue", "root", "label".
    pub what: &'static str,
    /// The drive's serial; empty when no one drive is meant.
    pub serial: String,
    /// Where on the drive.
    pub offset_bytes: Option<u64>,
    /// The checkpoint, as NAME@STEP.
    pub checkpoint: Option<String>,
    /// The shard that the first damaged byte may belong to.
    pub shard: Option<String>,
    /// The generation of the metadata.
    pub generation: Option<Generation>,
    /// What was found.
    pub detail: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "damaged {}", self.what)?;
        if let Some(checkpoint) = &self.checkpoint {
            write!(f, " of {checkpoint}")?;
        }
        if let Some(shard) = &self.shard {
            write!(f, ", shard {shard}")?;
        }
        if let Some(generation) = self.generation {
            write!(f, ", generation {generation}")?;
        }
        if !self.serial.is_empty() {
            write!(f, ", drive {}", self.serial)?;
        }
        if let Some(offset) = self.offset_bytes {
            write!(f, ", at byte {offset}")?;
        }
        write!(f, ": {}", self.detail)
    }
}

impl std::error::Error for Damage {}

impl From<Damage> for Error {
    fn from(damage: Damage) -> Self {
        Error::Damaged(Box::new(damage))
    }
}

impl Error {
    /// What the error means to the caller that has to act on it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Usage(_) | Error::ReadOnly | Error::DuplicateDrive { .. } => ErrorKind::Usage,
            Error::Environment(_) => ErrorKind::Environment,
            Error::DriveNotFound { .. }
            | Error::NotFormatted { .. }
            | Error::MissingDrives { .. }
            | Error::NoSuchCheckpoint(_) => ErrorKind::NotFound,
            Error::NewerFormat { .. }
            | Error::OlderFormat { .. }
            | Error::ForeignDrive { .. }
            | Error::StaleDrive { .. }
            | Error::Refused { .. } => ErrorKind::Refused,
            Error::Busy { .. } | Error::LostOwnership { .. } | Error::Stale(_) => ErrorKind::Busy,
            Error::Damaged(_) | Error::ShortDrive { .. } | Error::NewestUnreadable { .. } => {
                ErrorKind::Damaged
            }
            Error::Os { .. }
            | Error::Io { .. }
            | Error::CheckpointExists(_)
            | Error::TooMany { .. }
            | Error::NoSpace { .. }
            | Error::NoMetadataSpace
            | Error::DriveUnfit { .. }
            | Error::Poisoned { .. }
            | Error::NotCommitted { .. }
            | Error::Closed(_) => ErrorKind::Failed,
        }
    }

    /// An operating-system error with what was being done.
    pub fn os(what: impl Into<String>, source: io::Error) -> Self {
        Error::Os { what: what.into(), source }
    }

    /// The last operating-system error, with what was being done.
    pub fn last_os(what: impl Into<String>) -> Self {
        Error::os(what, io::Error::last_os_error())
    }
}
/// How to get below a limit.
fn below_limit(what: &str) -> &'static str {
    match what {
        CHECKPOINTS_OF_A_POOL => "remove some with `stanchion rm`",
        _ => "close some first",
    }
}

/// What [`Error::TooMany`] calls the checkpoints of a pool.
pub(crate) const CHECKPOINTS_OF_A_POOL: &str = "checkpoints in the pool";
