// SPDX-License-Identifier: Apache-2.0
//! PCIe drives before SPDK touches them: which driver has them, and which process claimed them.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::error::Error;
use crate::host::inventory;
use crate::host::pci::is_user_space_driver;

/// Refuses a function that SPDK cannot use, before SPDK tries.
pub(super) fn check_driver(transport_id: &str, function: &str) -> Result<(), Error> {
    let dir = Path::new("/sys/bus/pci/devices").join(function);
    if !dir.exists() {
        return Err(Error::DriveNotFound {
            address: transport_id.into(),
            detail: "no such PCI function; `stanchion drives` lists those of this machine".into(),
        });
    }
    let driver = std::fs::read_link(dir.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    match driver {
        Some(driver) if is_user_space_driver(&driver) => Ok(()),
        Some(driver) => {
            let block = inventory::list(Path::new("/"))
                .into_iter()
                .find(|d| d.pci_address.as_deref() == Some(function) && d.address.starts_with('/'));
            let instead = match block {
                Some(block) => format!("name it as {}", block.address),
                None => "name its block device".into(),
            };
            Err(Error::Environment(format!(
                "drive {transport_id}: bound to the kernel driver {driver}; {instead}, or give it to SPDK with \
                 `stanchion bind --drive pcie:{function}`"
            )))
        }
        None => Err(Error::Environment(format!(
            "drive {transport_id}: bound to no driver; run `stanchion bind --drive pcie:{function}`"
        ))),
    }
}

/// The process that claimed a PCI function through SPDK, by the lock file that SPDK makes for it.
pub(super) fn owner(function: &str) -> Option<String> {
    // /tmp before SPDK v22.01.
    ["/var/tmp", "/tmp"].iter().find_map(|dir| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("{dir}/spdk_pci_lock_{function}"))
            .ok()?;
        let mut lock = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        // SAFETY: plain call on a descriptor that `file` owns, with a local to read and write.
        let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
        (asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short)
            .then(|| format!("process {}", lock.l_pid))
    })
}
