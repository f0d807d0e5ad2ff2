// SPDX-License-Identifier: Apache-2.0
//! Reading the log page, through the kernel or through SPDK.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use super::page::{HEALTH_LOG_BYTES, HealthLog};
use crate::address::DriveAddress;
#[cfg(feature = "spdk")]
use crate::device::spdk;
use crate::error::{Error, IoError};
use crate::host::pci;
use crate::host::sysfs::{self, DeviceNumber, System};

/// Reads a drive's health log. `None` for a file, and for a block device that is not NVMe.
///
/// An SPDK drive on PCIe is attached for this, which resets it: no other process may use it.
///
/// # Errors
/// When the drive cannot be read.
pub fn read_health_log(address: &DriveAddress) -> Result<Option<HealthLog>, Error> {
    match address {
        DriveAddress::Path(path) => match controller_of(&System::live(), path) {
            Some(controller) => through_kernel(&controller).map(Some),
            None => Ok(None),
        },
        #[cfg(feature = "spdk")]
        DriveAddress::Spdk { transport_id, namespace } => {
            spdk::read_health_log(transport_id, *namespace).map(Some)
        }
        #[cfg(not(feature = "spdk"))]
        DriveAddress::Spdk { .. } => {
            Err(Error::Environment(format!("drive {address}: this program was built without SPDK")))
        }
    }
}

/// The character device of the NVMe controller behind a block device.
fn controller_of(system: &System, path: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    let metadata = fs::metadata(path).ok().filter(|m| m.file_type().is_block_device())?;
    let dir = system.block_dir(DeviceNumber::from_raw(metadata.rdev()))?;
    let device = fs::canonicalize(sysfs::disk_dir(&dir).join("device")).ok()?;
    let name = pci::file_name(&device)?;
    let path = system.path("/dev").join(&name);
    (name.starts_with("nvme") && path.exists()).then_some(path)
}

/// The kernel's `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Default)]
struct PassThrough {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

#[allow(unsafe_code)]
fn through_kernel(controller: &Path) -> Result<HealthLog, Error> {
    /// `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
    const ADMIN_COMMAND: u64 = 0xC048_4E41;
    const _: () = assert!(size_of::<PassThrough>() == 0x48);
    const GET_LOG_PAGE: u8 = 0x02;
    const HEALTH: u32 = 0x02;
    let asking = || format!("reading the health log of {}", controller.display());
    let file = File::open(controller).map_err(|error| Error::os(asking(), error))?;
    let mut log = [0_u8; HEALTH_LOG_BYTES];
    let mut command = PassThrough {
        opcode: GET_LOG_PAGE,
        namespace: u32::MAX,
        address: log.as_mut_ptr() as u64,
        data_bytes: HEALTH_LOG_BYTES as u32,
        cdw10: (HEALTH_LOG_BYTES as u32 / 4 - 1) << 16 | HEALTH,
        timeout_ms: 5000,
        ..PassThrough::default()
    };
    // SAFETY: the request takes a `struct nvme_passthru_cmd`, whose layout this is, and writes at
    // most `data_bytes` to `log`, which outlives the call and which nothing else uses meanwhile.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), ADMIN_COMMAND as _, &raw mut command) };
    match result {
        0 => Ok(HealthLog::decode(&log)),
        status if status > 0 => {
            let (sct, sc) = ((status >> 8 & 7) as u8, (status & 0xff) as u8);
            let source = IoError::Nvme { sct, sc, dnr: status & 0x4000 != 0 };
            Err(Error::Environment(format!("{}: {source}", asking())))
        }
        _ => Err(Error::last_os(asking())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_health_log() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let address = DriveAddress::Path(file.path().to_owned());
        assert_eq!(read_health_log(&address).unwrap(), None);
    }
}
