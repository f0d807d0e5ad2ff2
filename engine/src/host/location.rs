// SPDX-License-Identifier: Apache-2.0
//! Where a drive lies: a path opened without opening what lies there, so that it can be classified
//! before a driver runs or a FIFO blocks.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::Error;

/// Opens a location without opening what lies there, and checks that it may be a drive.
pub(crate) fn open_location(path: &Path) -> Result<File, Error> {
    let name = path.display().to_string();
    let location = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
    let location = location.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Error::DriveNotFound {
            address: name.clone(),
            detail: "no such file or block device; `stanchion drives` lists those of this machine"
                .into(),
        },
        _ => Error::os(format!("opening {name}"), error),
    })?;
    let kind =
        location.metadata().map_err(|e| Error::os(format!("stat of {name}"), e))?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(location);
    }
    let what = if kind.is_dir() {
        "a directory"
    } else if kind.is_char_device() {
        "a character device"
    } else if kind.is_fifo() {
        "a FIFO"
    } else {
        "a socket"
    };
    Err(Error::Usage(format!(
        "{name} is {what}; a drive is a block device, a regular file, or an NVMe address such as pcie:0000:04:00.0"
    )))
}

/// Opens for reading what a descriptor of [`open_location`] refers to.
pub(crate) fn reopen(location: &File, write: bool, flags: i32) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", location.as_raw_fd());
    OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)
}
