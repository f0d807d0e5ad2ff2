//! Drives that the kernel drives: block devices and preallocated files, through O_DIRECT.
//!
//! Two methods of I/O do the same: io_uring (`uring`) and, where the system forbids it (as containers
//! often do), a few blocking threads (`threads`). Which one runs is told by
//! [`DriveInfo::back_end`] and by a warning. `STANCHION_KERNEL_IO=io_uring` or `=threads` forces
//! one; the other is then not tried.
//!
//! - A short transfer is carried on from where it ended; only the end of the file is an error.
//! - A file that somebody cuts while it is in use gives [`IoError::Short`] when it is read beyond
//!   its end. A write there makes it longer again, as any write to a file does.
//! - A flush is fdatasync, which also empties the drive's own cache; a durable write is RWF_DSYNC.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Command, Device, DriveInfo, Operation, SubmitError};
use crate::error::{Error, IoError};
use crate::memory::Region;
use crate::units::is_block_aligned;

mod file;
#[cfg(test)]
mod tests;
mod threads;
mod uring;

pub use file::{DirectIo, create_file, direct_io};
pub(crate) use file::{open_location, reopen};

/// What a drive is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Reads and flushes; others may read as well.
    ReadOnly,
    /// Everything; nobody else may have it open through Stanchion.
    ReadWrite,
}

/// The environment variable that forces a method of I/O: `io_uring` or `threads`.
pub const IO_METHOD_VARIABLE: &str = "STANCHION_KERNEL_IO";

/// Commands that may be in flight on one drive at most.
pub const MAX_QUEUE_DEPTH: u32 = 4096;

/// How the kernel is asked to move the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IoMethod {
    /// io_uring, or threads with a warning where the system refuses it.
    Auto,
    Uring,
    Threads,
}

impl IoMethod {
    fn from_environment() -> Result<IoMethod, Error> {
        let Some(value) = std::env::var_os(IO_METHOD_VARIABLE) else { return Ok(IoMethod::Auto) };
        match value.to_str() {
            Some("") => Ok(IoMethod::Auto),
            Some("io_uring") => Ok(IoMethod::Uring),
            Some("threads") => Ok(IoMethod::Threads),
            _ => Err(Error::Usage(format!(
                "{IO_METHOD_VARIABLE}={}: it is io_uring or threads",
                value.display()
            ))),
        }
    }
}

/// Opens a block device or a file, with room for `queue_depth` commands in flight. It stays locked
/// until the device is dropped. Symbolic links are followed; what lies at their end must be a
/// regular file or a block device.
///
/// # Errors
/// [`Error::DriveNotFound`]; [`Error::Busy`] naming the owner; [`Error::Environment`] where direct
/// I/O or a forced method cannot be used; [`Error::Usage`] for what can be no drive.
pub fn open(path: &Path, mode: OpenMode, queue_depth: u32) -> Result<Box<dyn Device>, Error> {
    open_with(path, mode, queue_depth, IoMethod::from_environment()?)
}

/// Sets up a small io_uring and takes it down again, to see whether this process may.
///
/// # Errors
/// What the kernel, or a seccomp filter, answers.
pub fn try_io_uring() -> std::io::Result<()> {
    io_uring::IoUring::new(2).map(drop)
}

fn open_with(
    path: &Path,
    mode: OpenMode,
    queue_depth: u32,
    method: IoMethod,
) -> Result<Box<dyn Device>, Error> {
    if queue_depth == 0 || queue_depth > MAX_QUEUE_DEPTH {
        return Err(Error::Usage(format!(
            "a queue depth of {queue_depth}: it is 1 to {MAX_QUEUE_DEPTH}"
        )));
    }
    let (file, mut info) = file::DriveFile::open(path, mode)?;
    info.queue_depth = queue_depth;
    if method != IoMethod::Threads {
        match uring::new_ring(&file, queue_depth) {
            Ok(ring) => {
                info.back_end = "io_uring";
                return Ok(Box::new(uring::UringDevice::new(ring, file, info)));
            }
            Err(error) if method == IoMethod::Uring => {
                return Err(Error::Environment(format!(
                    "io_uring cannot be used: {error}; allow it (`sysctl kernel.io_uring_disabled=0`, \
                     the container's seccomp profile), or set {IO_METHOD_VARIABLE}=threads"
                )));
            }
            Err(error) => tracing::warn!(
                drive = info.address,
                %error,
                "io_uring cannot be used; blocking threads do the I/O instead, which costs more CPU"
            ),
        }
    }
    info.back_end = "threads";
    let device = threads::ThreadsDevice::new(file, info)?;
    Ok(Box::new(device))
}

