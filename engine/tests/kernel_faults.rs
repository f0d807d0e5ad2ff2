// SPDX-License-Identifier: Apache-2.0
//! What happens to a pool when its files and block devices fail under it: real ones, without a
//! mock. After each fault everything that was acknowledged is restored, and the pool can be written
//! again once the cause is repaired. Every test runs with io_uring and with blocking threads.
//!
//! Needs root for loop devices, mounts and zram; skipped, with a message, where these are not
//! available. The QEMU rig tests whole devices that vanish: the kernel keeps a loop or zram device
//! as long as a process has it open.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::kept::{Kept, fill, make_room};
use crate::common::{self, Pattern, restore, save, save_disturbed};
use stanchion_testing::DriveAddress;
use stanchion_testing::internals::device::kernel::IO_METHOD_VARIABLE;
use stanchion_testing::internals::ring::codes;
use stanchion_testing::{CheckpointName, Error, IoError};

const MIB: u64 = 1 << 20;
const DRIVE_BYTES: u64 = 64 * MIB;

/// Runs a test with each method of I/O. Afterwards no memory of the engine is mapped.
fn with_each_method(test: impl Fn()) {
    if !common::is_alone() {
        return;
    }
    for method in ["io_uring", "threads"] {
        // SAFETY: no pool is open, so this process has no other thread that reads it.
        unsafe { std::env::set_var(IO_METHOD_VARIABLE, method) };
        eprintln!("with {method}");
        test();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("memfd:stanchion"), "memory is still mapped:\n{maps}");
    }
}

/// Runs a tool of the system; returns its output, or `None` with a message.
fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(name).args(arguments).env("PATH", path).output();
    match output {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            eprintln!("skipped: {name} {arguments:?}: {complaint}");
            None
        }
        Err(error) => {
            eprintln!("skipped: {name} cannot be run: {error}");
            None
        }
    }
}

/// Undone when dropped, by running a tool.
struct Undo(Vec<String>);

impl Drop for Undo {
    fn drop(&mut self) {
        let arguments: Vec<&str> = self.0.iter().map(String::as_str).collect();
        tool(arguments[0], &arguments[1..]);
    }
}

fn undo(words: &str) -> Undo {
    Undo(words.split_whitespace().map(str::to_owned).collect())
}

/// A loop device over a file.
fn loop_device(file: &Path) -> Option<(PathBuf, Undo)> {
    let device = tool("losetup", &["--nooverlap", "--find", "--show", file.to_str()?])?;
    let detach = undo(&format!("losetup --detach {device}"));
    Some((device.into(), detach))
}

/// A file system of `mib` MiB, and the directory where it is mounted.
struct Small {
    _unmount: Undo,
    _detach: Undo,
    directory: tempfile::TempDir,
    _backing: tempfile::TempDir,
}

