// SPDX-License-Identifier: Apache-2.0
//! A pool on an NVMe-oF target whose drives are files, for tests that inject faults.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;

use stanchion_testing::internals::device::spdk::inject::Injector;
use stanchion_testing::internals::device::{self, spdk};
use stanchion_testing::{Pool, PoolOptions};

use super::kept::{Kept, fill, make_room};
use super::target::Target;

const DRIVE_MIB: u64 = 64;

pub struct Bench {
    // Dropped before the directory that its files lie in.
    pub target: Target,
    kept: Kept,
    directory: Directory,
}

impl Deref for Bench {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.kept
    }
}

impl DerefMut for Bench {
    fn deref_mut(&mut self) -> &mut Kept {
        &mut self.kept
    }
}

/// The directory of the files: perhaps a file system of its own, unmounted when dropped.
struct Directory {
    path: tempfile::TempDir,
    is_mounted: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.is_mounted {
            // A process that still holds a file of it keeps it until that process ends.
            let _ = Command::new("umount").arg("--lazy").arg(self.path.path()).status();
        }
    }
}

impl Bench {
    /// A pool on `drives` drives. `None`, with a message, where no target can run.
    pub fn new(drives: usize) -> Option<Bench> {
        Bench::on(drives, Directory { path: tempfile::tempdir().unwrap(), is_mounted: false })
    }

    /// The same on a file system of `mib` MiB, where the files reserve no space. It can be filled.
    pub fn thin(drives: usize, mib: u64) -> Option<Bench> {
        let path = tempfile::tempdir().unwrap();
        let options = format!("size={mib}M");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path.path());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        if !is_mounted {
            eprintln!("skipped: no file system can be mounted here");
            return None;
        }
        Bench::on(drives, Directory { path, is_mounted })
    }

    fn on(drives: usize, directory: Directory) -> Option<Bench> {
        if !super::is_alone() {
            return None;
        }
        let (count, size) = (drives.to_string(), format!("{DRIVE_MIB}M"));
        let backing = format!("aio:{}", directory.path.path().display());
        let options = ["--drives", &count, "--size", &size, "--backing", &backing];
        let target = Target::start(&options)?;
        let kept = Kept::format(target.drives.clone(), None);
        Some(Bench { target, kept, directory })
    }

    /// Seconds after which a command counts as lost, for drives opened from now on.
    pub fn set_timeout(&self, seconds: u32) {
        // SAFETY: no pool is open, so this process has no other thread that reads it.
        unsafe { std::env::set_var(spdk::TIMEOUT_VARIABLE, seconds.to_string()) };
    }

    /// Opens the pool on drives that can be made to fail, one by one.
    pub fn open_faulty(&self) -> (Pool, Vec<Injector>) {
        let options = PoolOptions::new(self.target.drives.clone());
        let open = |address| {
            spdk::open_with_injector(
                address,
                options.queue_depth.unwrap_or(device::SPDK_QUEUE_DEPTH),
            )
            .unwrap()
        };
        let (devices, injectors): (Vec<Box<dyn device::Device>>, _) =
            self.target.drives.iter().map(open).unzip();
        (Pool::open_on(devices, &options).unwrap(), injectors)
    }

    /// Closes the pool, and checks it.
    pub fn close(&self, pool: Pool) {
        drop(pool);
        self.check();
    }

    /// With every pool closed: SPDK has no open requests and no registered memory; also
    /// [`Kept::check`].
    pub fn check(&self) {
        let clean = || {
            assert_eq!(spdk::unaccounted_requests(), 0, "requests that SPDK never completed");
            assert_eq!(spdk::registered_regions(), 0, "memory that SPDK still knows");
        };
        clean();
        self.kept.check();
        clean();
    }

    /// Sends a command to the target, as words.
    pub fn rpc(&self, words: &str) {
        self.target.rpc(&words.split_whitespace().collect::<Vec<_>>());
    }

    /// Takes a drive's namespace out of its subsystem.
    pub fn remove_namespace(&self, drive: usize) {
        self.rpc(&format!("nvmf_subsystem_remove_ns {} 1", Target::nqn(drive)));
    }

    /// Gives a drive's subsystem a namespace.
    pub fn add_namespace(&self, drive: usize, device: &str) {
        self.rpc(&format!("nvmf_subsystem_add_ns {} {device} -n 1", Target::nqn(drive)));
    }

    /// Puts a device with injectable errors between a drive and its namespace: `EE_driveN`.
    pub fn put_error_device(&self, drive: usize) {
        self.remove_namespace(drive);
        self.rpc(&format!("bdev_error_create drive{drive}"));
        self.add_namespace(drive, &format!("EE_drive{drive}"));
    }

    /// A drive's file.
    pub fn file(&self, drive: usize) -> PathBuf {
        self.directory.path.path().join(format!("drive{drive}.img"))
    }

    /// Fills the file system.
    pub fn fill(&self) {
        fill(self.directory.path.path());
    }

    /// Frees the space again.
    pub fn make_room(&self) {
        make_room(self.directory.path.path());
    }
}
