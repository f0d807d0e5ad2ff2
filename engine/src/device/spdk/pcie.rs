//! PCIe drives before SPDK touches them: which driver has them, who claimed them, which there are.

use std::ffi::{CStr, c_char, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

use spdk_sys::{stn_spdk_controller, stn_spdk_controller_facts};

use super::{controller, environment, info};
use crate::address::DriveAddress;
use crate::device::pci::is_user_space_driver;
use crate::device::{DriveInfo, inventory};
use crate::error::Error;

/// Refuses a function that SPDK cannot have, before SPDK tries.
pub(super) fn check_driver(transport_id: &str, function: &str) -> Result<(), Error> {
    let dir = Path::new("/sys/bus/pci/devices").join(function);
    if !dir.exists() {
        return Err(Error::DriveNotFound {
            address: transport_id.into(),
            detail: "no such PCI function; `stanchion drives` lists what there is".into(),
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
                "drive {transport_id}: the kernel's driver {driver} has it; {instead}, or give it to SPDK with \
                 `stanchion bind --drive pcie:{function}`"
            )))
        }
        None => Err(Error::Environment(format!(
            "drive {transport_id}: no driver has it; run `stanchion bind --drive pcie:{function}`"
        ))),
    }
}

/// Who has claimed a PCI function through SPDK, by the lock file that SPDK makes for it.
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

/// The namespaces of every PCIe drive that a user-space driver has, for a listing. Attaches to each
/// drive, which resets it: drives that this process uses are left out, and no other process may be
/// using one.
///
/// # Errors
/// [`Error::Environment`] when SPDK does not start.
pub fn list_pcie() -> Result<Vec<DriveInfo>, Error> {
    environment::start(true)?;
    let mut found: Vec<DriveInfo> = Vec::new();
    // SAFETY: `visit` gets the vector, which outlives the call and is used by nobody else meanwhile.
    let result = unsafe { spdk_sys::stn_spdk_pcie_list(Some(visit), (&raw mut found).cast()) };
    if result < 0 {
        return Err(Error::os(
            "looking for PCIe drives through SPDK",
            std::io::Error::from_raw_os_error(-result),
        ));
    }
    Ok(found)
}

unsafe extern "C" fn visit(
    context: *mut c_void,
    address: *const c_char,
    controller: *mut stn_spdk_controller,
) {
    // SAFETY: the context is `list_pcie`'s vector, and the address a string for this call's length.
    let (found, address) =
        unsafe { (&mut *context.cast::<Vec<DriveInfo>>(), CStr::from_ptr(address)) };
    let Some(controller) = NonNull::new(controller) else { return };
    let parsed = address.to_string_lossy().parse::<DriveAddress>();
    let Ok(DriveAddress::Spdk { transport_id, .. }) = parsed else { return };
    let mut about = stn_spdk_controller_facts::default();
    // SAFETY: the controller is ours for the length of this call.
    unsafe {
        spdk_sys::stn_spdk_controller_facts(controller.as_ptr(), &raw mut about);
        for id in controller::namespaces(controller) {
            let Some(namespace) = controller::namespace(controller, id) else { continue };
            if let Ok(info) = info(&transport_id, &about, &namespace.info) {
                found.push(info);
            }
        }
    }
}
