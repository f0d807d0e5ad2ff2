//! What /sys, /proc and the machine say about drives, and what may be changed there: which drives
//! there are, who has them, which driver drives them. No drive is opened for I/O here.

pub mod binding;
pub mod inventory;
pub(crate) mod location;
pub(crate) mod lock;
pub mod lock_files;
pub mod pci;
pub mod safety;
pub(crate) mod sysfs;
#[cfg(test)]
pub(crate) mod test_tools;
