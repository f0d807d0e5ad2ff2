// SPDX-License-Identifier: Apache-2.0
//! The drives of this machine, from sysfs: what `stanchion drives` lists when no address is given.
//!
//! Two kinds are found: block devices, and NVMe controllers that are not block devices because
//! vfio-pci, a uio driver or no driver has them. Nothing is opened, so no drive wakes up and no
//! privilege is needed; what only an open device shows is absent.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::pci::{self, driver, file_name, numa_node};
use super::safety::{Finding, inspect_block_device};
use super::sysfs::{self, DeviceNumber, System, names, read_line};
use crate::address::pci_function;

/// The unit of sizes in sysfs, whatever the drive's sectors are.
const SYSFS_SECTOR_BYTES: u64 = 512;
/// Block devices that are not drives: memory, and removable media.
const NO_DRIVES: [&str; 4] = ["ram", "zram", "sr", "fd"];

/// The kind of a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveKind {
    /// A block device of the kernel.
    BlockDevice,
    /// An NVMe controller without the kernel's driver.
    NvmeController,
}

/// One drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HostDrive {
    /// The address for `--drive`.
    pub address: String,
    /// What it is.
    pub kind: DriveKind,
    /// Model, where the kernel knows it.
    pub model: Option<String>,
    /// Serial number, where the kernel knows it.
    pub serial: Option<String>,
    /// Firmware revision, where the kernel knows it.
    pub firmware: Option<String>,
    /// Size in bytes, where the kernel knows it.
    pub capacity_bytes: Option<u64>,
    /// The NUMA node that it is attached to, where there are several or the kernel reports one.
    pub numa_node: Option<u32>,
    /// The PCI function behind it.
    pub pci_address: Option<String>,
    /// The driver of that function, or of the device where there is none; `None` when it has none.
    pub driver: Option<String>,
    /// Why it cannot be used.
    pub in_use: Vec<Finding>,
}

/// The drives of the machine whose /sys, /proc and /dev lie below `root`, which is `/` except in
/// tests. What cannot be read is left out.
pub fn list(root: &Path) -> Vec<HostDrive> {
    let system = System::below(root);
    let mut drives: Vec<HostDrive> = names(&system.path("/sys/block"))
        .iter()
        .filter_map(|name| block_device(&system, name))
        .collect();
    let functions = system.path("/sys/bus/pci/devices");
    drives.extend(
        names(&functions)
            .iter()
            .filter_map(|function| nvme_controller(&functions.join(function), function)),
    );
    drives
}

fn block_device(system: &System, name: &str) -> Option<HostDrive> {
    let is_numbered = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()))
    };
    if NO_DRIVES.into_iter().any(is_numbered) {
        return None;
    }
    let dir = fs::canonicalize(system.path(&format!("/sys/block/{name}"))).ok()?;
    let sectors: u64 = read_line(&dir.join("size"))?.parse().ok()?;
    // A path of a multipath NVMe namespace is hidden: only the namespace itself can be opened.
    if sectors == 0 || sysfs::is_hidden(&dir) {
        return None;
    }
    let number = DeviceNumber::parse(&read_line(&dir.join("dev"))?)?;
    let pci_dir = pci::pci_dir_of_block(&dir);
    let device = dir.join("device");
    Some(HostDrive {
        address: format!("/dev/{}", name.replace('!', "/")),
        kind: DriveKind::BlockDevice,
        model: sysfs::model(&dir),
        serial: sysfs::serial(&dir),
        firmware: ["firmware_rev", "rev"].iter().find_map(|file| read_line(&device.join(file))),
        capacity_bytes: sectors.checked_mul(SYSFS_SECTOR_BYTES),
        numa_node: pci_dir.as_deref().and_then(numa_node).or_else(|| numa_node(&device)),
        driver: pci_dir.as_deref().and_then(driver).or_else(|| driver(&device)),
        pci_address: pci_dir.as_deref().and_then(file_name),
        in_use: inspect_block_device(system, number),
    })
}

