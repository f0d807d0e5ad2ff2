//! Drives that the kernel drives: block devices and preallocated files, through O_DIRECT.
//!
//! Two methods of I/O do the same: io_uring (`uring`) and, where the system forbids it (as
//! containers often do), a few blocking threads (`threads`). Which one runs is told by
//! [`crate::device::DriveInfo::back_end`] and by a warning. `STANCHION_KERNEL_IO=io_uring` or `=threads` forces
//! one; the other is then not tried.
//!
//! - A short transfer is carried on from where it ended; only the end of the file is an error.
//! - A file that somebody cuts while it is in use gives [`crate::IoError::Short`] when it is read beyond
//!   its end. A write there makes it longer again, as any write to a file does.
//! - A flush is fdatasync, which also empties the drive's own cache; a durable write is RWF_DSYNC.

mod file;
mod open;
#[cfg(test)]
mod tests;
mod threads;
mod transfer;
mod uring;

pub use file::{DirectIo, create_file, direct_io};
#[cfg(any(test, feature = "internals"))]
pub use open::IO_METHOD_VARIABLE;
pub use open::{open, try_io_uring};
