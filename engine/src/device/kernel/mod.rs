// SPDX-License-Identifier: Apache-2.0
//! Drives of the kernel: block devices and preallocated files, through O_DIRECT.
//!
//! There are two equal methods of I/O: io_uring (`uring`) and, where the system forbids it (as
//! containers often do), a few blocking threads (`threads`). [`crate::device::DriveInfo::back_end`]
//! and a warning report which one runs. `STANCHION_KERNEL_IO=io_uring` or `=threads` forces one;
//! the other is then not tried.
//!
//! - A short transfer continues from where it ended; only the end of the file is an error.
//! - A read beyond the end of a file that was truncated while in use gives
//!   [`crate::IoError::Short`]. A write there extends the file again.
//! - A flush is fdatasync, which also empties the drive's own cache; a durable write is RWF_DSYNC.

mod file;
mod open;
mod reservation;
#[cfg(test)]
mod tests;
mod threads;
mod transfer;
mod uring;

pub use file::{DirectIo, create_file, direct_io};
#[cfg(any(test, feature = "internals"))]
pub use open::IO_METHOD_VARIABLE;
pub use open::{open, try_io_uring};
