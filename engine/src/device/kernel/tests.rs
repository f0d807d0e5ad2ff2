// SPDX-License-Identifier: Apache-2.0
//! One set of tests for both methods of I/O, over files and, as root, loop devices.

#![allow(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::open::{IoMethod, open_with};
use super::*;
use crate::device::{OpenMode, Operation, SubmitError};
use crate::error::{Error, IoError};
use crate::host::test_tools::{LoopDevice, Mounted, tool};
use crate::internals as engine;
use crate::limits::{BLOCK_BYTES, MAX_QUEUE_DEPTH};
use crate::memory::{HugePages, Region};

#[path = "../../../tests/common/device_rig.rs"]
#[allow(dead_code)]
mod device_rig;
use device_rig::{PATIENCE, Rig};

const DRIVE_BYTES: u64 = 32 << 20;
const DEPTH: u32 = 16;
/// Memory of one command in the tests.
const PIECE_BYTES: u64 = 256 << 10;

/// A drive to test on, with what must outlive it.
struct Target {
    path: PathBuf,
    _loop_device: Option<LoopDevice>,
    _dir: tempfile::TempDir,
}

fn file_target() -> Target {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drive");
    create_file(&path, DRIVE_BYTES).unwrap();
    Target { path, _loop_device: None, _dir: dir }
}

/// Runs `test` with both methods, on a file and on a loop device, where these are available.
fn everywhere(test: impl Fn(&Target, IoMethod)) {
    for method in [IoMethod::Uring, IoMethod::Threads] {
        for on_loop in [false, true] {
            let mut target = file_target();
            if on_loop {
                let Some(device) = LoopDevice::new(&target.path, &[]) else { continue };
                target.path = device.0.clone();
                target._loop_device = Some(device);
            }
            if method == IoMethod::Uring
                && let Err(error @ Error::Environment(_)) =
                    open_with(&target.path, OpenMode::ReadOnly, 1, method)
            {
                eprintln!("skipped: {error}");
                continue;
            }
            eprintln!("{method:?} on {}", target.path.display());
            test(&target, method);
        }
    }
}

fn open_rig(target: &Target, mode: OpenMode, method: IoMethod) -> Rig {
    let device = open_with(&target.path, mode, DEPTH, method).unwrap();
    Rig::over(device, PIECE_BYTES, HugePages::Preferred)
}

#[test]
fn random_commands_agree_with_a_model() {
    everywhere(|target, method| {
        let mut rig = open_rig(target, OpenMode::ReadWrite, method);
        let model = rig.random_commands(7, 1500);
        drop(rig);
        assert!(fs::read(&target.path).unwrap() == model, "what was written is there");
    });
}

#[test]
fn a_full_queue_is_reported_and_nothing_is_lost() {
    everywhere(|target, method| {
        let mut rig = open_rig(target, OpenMode::ReadWrite, method);
        for piece in 0..u64::from(DEPTH) {
            rig.submit(Operation::Read, 0, piece, PIECE_BYTES).unwrap();
        }
        assert_eq!(rig.submit(Operation::Flush, 0, 0, 0), Err(SubmitError::Full));
        assert_eq!(rig.device.in_flight(), DEPTH);
        assert_eq!(rig.device.poll(&mut []), 0);
        let mut tags = Vec::new();
        while rig.device.in_flight() > 0 {
            tags.extend(rig.wait().iter().map(|completion| completion.tag));
        }
        tags.sort_unstable();
        assert_eq!(tags, (0..u64::from(DEPTH)).collect::<Vec<_>>());
    });
}

#[test]
fn invalid_commands_are_refused() {
    everywhere(|target, method| {
        let mut rig = open_rig(target, OpenMode::ReadWrite, method);
        let refused = |errno| Err(SubmitError::Failed(IoError::Os(errno)));
        let block = BLOCK_BYTES;
        let end = DRIVE_BYTES;
        for (offset, length) in
            [(1, block), (0, 512), (0, 0), (end, block), (end - block, 2 * block)]
        {
            assert_eq!(rig.submit(Operation::Write, offset, 0, length), refused(libc::EINVAL));
        }
        assert_eq!(
            rig.submit(Operation::Read, u64::MAX - block + 1, 0, block),
            refused(libc::EINVAL)
        );
        let region = Arc::clone(&rig.region);
        rig.device.unregister(&region);
        assert_eq!(rig.submit(Operation::Read, 0, 0, block), refused(libc::EFAULT));
        rig.device.register(&region).unwrap();
        rig.device.register(&region).unwrap();
        assert_eq!(rig.run(Operation::Read, 0, 0, block), Ok(()));
        drop(rig);
        let mut reader = open_rig(target, OpenMode::ReadOnly, method);
        assert_eq!(reader.submit(Operation::Write, 0, 0, block), refused(libc::EROFS));
        assert_eq!(reader.run(Operation::Read, 0, 0, block), Ok(()));
    });
}

