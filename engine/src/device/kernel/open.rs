// SPDX-License-Identifier: Apache-2.0
//! Opening a drive of the kernel: the file, and the method that moves its bytes.

use std::path::Path;

use super::file::DriveFile;
use super::threads::ThreadsDevice;
use super::uring::{UringDevice, new_ring};
use crate::device::{Device, OpenMode};
use crate::error::Error;
use crate::limits::MAX_QUEUE_DEPTH;

/// The environment variable that forces a method of I/O: `io_uring` or `threads`.
pub const IO_METHOD_VARIABLE: &str = "STANCHION_KERNEL_IO";

/// The method of I/O to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IoMethod {
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
                "{IO_METHOD_VARIABLE}={}: set it to io_uring or threads",
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
/// I/O or a forced method cannot be used; [`Error::Usage`] for what cannot be a drive.
pub fn open(path: &Path, mode: OpenMode, queue_depth: u32) -> Result<Box<dyn Device>, Error> {
    open_with(path, mode, queue_depth, IoMethod::from_environment()?)
}

/// Sets up a small io_uring and closes it again, to check that this process may use it.
///
/// # Errors
/// The error of the kernel, or of a seccomp filter.
pub fn try_io_uring() -> std::io::Result<()> {
    io_uring::IoUring::new(2).map(drop)
}

pub(super) fn open_with(
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
    let file = DriveFile::open(path, mode)?;
    if method != IoMethod::Threads {
        match new_ring(&file, queue_depth) {
            Ok(ring) => {
                let info = file.info("io_uring", queue_depth);
                return Ok(Box::new(UringDevice::new(ring, file, info)));
            }
            Err(error) if method == IoMethod::Uring => {
                return Err(Error::Environment(format!(
                    "io_uring cannot be used: {error}; allow it (`sysctl kernel.io_uring_disabled=0`, \
                     the container's seccomp profile), or set {IO_METHOD_VARIABLE}=threads"
                )));
            }
            Err(error) => tracing::warn!(
                drive = file.address,
                %error,
                "io_uring cannot be used; blocking threads do the I/O instead, which uses more CPU"
            ),
        }
    }
    let info = file.info("threads", queue_depth);
    Ok(Box::new(ThreadsDevice::new(file, info)?))
}
