// SPDX-License-Identifier: Apache-2.0
//! A file, directory or link that is being saved, and whether it is still the one that was looked
//! at.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::entry::{Entry, Kind};
use crate::error::CommandError;
use crate::output::plain;

/// What differs once a file was changed, also where its time was set back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    device: u64,
    inode: u64,
    len_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            len_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Something that is being saved.
#[derive(Debug)]
pub struct Source {
    /// Where it lies.
    pub path: PathBuf,
    /// Its path in the checkpoint: the name of its shard. Empty for the directory whose contents
    /// only are saved, which has no shard.
    pub name: String,
    /// What it is.
    pub entry: Entry,
    /// Bytes of its shard.
    pub len_bytes: u64,
    /// It is a link, and what it leads to is saved.
    pub is_followed: bool,
    /// When its space was reserved.
    pub identity: Identity,
    /// A file without a path: what was read from standard input.
    pub spooled: Option<File>,
}

impl Source {
    /// Something in the file system.
    pub fn new(path: &Path, name: &str, kind: Kind, metadata: &Metadata) -> Source {
        let len_bytes = if kind == Kind::File { metadata.len() } else { 0 };
        Source {
            path: path.to_owned(),
            name: name.to_owned(),
            entry: Entry::new(kind, metadata),
            len_bytes,
            is_followed: false,
            identity: Identity::from(metadata),
            spooled: None,
        }
    }

    /// Its path, for messages.
    pub fn shown(&self) -> String {
        match self.spooled {
            Some(_) => "standard input".to_owned(),
            None => plain(&self.path.to_string_lossy()),
        }
    }

    /// Opens the file.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(&self) -> Result<File, CommandError> {
        let opened = match &self.spooled {
            Some(file) => file.try_clone(),
            None => open_file(&self.path),
        };
        opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.is_gone(),
            _ => self.failed(error),
        })
    }

    /// Fails if what lies at its path is not what was looked at.
    ///
    /// # Errors
    /// Says whether it became shorter, changed, or is gone.
    pub fn check_unchanged(&self) -> Result<(), CommandError> {
        if self.spooled.is_some() {
            return Ok(());
        }
        let found = match self.is_followed || self.name.is_empty() {
            true => fs::metadata(&self.path),
            false => fs::symlink_metadata(&self.path),
        };
        match found {
            Ok(metadata) => self.check_identity(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.is_gone()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Fails if this is not what was looked at.
    ///
    /// # Errors
    /// As [`Source::check_unchanged`].
    pub fn check_identity(&self, metadata: &Metadata) -> Result<(), CommandError> {
        if Identity::from(metadata) == self.identity || self.spooled.is_some() {
            return Ok(());
        }
        if self.entry.kind == Kind::File && metadata.len() < self.len_bytes {
            return Err(self.is_shorter(metadata.len()));
        }
        Err(self.changed())
    }

    /// It changed.
    pub fn changed(&self) -> CommandError {
        let advice = match self.entry.kind {
            Kind::File => "once the file is complete, or with --allow-changing",
            _ => "once nothing is added to it or removed from it, or with --allow-changing",
        };
        CommandError::Failed(format!(
            "{} changed while it was being saved; the checkpoint was not saved: save again \
             {advice}",
            self.shown()
        ))
    }

    fn is_gone(&self) -> CommandError {
        CommandError::Failed(format!(
            "{} was removed while it was being saved; {AGAIN}",
            self.shown()
        ))
    }

    /// It holds fewer bytes than its space has.
    pub fn is_shorter(&self, len_bytes: u64) -> CommandError {
        CommandError::Failed(format!(
            "{} became shorter while it was being saved, {len_bytes} bytes instead of {}; {AGAIN}",
            self.shown(),
            self.len_bytes
        ))
    }

    /// It holds more bytes than its size says.
    pub fn is_longer(&self) -> CommandError {
        CommandError::Failed(format!(
            "{} has more bytes than its size of {} says; {AGAIN}. Files that the kernel makes when \
             they are read, as in /proc, have no size: copy them first",
            self.shown(),
            self.len_bytes
        ))
    }

    /// It could not be read.
    pub fn failed(&self, error: io::Error) -> CommandError {
        CommandError::os(format!("reading {}", self.shown()), error)
    }
}

const AGAIN: &str = "the checkpoint was not saved: save again once the file is complete";

/// Opens a regular file; does not wait where something else came into its place.
pub fn open_file(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}