/// Checks what does not depend on the method of I/O: that the command is whole blocks within the drive,
/// and that its memory lies in a registered region.
pub(super) fn check(
    command: &Command,
    info: &DriveInfo,
    mode: OpenMode,
    registered: impl FnOnce(NonNull<u8>, u64) -> bool,
) -> Result<(), SubmitError> {
    let refuse = |errno| Err(SubmitError::Failed(IoError::Os(errno)));
    let length = u64::from(command.memory.len_bytes);
    if command.operation == Operation::Flush {
        return Ok(());
    }
    if command.operation != Operation::Read && mode == OpenMode::ReadOnly {
        return refuse(libc::EROFS);
    }
    let within = command.offset_bytes.checked_add(length).is_some_and(|e| e <= info.capacity_bytes);
    let whole = length != 0
        && is_block_aligned(length)
        && is_block_aligned(command.offset_bytes)
        && is_block_aligned(command.memory.address.as_ptr() as u64);
    if !whole || !within || length > info.max_transfer_bytes {
        return refuse(libc::EINVAL);
    }
    if !registered(command.memory.address, length) {
        return refuse(libc::EFAULT);
    }
    Ok(())
}

/// What to do after one system call of a transfer came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AfterCall {
    /// All that was asked, or an error.
    Done(Result<(), IoError>),
    /// Go on from `done_bytes`, which may be where it was.
    Continue { done_bytes: u32 },
}

/// Judges `result`, bytes or a negative errno, of a call that was to move `len_bytes - done_bytes`.
fn after_call(len_bytes: u32, done_bytes: u32, result: i64, unit_bytes: u32) -> AfterCall {
    if result < 0 {
        let errno = i32::try_from(-result).unwrap_or(libc::EIO);
        return match errno {
            libc::EAGAIN | libc::EINTR => AfterCall::Continue { done_bytes },
            // The device went away, or its driver has no path to it any more.
            libc::ENODEV | libc::ENXIO | libc::ENOLINK => AfterCall::Done(Err(IoError::Removed)),
            _ => AfterCall::Done(Err(IoError::Os(errno))),
        };
    }
    let moved = u32::try_from(result).unwrap_or(u32::MAX).min(len_bytes - done_bytes);
    let done = done_bytes + moved;
    if done == len_bytes {
        AfterCall::Done(Ok(()))
    } else if moved == 0 || !done.is_multiple_of(unit_bytes) {
        // The end of the file; where it lies inside a sector no direct I/O could go on from it.
        AfterCall::Done(Err(IoError::Short { moved_bytes: done }))
    } else {
        AfterCall::Continue { done_bytes: done }
    }
}

/// Regions that commands may name, with what a method keeps of each.
#[derive(Debug)]
pub(super) struct Regions<T>(Vec<(Arc<Region>, T)>);

impl<T> Regions<T> {
    pub(super) fn new() -> Self {
        Regions(Vec::new())
    }

    pub(super) fn holds(&self, region: &Region) -> bool {
        self.0.iter().any(|(known, _)| known.id() == region.id())
    }

    pub(super) fn add(&mut self, region: &Arc<Region>, extra: T) {
        self.0.push((Arc::clone(region), extra));
    }

    pub(super) fn remove(&mut self, region: &Region) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| known.id() == region.id())?;
        Some(self.0.swap_remove(at).1)
    }

    /// A device has few regions, so a walk is the fastest search.
    pub(super) fn find(&self, address: NonNull<u8>, len_bytes: u64) -> Option<(&Region, &T)> {
        let (region, extra) = self.0.iter().find(|(r, _)| r.contains(address, len_bytes))?;
        Some((region, extra))
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn short_transfers_go_on_and_the_end_of_the_file_stops() {
        assert_eq!(after_call(8192, 0, 8192, 512), AfterCall::Done(Ok(())));
        assert_eq!(after_call(8192, 0, 512, 512), AfterCall::Continue { done_bytes: 512 });
        assert_eq!(after_call(8192, 512, 7680, 512), AfterCall::Done(Ok(())));
        let short = |moved_bytes| AfterCall::Done(Err(IoError::Short { moved_bytes }));
        assert_eq!(after_call(8192, 512, 0, 512), short(512));
        assert_eq!(after_call(8192, 4096, 100, 512), short(4196));
        assert_eq!(after_call(8192, 0, 512, 4096), short(512));
        assert_eq!(after_call(4096, 0, i64::MAX, 512), AfterCall::Done(Ok(())));
    }

    #[test]
    fn errors_are_retried_or_told() {
        let retry = AfterCall::Continue { done_bytes: 512 };
        assert_eq!(after_call(8192, 512, -i64::from(libc::EAGAIN), 512), retry);
        assert_eq!(after_call(8192, 512, -i64::from(libc::EINTR), 512), retry);
        let failed = |error| AfterCall::Done(Err(error));
        assert_eq!(after_call(8192, 0, -i64::from(libc::EIO), 512), failed(IoError::Os(libc::EIO)));
        assert_eq!(after_call(8192, 0, -i64::from(libc::ENODEV), 512), failed(IoError::Removed));
        assert_eq!(after_call(8192, 0, i64::MIN + 1, 512), failed(IoError::Os(libc::EIO)));
    }
}
