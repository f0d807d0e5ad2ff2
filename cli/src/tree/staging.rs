// SPDX-License-Identifier: Apache-2.0
//! The directory in which a restore builds everything before any of it gets its place:
//! `.stanchion-*.partial`, next to a new output directory or in one that exists. It is removed with
//! all that is in it when the restore ends. A lock says that its owner lives: what a killed process
//! left has none, and the next restore removes it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, flock, mkdirat};
use rustix::io::Errno;

use super::folder::Folder;
use crate::error::CommandError;

const PREFIX: &str = ".stanchion-";
const SUFFIX: &str = ".partial";
const RANDOM_CHARS: usize = 16;
/// The name, in it, of the directory that becomes the output directory.
const TREE: &str = "new";

/// The directory in which a restore builds.
#[derive(Debug)]
pub struct Staging {
    path: PathBuf,
    /// The directory itself, with the lock.
    lock: Folder,
    /// The tree in it.
    tree: Folder,
    /// Directories that were made so that this one has a place, from the top.
    made_parents: Vec<PathBuf>,
}

impl Staging {
    /// Makes one in a directory, which is made as well if it does not exist.
    ///
    /// # Errors
    /// When it cannot be made; nothing is left then.
    pub fn new(directory: &Path) -> Result<Staging, CommandError> {
        let failed = |error| CommandError::os(format!("writing {}", directory.display()), error);
        let made_parents = make_parents(directory).map_err(failed)?;
        match make_locked(directory) {
            Ok((path, lock, tree)) => Ok(Staging { path, lock, tree, made_parents }),
            Err(error) => {
                remove_parents(&made_parents);
                Err(failed(error))
            }
        }
    }

    /// The tree that is built.
    pub fn tree(&mut self) -> &mut Folder {
        &mut self.tree
    }

    /// The tree's directory: its parent, and its name there.
    pub fn tree_name(&self) -> (impl AsFd + '_, &'static str) {
        (self.lock.top(), TREE)
    }

    /// The restore succeeded: what was made for it stays.
    pub fn keep_parents(&mut self) {
        self.made_parents.clear();
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next restore.
        let _ = remove(&self.path);
        remove_parents(&self.made_parents);
    }
}

/// Removes what killed restores left in a directory.
pub fn remove_leftovers(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(is_name);
        if is_ours && let Some(_lock) = lock_of_dead_owner(&entry.path()) {
            let _ = remove(&entry.path());
        }
    }
}

fn is_name(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    random.is_some_and(|random| {
        random.len() == RANDOM_CHARS && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// The lock of a directory of this user that no one holds. Where there are no locks, none.
fn lock_of_dead_owner(path: &Path) -> Option<OwnedFd> {
    let metadata = fs::symlink_metadata(path).ok()?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let opened: OwnedFd = File::open(path).ok()?.into();
    flock(&opened, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(opened)
}

fn make_locked(directory: &Path) -> io::Result<(PathBuf, Folder, Folder)> {
    loop {
        let made = tempfile::Builder::new()
            .prefix(PREFIX)
            .suffix(SUFFIX)
            .rand_bytes(RANDOM_CHARS)
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(directory)?;
        let lock = Folder::named(made.path())?;
        match flock(lock.top(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            // Another restore took it for one that was left, before it had its lock.
            Err(Errno::WOULDBLOCK) => continue,
            // A file system without locks: what a killed restore leaves there stays.
            Err(Errno::NOSYS | Errno::NOTSUP | Errno::INVAL | Errno::NOLCK) => {}
            Err(error) => return Err(error.into()),
        }
        match mkdirat(lock.top(), TREE, Mode::from_raw_mode(0o777)) {
            Ok(()) => {}
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        }
        let tree = Folder::inside(lock.top(), TREE)?;
        return Ok((made.keep(), lock, tree));
    }
}

/// Makes a directory and those above it, and says which were made, from the top.
fn make_parents(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let is_missing = |path: &&Path| {
        !path.as_os_str().is_empty()
            && fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let mut missing: Vec<&Path> = directory.ancestors().take_while(is_missing).collect();
    missing.reverse();
    let mut made = Vec::new();
    for path in missing {
        match fs::create_dir(path) {
            Ok(()) => made.push(path.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                remove_parents(&made);
                return Err(error);
            }
        }
    }
    Ok(made)
}

/// Removes them again, if nothing else was put there.
fn remove_parents(made: &[PathBuf]) {
    for path in made.iter().rev() {
        let _ = fs::remove_dir(path);
    }
}

/// Removes a directory with all that is in it, also where a restored directory allows no changes.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            allow_changes(path)?;
            fs::remove_dir_all(path)
        }
        result => result,
    }
}

fn allow_changes(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            allow_changes(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_owner_left_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(place.path()).unwrap().count();
        let alive = Staging::new(place.path()).unwrap();
        let left = place.path().join(".stanchion-0123456789abcdef.partial");
        fs::create_dir_all(left.join("new/deep")).unwrap();
        fs::set_permissions(left.join("new"), fs::Permissions::from_mode(0o500)).unwrap();
        for other in [".stanchion-x.partial", ".stanchion-0123456789abcdef.partial2"] {
            fs::create_dir(place.path().join(other)).unwrap();
        }
        fs::write(place.path().join(".stanchion-0123456789abcdeF.partial"), "a file").unwrap();
        assert_eq!(names(), 5);
        remove_leftovers(place.path());
        assert!(!left.exists() && alive.path.exists());
        assert_eq!(names(), 4);
        drop(alive);
        assert_eq!(names(), 3);
    }

    #[test]
    fn parents_that_were_made_go_with_it_unless_they_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("a/b");
        drop(Staging::new(&deep).unwrap());
        assert!(!place.path().join("a").exists());
        let mut staging = Staging::new(&deep).unwrap();
        staging.keep_parents();
        drop(staging);
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
    }
}
