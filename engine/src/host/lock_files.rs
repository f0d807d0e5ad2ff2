// SPDX-License-Identifier: Apache-2.0
//! The lock files of pools and drives, and their holders, for people.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::sysfs::{DeviceNumber, System, names, read_line};
use super::{lock, owner};

/// A lock file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockFileEntry {
    /// Where it lies.
    pub path: PathBuf,
    /// Who holds it, or held it last, from the file's text.
    pub last_owner: Option<String>,
    /// Whether it is held: tried, so a holder of another pid namespace counts, too.
    pub is_held: bool,
    /// Who holds it now, as far as the kernel shows.
    pub holders: Vec<String>,
    /// Whether only ended processes hold it: their I/O in flight is not over.
    pub is_stale: bool,
}

/// The folders of lock files below `root`: root's, and this user's.
fn folders(system: &System) -> Vec<PathBuf> {
    let mut folders = vec![system.path(lock::ROOT_FOLDER)];
    if let Ok(user @ 1..) = owner::user() {
        let own = lock::usual_folder(user, std::env::var_os("XDG_RUNTIME_DIR"));
        folders.extend(own.to_str().map(|own| system.path(own)));
    }
    folders
}

/// The lock files of the machine whose /run and /proc lie below `root`.
pub fn lock_files(root: &Path) -> Vec<LockFileEntry> {
    let system = System::below(root);
    let mut found = Vec::new();
    for folder in folders(&system) {
        let ours = names(&folder).into_iter().filter(|name| lock::is_lock_file(name));
        found.extend(ours.filter_map(|name| entry(&system, folder.join(name))));
    }
    found
}

fn entry(system: &System, path: PathBuf) -> Option<LockFileEntry> {
    let metadata = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
    let device = DeviceNumber::from_raw(metadata.dev());
    let owners = system.lock_owners(device, metadata.ino());
    let is_stale = system.lock_holders(device, metadata.ino()).has_only_ended();
    let holders: Vec<String> = owners.iter().map(ToString::to_string).collect();
    let is_held = !holders.is_empty() || lock::is_locked(&path);
    Some(LockFileEntry { last_owner: read_line(&path), path, is_held, holders, is_stale })
}

/// The holders of the lock of an SPDK drive, by its canonical address.
pub fn drive_lock_holders(root: &Path, address: &str) -> Vec<String> {
    let system = System::below(root);
    let name = lock::drive_lock_name(address);
    let found =
        folders(&system).into_iter().filter_map(|folder| entry(&system, folder.join(&name)));
    let mut holders = Vec::new();
    for file in found.filter(|file| file.is_held) {
        if file.holders.is_empty() {
            let text = file.last_owner.unwrap_or_default();
            let first = text.lines().next().unwrap_or_default();
            holders.push(format!("{first}, which this pid namespace does not show"));
        }
        holders.extend(file.holders);
    }
    holders
}

/// Whether a writer has a drive's file or device node, found out by trying.
pub fn is_locked(path: &Path) -> bool {
    lock::is_locked(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_stale_and_free() {
        let root = tempfile::tempdir().unwrap();
        let (run, proc) = (root.path().join("run/stanchion"), root.path().join("proc"));
        fs::create_dir_all(&run).unwrap();
        fs::create_dir_all(proc.join("42")).unwrap();
        fs::write(proc.join("42/comm"), "trainer\n").unwrap();
        fs::write(proc.join("42/stat"), "42 (trainer) S 1\n").unwrap();
        let drive = "trtype:PCIe traddr:0000:04:00.0";
        let names = ["a.lock", "b.lock", &lock::drive_lock_name(drive), "unseen.lock"];
        let mut locks = String::new();
        for (name, pid) in names.iter().zip([None, Some(43), Some(42), None]) {
            fs::write(run.join(name), "process 41 (stanchion)\nkey 1").unwrap();
            let about = fs::metadata(run.join(name)).unwrap();
            let device = DeviceNumber::from_raw(about.dev());
            if let Some(pid) = pid {
                locks += &format!(
                    "1: FLOCK ADVISORY WRITE {pid} {:02x}:{:02x}:{} 0 EOF\n",
                    device.major,
                    device.minor,
                    about.ino()
                );
            }
        }
        fs::write(run.join("drive.fence"), "").unwrap();
        fs::write(proc.join("locks"), locks).unwrap();
        let unseen = fs::File::open(run.join("unseen.lock")).unwrap();
        unseen.lock().unwrap();
        let found = lock_files(root.path());
        let mut found: Vec<_> =
            found.iter().map(|l| (l.holders.len(), l.is_held, l.is_stale)).collect();
        found.sort_unstable();
        let expected = [(0, false, false), (0, true, false), (1, true, false), (1, true, true)];
        assert_eq!(found, expected);
        assert_eq!(drive_lock_holders(root.path(), drive), ["trainer (pid 42)"]);
        assert!(drive_lock_holders(root.path(), "trtype:PCIe traddr:0000:05:00.0").is_empty());
    }
}
