// SPDX-License-Identifier: Apache-2.0
//! Builds a restored tree in its staging directory: first directories, then files as their bytes
//! come, then links, so that nothing is written through a link.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, Timespec, Timestamps, fallocate, fchmod, fstatfs, fsync,
    futimens, mkdirat, openat, symlinkat, syncfs, utimensat,
};
use rustix::io::Errno;

use super::entry::{Entry, Kind};
use super::folder::Folder;
use super::plan::{Plan, shown};
use super::staging::Staging;
use super::target::Target;
use crate::error::CommandError;

/// A file's permissions; those that let it run as its owner are not given to who restores it.
const FILE_BITS: u32 = 0o777;
/// A directory's permissions, with the sticky bit and the one that passes its group on.
const DIRECTORY_BITS: u32 = 0o3777;
/// From this size on, a file's space is allocated before its first byte.
const PREALLOCATE_BYTES: u64 = 1 << 20;
/// More than this many files are made durable by one call for the file system.
const MAX_SINGLE_SYNCS: usize = 64;
/// `statfs` of a FUSE file system, which may not pass a call for all of it on.
const FUSE_MAGIC: u64 = 0x6573_5546;
const NS_PER_S: i64 = 1_000_000_000;

/// Builds a restored tree.
pub struct Building<'a> {
    output: &'a Path,
    staging: &'a mut Staging,
    plan: &'a Plan,
    /// How many of the plan's files were opened.
    opened: usize,
    open: Option<(&'a Target, File)>,
    /// All is made durable by one call at the end.
    has_one_sync: bool,
    /// Whole files that are not durable yet; otherwise.
    unsynced: Vec<(&'a Target, File)>,
}

impl<'a> Building<'a> {
    /// Makes the directories. Messages name paths below `output`.
    ///
    /// # Errors
    /// When one cannot be made.
    pub fn new(
        output: &'a Path,
        staging: &'a mut Staging,
        plan: &'a Plan,
    ) -> Result<Building<'a>, CommandError> {
        for (path, entry) in &plan.directories {
            let mode = if entry.is_some() { 0o700 } else { 0o777 };
            let made = staging
                .tree()
                .resolve(path)
                .and_then(|(folder, name)| Ok(mkdirat(folder, name, Mode::from_raw_mode(mode))?));
            made.map_err(|error| cannot_write(output, path, error))?;
        }
        let has_one_sync = has_one_sync(staging.tree().top(), plan.files.len())
            .map_err(|error| cannot_write(output, "", error))?;
        let unsynced = Vec::new();
        Ok(Building { output, staging, plan, opened: 0, open: None, has_one_sync, unsynced })
    }

    /// Writes bytes of a segment, in order, which all belong to files.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(
        &mut self,
        participant: u32,
        bytes: &[u8],
        offset_bytes: u64,
    ) -> Result<(), CommandError> {
        let end = offset_bytes + bytes.len() as u64;
        while self.open_next(participant, end)? {
            let Some((target, file)) = &mut self.open else { break };
            let from = target.start_bytes.max(offset_bytes);
            let to = target.end_bytes.min(end);
            if from < to {
                let part = &bytes[(from - offset_bytes) as usize..(to - offset_bytes) as usize];
                file.write_all(part)
                    .map_err(|error| cannot_write(self.output, &target.path, error))?;
            }
            if target.end_bytes > end {
                break;
            }
            self.close()?;
        }
        Ok(())
    }

    /// Makes the participant's remaining files, which are empty.
    ///
    /// # Errors
    /// As [`Building::write`].
    pub fn finish_empty(&mut self, participant: u32) -> Result<(), CommandError> {
        while self.open_next(participant, u64::MAX)? {
            self.close()?;
        }
        Ok(())
    }

    /// Makes the links, and everything durable. Directories get their attributes now where they are
    /// placed as they are.
    ///
    /// # Errors
    /// When one cannot be made.
    pub fn finish(self, gives_attributes: bool) -> Result<(), CommandError> {
        let output = self.output;
        for target in &self.plan.links {
            let Kind::Link(to) = &target.entry.kind else { continue };
            let made = self.staging.tree().resolve(&target.path).and_then(|(folder, name)| {
                symlinkat(to.as_slice(), folder, name)?;
                if let Some(times) = times(&target.entry) {
                    utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
                }
                Ok(())
            });
            made.map_err(|error| cannot_write(output, &target.path, error))?;
        }
        self.sync(gives_attributes)
    }

    /// Whether a file is open that starts before `end` of the participant's segment.
    fn open_next(&mut self, participant: u32, end: u64) -> Result<bool, CommandError> {
        if self.open.is_some() {
            return Ok(true);
        }
        let next = self.plan.files.get(self.opened);
        let Some(target) = next.filter(|t| t.participant == participant && t.start_bytes < end)
        else {
            return Ok(false);
        };
        self.opened += 1;
        let file =
            self.make(target).map_err(|error| cannot_write(self.output, &target.path, error));
        self.open = Some((target, file?));
        Ok(true)
    }

    fn make(&mut self, target: &Target) -> io::Result<File> {
        let (folder, name) = self.staging.tree().resolve(&target.path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        // Until its own are given; without its own it has those of new files.
        let mode = if target.entry.mode.is_some() { 0o600 } else { 0o666 };
        let file = openat(folder, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode))?;
        let len_bytes = target.end_bytes - target.start_bytes;
        if len_bytes >= PREALLOCATE_BYTES {
            match fallocate(&file, FallocateFlags::empty(), 0, len_bytes) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(file.into())
    }

    fn close(&mut self) -> Result<(), CommandError> {
        let Some((target, file)) = self.open.take() else { return Ok(()) };
        let mode = target.entry.mode.map(|mode| fchmod(&file, Mode::from(mode & FILE_BITS)));
        let times = times(&target.entry).map(|times| futimens(&file, &times));
        let set = mode.unwrap_or(Ok(())).and(times.unwrap_or(Ok(()))).map_err(io::Error::from);
        let failed = |error| cannot_write(self.output, &target.path, error);
        set.map_err(failed)?;
        if self.has_one_sync {
            return Ok(());
        }
        self.unsynced.push((target, file));
        if self.unsynced.len() > MAX_SINGLE_SYNCS {
            for (target, file) in self.unsynced.drain(..) {
                file.sync_all().map_err(|error| cannot_write(self.output, &target.path, error))?;
            }
        }
        Ok(())
    }

    fn sync(self, gives_attributes: bool) -> Result<(), CommandError> {
        for (target, file) in &self.unsynced {
            file.sync_all().map_err(|error| cannot_write(self.output, &target.path, error))?;
        }
        let directories = self.plan.directories.iter().map(|(path, entry)| {
            let given = if gives_attributes { entry.as_ref() } else { None };
            (path.as_str(), given)
        });
        settle(self.output, self.staging.tree(), directories, self.has_one_sync)
    }
}

