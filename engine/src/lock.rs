//! One pool, one owner: a lock file per pool, on this host, whatever back end drives the pool. And
//! one per drive that the kernel does not know of, whose device node could be locked otherwise.
//!
//! The kernel drops the lock when its holder ends, however it ends. The file's text says who holds
//! it, for messages only.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;

use uuid::Uuid;

use crate::error::Error;

/// Where the files lie, but on systems without it.
pub(crate) const USUAL_DIRECTORY: &str = "/run/lock";
const PREFIX: &str = "stanchion-";
const SUFFIX: &str = ".lock";

/// Whether a file of that directory is one of ours.
pub(crate) fn is_lock_file(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// The file of the drive with this canonical address.
pub(crate) fn drive_lock_name(address: &str) -> String {
    // An NQN may hold what a file name may not.
    let hash = xxhash_rust::xxh3::xxh3_128(address.as_bytes());
    format!("{PREFIX}drive-{hash:032x}{SUFFIX}")
}

/// The held lock of a pool; dropping it lets go.
#[derive(Debug)]
pub(crate) struct PoolLock(#[expect(dead_code, reason = "held, not used")] LockFile);

/// The held lock of a drive that SPDK drives; dropping it lets go.
#[cfg(feature = "spdk")]
#[derive(Debug)]
pub(crate) struct DriveLock(#[expect(dead_code, reason = "held, not used")] LockFile);

#[derive(Debug)]
struct LockFile {
    file: File,
}

/// What it is locked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// Readers may share it.
    Shared,
    /// One owner.
    Exclusive,
}

impl PoolLock {
    /// Takes the lock of a pool, or says who has it.
    pub(crate) fn take(pool: Uuid, sharing: Sharing) -> Result<PoolLock, Error> {
        LockFile::take(&format!("{PREFIX}{pool}{SUFFIX}"), &format!("pool {pool}"), sharing)
            .map(PoolLock)
    }
}

#[cfg(feature = "spdk")]
impl DriveLock {
    /// Takes the lock of the drive with this canonical address, or says who has it.
    pub(crate) fn take(address: &str, sharing: Sharing) -> Result<DriveLock, Error> {
        LockFile::take(&drive_lock_name(address), &format!("drive {address}"), sharing)
            .map(DriveLock)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // A process that was forked from this one, and does not end, has the open file too: closing
        // it here would leave the pool locked. If this fails, it is as if that were all that we did.
        let _ = self.file.unlock();
    }
}

impl LockFile {
    fn take(name: &str, what: &str, sharing: Sharing) -> Result<LockFile, Error> {
        let path = lock_directory().join(name);
        let os = |doing: &str, e| Error::os(format!("{doing} the lock file {}", path.display()), e);
        let mut file = OpenOptions::new()
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
        match taken {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // Only for the message: what cannot be read is left out.
                let _ = file.take(256).read_to_string(&mut owner);
                let owner = if owner.is_empty() { "another process".into() } else { owner };
                return Err(Error::Busy { what: what.into(), owner });
            }
            Err(TryLockError::Error(e)) => return Err(os("locking", e)),
        }
        // Only for messages of others: the lock holds without it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "process {} ({})", std::process::id(), command_name()));
        Ok(LockFile { file })
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
}
