// SPDX-License-Identifier: Apache-2.0
//! Drives as the reactor sees them: the [`Device`] interface, its back ends, and what follows from
//! a drive's status codes.

pub(crate) mod check;
pub(crate) mod condition;
pub mod health_log;
mod interface;
pub mod kernel;
pub(crate) mod missing;
mod open;
mod open_mode;
mod regions;
pub mod reservation;
pub(crate) mod retrying;
#[cfg(any(test, feature = "internals"))]
pub mod sim;
#[cfg(feature = "spdk")]
pub mod spdk;
pub(crate) mod status;

pub use crate::drive_info::DriveInfo;
pub use crate::memory::DmaSlice;
pub use interface::{Command, Completion, Device, Operation, SubmitError};
pub use open::open;
#[cfg(any(test, feature = "internals"))]
pub use open::{KERNEL_QUEUE_DEPTH, SPDK_QUEUE_DEPTH};
pub use open_mode::OpenMode;
pub(crate) use regions::Regions;
