// SPDX-License-Identifier: Apache-2.0
//! Lock files, for what has no file or device node of its own to lock: a pool, and a drive that the
//! kernel does not drive. Writers take them; readers keep no writer out and take none.
//!
//! - The kernel releases a lock when its holder ends, however it ends. The file's text names the
//!   holder, for messages.
//! - They lie in a folder that only its owner can write: no one else can put a link there, or hold
//!   a lock. Root and each other user have one; a drive that both can open is locked itself.
//! - An owner removes the file when it closes, while it holds the lock. Another process may have
//!   opened the file before and lock it afterwards, when a new file has its name. So a lock counts
//!   only if the locked file still has its name; until then locking is repeated.
//! - A killed owner leaves its file; the next owner of anything removes it. But not one with the
//!   key of a drive's reservation: by that the drive's next owner knows that who is registered
//!   under it has ended, since the lock was free.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::address::split_host;
use crate::error::Error;

/// Root's folder.
pub(crate) const ROOT_FOLDER: &str = "/run/stanchion";
/// A user's folder, in the user's runtime folder.
const USER_FOLDER: &str = "stanchion";
const SUFFIX: &str = ".lock";
/// How long a lock must be held by another process before that counts: to find out whether a file
/// is locked, or to remove it, it is locked for a moment.
const MOMENT: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(5);

