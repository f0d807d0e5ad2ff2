// SPDX-License-Identifier: Apache-2.0
//! What /sys, /proc and the machine report about drives: which drives there are, which processes
//! use them, which drivers they have; and how to change the driver. No drive is opened for I/O
//! here.

pub mod binding;
pub mod inventory;
pub(crate) mod location;
pub(crate) mod lock;
pub mod lock_files;
pub(crate) mod origin;
pub(crate) mod owner;
pub mod pci;
pub mod safety;
pub(crate) mod sysfs;
#[cfg(test)]
pub(crate) mod test_tools;
