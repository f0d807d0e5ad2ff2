// SPDX-License-Identifier: Apache-2.0
//! The checks of `format` before it destroys anything.
//!
//! - [`inspect`] asks the kernel who uses a block device or a file. It opens nothing for writing.
//! - [`signature`] decides whether the bytes at both ends of a drive look like data. It is pure and
//!   independent of the kernel, so it serves every back end.
//!
//! A finding that is not overridable means that the drive is in use now: no option of any command
//! may format it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::location::{open_location, reopen};
use super::origin;
use super::sysfs::{self, DeviceNumber, LINGER_LOOK, System, UNSEEN_LINGER};
use crate::error::Error;

pub(crate) mod place;
pub(crate) mod signature;

pub use place::volatile_place;

/// One reason not to format a drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was found: "mounted", "swap", "held", "read-only", "locked", "partitioned",
    /// "not a device".
    pub what: &'static str,
    /// Where it was found, for people.
    pub evidence: String,
    /// Whether the user may format the drive all the same.
    pub overridable: bool,
}

/// All reasons that were found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Whether nothing was found against formatting.
    pub fn is_clear(&self) -> bool {
        self.0.is_empty()
    }

    /// The findings that cannot be overridden.
    pub fn never_overridable(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter().filter(|finding| !finding.overridable)
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, finding) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", finding.what, finding.evidence)?;
        }
        Ok(())
    }
}

fn in_use(what: &'static str, evidence: String) -> Finding {
    Finding { what, evidence, overridable: false }
}

/// Who uses the block device or the file at `path`, as far as the kernel shows. Does not read the
/// bytes on it; see [`signature`]. An open [`crate::device::Device`] counts as a user:
/// inspect before opening.
///
/// # Errors
/// [`Error::DriveNotFound`], and [`Error::Usage`] for what is neither.
pub fn inspect(path: &Path) -> Result<Findings, Error> {
    let name = path.display().to_string();
    let location = open_location(path)?;
    let metadata = location.metadata().map_err(|e| Error::os(format!("stat of {name}"), e))?;
    let system = System::live();
    let inode_device = DeviceNumber::from_raw(metadata.dev());
    system.outlast_ended_holders(inode_device, metadata.ino());
    let mut found: Vec<Finding> = system
        .lock_owners(inode_device, metadata.ino())
        .iter()
        .map(|owner| in_use("locked", format!("{name} is locked by {owner}")))
        .collect();
    found.extend(users_of(&system, path, &metadata));
    if metadata.file_type().is_block_device() {
        // Whatever /sys and /proc do not show (other mount namespaces, ZFS, Btrfs on many drives)
        // holds the device exclusively.
        let claimed = reopen(&location, false, libc::O_EXCL)
            .is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
        if claimed && found.iter().all(|finding| finding.overridable) {
            found.push(in_use("held", format!("{name} is claimed by the kernel or a process")));
        }
    }
    if found.iter().all(|finding| finding.what != "locked") && is_locked(&location) {
        found.push(in_use("locked", format!("{name} is locked by another process")));
    }
    Ok(Findings(found))
}

/// The same without locks and claims, which opening the drive takes anyway: what the kernel uses it
/// for. Touches neither.
///
/// # Errors
/// As [`inspect`].
pub(crate) fn users(path: &Path) -> Result<Findings, Error> {
    let location = open_location(path)?;
    let name = path.display();
    let metadata = location.metadata().map_err(|e| Error::os(format!("stat of {name}"), e))?;
    Ok(Findings(users_of(&System::live(), path, &metadata)))
}

fn users_of(system: &System, path: &Path, metadata: &fs::Metadata) -> Vec<Finding> {
    if metadata.file_type().is_block_device() {
        return inspect_block_device(system, DeviceNumber::from_raw(metadata.rdev()));
    }
    let mut found = inspect_file(system, metadata);
    if place::is_among_devices(path) {
        let name = path.display();
        let evidence = format!("{name} is a regular file below /dev: it is gone after a restart");
        found.push(in_use("not a device", evidence));
    }
    found
}

/// Reasons not to use a file: loop devices and swap on it.
fn inspect_file(system: &System, file: &fs::Metadata) -> Vec<Finding> {
    let same = |path: &str| {
        fs::metadata(system.path(path))
            .is_ok_and(|other| (other.dev(), other.ino()) == (file.dev(), file.ino()))
    };
    let mut found = Vec::new();
    for name in sysfs::names(&system.path("/sys/block")) {
        let backing = system.path(&format!("/sys/block/{name}/loop/backing_file"));
        if sysfs::read_line(&backing).is_some_and(|path| same(&path)) {
            found.push(in_use("held", format!("it backs the loop device /dev/{name}")));
        }
    }
    for swap in system.swaps() {
        if same(&swap) {
            found.push(in_use("swap", format!("active swap file {swap}")));
        }
    }
    found
}

