// SPDX-License-Identifier: Apache-2.0
//! Where the bytes of a kernel drive lie: the file or the physical drive behind it, which part of
//! that it is, and the network on the way. By /sys only.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::sysfs::{DeviceNumber, System, disk_dir, names, read_line};
use crate::drive_info::{Origin, nvme_medium};

/// /sys counts in sectors of this size, whatever the drive's is.
const SECTOR_BYTES: u64 = 512;
const WHOLE: Range<u64> = 0..u64::MAX;

/// Of a regular file.
pub(crate) fn of_file(file: &fs::Metadata) -> Origin {
    let medium = file_medium(file);
    Origin { medium, extent: WHOLE, ..Origin::default() }
}

fn file_medium(file: &fs::Metadata) -> String {
    format!("file {:x}:{}", file.dev(), file.ino())
}

/// Of a block device.
pub(crate) fn of_block_device(system: &System, device: DeviceNumber) -> Origin {
    let Some(own) = system.block_dir(device) else { return Origin::default() };
    let disk = disk_dir(&own);
    let mut origin = of_disk(system, &disk);
    if own != disk {
        let number = |file: &str| read_number(&own.join(file)).map(|n| n * SECTOR_BYTES);
        if let (Some(start), Some(len)) = (number("start"), number("size")) {
            let start = origin.extent.start + start;
            origin.extent = start..start + len;
        }
    }
    origin
}

fn of_disk(system: &System, disk: &Path) -> Origin {
    let own_name = read_line(&disk.join("dev")).unwrap_or_default();
    if let Some(path) = read_line(&disk.join("loop/backing_file")) {
        let medium = match fs::metadata(system.path(&path)) {
            Ok(file) => file_medium(&file),
            Err(_) => format!("file {path}"),
        };
        let start = read_number(&disk.join("loop/offset")).unwrap_or(0);
        let len = read_number(&disk.join("size")).unwrap_or(0) * SECTOR_BYTES;
        return Origin { medium, extent: start..start + len, ..Origin::default() };
    }
    // Device mapper over one device: on its medium; which part is not known.
    if let [below] = &names(&disk.join("slaves"))[..] {
        let dev = system.path(&format!("/sys/class/block/{below}/dev"));
        let number = read_line(&dev).and_then(|text| DeviceNumber::parse(&text));
        let medium = number.map(|n| of_block_device(system, n).medium).unwrap_or_default();
        return Origin { medium, names: vec![own_name], extent: WHOLE, fabric: None };
    }
    let device = disk.join("device");
    if let Some(nsid) = read_line(&disk.join("nsid")) {
        let text = |file: &str| read_line(&device.join(file)).unwrap_or_default();
        let mut ids: Vec<String> = ["nguid", "eui"]
            .iter()
            .filter_map(|file| namespace_name(file, &read_line(&disk.join(file))?))
            .collect();
        if ids.is_empty() {
            ids.push(format!("namespace {nsid}"));
        }
        let medium = nvme_medium(&text("model"), &text("serial"));
        return Origin { medium, names: ids, extent: WHOLE, fabric: fabric(&device) };
    }
    let serial = ["device/serial", "serial", "wwid", "device/wwid"]
        .iter()
        .find_map(|file| read_line(&disk.join(file)));
    let medium = match serial {
        Some(serial) => format!("disk {serial}"),
        None => format!("disk {own_name}"),
    };
    Origin { medium, extent: WHOLE, ..Origin::default() }
}

/// A name that a namespace has everywhere; none if it is zero.
fn namespace_name(kind: &str, text: &str) -> Option<String> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let digits = digits.to_ascii_lowercase();
    digits.contains(|c| c != '0').then(|| format!("{kind} {digits}"))
}

/// The network between the kernel and an NVMe drive; none for PCIe. With many paths the drive
/// belongs to a subsystem, which has the controllers.
fn fabric(device: &Path) -> Option<String> {
    let controllers = names(device).into_iter().filter(|name| name.starts_with("nvme"));
    let transports = controllers.map(|name| device.join(name).join("transport"));
    let transport = std::iter::once(device.join("transport")).chain(transports);
    transport.into_iter().find_map(|file| read_line(&file)).filter(|name| name != "pcie")
}

