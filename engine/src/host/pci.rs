// SPDX-License-Identifier: Apache-2.0
//! PCI functions of NVMe controllers as sysfs shows them: driver, IOMMU group, namespaces, users.
//!
//! Every call reads again: a function's driver may change meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

use super::sysfs::{self, DeviceNumber, LockOwner, System, names, read_line};
use crate::address::{DriveAddress, pci_function};
use crate::error::Error;

/// PCI class of NVMe controllers: mass storage, non-volatile memory, NVM Express.
const NVME_CLASS: &str = "0x010802";
/// PCI class of bridges, without the programming interface.
const BRIDGE_CLASS: &str = "0x06";
/// The kernel's own driver.
pub const KERNEL_DRIVER: &str = "nvme";
/// Drivers that leave a PCI function to a user-space program.
const USER_SPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// Whether a driver of that name leaves its device to SPDK.
pub fn is_user_space_driver(driver: &str) -> bool {
    USER_SPACE_DRIVERS.contains(&driver)
}

/// The functions that an IOMMU can only separate from others as one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IommuGroup {
    /// Its number.
    pub number: u32,
    /// How the IOMMU handles the DMA of kernel drivers: "DMA", "DMA-FQ", "identity".
    pub kind: Option<String>,
    /// The other devices in it, with their drivers, without bridges.
    pub others: Vec<(String, Option<String>)>,
}

/// A namespace of a controller that the kernel drives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockDevice {
    /// As in /dev.
    pub name: String,
    pub(crate) number: DeviceNumber,
}

/// One NVMe controller's PCI function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvmeFunction {
    /// As sysfs writes it: `0000:04:00.0`.
    pub address: String,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Absent where the machine has no IOMMU, or does not use it.
    pub iommu_group: Option<IommuGroup>,
    /// The NUMA node, where the machine reports it.
    pub numa_node: Option<u32>,
    /// Serial number; the kernel knows it while its own driver has the function.
    pub serial: Option<String>,
    /// Model, likewise.
    pub model: Option<String>,
    /// The controller's name in /dev, likewise.
    pub controller: Option<String>,
    /// Its namespaces, likewise.
    pub namespaces: Vec<BlockDevice>,
}

impl NvmeFunction {
    /// Its name in messages: the serial, or a placeholder.
    pub fn serial_text(&self) -> &str {
        self.serial.as_deref().unwrap_or("serial unknown")
    }

    /// Whether a user-space program may have it.
    pub fn is_for_user_space(&self) -> bool {
        self.driver.as_deref().is_some_and(is_user_space_driver)
    }
}

/// The sysfs directory of a PCI function.
pub(crate) fn function_dir(system: &System, address: &str) -> PathBuf {
    system.path("/sys/bus/pci/devices").join(address)
}

/// Whether the function behind this sysfs directory is an NVMe controller.
pub(crate) fn is_nvme(dir: &Path) -> bool {
    read_line(&dir.join("class")).as_deref() == Some(NVME_CLASS)
}

pub(crate) fn numa_node(dir: &Path) -> Option<u32> {
    // -1 where the machine does not report it.
    read_line(&dir.join("numa_node"))?.parse().ok()
}

pub(crate) fn driver(dir: &Path) -> Option<String> {
    file_name(&fs::read_link(dir.join("driver")).ok()?)
}

pub(crate) fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// The directory of the PCI function above a device: the last one on its path, as those before it
/// are bridges.
pub(crate) fn pci_dir(dir: &Path) -> Option<PathBuf> {
    let mut ancestors = dir.ancestors();
    let found = ancestors.find(|dir| file_name(dir).is_some_and(|n| pci_function(&n).is_some()))?;
    Some(found.to_owned())
}

