//! Drives that SPDK drives: over PCIe, taken away from the kernel, or over a fabric (TCP, RDMA).
//!
//! - One queue pair a device. It is made by whoever opens the device and then used by one thread at
//!   a time, whichever holds the device: SPDK ties neither to a thread.
//! - SPDK's own threads do not exist: everything happens inside `submit`, `poll` and `drop`.
//! - A command whose drive was lost, or that took longer than [`TIMEOUT_VARIABLE`] says, ends as
//!   [`crate::IoError::Removed`], and only once its queue pair is gone and, for PCIe, its controller was
//!   reset: until then the drive may touch the command's memory. The device stays lost.
//! - That a write ended so does not say that it never reaches the drive: over a fabric it may do so
//!   until the target has noticed the loss. The drive is not opened for writing before: see `fence`.

#![allow(unsafe_code)]

mod controller;
mod device;
mod environment;
mod fence;
#[cfg(any(test, feature = "internals"))]
pub mod inject;
#[cfg(any(test, feature = "internals"))]
mod list;
mod namespace;
mod pcie;
mod registration;
mod slots;
mod split;
mod watchdog;

#[cfg(any(test, feature = "internals"))]
pub use device::{TIMEOUT_VARIABLE, open_with_injector, registered_regions, unaccounted_requests};
pub(crate) use device::{open, read_health_log};
#[cfg(any(test, feature = "internals"))]
pub use environment::MEMORY_VARIABLE;
#[cfg(any(test, feature = "internals"))]
pub use list::{PcieDrive, list_pcie};