fn read_number(file: &Path) -> Option<u64> {
    read_line(file)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Tree {
            Tree(tempfile::tempdir().unwrap())
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// A disk with this device number.
        fn disk(&self, name: &str, minor: u32) {
            self.file(&format!("sys/block/{name}/dev"), &format!("259:{minor}\n"));
            self.link(name, minor);
        }

        fn link(&self, name: &str, minor: u32) {
            let links = self.0.path().join("sys/dev/block");
            fs::create_dir_all(&links).unwrap();
            symlink(format!("../../block/{name}"), links.join(format!("259:{minor}"))).unwrap();
        }

        fn origin(&self, minor: u32) -> Origin {
            of_block_device(&System::below(self.0.path()), DeviceNumber { major: 259, minor })
        }
    }

    #[test]
    fn partitions_are_parts_of_their_disk() {
        let tree = Tree::new();
        tree.disk("sda", 0);
        tree.file("sys/block/sda/device/wwid", "naa.5000\n");
        for (number, start, size) in [(1, 2048, 4096), (2, 6144, 100)] {
            let dir = format!("sda/sda{number}");
            tree.file(&format!("sys/block/{dir}/partition"), &number.to_string());
            tree.file(&format!("sys/block/{dir}/start"), &format!("{start}\n"));
            tree.file(&format!("sys/block/{dir}/size"), &format!("{size}\n"));
            tree.link(&dir, number);
        }
        let [disk, one, two] = [0, 1, 2].map(|minor| tree.origin(minor));
        assert_eq!(one.extent, 1 << 20..(1 << 20) + (2 << 20));
        assert!(disk.is_same(&one) && disk.is_same(&two) && disk.is_same(&disk));
        assert!(!one.is_same(&two) && one.shares_medium(&two));
        assert!(!disk.shares_medium(&Origin::default()));
    }

    #[test]
    fn two_paths_of_one_namespace_are_one_drive() {
        let tree = Tree::new();
        for (name, minor, serial, nguid) in [
            ("nvme0n1", 0, "S1", "12345678-1234-1234-1234-1234567890ab"),
            ("nvme1n1", 1, "S1", "12345678123412341234-1234567890AB"),
            ("nvme1n2", 2, "S1", "00000000-0000-0000-0000-000000000001"),
            // A drive whose maker gave all of them the same number.
            ("nvme2n1", 3, "S2", "12345678-1234-1234-1234-1234567890ab"),
            ("nvme3n1", 4, "S3", "00000000-0000-0000-0000-000000000000"),
        ] {
            tree.disk(name, minor);
            let dir = format!("sys/block/{name}");
            tree.file(&format!("{dir}/nsid"), "1\n");
            tree.file(&format!("{dir}/nguid"), nguid);
            tree.file(&format!("{dir}/device/serial"), serial);
            tree.file(&format!("{dir}/device/model"), "ACME");
        }
        let origins: Vec<Origin> = (0..5).map(|minor| tree.origin(minor)).collect();
        assert!(origins[0].is_same(&origins[1]));
        assert!(!origins[0].is_same(&origins[2]) && origins[0].shares_medium(&origins[2]));
        assert!(!origins[0].shares_medium(&origins[3]));
        assert_eq!(origins[4].names, ["namespace 1"]);
        // The same namespace through SPDK.
        let mut nguid = [0x12; 16];
        nguid.copy_from_slice(
            &uuid::Uuid::parse_str("12345678-1234-1234-1234-1234567890ab").unwrap().into_bytes(),
        );
        let spdk = Origin::nvme_namespace("ACME", "S1", 1, nguid, [0; 8]);
        assert!(spdk.is_same(&origins[0]) && !spdk.is_same(&origins[2]));
    }

    #[test]
    fn loops_are_parts_of_their_file() {
        let tree = Tree::new();
        tree.file("data/a.img", "x");
        for (minor, offset, sectors) in [(0, 0, 1000), (1, 0, 1000), (2, 512_000, 1000)] {
            tree.disk(&format!("loop{minor}"), minor);
            let dir = format!("sys/block/loop{minor}");
            tree.file(&format!("{dir}/loop/backing_file"), "/data/a.img\n");
            tree.file(&format!("{dir}/loop/offset"), &format!("{offset}\n"));
            tree.file(&format!("{dir}/size"), &format!("{sectors}\n"));
        }
        let [zero, one, two] = [0, 1, 2].map(|minor| tree.origin(minor));
        let file = of_file(&fs::metadata(tree.0.path().join("data/a.img")).unwrap());
        assert!(zero.is_same(&one) && !zero.is_same(&two) && zero.shares_medium(&two));
        assert!(file.is_same(&zero) && file.is_same(&two));
    }

    #[test]
    fn device_mapper_lies_on_the_medium_below() {
        let tree = Tree::new();
        tree.disk("sda", 0);
        tree.file("sys/block/sda/serial", "S1");
        for minor in [1, 2] {
            tree.disk(&format!("dm-{minor}"), minor);
            tree.file(&format!("sys/block/dm-{minor}/slaves/sda/x"), "");
        }
        tree.file("sys/class/block/sda/dev", "259:0\n");
        let [disk, one, two] = [0, 1, 2].map(|minor| tree.origin(minor));
        assert!(one.shares_medium(&two) && one.shares_medium(&disk));
        assert!(!one.is_same(&two) && one.is_same(&one));
    }

    #[test]
    fn a_network_on_the_way() {
        let tree = Tree::new();
        for (name, minor, file) in [
            ("nvme0n1", 0, "device/transport"),
            // Many paths: the controllers of a subsystem.
            ("nvme1n1", 1, "device/nvme3/transport"),
            ("nvme2n1", 2, "device/transport"),
        ] {
            tree.disk(name, minor);
            tree.file(&format!("sys/block/{name}/nsid"), "1\n");
            let transport = if minor == 2 { "pcie\n" } else { "tcp\n" };
            tree.file(&format!("sys/block/{name}/{file}"), transport);
        }
        let fabrics = [0, 1, 2].map(|minor| tree.origin(minor).fabric);
        assert_eq!(fabrics, [Some("tcp".into()), Some("tcp".into()), None]);
    }
}
