//! From an address to an open device. The address alone chooses the back end: nothing else is ever
//! tried in its place.

use crate::address::DriveAddress;
use crate::device::Device;
use crate::device::kernel::{self, OpenMode};
use crate::error::Error;

/// Opens a drive with room for `queue_depth` commands in flight.
///
/// # Errors
/// What the back end says; [`Error::Environment`] for an SPDK address in a build without SPDK.
pub fn open(
    address: &DriveAddress,
    mode: OpenMode,
    queue_depth: u32,
) -> Result<Box<dyn Device>, Error> {
    match address {
        DriveAddress::Path(path) => kernel::open(path, mode, queue_depth),
        #[cfg(feature = "spdk")]
        DriveAddress::Spdk { transport_id, namespace } => {
            super::spdk::open(transport_id, *namespace, mode, queue_depth)
        }
        #[cfg(not(feature = "spdk"))]
        DriveAddress::Spdk { .. } => Err(Error::Environment(format!(
            "drive {address}: this program was built without SPDK; build it with `--features spdk` \
             after `scripts/install-spdk`, or name the drive by its block device"
        ))),
    }
}
