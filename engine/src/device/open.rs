//! From an address to an open device. The address alone chooses the back end: nothing else is ever
//! tried in its place.

use crate::address::DriveAddress;
#[cfg(feature = "spdk")]
use crate::device::spdk;
use crate::device::{Device, OpenMode, kernel};
use crate::error::Error;

/// Commands in flight on a drive that SPDK drives, unless the options say otherwise: with chunks of
/// 1 MiB that is 16 MiB under way, several times what a fast drive needs to be kept busy.
#[cfg(any(feature = "spdk", test, feature = "internals"))]
pub const SPDK_QUEUE_DEPTH: u32 = 16;
/// The same for a drive that the kernel drives, which is fed by interrupts: the more there is to do
/// at each, the fewer of them there are.
pub const KERNEL_QUEUE_DEPTH: u32 = 64;

/// Opens a drive with room for `queue_depth` commands in flight, by default what suits its back end.
///
/// # Errors
/// What the back end says; [`Error::Environment`] for an SPDK address in a build without SPDK.
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
