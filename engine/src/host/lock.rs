// SPDX-License-Identifier: Apache-2.0
//! One pool, one owner: a lock file for each pool on this host, whatever its back end. And one for
//! each drive that the kernel does not drive: there is no device node to lock.
//!
//! The kernel releases the lock when its holder ends, however it ends. The file's text names the
//! holder, for messages only.
//!
//! - An owner removes the file when it closes, while it holds the lock. Another process may have
//!   opened the file before and lock it afterwards, when a new file has its name. So a lock counts
//!   only if the locked file still has its name; until then locking is repeated.
//! - The file of readers, and of a process that was killed, stays until the next owner closes: a
//!   reader that checked whether it is the last one would block the next one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use uuid::Uuid;

use crate::address::split_host;
use crate::error::Error;

/// The directory of the files, except on systems without it.
pub(crate) const USUAL_DIRECTORY: &str = "/run/lock";
const PREFIX: &str = "stanchion-";
const SUFFIX: &str = ".lock";

/// Whether a file of that directory is one of ours.
pub(crate) fn is_lock_file(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// The file of the drive with this canonical address, whichever host name is in that.
pub(crate) fn drive_lock_name(address: &str) -> String {
    let (drive, _) = split_host(address);
    // An NQN may contain characters that a file name may not.
    let hash = xxhash_rust::xxh3::xxh3_128(drive.as_bytes());
    format!("{PREFIX}drive-{hash:032x}{SUFFIX}")
}

/// The held lock of a pool; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct PoolLock(#[expect(dead_code, reason = "held, not used")] LockFile);

/// The held lock of an SPDK drive; dropping it releases the lock.
#[cfg(feature = "spdk")]
#[derive(Debug)]
pub(crate) struct DriveLock {
    path: PathBuf,
    _file: LockFile,
}

#[derive(Debug)]
struct LockFile {
    file: File,
    path: PathBuf,
    /// Holds it alone.
    is_owner: bool,
}

/// How often a lock file may be removed during locking before that is an error: as many other
/// owners came and went.
const ATTEMPTS: u32 = 100;

/// What it is locked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// Readers may share it.
    Shared,
    /// One owner.
    Exclusive,
}

impl PoolLock {
    /// Takes the lock of a pool, or returns an error that names the holder.
    pub(crate) fn take(pool: Uuid, sharing: Sharing) -> Result<PoolLock, Error> {
        LockFile::take(&format!("{PREFIX}{pool}{SUFFIX}"), &format!("pool {pool}"), sharing)
            .map(PoolLock)
    }
}

#[cfg(feature = "spdk")]
impl DriveLock {
    /// Takes the lock of the drive with this canonical address, or returns an error that names the
    /// holder.
    pub(crate) fn take(address: &str, sharing: Sharing) -> Result<DriveLock, Error> {
        let name = drive_lock_name(address);
        let file = LockFile::take(&name, &format!("drive {address}"), sharing)?;
        Ok(DriveLock { path: lock_directory().join(name), _file: file })
    }

    /// A file next to the lock file, for what must be known of the drive until the next restart.
    /// Only the lock's owner writes it.
    pub(crate) fn side_file(&self, extension: &str) -> PathBuf {
        self.path.with_extension(extension)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.is_owner && self.has_its_name() {
            // If it cannot be removed, it stays, as after a kill.
            let _ = std::fs::remove_file(&self.path);
        }
        // A forked child has the open file too and may live on: closing alone would leave the pool
        // locked. If this call fails, closing is all that we can do.
        let _ = self.file.unlock();
    }
}

impl LockFile {
    fn take(name: &str, what: &str, sharing: Sharing) -> Result<LockFile, Error> {
        let path = lock_directory().join(name);
        let os = |doing: &str, e| Error::os(format!("{doing} the lock file {}", path.display()), e);
        for _ in 0..ATTEMPTS {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(|e| os("opening", e))?;
            let taken = match sharing {
                Sharing::Shared => file.try_lock_shared(),
                Sharing::Exclusive => file.try_lock(),
            };
            let is_owner = sharing == Sharing::Exclusive && taken.is_ok();
            let lock = LockFile { file, path: path.clone(), is_owner };
            let is_current = lock.has_its_name();
            match taken {
                Ok(()) if is_current => return Ok(lock.signed()),
                Err(TryLockError::WouldBlock) if is_current => {
                    let (what, owner) = (what.into(), lock.into_owner());
                    return Err(Error::Busy { what, owner });
                }
                Err(TryLockError::Error(e)) => return Err(os("locking", e)),
                // It was removed meanwhile, by an owner that is closing.
                Ok(()) | Err(TryLockError::WouldBlock) => {}
            }
        }
        Err(os("locking", std::io::Error::other("other processes keep removing it")))
    }

    /// Whether the file that we have open still has its name.
    fn has_its_name(&self) -> bool {
        match (self.file.metadata(), std::fs::metadata(&self.path)) {
            (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
            _ => false,
        }
    }

    /// Writes the holder into the file, for other processes' messages: the lock works without it.
    fn signed(mut self) -> LockFile {
        let file = &mut self.file;
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "process {} ({})", std::process::id(), command_name()));
        self
    }

    /// The holder of a file that could not be locked. The file stays as it is.
    fn into_owner(self) -> String {
        let mut owner = String::new();
        // Only for the message: what cannot be read is left out.
        let _ = (&self.file).take(256).read_to_string(&mut owner);
        if owner.is_empty() { "another process".into() } else { owner }
    }
}

fn lock_directory() -> PathBuf {
    let usual = PathBuf::from(USUAL_DIRECTORY);
    if usual.is_dir() { usual } else { std::env::temp_dir() }
}

fn command_name() -> String {
    let path = std::env::current_exe().ok();
    let name =
        path.as_deref().and_then(|p| p.file_name()).map(|n| n.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "unknown".into())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_owner_or_many_readers() {
        let pool = Uuid::now_v7();
        let reader = PoolLock::take(pool, Sharing::Shared).unwrap();
        let second = PoolLock::take(pool, Sharing::Shared).unwrap();
        assert!(matches!(PoolLock::take(pool, Sharing::Exclusive), Err(Error::Busy { .. })));
        drop((reader, second));
        let owner = PoolLock::take(pool, Sharing::Exclusive).unwrap();
        let error = PoolLock::take(pool, Sharing::Shared).unwrap_err();
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(owner);
        PoolLock::take(pool, Sharing::Exclusive).unwrap();
    }

    #[test]
    fn only_the_owner_removes_the_file() {
        let pool = Uuid::now_v7();
        let path = lock_directory().join(format!("stanchion-{pool}.lock"));
        let reader = PoolLock::take(pool, Sharing::Shared).unwrap();
        assert!(PoolLock::take(pool, Sharing::Exclusive).is_err());
        drop(reader);
        assert!(path.exists());
        let owner = PoolLock::take(pool, Sharing::Exclusive).unwrap();
        assert!(PoolLock::take(pool, Sharing::Shared).is_err());
        assert!(path.exists());
        drop(owner);
        assert!(!path.exists());
    }

    #[test]
    fn there_is_one_owner_however_files_come_and_go() {
        let pool = Uuid::now_v7();
        let (owners, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::SeqCst) < 2000 {
                        match PoolLock::take(pool, Sharing::Exclusive) {
                            Ok(lock) => {
                                assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0, "two owners");
                                taken.fetch_add(1, Ordering::SeqCst);
                                std::thread::yield_now();
                                owners.fetch_sub(1, Ordering::SeqCst);
                                drop(lock);
                            }
                            Err(Error::Busy { .. }) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
    }
}