/// Whether so many files or directories are made durable by one call for their file system.
///
/// # Errors
/// When nothing is known of the file system.
pub fn has_one_sync(directory: BorrowedFd<'_>, count: usize) -> io::Result<bool> {
    Ok(count > MAX_SINGLE_SYNCS && fstatfs(directory)?.f_type as u64 != FUSE_MAGIC)
}

/// Gives directories below `top` their permissions and times, if they are to have them, and makes
/// them durable: from the innermost one, since what is done in one changes its time, and it may
/// then allow no more.
///
/// # Errors
/// By the directory, below `output`.
pub fn settle<'a>(
    output: &Path,
    top: &mut Folder,
    directories: impl DoubleEndedIterator<Item = (&'a str, Option<&'a Entry>)>,
    at_once: bool,
) -> Result<(), CommandError> {
    for (path, entry) in directories.rev().filter(|(_, entry)| !at_once || entry.is_some()) {
        let settled = top.resolve(path).and_then(|(folder, name)| {
            let opened = Folder::inside(folder, name)?;
            if let Some(mode) = entry.and_then(|entry| entry.mode) {
                fchmod(opened.top(), Mode::from(mode & DIRECTORY_BITS))?;
            }
            if let Some(times) = entry.and_then(times) {
                futimens(opened.top(), &times)?;
            }
            if at_once { Ok(()) } else { Ok(fsync(opened.top())?) }
        });
        settled.map_err(|error| cannot_write(output, path, error))?;
    }
    let synced = if at_once { syncfs(top.top()) } else { fsync(top.top()) };
    synced.map_err(|error| cannot_write(output, "", error.into()))
}

/// The time of the last change, as both times.
fn times(entry: &Entry) -> Option<Timestamps> {
    let ns = entry.modified_ns?;
    let time = Timespec { tv_sec: ns.div_euclid(NS_PER_S), tv_nsec: ns.rem_euclid(NS_PER_S) as _ };
    Some(Timestamps { last_access: time, last_modification: time })
}

/// A failed write below the output directory.
pub fn cannot_write(output: &Path, path: &str, error: io::Error) -> CommandError {
    CommandError::os(format!("writing {}", shown(output, path)), error)
}