/// Whether a file of that folder is one of ours.
pub(crate) fn is_lock_file(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

/// The file of the drive with this canonical address, whichever host name is in that.
pub(crate) fn drive_lock_name(address: &str) -> String {
    let (drive, _) = split_host(address);
    // An NQN may contain characters that a file name may not.
    let hash = xxhash_rust::xxh3::xxh3_128(drive.as_bytes());
    format!("drive-{hash:032x}{SUFFIX}")
}

/// The held lock of a pool; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct PoolLock(#[expect(dead_code, reason = "held, not used")] LockFile);

/// The held lock of an SPDK drive; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct DriveLock(LockFile);

#[derive(Debug)]
struct LockFile {
    file: File,
    path: PathBuf,
    is_held: bool,
    /// The reservation keys that earlier holders left.
    earlier_keys: Vec<u64>,
    /// Reservation keys that the next holder has to know.
    keys: Vec<u64>,
}

/// How often a lock file may be removed during locking before that is an error: as many other
/// owners came and went.
const ATTEMPTS: u32 = 100;

impl PoolLock {
    /// Takes the lock of a pool, or returns an error that names the holder.
    pub(crate) fn take(pool: Uuid) -> Result<PoolLock, Error> {
        PoolLock::take_in(&own_folder()?, pool)
    }

    fn take_in(folder: &Path, pool: Uuid) -> Result<PoolLock, Error> {
        let file = LockFile::take(folder, &format!("pool-{pool}{SUFFIX}"), &format!("pool {pool}"));
        file.map(PoolLock)
    }
}

#[cfg_attr(not(feature = "spdk"), expect(dead_code, reason = "only SPDK's drives need it"))]
impl DriveLock {
    /// Takes the lock of the drive with this canonical address, or returns an error that names the
    /// holder.
    pub(crate) fn take(address: &str) -> Result<DriveLock, Error> {
        let folder = own_folder()?;
        let name = drive_lock_name(address);
        LockFile::take(&folder, &name, &format!("drive {address}")).map(DriveLock)
    }

    /// Reservation keys of owners that have ended without giving them back.
    pub(crate) fn earlier_keys(&self) -> Vec<u64> {
        self.0.earlier_keys.clone()
    }

    /// Leaves these reservation keys for the next owner, should this one be killed.
    pub(crate) fn note_keys(&mut self, keys: &[u64]) {
        self.0.keys = keys[keys.len().saturating_sub(MAX_KEYS)..].to_vec();
        self.0.sign();
    }

    /// A file next to the lock file, for what must be known of the drive until the next restart.
    /// Only the lock's owner writes it.
    pub(crate) fn side_file(&self, extension: &str) -> PathBuf {
        self.0.path.with_extension(extension)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.is_held && self.keys.is_empty() && self.has_its_name() {
            // If it cannot be removed, it stays, as after a kill.
            let _ = std::fs::remove_file(&self.path);
        }
        // A forked child has the open file too and may live on: closing alone would leave the pool
        // locked. If this call fails, closing is all that we can do.
        let _ = self.file.unlock();
    }
}

impl LockFile {
    fn take(folder: &Path, name: &str, what: &str) -> Result<LockFile, Error> {
        remove_remains(folder, name);
        let path = folder.join(name);
        let os = |doing: &str, e| Error::os(format!("{doing} the lock file {}", path.display()), e);
        let began = Instant::now();
        let mut removed = 0;
        while removed < ATTEMPTS {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)
                .map_err(|e| os("opening", e))?;
            let (path, earlier_keys, keys) = (path.clone(), Vec::new(), Vec::new());
            let mut lock = LockFile { file, path, is_held: false, earlier_keys, keys };
            match lock.file.try_lock() {
                Ok(()) if lock.has_its_name() => {
                    lock.is_held = true;
                    lock.earlier_keys = keys_in(&lock.text());
                    lock.keys = lock.earlier_keys.clone();
                    lock.sign();
                    return Ok(lock);
                }
                Err(TryLockError::Error(e)) => return Err(os("locking", e)),
                Err(TryLockError::WouldBlock) if lock.has_its_name() => {
                    if began.elapsed() >= MOMENT {
                        return Err(Error::Busy { what: what.into(), owner: lock.owner() });
                    }
                    std::thread::sleep(LOOK);
                }
                // It was removed meanwhile, by an owner that is closing.
                Ok(()) | Err(TryLockError::WouldBlock) => removed += 1,
            }
        }
        Err(os("locking", io::Error::other("other processes keep removing it")))
    }

    /// Whether the file that we have open still has its name.
    fn has_its_name(&self) -> bool {
        match (self.file.metadata(), std::fs::symlink_metadata(&self.path)) {
            (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
            _ => false,
        }
    }

    /// Writes the holder and the keys into the file. The keys are more than a text for messages:
    /// without them the next owner has to ask for a take-over. So they are written by one call, in
    /// place: a kill finds the old text or the new one, and never an empty file.
    fn sign(&mut self) {
        let mut text = format!("process {} ({})", std::process::id(), super::owner::command());
        let keys: String = self.keys.iter().map(|key| format!("\n{KEY}{key:016x}")).collect();
        text.truncate(text.floor_char_boundary(TEXT_BYTES - keys.len()));
        text += &keys;
        text.extend(std::iter::repeat_n('\n', TEXT_BYTES - text.len()));
        // What cannot be written is missing in messages, and makes the next owner ask.
        let _ = self.file.write_all_at(text.as_bytes(), 0);
    }

    fn text(&self) -> String {
        text_of(&self.file)
    }

    /// The holder of a file that could not be locked.
    fn owner(&self) -> String {
        owner_in(&self.text())
    }
}

const KEY: &str = "key ";
/// Each owner that is killed while it opens a drive leaves one.
const MAX_KEYS: usize = 16;
/// The length of a signed file.
const TEXT_BYTES: usize = 1024;

fn text_of(file: &File) -> String {
    let mut text = String::new();
    // What cannot be read is left out.
    let mut file = file;
    let _ = file.rewind().and_then(|()| file.take(TEXT_BYTES as u64).read_to_string(&mut text));
    text
}

fn owner_in(text: &str) -> String {
    let owner = text.lines().next().unwrap_or_default();
    if owner.is_empty() { "another process".into() } else { owner.to_owned() }
}

fn keys_in(text: &str) -> Vec<u64> {
    let key = |digits: &str| u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16);
    text.lines().filter_map(|line| key(line.strip_prefix(KEY)?)).take(MAX_KEYS).collect()
}