/// The PCI directory below a block device's, for the head of a multipath namespace that of any
/// path.
pub(crate) fn pci_dir_of_block(dir: &Path) -> Option<PathBuf> {
    pci_dir(dir).or_else(|| {
        let controller = names(&dir.join("device")).into_iter().find(|n| is_numbered(n, "nvme"))?;
        pci_dir(&fs::canonicalize(dir.join("device").join(controller)).ok()?)
    })
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// NVMe controllers of the machine, by the addresses of their PCI functions.
pub fn nvme_functions(root: &Path) -> Vec<String> {
    let system = System::below(root);
    let dir = system.path("/sys/bus/pci/devices");
    names(&dir).into_iter().filter(|name| is_nvme(&dir.join(name))).collect()
}

/// Reads the properties of an NVMe controller.
///
/// # Errors
/// [`Error::DriveNotFound`] where there is no such function; [`Error::Usage`] when it is not an
/// NVMe controller.
pub fn nvme_function(root: &Path, address: &str) -> Result<NvmeFunction, Error> {
    let system = System::below(root);
    let dir = fs::canonicalize(function_dir(&system, address)).map_err(|_| {
        let detail = "no such PCI function; `stanchion drives` lists those of this machine".into();
        Error::DriveNotFound { address: format!("pcie:{address}"), detail }
    })?;
    if !is_nvme(&dir) {
        return Err(Error::Usage(format!(
            "pcie:{address} is not an NVMe controller (PCI class {}); `stanchion drives` lists those of this machine",
            read_line(&dir.join("class")).unwrap_or_else(|| "unknown".into())
        )));
    }
    let controller = names(&dir.join("nvme")).into_iter().find(|name| is_numbered(name, "nvme"));
    let about = controller.as_ref().map(|name| dir.join("nvme").join(name));
    let fact = |file: &str| about.as_ref().and_then(|about| read_line(&about.join(file)));
    Ok(NvmeFunction {
        address: address.to_owned(),
        driver: driver(&dir),
        iommu_group: iommu_group(&system, &dir, address),
        numa_node: numa_node(&dir),
        serial: fact("serial"),
        model: fact("model"),
        namespaces: namespaces(&system, &dir),
        controller,
    })
}

fn iommu_group(system: &System, dir: &Path, address: &str) -> Option<IommuGroup> {
    let number: u32 = file_name(&fs::read_link(dir.join("iommu_group")).ok()?)?.parse().ok()?;
    let group = system.path(&format!("/sys/kernel/iommu_groups/{number}"));
    let others = names(&group.join("devices")).into_iter().filter(|name| name != address);
    let others = others.filter_map(|name| {
        let dir = function_dir(system, &name);
        // The kernel lets bridges keep their driver: they start no DMA of their own.
        let is_bridge = read_line(&dir.join("class")).is_some_and(|c| c.starts_with(BRIDGE_CLASS));
        (!is_bridge).then(|| (name, driver(&dir)))
    });
    Some(IommuGroup { number, kind: read_line(&group.join("type")), others: others.collect() })
}

/// The block devices of this function.
fn namespaces(system: &System, function: &Path) -> Vec<BlockDevice> {
    let block = system.path("/sys/block");
    let found = names(&block).into_iter().filter_map(|name| {
        let dir = fs::canonicalize(block.join(&name)).ok()?;
        if sysfs::is_hidden(&dir) || pci_dir_of_block(&dir)? != function {
            return None;
        }
        let number = DeviceNumber::parse(&read_line(&dir.join("dev"))?)?;
        Some(BlockDevice { name: name.replace('!', "/"), number })
    });
    found.collect()
}

/// The other controllers that give access to a namespace.
pub(crate) fn other_paths(system: &System, device: &BlockDevice, function: &str) -> Vec<String> {
    let Some(dir) = system.block_dir(device.number) else { return Vec::new() };
    let device = dir.join("device");
    let controllers = names(&device).into_iter().filter(|name| is_numbered(name, "nvme"));
    let functions = controllers
        .filter_map(|name| file_name(&pci_dir(&fs::canonicalize(device.join(name)).ok()?)?));
    functions.filter(|found| found != function).collect()
}

/// The PCI function address of the NVMe controller that an address names.
///
/// # Errors
/// [`Error::Usage`] for an address that does not lead to an NVMe controller of this machine;
/// [`Error::DriveNotFound`].
pub fn function_of(root: &Path, address: &DriveAddress) -> Result<String, Error> {
    let system = System::below(root);
    let no_function = |why: &str| Error::Usage(format!("drive {address}: {why}"));
    match address {
        DriveAddress::Spdk { .. } => match address.pci_function() {
            Some(function) => Ok(function.to_owned()),
            None => Err(no_function("it is reached over a network, not through a PCI function")),
        },
        DriveAddress::Path(path) => {
            // Symbolic links such as /dev/disk/by-id are resolved to the device's own name.
            let path = std::path::absolute(path)
                .and_then(|path| fs::canonicalize(system.path(&path.display().to_string())))
                .map_err(|_| {
                    let detail =
                        "no such block device; `stanchion drives` lists those of this machine"
                            .into();
                    Error::DriveNotFound { address: address.to_string(), detail }
                })?;
            let dev = fs::canonicalize(system.path("/dev")).unwrap_or_default();
            let name = path.strip_prefix(dev).ok().and_then(Path::to_str);
            let dir = name.and_then(|name| {
                let link = system.path("/sys/class/block").join(name.replace('/', "!"));
                fs::canonicalize(link).ok()
            });
            let dir = dir.ok_or_else(|| no_function("it is not a block device"))?;
            if dir.join("partition").exists() {
                return Err(no_function("it is a partition; name the whole drive"));
            }
            let function = pci_dir_of_block(&dir).filter(|dir| is_nvme(dir));
            function.as_deref().and_then(file_name).ok_or_else(|| {
                no_function(
                    "it is not an NVMe drive on PCIe; use it through the kernel, without binding",
                )
            })
        }
    }
}

/// Processes that have the controller or a part of it open, as far as /proc shows them.
pub(crate) fn users(system: &System, function: &NvmeFunction) -> Vec<LockOwner> {
    let mut nodes: Vec<String> =
        function.namespaces.iter().map(|device| format!("/dev/{}", device.name)).collect();
    for device in &function.namespaces {
        if let Some(rest) = device.name.strip_prefix("nvme") {
            nodes.push(format!("/dev/ng{rest}"));
        }
    }
    nodes.extend(function.controller.iter().map(|name| format!("/dev/{name}")));
    if function.is_for_user_space() {
        if let Some(group) = &function.iommu_group {
            nodes.push(format!("/dev/vfio/{}", group.number));
        }
        let dir = function_dir(system, &function.address);
        nodes.extend(names(&dir.join("uio")).iter().map(|name| format!("/dev/{name}")));
        // A container, or the mode without an IOMMU, has other names.
        nodes.extend(names(&dir.join("vfio-dev")).iter().map(|n| format!("/dev/vfio/devices/{n}")));
    }
    system.processes_with_open(&nodes)
}
