// SPDX-License-Identifier: Apache-2.0
//! Drives through SPDK: over PCIe, detached from the kernel's driver, or over a fabric (TCP, RDMA).
//!
//! - One queue pair for each device. The thread that opens the device makes it; then one thread at
//!   a time, the one that holds the device, uses it. SPDK ties neither to a thread.
//! - There are no threads of SPDK: everything happens inside `submit`, `poll` and `drop`.
//! - A command whose drive was lost, or that took longer than [`TIMEOUT_VARIABLE`] says, ends as
//!   [`crate::IoError::Removed`]; only the time counts during which its device was polled. It ends
//!   only once its queue pair is freed and, for PCIe, its controller was reset: until then the
//!   drive may touch the command's memory. The device stays lost.
//! - A write that ended so may still reach the drive: over a fabric, until the target has noticed
//!   the loss. The drive is not opened for writing before that: see `fence`.

#![allow(unsafe_code)]

mod controller;
mod device;
mod environment;
mod fence;
mod held;
#[cfg(any(test, feature = "internals"))]
pub mod inject;
#[cfg(any(test, feature = "internals"))]
mod list;
mod namespace;
mod pcie;
mod polled_time;
mod registration;
mod reservation;
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