/// Removes files that no one holds: owners that were killed left them.
fn remove_remains(folder: &Path, but: &str) {
    for name in super::sysfs::names(folder) {
        if !is_lock_file(&name) || name == but {
            continue;
        }
        let path = folder.join(name);
        let opened =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        let Ok(file) = opened else { continue };
        if file.try_lock().is_ok() {
            let keys = keys_in(&text_of(&file));
            // The drop removes it, unless it has a key.
            drop(LockFile { file, path, is_held: true, earlier_keys: Vec::new(), keys });
        }
    }
}

/// Whether another process holds the exclusive lock of a file or device node; finds out by trying.
/// Follows links, as opening a drive does; changes nothing.
pub(crate) fn is_locked(path: &Path) -> bool {
    let began = Instant::now();
    loop {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let Ok(file) = opened else { return false };
        match file.try_lock_shared() {
            Ok(()) => {
                let _ = file.unlock();
                return false;
            }
            Err(TryLockError::WouldBlock) if began.elapsed() < MOMENT => std::thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return true,
            Err(TryLockError::Error(_)) => return false,
        }
    }
}

/// The folder of this user, made if it is not there.
fn own_folder() -> Result<PathBuf, Error> {
    let folder = usual_folder(super::owner::user()?, std::env::var_os("XDG_RUNTIME_DIR"));
    make(&folder, super::owner::user()?)?;
    Ok(folder)
}

/// Where the lock files of a user lie.
pub(crate) fn usual_folder(user: u32, runtime: Option<std::ffi::OsString>) -> PathBuf {
    match runtime.map(PathBuf::from).filter(|folder| folder.is_absolute()) {
        _ if user == 0 => ROOT_FOLDER.into(),
        Some(runtime) => runtime.join(USER_FOLDER),
        None => PathBuf::from(format!("/run/user/{user}")).join(USER_FOLDER),
    }
}