impl Small {
    fn ext4(mib: u64) -> Option<Small> {
        let backing = tempfile::tempdir().unwrap();
        let file = backing.path().join("image");
        fs::File::create(&file).unwrap().set_len(mib * MIB).unwrap();
        tool("mkfs.ext4", &["-q", "-m", "0", file.to_str()?])?;
        let (device, detach) = loop_device(&file)?;
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_str()?;
        tool("mount", &[device.to_str()?, at])?;
        let unmount = undo(&format!("umount --lazy {at}"));
        Some(Small { _unmount: unmount, _detach: detach, directory, _backing: backing })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn holes(path: &Path) -> DriveAddress {
    fs::File::create(path).unwrap().set_len(DRIVE_BYTES).unwrap();
    DriveAddress::Path(path.to_owned())
}

fn new() -> (CheckpointName, Pattern) {
    ("new@1".parse().unwrap(), Pattern::new(3, 40 * MIB))
}

/// The error of a pool that has detected that a drive takes no new data.
fn assert_unfit(error: &Error, errno: i32) {
    assert!(
        matches!(error, Error::DriveUnfit { why: "takes no new data", source, serial, .. }
            if *source == IoError::Os(errno) && !serial.is_empty()),
        "{error}"
    );
    let Error::DriveUnfit { serial, address, .. } = error else { unreachable!() };
    let text = error.to_string();
    assert!(text.contains(serial) && text.contains(address), "{text}");
}

#[test]
fn a_file_with_holes_on_a_full_file_system() {
    with_each_method(|| {
        let Some(small) = Small::ext4(96) else { return };
        let mut kept = Kept::format(vec![holes(&small.path().join("drive"))], None);
        let pool = kept.open();
        kept.save(&pool, 8 * MIB);
        fill(small.path());
        let (name, pattern) = new();
        let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
        assert_eq!(ended.status(), Err((codes::NO_SPACE, 0)));
        assert!(ended.commit.result < 0);
        assert_unfit(&save(&pool, &name, &pattern).unwrap_err(), libc::ENOSPC);
        kept.restore_all(&pool);
        make_room(small.path());
        // It is trusted again when it is opened again.
        assert_unfit(&save(&pool, &name, &pattern).unwrap_err(), libc::ENOSPC);
        drop(pool);
        kept.check();
        let pool = kept.open();
        kept.save(&pool, 40 * MIB);
    });
}

#[test]
fn a_loop_device_over_a_file_with_holes_on_a_full_file_system() {
    with_each_method(|| {
        let Some(small) = Small::ext4(96) else { return };
        let file = small.path().join("drive");
        holes(&file);
        let Some((device, detach)) = loop_device(&file) else { return };
        let mut kept = Kept::format(vec![DriveAddress::Path(device)], None);
        let pool = kept.open();
        kept.save(&pool, 8 * MIB);
        fill(small.path());
        let (name, pattern) = new();
        let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
        let (code, _) = ended.status().unwrap_err();
        assert!(code == codes::NO_SPACE || code == codes::IO, "{code}");
        eprintln!("the loop device gives {code}");
        kept.restore_all(&pool);
        make_room(small.path());
        drop(pool);
        kept.check();
        drop(detach);
    });
}

/// A block device in compressed memory, whose writes fail with an I/O error when that memory is
/// full.
struct Zram {
    number: String,
}

impl Zram {
    fn new() -> Option<Zram> {
        let number = match fs::read_to_string("/sys/class/zram-control/hot_add") {
            Ok(number) => number.trim().to_owned(),
            Err(error) => {
                eprintln!("skipped: no zram device can be made: {error}");
                return None;
            }
        };
        let zram = Zram { number };
        zram.set("disksize", &DRIVE_BYTES.to_string());
        Some(zram)
    }

    fn set(&self, what: &str, value: &str) {
        fs::write(format!("/sys/block/zram{}/{what}", self.number), value).unwrap();
    }

    fn drive(&self) -> DriveAddress {
        DriveAddress::Path(format!("/dev/zram{}", self.number).into())
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // Just after the last user closed it, udev may open it.
        for _ in 0..50 {
            if fs::write("/sys/class/zram-control/hot_remove", &self.number).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        eprintln!("zram{} stays behind", self.number);
    }
}

#[test]
fn a_block_device_that_fails_writes() {
    with_each_method(|| {
        let (Some(bad), Some(good)) = (Zram::new(), Zram::new()) else { return };
        let mut kept = Kept::format(vec![bad.drive(), good.drive()], None);
        let pool = kept.open();
        kept.save(&pool, 8 * MIB);
        let (name, pattern) = new();
        bad.set("mem_limit", "1");
        let ended = save_disturbed(&pool, &name, &pattern, || ()).unwrap();
        assert_eq!(ended.failures().count(), 0, "chunks go to the other drive");
        assert_eq!(ended.commit.result, codes::IO, "metadata goes to both");
        kept.restore_all(&pool);
        // A bad place does not condemn the drive: the next checkpoint is tried.
        bad.set("mem_limit", "0");
        kept.save(&pool, 20 * MIB);
        drop(pool);
        kept.check();
    });
}

#[test]
fn metadata_that_cannot_be_written_names_the_drive() {
    with_each_method(|| {
        let (Some(bad), Some(good)) = (Zram::new(), Zram::new()) else { return };
        let mut kept = Kept::format(vec![good.drive(), bad.drive()], None);
        let pool = kept.open();
        kept.save(&pool, 8 * MIB);
        drop(pool);
        bad.set("mem_limit", "1");
        // Opening for writing makes a generation. Which write fails first depends on what
        // compresses.
        let error = kept.try_open().err().unwrap();
        assert!(matches!(&error, Error::Io { source: IoError::Os(libc::EIO), .. }), "{error}");
        assert!(error.to_string().contains(&bad.drive().to_string()), "{error}");
        bad.set("mem_limit", "0");
        kept.check();
    });
}

#[test]
fn a_block_device_that_becomes_read_only() {
    with_each_method(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("drive");
        holes(&file);
        let Some((device, detach)) = loop_device(&file) else { return };
        let name_of = device.to_str().unwrap().to_owned();
        let mut kept = Kept::format(vec![DriveAddress::Path(device)], None);
        let pool = kept.open();
        kept.save(&pool, 8 * MIB);
        let (name, pattern) = new();
        // The kernel remembers it after the device is gone.
        let unprotect = undo(&format!("blockdev --setrw {name_of}"));
        let protect = || drop(tool("blockdev", &["--setro", &name_of]).unwrap());
        let ended = save_disturbed(&pool, &name, &pattern, protect).unwrap();
        assert_eq!(ended.status(), Err((-i64::from(libc::EPERM), 0)));
        assert_unfit(&save(&pool, &name, &pattern).unwrap_err(), libc::EPERM);
        kept.restore_all(&pool);
        drop(pool);
        let error = kept.try_open().err().unwrap();
        assert!(matches!(error, Error::Io { source: IoError::Os(libc::EPERM), .. }), "{error}");
        assert!(error.to_string().contains(&name_of), "{error}");
        drop(unprotect);
        kept.check();
        drop(detach);
    });
}

/// Cuts a file, and restores the rest on request.
struct Cut {
    file: fs::File,
    at: u64,
    rest: Vec<u8>,
}

impl Cut {
    fn new(path: &Path, at: u64) -> Cut {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut rest = vec![0; (DRIVE_BYTES - at) as usize];
        file.read_exact_at(&mut rest, at).unwrap();
        file.set_len(at).unwrap();
        Cut { file, at, rest }
    }

    fn restore_rest(&self) {
        self.file.write_all_at(&self.rest, self.at).unwrap();
        self.file.sync_all().unwrap();
    }
}

#[test]
fn a_file_that_is_cut_under_it() {
    with_each_method(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("drive");
        let drive = DriveAddress::Path(path.clone());
        let mut kept = Kept::format(vec![drive], Some(DRIVE_BYTES));
        let pool = kept.open();
        kept.save(&pool, 30 * MIB);
        let cut = Cut::new(&path, 24 * MIB);
        let (name, pattern) = kept.newest();
        assert_eq!(restore(&pool, &name, &pattern), Err(codes::SHORT));
        let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
        assert!(!report.is_clean(), "{report:?}");
        drop(pool);
        let error = kept.try_open().err().unwrap();
        assert!(
            matches!(&error, Error::ShortDrive { serial, .. } if !serial.is_empty()),
            "{error}"
        );
        cut.restore_rest();
        kept.check();
    });
}

#[test]
fn a_file_that_is_cut_under_its_loop_device() {
    with_each_method(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("drive");
        holes(&path);
        let Some((device, detach)) = loop_device(&path) else { return };
        let mut kept = Kept::format(vec![DriveAddress::Path(device)], None);
        let pool = kept.open();
        kept.save(&pool, 30 * MIB);
        let cut = Cut::new(&path, 24 * MIB);
        let (name, pattern) = kept.newest();
        // The kernel gives zeros or an error for what is not there: neither passes for data.
        let code = restore(&pool, &name, &pattern).unwrap_err();
        assert!(code == codes::CHECKSUM || code == codes::IO, "{code}");
        eprintln!("the loop device gives {code}");
        cut.restore_rest();
        kept.restore_all(&pool);
        drop(pool);
        kept.check();
        drop(detach);
    });
}

#[test]
fn a_process_with_a_limited_file_size() {
    // SIGXFSZ ends the process unless it is ignored; the program must do that.
    // SAFETY: plain call, before any thread of the engine runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    with_each_method(|| {
        let directory = tempfile::tempdir().unwrap();
        let drive = DriveAddress::Path(directory.path().join("drive"));
        let mut kept = Kept::format(vec![drive], Some(DRIVE_BYTES));
        let pool = kept.open();
        kept.save(&pool, 8 * MIB);
        let (name, pattern) = new();
        let ended = save_disturbed(&pool, &name, &pattern, || limit_files(24 * MIB)).unwrap();
        assert_eq!(ended.status(), Err((-i64::from(libc::EFBIG), 0)));
        // The memory of a session is a file, too.
        limit_files(libc::RLIM_INFINITY);
        assert_unfit(&save(&pool, &name, &pattern).unwrap_err(), libc::EFBIG);
        kept.restore_all(&pool);
        drop(pool);
        kept.check();
    });
}

fn limit_files(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: plain call with a local.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
}
