// SPDX-License-Identifier: Apache-2.0
//! The lock files of pools and drives, and their holders, for people. Takes no lock.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::lock;
use super::sysfs::{DeviceNumber, System, names, read_line};

/// A lock file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockFileEntry {
    /// Where it lies.
    pub path: PathBuf,
    /// Who held it last, from the file's text.
    pub last_owner: Option<String>,
    /// Who holds it now, as far as the kernel shows; usually none: the files stay.
    pub holders: Vec<String>,
    /// Whether only ended processes hold it: their I/O in flight is not over.
    pub is_stale: bool,
}

/// The lock files of the machine whose /run and /proc lie below `root`.
pub fn lock_files(root: &Path) -> Vec<LockFileEntry> {
    let system = System::below(root);
    let dir = system.path(lock::USUAL_DIRECTORY);
    let ours = names(&dir).into_iter().filter(|name| lock::is_lock_file(name));
    ours.filter_map(|name| entry(&system, dir.join(name))).collect()
}

fn entry(system: &System, path: PathBuf) -> Option<LockFileEntry> {
    let metadata = fs::metadata(&path).ok()?;
    let device = DeviceNumber::from_raw(metadata.dev());
    let owners = system.lock_owners(device, metadata.ino());
    let is_stale = system.lock_holders(device, metadata.ino()).has_only_ended();
    let holders = owners.iter().map(ToString::to_string).collect();
    Some(LockFileEntry { last_owner: read_line(&path), path, holders, is_stale })
}

/// The holders of the lock of an SPDK drive, by its canonical address.
pub fn drive_lock_holders(root: &Path, address: &str) -> Vec<String> {
    let system = System::below(root);
    let path = system.path(lock::USUAL_DIRECTORY).join(lock::drive_lock_name(address));
    entry(&system, path).map(|entry| entry.holders).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_stale_and_free() {
        let root = tempfile::tempdir().unwrap();
        let (run, proc) = (root.path().join("run/lock"), root.path().join("proc"));
        fs::create_dir_all(&run).unwrap();
        fs::create_dir_all(proc.join("42")).unwrap();
        fs::write(proc.join("42/comm"), "trainer\n").unwrap();
        fs::write(proc.join("42/stat"), "42 (trainer) S 1\n").unwrap();
        let drive = "trtype:PCIe traddr:0000:04:00.0";
        let names = ["stanchion-a.lock", "stanchion-b.lock", &lock::drive_lock_name(drive)];
        let mut locks = String::new();
        for (name, pid) in names.iter().zip([None, Some(43), Some(42)]) {
            fs::write(run.join(name), "process 41 (stanchion)").unwrap();
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
        fs::write(run.join("other.lock"), "").unwrap();
        fs::write(proc.join("locks"), locks).unwrap();
        let found = lock_files(root.path());
        let found: Vec<_> = found.iter().map(|l| (l.holders.len(), l.is_stale)).collect();
        assert_eq!(found, [(0, false), (1, true), (1, false)]);
        assert_eq!(drive_lock_holders(root.path(), drive), ["trainer (pid 42)"]);
        assert!(drive_lock_holders(root.path(), "trtype:PCIe traddr:0000:05:00.0").is_empty());
    }
}