fn make(folder: &Path, user: u32) -> Result<(), Error> {
    let unusable = |why: String| {
        Error::Environment(format!(
            "the folder of the lock files, {}: {why}; it must be a folder of user {user} that no other user may write",
            folder.display()
        ))
    };
    let mode = if user == 0 { 0o755 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(folder) {
        // Whatever the umask left out.
        Ok(()) => std::fs::set_permissions(folder, Permissions::from_mode(mode))
            .map_err(|error| unusable(error.to_string()))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(unusable(error.to_string())),
    }
    let found = std::fs::symlink_metadata(folder).map_err(|error| unusable(error.to_string()))?;
    if !found.is_dir() {
        return Err(unusable("it is not a folder".into()));
    }
    if found.uid() != user || found.mode() & 0o022 != 0 {
        return Err(unusable(format!(
            "it belongs to user {} and has the mode {:o}",
            found.uid(),
            found.mode() & 0o7777
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn take(folder: &Path, name: &str) -> Result<LockFile, Error> {
        LockFile::take(folder, &format!("{name}{SUFFIX}"), name)
    }

    #[test]
    fn one_owner_whose_file_goes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let pool = Uuid::now_v7();
        let owner = PoolLock::take_in(folder.path(), pool).unwrap();
        let error = PoolLock::take_in(folder.path(), pool).unwrap_err();
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        let path = folder.path().join(format!("pool-{pool}.lock"));
        assert!(path.exists() && is_locked(&path));
        drop(owner);
        assert!(!path.exists() && !is_locked(&path));
        PoolLock::take_in(folder.path(), pool).unwrap();
    }

    /// What a kill at any instant would leave.
    #[test]
    fn keys_are_in_the_file_at_every_instant() {
        let folder = tempfile::tempdir().unwrap();
        let mut lock = take(folder.path(), "drive").unwrap();
        let path = lock.path.clone();
        lock.keys = vec![1];
        lock.sign();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut looks = 0;
                while !is_done.load(Ordering::SeqCst) {
                    let keys = keys_in(&text_of(&File::open(&path).unwrap()));
                    assert_eq!(keys.first(), Some(&1), "{keys:?}");
                    looks += 1;
                }
                looks
            });
            for count in 0..20_000 {
                lock.keys = (1..=1 + count % MAX_KEYS as u64).collect();
                lock.sign();
            }
            is_done.store(true, Ordering::SeqCst);
            assert!(reader.join().unwrap() > 100);
        });
    }

    #[test]
    fn there_is_one_owner_however_files_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let (owners, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (folder, owners, taken) = (folder.path(), &owners, &taken);
                scope.spawn(move || {
                    while taken.load(Ordering::SeqCst) < 1000 {
                        // Others remove what they find without an owner.
                        drop(take(folder, &format!("other-{thread}")).unwrap());
                        match take(folder, "pool") {
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
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn what_killed_owners_left_goes_unless_it_has_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("pool-1.lock", "process 41 (trainer)");
        write("drive-1.lock", "process 41 (trainer)\nkey 00000000000000ff");
        write("drive-2.lock", "process 41 (trainer)\nkey zz");
        write("drive-1.fence", "1");
        let held = File::create(folder.path().join("pool-2.lock")).unwrap();
        held.lock().unwrap();
        let lock = take(folder.path(), "pool-3").unwrap();
        let left = super::super::sysfs::names(folder.path());
        assert_eq!(left, ["drive-1.fence", "drive-1.lock", "pool-2.lock", "pool-3.lock"]);
        drop(lock);

        let mut drive = DriveLock(take(folder.path(), "drive-1").unwrap());
        assert_eq!(drive.earlier_keys(), [0xFF]);
        // Killed now, it leaves the key that is not settled.
        assert_eq!(keys_in(&drive.0.text()), [0xFF]);
        drive.note_keys(&[0xFF, 0x1234]);
        assert_eq!(keys_in(&drive.0.text()), [0xFF, 0x1234]);
        drop(drive);
        let mut drive = DriveLock(take(folder.path(), "drive-1").unwrap());
        assert_eq!(drive.earlier_keys(), [0xFF, 0x1234]);
        let many: Vec<u64> = (0..40).collect();
        drive.note_keys(&many);
        assert_eq!(keys_in(&drive.0.text()), many[24..]);
        drive.note_keys(&[]);
        assert_eq!(keys_in(&drive.0.text()), [0; 0]);
        drop(drive);
        assert!(!folder.path().join("drive-1.lock").exists());
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, folder.path().join("pool.lock")).unwrap();
        symlink(&victim, folder.path().join("other.lock")).unwrap();
        let error = take(folder.path(), "pool").unwrap_err();
        assert!(matches!(error, Error::Os { .. }), "{error}");
        drop(take(folder.path(), "third").unwrap());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");

        let away = folder.path().join("away");
        std::fs::create_dir(&away).unwrap();
        symlink(&away, folder.path().join("locks")).unwrap();
        let user = super::super::owner::user().unwrap();
        let refused = make(&folder.path().join("locks"), user).unwrap_err();
        assert!(refused.to_string().contains("not a folder"), "{refused}");
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let user = super::super::owner::user().unwrap();
        let folder = parent.path().join("locks");
        make(&folder, user).unwrap();
        make(&folder, user).unwrap();
        let mode = std::fs::metadata(&folder).unwrap().mode() & 0o777;
        assert_eq!(mode, if user == 0 { 0o755 } else { 0o700 });
        assert!(make(&folder, user + 1).is_err(), "another user's");
        std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let refused = make(&folder, user).unwrap_err();
        assert!(refused.to_string().contains("mode 777"), "{refused}");
        assert!(make(&parent.path().join("a/b"), user).is_err());
    }

    #[test]
    fn each_user_has_a_folder() {
        assert_eq!(usual_folder(0, Some("/run/user/0".into())), Path::new("/run/stanchion"));
        assert_eq!(usual_folder(7, Some("/tmp/r".into())), Path::new("/tmp/r/stanchion"));
        for runtime in [None, Some("".into()), Some("relative".into())] {
            assert_eq!(usual_folder(7, runtime), Path::new("/run/user/7/stanchion"));
        }
    }
}