#[test]
fn dropping_waits_for_what_is_in_flight() {
    everywhere(|target, method| {
        for round in 0..20 {
            // Opening again at once proves that the lock and the claim ended with the device.
            let mut rig = open_rig(target, OpenMode::ReadWrite, method);
            for piece in 0..u64::from(DEPTH) {
                let operation = if piece % 2 == 0 { Operation::Read } else { Operation::Write };
                rig.submit(operation, piece * PIECE_BYTES, piece, PIECE_BYTES).unwrap();
            }
            if round % 2 == 0 {
                rig.device.poll(&mut []);
            }
            let Rig { device, region, .. } = rig;
            drop(device);
            let all = region.len_bytes() as usize;
            // SAFETY: the region is alive, and no device knows it any more.
            let bytes = unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr(), all) };
            bytes.fill(0xa5);
            std::thread::sleep(Duration::from_millis(5));
            assert!(bytes.iter().all(|byte| *byte == 0xa5), "memory was touched after the drop");
        }
    });
}

#[test]
fn a_file_cut_under_it_is_short_and_not_a_crash() {
    everywhere(|target, method| {
        if target._loop_device.is_some() {
            return;
        }
        let mut rig = open_rig(target, OpenMode::ReadWrite, method);
        let left = 3 * BLOCK_BYTES + 100;
        OpenOptions::new().write(true).open(&target.path).unwrap().set_len(left).unwrap();
        let short = |moved_bytes| Err(IoError::Short { moved_bytes });
        assert_eq!(rig.run(Operation::Read, 0, 0, 3 * BLOCK_BYTES), Ok(()));
        assert_eq!(rig.run(Operation::Read, 0, 0, PIECE_BYTES), short(left as u32));
        assert_eq!(rig.run(Operation::Read, 1 << 20, 0, PIECE_BYTES), short(0));
        assert_eq!(rig.run(Operation::Flush, 0, 0, 0), Ok(()));
    });
}

#[test]
fn memory_across_the_kernels_limit_of_one_buffer() {
    let target = file_target();
    let region = Arc::new(Region::new((1 << 30) + 1, HugePages::Off).unwrap());
    for method in [IoMethod::Uring, IoMethod::Threads] {
        let Ok(mut device) = open_with(&target.path, OpenMode::ReadWrite, 4, method) else {
            eprintln!("skipped: {method:?} is not available");
            continue;
        };
        device.register(&region).unwrap();
        let mut rig = Rig { device, region: Arc::clone(&region), piece_bytes: PIECE_BYTES };
        let last = (1 << 30) / PIECE_BYTES;
        // One piece on each side of the limit, then one across it.
        for (round, start) in [(1, last - 1), (2, last)] {
            rig.bytes(start, PIECE_BYTES).fill(round);
            assert_eq!(rig.run(Operation::Write, 0, start, PIECE_BYTES), Ok(()));
            assert_eq!(rig.run(Operation::Read, 0, 0, PIECE_BYTES), Ok(()));
            assert!(rig.bytes(0, PIECE_BYTES).iter().all(|byte| *byte == round));
        }
        rig.bytes(last - 1, 2 * PIECE_BYTES).fill(3);
        assert_eq!(rig.run(Operation::Write, 0, last - 1, 2 * PIECE_BYTES), Ok(()));
        assert_eq!(rig.run(Operation::Read, 0, 0, 2 * PIECE_BYTES), Ok(()));
        assert!(rig.bytes(0, 2 * PIECE_BYTES).iter().all(|byte| *byte == 3));
    }
}

#[test]
fn the_info_describes_the_drive() {
    everywhere(|target, method| {
        let rig = open_rig(target, OpenMode::ReadOnly, method);
        let info = rig.device.info();
        assert_eq!(info.capacity_bytes, DRIVE_BYTES);
        assert_eq!(info.queue_depth, DEPTH);
        assert_eq!(info.address, target.path.to_str().unwrap());
        assert_eq!(info.back_end, if method == IoMethod::Uring { "io_uring" } else { "threads" });
        if target._loop_device.is_some() {
            assert!(info.serial.starts_with("dev-7-"), "{}", info.serial);
            assert_eq!(info.volatile_cache, Some(true));
        } else {
            assert!(info.serial.starts_with("file-"), "{}", info.serial);
            assert_eq!(info.model, "file");
        }
    });
}