/// Reasons not to use a block device, from /sys and /proc alone.
pub(crate) fn inspect_block_device(system: &System, device: DeviceNumber) -> Vec<Finding> {
    let mut found = users_of_block_device(system, device);
    found.extend(other_loops(system, device));
    found
}

/// A loop device's bytes are also those of its file, and of every other loop device over it.
fn other_loops(system: &System, device: DeviceNumber) -> Vec<Finding> {
    let Some(own_dir) = system.block_dir(device) else { return Vec::new() };
    if !sysfs::disk_dir(&own_dir).join("loop/backing_file").exists() {
        return Vec::new();
    }
    let own = origin::of_block_device(system, device);
    let mut found = Vec::new();
    for name in sysfs::names(&system.path("/sys/block")) {
        let dir = system.path(&format!("/sys/block/{name}"));
        let number = sysfs::read_line(&dir.join("dev")).and_then(|n| DeviceNumber::parse(&n));
        let Some(number) = number.filter(|number| *number != device) else { continue };
        let is_own_disk = system.block_dir(number) == Some(sysfs::disk_dir(&own_dir));
        if is_own_disk || !dir.join("loop/backing_file").exists() {
            continue;
        }
        if origin::of_block_device(system, number).is_same(&own) {
            let users = users_of_block_device(system, number);
            found.extend(users.into_iter().filter(|finding| finding.what != "read-only"));
        }
    }
    found
}

fn users_of_block_device(system: &System, device: DeviceNumber) -> Vec<Finding> {
    let mut found = Vec::new();
    let Some(own_dir) = system.block_dir(device) else { return found };
    let disk_dir = sysfs::disk_dir(&own_dir);
    let is_partition = disk_dir != own_dir;
    let partitions = if is_partition { Vec::new() } else { sysfs::partition_dirs(&disk_dir) };
    let name_of = |dir: &Path| {
        dir.file_name().map_or_else(String::new, |n| n.to_string_lossy().replace('!', "/"))
    };

    // The device itself, its partitions, and the disk under a partition: a change of any of them
    // changes the bytes of this one. Sibling partitions do not count.
    let mut related = vec![own_dir.clone()];
    related.extend(partitions.iter().cloned());
    if is_partition {
        related.push(disk_dir.clone());
    }
    let related: Vec<_> = related
        .iter()
        .filter_map(|dir| {
            let number = DeviceNumber::parse(&sysfs::read_line(&dir.join("dev"))?)?;
            Some((number, dir))
        })
        .collect();
    let related_to = |number: DeviceNumber| {
        related.iter().find(|(known, _)| *known == number).map(|(_, dir)| name_of(dir))
    };

    for mount in system.mounts() {
        // Btrfs shows its own device number, but names one of its devices as the source.
        let name = related_to(mount.device)
            .or_else(|| system.device_of_path(&mount.source).and_then(related_to));
        if let Some(name) = name {
            found.push(in_use("mounted", format!("/dev/{name} is mounted at {}", mount.target)));
        }
    }
    for swap in system.swaps() {
        if let Some(name) = system.device_of_path(&swap).and_then(related_to) {
            found.push(in_use("swap", format!("/dev/{name} is active swap")));
        }
    }
    for (_, dir) in &related {
        let name = name_of(dir);
        for holder in sysfs::names(&dir.join("holders")) {
            let holder = holder.replace('!', "/");
            found.push(in_use("held", format!("/dev/{name} is held by /dev/{holder}")));
        }
        if sysfs::read_line(&dir.join("ro")).is_some_and(|ro| ro != "0") {
            found.push(in_use("read-only", format!("/dev/{name} is read-only")));
        }
    }
    if !partitions.is_empty() {
        let names: Vec<String> = partitions.iter().map(|dir| name_of(dir)).collect();
        found.push(Finding {
            what: "partitioned",
            evidence: format!("partitions {}", names.join(", ")),
            overridable: true,
        });
    }
    found
}

/// Whether a process holds a lock on it that /proc does not show us (another pid namespace). It may
/// have ended with I/O in flight, so the lock gets a moment to be released. The lock that this
/// takes for the test is released when it returns.
fn is_locked(location: &fs::File) -> bool {
    let Ok(file) = reopen(location, false, libc::O_NONBLOCK) else { return false };
    let deadline = Instant::now() + UNSEEN_LINGER;
    while matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) {
        if Instant::now() >= deadline {
            return true;
        }
        std::thread::sleep(LINGER_LOOK);
    }
    false
}

#[cfg(test)]
mod tests;