fn nvme_controller(dir: &Path, function: &str) -> Option<HostDrive> {
    if !pci::is_nvme(dir) {
        return None;
    }
    let driver = driver(dir);
    // With the kernel's own driver its namespaces are listed as block devices.
    if driver.as_deref() == Some(pci::KERNEL_DRIVER) {
        return None;
    }
    let pci_address = pci_function(function)?;
    Some(HostDrive {
        address: format!("pcie:{pci_address}"),
        kind: DriveKind::NvmeController,
        model: None,
        serial: None,
        firmware: None,
        capacity_bytes: None,
        numa_node: numa_node(dir),
        pci_address: Some(pci_address),
        driver,
        in_use: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A made machine.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn link(&self, path: &str, to: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(self.0.path().join(to), path).unwrap();
        }

        /// A block device at `dir` and the links that lead to it.
        fn block(&self, dir: &str, number: &str, sectors: &str) {
            let name = dir.rsplit('/').next().unwrap();
            self.file(&format!("{dir}/dev"), number);
            self.file(&format!("{dir}/size"), sectors);
            self.file(&format!("{dir}/ro"), "0\n");
            self.link(&format!("sys/dev/block/{number}"), dir);
            self.link(&format!("sys/class/block/{name}"), dir);
            let parent = dir.rsplit_once('/').unwrap().0;
            if !parent.ends_with("nvme0n1") {
                self.link(&format!("sys/block/{name}"), dir);
            }
        }
    }

    const CONTROLLER: &str = "sys/devices/pci0000:00/0000:00:01.0/0000:04:00.0";

    fn machine() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        let disk = format!("{CONTROLLER}/nvme/nvme0/nvme0n1");
        tree.block(&disk, "259:0", "2000\n");
        tree.block(&format!("{disk}/nvme0n1p1"), "259:1", "1000\n");
        tree.file(&format!("{disk}/nvme0n1p1/partition"), "1\n");
        tree.file(&format!("{disk}/nvme0n1p1/holders/dm-0"), "");
        tree.file(&format!("{CONTROLLER}/nvme/nvme0/model"), "ACME 9000   \n");
        tree.file(&format!("{CONTROLLER}/nvme/nvme0/serial"), "S123    \n");
        tree.file(&format!("{CONTROLLER}/nvme/nvme0/firmware_rev"), "1.0\n");
        tree.link(&format!("{disk}/device"), &format!("{CONTROLLER}/nvme/nvme0"));
        tree.file(&format!("{CONTROLLER}/numa_node"), "1\n");
        tree.file(&format!("{CONTROLLER}/class"), "0x010802\n");
        tree.link(&format!("{CONTROLLER}/driver"), "sys/bus/pci/drivers/nvme");
        tree.link("sys/bus/pci/devices/0000:04:00.0", CONTROLLER);
        for (function, class, driver) in [
            ("0000:05:00.0", "0x010802\n", Some("vfio-pci")),
            ("0000:06:00.0", "0x010802\n", None),
            ("0000:07:00.0", "0x020000\n", Some("vfio-pci")),
        ] {
            let dir = format!("sys/devices/pci0000:00/{function}");
            tree.file(&format!("{dir}/class"), class);
            tree.file(&format!("{dir}/numa_node"), "-1\n");
            if let Some(driver) = driver {
                tree.link(&format!("{dir}/driver"), &format!("sys/bus/pci/drivers/{driver}"));
            }
            tree.link(&format!("sys/bus/pci/devices/{function}"), &dir);
        }
        tree.block("sys/devices/virtual/block/loop0", "7:0", "0\n");
        tree.block("sys/devices/virtual/block/zram0", "253:0", "8\n");
        tree.block("sys/devices/virtual/block/dm-0", "252:0", "1000\n");
        tree.file("proc/self/mountinfo", "1 0 252:0 / /data rw - ext4 /dev/mapper/data rw\n");
        tree.file(
            "proc/swaps",
            "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 1 0 -2\n",
        );
        tree
    }

    #[test]
    fn drives_with_and_without_the_kernel() {
        let tree = machine();
        let drives = list(tree.0.path());
        let addresses: Vec<&str> = drives.iter().map(|drive| drive.address.as_str()).collect();
        assert_eq!(
            addresses,
            ["/dev/dm-0", "/dev/nvme0n1", "pcie:0000:05:00.0", "pcie:0000:06:00.0"]
        );
        let nvme = &drives[1];
        assert_eq!(nvme.model.as_deref(), Some("ACME 9000"));
        assert_eq!(nvme.serial.as_deref(), Some("S123"));
        assert_eq!(nvme.firmware.as_deref(), Some("1.0"));
        assert_eq!(nvme.capacity_bytes, Some(1_024_000));
        assert_eq!(nvme.numa_node, Some(1));
        assert_eq!(nvme.pci_address.as_deref(), Some("0000:04:00.0"));
        assert_eq!(nvme.driver.as_deref(), Some("nvme"));
        let found: Vec<_> = nvme.in_use.iter().map(|f| (f.what, f.overridable)).collect();
        assert_eq!(found, [("swap", false), ("held", false), ("partitioned", true)]);
        assert_eq!(drives[0].in_use[0].evidence, "/dev/dm-0 is mounted at /data");
        assert_eq!(drives[2].driver.as_deref(), Some("vfio-pci"));
        assert_eq!((drives[3].driver.as_deref(), drives[3].numa_node), (None, None));
    }

    #[test]
    fn this_machine_can_be_listed() {
        for drive in list(Path::new("/")) {
            assert!(drive.address.parse::<crate::address::DriveAddress>().is_ok(), "{drive:?}");
        }
        assert!(list(Path::new("/nonexistent")).is_empty());
    }
}
