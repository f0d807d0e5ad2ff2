//! A pool on an NVMe-oF target whose drives lie in files, to do wrong to: what was acknowledged is
//! remembered, and must be restored whatever happened since.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use stanchion_engine::device::spdk::inject::Injector;
use stanchion_engine::device::{self, spdk};
use stanchion_engine::{CheckpointName, Error, FormatOptions, Pool, PoolOptions, format_pool};

use super::target::Target;
use super::{Pattern, restore, save};

const MIB: u64 = 1 << 20;
const DRIVE_MIB: u64 = 64;

pub struct Bench {
    // Dropped before the directory that its files lie in.
    pub target: Target,
    acknowledged: Vec<(CheckpointName, Pattern)>,
    directory: Directory,
}

/// Where the files lie: perhaps a file system of its own, unmounted when dropped.
struct Directory {
    path: tempfile::TempDir,
    is_mounted: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.is_mounted {
            // Whatever still holds a file of it keeps it until it ends.
            let _ = Command::new("umount").arg("--lazy").arg(self.path.path()).status();
        }
    }
}

impl Bench {
    /// A pool on so many drives. `None`, with a message, where no target can run.
    pub fn new(drives: usize) -> Option<Bench> {
        Bench::on(drives, Directory { path: tempfile::tempdir().unwrap(), is_mounted: false })
    }

    /// The same on a file system of so many MiB, of which the files reserve nothing. It can be filled.
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
        let (count, size) = (drives.to_string(), format!("{DRIVE_MIB}M"));
        let backing = format!("aio:{}", directory.path.path().display());
        let options = ["--drives", &count, "--size", &size, "--backing", &backing];
        let target = Target::start(&options)?;
        format_pool(&FormatOptions {
            drives: target.drives.clone(),
            chunk_bytes: None,
            create_bytes: None,
            force: false,
        })
        .unwrap();
        Some(Bench { target, acknowledged: Vec::new(), directory })
    }

    /// Seconds after which a command counts as lost, for drives opened from now on.
    pub fn set_timeout(&self, seconds: u32) {
        // SAFETY: no pool is open, so this process has no other thread that looks at it.
        unsafe { std::env::set_var(spdk::TIMEOUT_VARIABLE, seconds.to_string()) };
    }

    /// Opens the pool.
    pub fn open(&self) -> Pool {
        self.try_open().unwrap()
    }

    /// Opens the pool, if it can be.
    pub fn try_open(&self) -> Result<Pool, Error> {
        Pool::open(&PoolOptions::new(self.target.drives.clone()))
    }

    /// Opens the pool on drives that can be made to fail, one by one.
    pub fn open_faulty(&self) -> (Pool, Vec<Injector>) {
        let options = PoolOptions::new(self.target.drives.clone());
        let open = |address| spdk::open_with_injector(address, options.queue_depth).unwrap();
        let (devices, injectors): (Vec<Box<dyn device::Device>>, _) =
            self.target.drives.iter().map(open).unzip();
        (Pool::open_on(devices, &options).unwrap(), injectors)
    }

    /// Saves another checkpoint, which must succeed.
    pub fn save(&mut self, pool: &Pool, length_bytes: u64) {
        let step = self.acknowledged.len() as u64;
        let name = CheckpointName::new("kept", step).unwrap();
        let pattern = Pattern::new(step + 1000, length_bytes);
        save(pool, &name, &pattern).unwrap();
        self.acknowledged.push((name, pattern));
    }

    /// How many checkpoints were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// The newest that was.
    pub fn newest(&self) -> (CheckpointName, Pattern) {
        self.acknowledged.last().unwrap().clone()
    }

    /// All that was acknowledged is there, and nothing else.
    pub fn restore_all(&self, pool: &Pool) {
        let listed: Vec<String> = pool.list().iter().map(|found| found.name.to_string()).collect();
        let known: Vec<_> = self.acknowledged.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(listed, known);
        for (name, pattern) in &self.acknowledged {
            assert_eq!(restore(pool, name, pattern), Ok(()), "{name}");
        }
    }

    /// Closes the pool, and checks what is left.
    pub fn close(&self, pool: Pool) {
        drop(pool);
        self.check();
    }

    /// With every pool closed: SPDK owes nothing and knows no memory; and what the drives hold, as
    /// another opening finds it, is all that was acknowledged and sound, and can be added to.
    pub fn check(&self) {
        let clean = || {
            assert_eq!(spdk::unaccounted_requests(), 0, "requests that SPDK never completed");
            assert_eq!(spdk::registered_regions(), 0, "memory that SPDK still knows");
        };
        clean();
        let pool = self.open();
        self.restore_all(&pool);
        let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
        assert!(report.is_clean(), "{report:?}");
        let (name, pattern) = ("after@1".parse().unwrap(), Pattern::new(77, 6 * MIB));
        save(&pool, &name, &pattern).unwrap();
        assert_eq!(restore(&pool, &name, &pattern), Ok(()));
        pool.remove(&name).unwrap();
        drop(pool);
        clean();
    }

    /// Asks the target something, in words.
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

    /// Puts a device that can be told to fail between a drive and its namespace: `EE_driveN`.
    pub fn put_error_device(&self, drive: usize) {
        self.remove_namespace(drive);
        self.rpc(&format!("bdev_error_create drive{drive}"));
        self.add_namespace(drive, &format!("EE_drive{drive}"));
    }

    /// A drive's file.
    pub fn file(&self, drive: usize) -> PathBuf {
        self.directory.path.path().join(format!("drive{drive}.img"))
    }

    fn ballast(&self) -> PathBuf {
        self.directory.path.path().join("ballast")
    }

    /// Leaves the file system without room.
    pub fn fill(&self) {
        let block = vec![1; MIB as usize];
        let mut file = fs::File::create(self.ballast()).unwrap();
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
        while std::io::Write::write_all(&mut file, &block[..4096]).is_ok() {}
    }

    /// Gives the room back.
    pub fn make_room(&self) {
        remove(&self.ballast());
    }
}

fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}
