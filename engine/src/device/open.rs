// SPDX-License-Identifier: Apache-2.0
//! From an address to an open device. The address selects the back end; there is no fallback.

use crate::address::DriveAddress;
#[cfg(feature = "spdk")]
use crate::device::spdk;
use crate::device::{Device, OpenMode, kernel};
use crate::error::Error;

/// Commands in flight on an SPDK drive, unless the options say otherwise. With chunks of 1 MiB that
/// is 16 MiB in flight, several times what keeps a fast drive busy.
#[cfg(any(feature = "spdk", test, feature = "internals"))]
pub const SPDK_QUEUE_DEPTH: u32 = 16;
/// The same for a kernel drive. It works by interrupts: a deeper queue completes more commands per
/// interrupt.
pub const KERNEL_QUEUE_DEPTH: u32 = 64;

/// Opens a drive with room for `queue_depth` commands in flight; the default depends on the back
/// end.
///
/// # Errors
/// The error of the back end; [`Error::Environment`] for an SPDK address in a build without SPDK.
pub fn open(
    address: &DriveAddress,
    mode: OpenMode,
    queue_depth: Option<u32>,
) -> Result<Box<dyn Device>, Error> {
    match address {
        DriveAddress::Path(path) => {
            kernel::open(path, mode, queue_depth.unwrap_or(KERNEL_QUEUE_DEPTH))
        }
        #[cfg(feature = "spdk")]
        DriveAddress::Spdk { transport_id, namespace } => {
            spdk::open(transport_id, *namespace, mode, queue_depth.unwrap_or(SPDK_QUEUE_DEPTH))
        }
        #[cfg(not(feature = "spdk"))]
        DriveAddress::Spdk { .. } => Err(Error::Environment(format!(
            "drive {address}: this program was built without SPDK; build it with `--features spdk` \
             after `scripts/install-spdk`, or name the drive by its block device"
        ))),
    }
}