#[test]
fn two_writers_conflict_and_readers_do_not() {
    everywhere(|target, method| {
        let open = |mode| open_with(&target.path, mode, 1, method);
        let reader = open(OpenMode::ReadOnly).unwrap();
        let other = open(OpenMode::ReadOnly).unwrap();
        let writer = open(OpenMode::ReadWrite).unwrap();
        let error = open(OpenMode::ReadWrite).err().expect("a writer keeps writers out");
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        assert!(error.to_string().contains("this process"), "{error}");
        open(OpenMode::ReadOnly).unwrap();
        drop((writer, reader, other));
        open(OpenMode::ReadWrite).unwrap();
    });
}

#[test]
fn another_process_is_named() {
    let target = file_target();
    let mut command = std::process::Command::new("flock");
    command.args(["--exclusive", "--no-fork"]).arg(&target.path).args(["sleep", "60"]);
    let Ok(mut holder) = command.spawn() else {
        eprintln!("skipped: flock cannot be run");
        return;
    };
    let expected = format!("sleep (pid {})", holder.id());
    let end = Instant::now() + PATIENCE;
    let named = loop {
        match open(&target.path, OpenMode::ReadWrite, 1) {
            Err(Error::Busy { owner, .. }) if owner == expected => break true,
            _ if Instant::now() > end => break false,
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(named, "{expected} is not named");
    open(&target.path, OpenMode::ReadWrite, 1).unwrap();
}

#[test]
fn what_cannot_be_a_drive_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let error = |path: PathBuf| open(&path, OpenMode::ReadWrite, 1).err().unwrap();
    let fifo = std::ffi::CString::new(path("fifo").to_str().unwrap()).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    fs::write(path("tiny"), b"x").unwrap();
    for (path, part) in [
        (path("fifo"), "FIFO"),
        (path("socket"), "socket"),
        (dir.path().to_owned(), "directory"),
        ("/dev/null".into(), "character device"),
        (path("tiny"), "less than one block"),
    ] {
        let error = error(path);
        assert!(matches!(error, Error::Usage(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(matches!(error(path("absent")), Error::DriveNotFound { .. }));
    for depth in [0, MAX_QUEUE_DEPTH + 1] {
        assert!(matches!(open(&path("tiny"), OpenMode::ReadOnly, depth), Err(Error::Usage(_))));
    }
}

#[test]
fn no_direct_io_is_an_error_that_names_the_file() {
    let error = open("/proc/version".as_ref(), OpenMode::ReadOnly, 1).err().unwrap();
    assert!(matches!(error, Error::Environment(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("/proc/version") && text.contains("O_DIRECT"), "{text}");
}

#[test]
fn a_new_file_is_complete_or_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drive");
    assert!(matches!(create_file(&path, 4097), Err(Error::Usage(_))));
    assert!(matches!(create_file(&path, 0), Err(Error::Usage(_))));
    assert!(!path.exists());
    create_file(&path, 1 << 20).unwrap();
    {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(metadata.blocks() * 512 >= 1 << 20, "the space is reserved");
    }
    let error = create_file(&path, 1 << 20).unwrap_err();
    assert!(error.to_string().contains("exists"), "{error}");
    assert!(path.exists());
}

#[test]
fn a_full_file_system_leaves_nothing_behind() {
    let target = file_target();
    let Some(device) = LoopDevice::new(&target.path, &[]) else { return };
    if tool("mkfs.ext4", &["-q", device.name()]).is_none() {
        return;
    }
    let Some(mounted) = Mounted::new(&device) else { return };
    let path = mounted.0.path().join("drive");
    let error = create_file(&path, 2 * DRIVE_BYTES).unwrap_err();
    assert!(matches!(error, Error::Environment(_)), "{error}");
    assert!(error.to_string().contains("no room"), "{error}");
    assert!(!path.exists());
    // A mounted device can be read, but not opened for writing.
    let error = open(&device.0, OpenMode::ReadWrite, 1).err().unwrap();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(error.to_string().contains(mounted.0.path().to_str().unwrap()), "{error}");
    assert!(open(&device.0, OpenMode::ReadOnly, 1).is_ok());
}

/// Forbids io_uring_setup to the calling thread, as the seccomp profile of a container does.
fn forbid_io_uring() {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let call = u32::try_from(libc::SYS_io_uring_setup).unwrap();
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid during the call, and binds this thread alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

#[test]
fn threads_take_over_where_io_uring_is_forbidden() {
    let target = file_target();
    std::thread::spawn(move || {
        forbid_io_uring();
        let forced =
            open_with(&target.path, OpenMode::ReadWrite, 1, IoMethod::Uring).err().unwrap();
        assert!(matches!(forced, Error::Environment(_)), "{forced}");
        assert!(forced.to_string().contains("io_uring"), "{forced}");
        let mut rig = open_rig(&target, OpenMode::ReadWrite, IoMethod::Auto);
        assert_eq!(rig.device.info().back_end, "threads");
        assert_eq!(rig.run(Operation::WriteDurable, 0, 0, BLOCK_BYTES), Ok(()));
    })
    .join()
    .unwrap();
}
