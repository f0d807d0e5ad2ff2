// SPDX-License-Identifier: Apache-2.0
//! The PCIe drives that SPDK can reach.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use spdk_sys::{stn_spdk_controller, stn_spdk_controller_facts};

use super::controller::{namespace, namespaces, text};
use super::environment;
use super::namespace::{capacity_bytes, serial, supported_split};
use crate::address::DriveAddress;
use crate::error::Error;

/// A namespace of a PCIe drive that is not open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PcieDrive {
    /// The address for `--drive`.
    pub address: String,
    /// Serial number that the drive reports, trimmed.
    pub serial: String,
    /// Model that the drive reports, trimmed.
    pub model: String,
    /// Whole capacity, rounded down to a whole number of blocks.
    pub capacity_bytes: u64,
}

/// The namespaces of every PCIe drive that a user-space driver has, for a listing. Attaches to each
/// drive, which resets it: drives that this process uses are left out, and no other process may be
/// using one.
///
/// # Errors
/// [`Error::Environment`] when SPDK does not start.
pub fn list_pcie() -> Result<Vec<PcieDrive>, Error> {
    environment::start(true)?;
    let mut found: Vec<PcieDrive> = Vec::new();
    // SAFETY: `visit` gets the vector, which outlives the call and which nothing else uses
    // meanwhile.
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
        unsafe { (&mut *context.cast::<Vec<PcieDrive>>(), CStr::from_ptr(address)) };
    let Some(controller) = NonNull::new(controller) else { return };
    let parsed = address.to_string_lossy().parse::<DriveAddress>();
    let Ok(DriveAddress::Spdk { transport_id, .. }) = parsed else { return };
    let mut about = stn_spdk_controller_facts::default();
    // SAFETY: the controller is ours for the length of this call.
    unsafe {
        spdk_sys::stn_spdk_controller_facts(controller.as_ptr(), &raw mut about);
        for id in namespaces(controller) {
            let Some(namespace) = namespace(controller, id) else { continue };
            let transport_id = transport_id.clone();
            let address = DriveAddress::Spdk { transport_id, namespace: id }.to_string();
            if supported_split(&address, &about, &namespace.info).is_ok() {
                found.push(PcieDrive {
                    address,
                    serial: serial(&about, id),
                    model: text(&about.model),
                    capacity_bytes: capacity_bytes(&namespace.info),
                });
            }
        }
    }
}
