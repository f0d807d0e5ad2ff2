// SPDX-License-Identifier: Apache-2.0
//! Each NVMe controller's driver and IOMMU group; of each given drive its owner, alignment, health
//! and cache.

use std::path::Path;

use stanchion_engine::DriveAddress;
use stanchion_engine::direct_io;
use stanchion_engine::host::pci::{self, KERNEL_DRIVER, NvmeFunction};
use stanchion_engine::host::{lock_files, safety};
use stanchion_engine::{Content, Error, ErrorKind, Survey, survey};
use stanchion_engine::{HealthLog, read_health_log};

use super::check::{Check, Root, Status};
use crate::record::describe;

/// Endurance beyond which a drive is worth a warning.
const WORN_PERCENT: u8 = 90;

/// The NVMe controllers of the machine, given or not.
pub fn functions(root: Root<'_>) -> Vec<NvmeFunction> {
    let addresses = pci::nvme_functions(root.0);
    // A drive that was unplugged meanwhile is left out.
    addresses.iter().filter_map(|address| pci::nvme_function(root.0, address).ok()).collect()
}

/// Drivers and groups of the machine's NVMe controllers.
pub fn function_checks(functions: &[NvmeFunction], given: &[DriveAddress]) -> Vec<Check> {
    let is_given = |f: &NvmeFunction| {
        given.iter().any(|drive| drive.pci_function() == Some(f.address.as_str()))
    };
    let mut checks: Vec<Check> = functions.iter().map(|f| driver(f, is_given(f))).collect();
    checks.extend(functions.iter().filter(|f| f.is_for_user_space()).map(group));
    for drive in given {
        let Some(function) = drive.pci_function() else { continue };
        if functions.iter().all(|f| f.address != function) {
            let evidence =
                "no such NVMe controller; `stanchion drives` lists those of this machine";
            let check = Check::new("driver", Status::Fail, evidence).kind(ErrorKind::NotFound);
            checks.push(check.of(format!("pcie:{function}")));
        }
    }
    checks
}

fn subject(function: &NvmeFunction) -> String {
    match &function.serial {
        Some(serial) => format!("{serial} (pcie:{})", function.address),
        None => format!("pcie:{}", function.address),
    }
}

fn driver(function: &NvmeFunction, is_given: bool) -> Check {
    const NAME: &str = "driver";
    let check = match function.driver.as_deref() {
        Some(KERNEL_DRIVER) if is_given => {
            Check::new(NAME, Status::Fail, "bound to the kernel driver nvme, so SPDK cannot use it")
                .fix(format!("stanchion bind --drive pcie:{}", function.address))
        }
        Some(KERNEL_DRIVER) => {
            let names: Vec<String> =
                function.namespaces.iter().map(|device| format!("/dev/{}", device.name)).collect();
            Check::ok(NAME, format!("bound to the kernel driver nvme: {}", names.join(", ")))
        }
        Some(other) if pci::is_user_space_driver(other) => {
            Check::ok(NAME, format!("bound to {other}, for SPDK"))
        }
        Some(other) => {
            Check::lacking(NAME, is_given, format!("bound to {other}, which SPDK cannot use"))
        }
        None => {
            let status = if is_given { Status::Fail } else { Status::Warn };
            Check::new(NAME, status, "bound to no driver")
                .fix(format!("stanchion bind --drive pcie:{}", function.address))
        }
    };
    check.of(subject(function))
}

fn group(function: &NvmeFunction) -> Check {
    const NAME: &str = "IOMMU group";
    let check = match &function.iommu_group {
        None => Check::new(NAME, Status::Warn, "none: the drive can write to any memory"),
        Some(group) => {
            let in_the_way = group
                .others
                .iter()
                .find(|(_, driver)| driver.as_deref().is_some_and(|d| !d.starts_with("vfio")));
            match in_the_way {
                None => Check::ok(NAME, format!("group {}, its own", group.number)),
                Some((other, driver)) => Check::new(
                    NAME,
                    Status::Fail,
                    format!(
                        "group {} also holds {other}, bound to {}",
                        group.number,
                        driver.as_deref().unwrap_or_default()
                    ),
                )
                .fix(format!("echo {other} > /sys/bus/pci/devices/{other}/driver/unbind")),
            }
        }
    };
    check.of(subject(function))
}

/// Everything about one given drive. Opens it for reading.
pub fn drive_checks(root: Root<'_>, address: &DriveAddress, is_reachable: bool) -> Vec<Check> {
    if !is_reachable {
        return vec![Check::skip("contents", "not read: see its driver").of(address.to_string())];
    }
    let mut checks = vec![owner(root, address)];
    if checks[0].status == Status::Fail {
        return checks;
    }
    if let DriveAddress::Path(path) = address {
        checks.push(alignment(path));
        if let Some(place) = safety::volatile_place(path) {
            let check = Check::new("durability", Status::Warn, format!("it lies in {place}"));
            checks.push(
                check
                    .fix("use a block device, or a file on ext4, XFS or Btrfs")
                    .of(address.to_string()),
            );
        }
    }
    match survey(std::slice::from_ref(address)) {
        Ok(found) => checks.extend(found.iter().flat_map(|survey| contents(survey, address))),
        Err(error) => checks.push(not_opened(address, &error)),
    }
    checks
}

fn owner(root: Root<'_>, address: &DriveAddress) -> Check {
    const NAME: &str = "owner";
    let owners = match address {
        DriveAddress::Path(path) => {
            let found = safety::inspect(path).unwrap_or_default(); // Opening it gives the error.
            let found = found.0.into_iter().filter(|f| f.what == "locked");
            let mut owners: Vec<String> = found.map(|f| f.evidence).collect();
            if owners.is_empty() && lock_files::is_locked(path) {
                owners.push("a process that this pid namespace does not show".to_owned());
            }
            owners
        }
        DriveAddress::Spdk { .. } => lock_files::drive_lock_holders(root.0, &address.to_string()),
    };
    let check = match owners.first() {
        None => Check::ok(NAME, "not in use"),
        Some(_) => Check::new(NAME, Status::Fail, format!("in use: {}", owners.join(", ")))
            .kind(ErrorKind::Busy)
            .fix("stop that process first"),
    };
    check.of(address.to_string())
}

fn not_opened(address: &DriveAddress, error: &Error) -> Check {
    let fix = match error.kind() {
        ErrorKind::Busy => Some("stop that process first"),
        ErrorKind::NotFound => Some("stanchion drives"),
        _ => None,
    };
    let check = Check::new("opening", Status::Fail, error.to_string());
    let check = check.kind(error.kind()).of(address.to_string());
    Check { fix: fix.map(str::to_owned), ..check }
}

fn alignment(path: &Path) -> Check {
    const NAME: &str = "direct I/O";
    let check = match direct_io(path) {
        Ok(found) => {
            let memory = found.memory_bytes.map_or_else(
                || "any alignment that the kernel takes (it does not report it)".to_owned(),
                |bytes| format!("alignment {bytes}"),
            );
            Check::ok(NAME, format!("offsets of {} bytes, memory of {memory}", found.offset_bytes))
        }
        // A file that `format` will make.
        Err(Error::DriveNotFound { .. }) => Check::skip(NAME, "it does not exist yet"),
        Err(error) => Check::new(NAME, Status::Fail, error.to_string()),
    };
    check.of(path.display().to_string())
}

fn contents(survey: &Survey, address: &DriveAddress) -> Vec<Check> {
    let subject = match survey.serial() {
        "" => survey.address.clone(),
        serial => format!("{serial} ({})", survey.address),
    };
    let described = describe(&survey.content);
    let mut checks = vec![match survey.content {
        Content::Foreign(_) => Check::new("contents", Status::Warn, described)
            .fix("keep it, or use another drive: only --force destroys it"),
        _ => Check::ok("contents", described),
    }];
    if let Some(finding) = survey.in_use.never_overridable().next() {
        let evidence = format!("{}: {}", finding.what, finding.evidence);
        checks[0] = Check::new("contents", Status::Fail, evidence);
    }
    let fabric = survey.info.as_ref().and_then(|info| info.origin.fabric.as_deref());
    checks.push(match survey.info.as_ref().and_then(|info| info.volatile_cache) {
        Some(true) if fabric.is_some() => Check::new(
            "write cache",
            Status::Warn,
            format!(
                "volatile, behind {}: a restart of the target loses writes, and the kernel does not report it",
                fabric.unwrap_or_default()
            ),
        )
        .fix("nvme set-feature DEVICE --feature-id 6 --value 0 (at the target)"),
        Some(true) => Check::ok("write cache", "volatile; every commit flushes it"),
        Some(false) => Check::ok("write cache", "none that a power cut can empty"),
        None => Check::skip("write cache", "the kernel does not report it"),
    });
    checks.push(match read_health_log(address) {
        Ok(Some(health)) => health_check(&health),
        Ok(None) => Check::skip("health", "not an NVMe drive: no health log"),
        Err(error) => Check::new("health", Status::Warn, error.to_string()),
    });
    checks.into_iter().map(|check| check.of(subject.clone())).collect()
}

fn health_check(health: &HealthLog) -> Check {
    const NAME: &str = "health";
    let warnings = health.warnings();
    let temperature =
        health.temperature_celsius.map_or_else(String::new, |c| format!(", {c} degrees Celsius"));
    let evidence = format!(
        "{} % used, {} % spare (threshold {} %), {} media errors, {} unsafe shutdowns{temperature}",
        health.used_percent,
        health.spare_percent,
        health.spare_threshold_percent,
        health.media_errors,
        health.unsafe_shutdowns,
    );
    if !warnings.is_empty() {
        let evidence = format!("critical: {}; {evidence}", warnings.join(", "));
        return Check::new(NAME, Status::Fail, evidence).fix("replace the drive");
    }
    let worn = health.used_percent >= WORN_PERCENT
        || health.spare_percent < health.spare_threshold_percent
        || health.media_errors > 0;
    match worn {
        true => Check::new(NAME, Status::Warn, evidence).fix("plan to replace the drive"),
        false => Check::ok(NAME, evidence),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::tests::Tree;
    use super::*;

    fn function(tree: &Tree, address: &str, driver: Option<&str>) {
        let dir = format!("sys/bus/pci/devices/{address}");
        tree.file(&format!("{dir}/class"), "0x010802\n");
        if let Some(driver) = driver {
            symlink(format!("/drivers/{driver}"), tree.root().path(&dir).join("driver")).unwrap();
        }
    }

    #[test]
    fn each_controller_has_a_driver() {
        let tree = Tree::new();
        function(&tree, "0000:01:00.0", Some("nvme"));
        function(&tree, "0000:02:00.0", Some("vfio-pci"));
        function(&tree, "0000:03:00.0", None);
        let functions = functions(tree.root());
        let statuses = |given: &[&str]| {
            let given: Vec<DriveAddress> = given.iter().map(|a| a.parse().unwrap()).collect();
            let checks = function_checks(&functions, &given);
            checks.iter().map(|c| (c.name, c.status)).collect::<Vec<_>>()
        };
        // No IOMMU: only the one that SPDK drives is warned of.
        let usual = [("driver", Status::Ok), ("driver", Status::Ok), ("driver", Status::Warn)];
        assert_eq!(statuses(&[])[..3], usual);
        assert_eq!(statuses(&[])[3..], [("IOMMU group", Status::Warn)]);
        let given = ["pcie:0000:01:00.0", "pcie:0000:03:00.0", "pcie:0000:09:00.0"];
        let found = statuses(&given);
        assert_eq!(
            [found[0].1, found[1].1, found[2].1, found[4].1],
            [Status::Fail, Status::Ok, Status::Fail, Status::Fail]
        );
        let fix = driver(&functions[0], true).fix;
        assert_eq!(fix.as_deref(), Some("stanchion bind --drive pcie:0000:01:00.0"));
    }

    #[test]
    fn a_shared_group_is_reported() {
        let tree = Tree::new();
        function(&tree, "0000:02:00.0", Some("vfio-pci"));
        tree.file("sys/bus/pci/devices/0000:00:1f.6/class", "0x020000\n");
        tree.file("sys/kernel/iommu_groups/7/devices/0000:02:00.0/x", "");
        tree.file("sys/kernel/iommu_groups/7/devices/0000:00:1f.6/x", "");
        let dir = tree.root().path("/sys/bus/pci/devices");
        symlink("/groups/7", dir.join("0000:02:00.0/iommu_group")).unwrap();
        assert_eq!(group(&functions(tree.root())[0]).status, Status::Ok);
        symlink("/drivers/e1000e", dir.join("0000:00:1f.6/driver")).unwrap();
        let shared = group(&functions(tree.root())[0]);
        assert_eq!(shared.status, Status::Fail);
        assert!(shared.fix.unwrap().contains("0000:00:1f.6/driver/unbind"));
    }

    #[test]
    fn worn_and_failing_drives() {
        let health = |warning, spare, used, errors| HealthLog {
            critical_warning: warning,
            temperature_celsius: Some(40),
            spare_percent: spare,
            spare_threshold_percent: 10,
            used_percent: used,
            unsafe_shutdowns: 2,
            media_errors: errors,
        };
        assert_eq!(health_check(&health(0, 100, 3, 0)).status, Status::Ok);
        for worn in [health(0, 5, 3, 0), health(0, 100, 95, 0), health(0, 100, 3, 1)] {
            assert_eq!(health_check(&worn).status, Status::Warn);
        }
        let failing = health_check(&health(1, 5, 3, 0));
        assert!(
            failing.status == Status::Fail && failing.evidence.contains("spare blocks run out")
        );
    }

    #[test]
    fn a_drive_in_a_file() {
        let tree = Tree::new();
        tree.file("a.img", "");
        let path = tree.root().path("/a.img");
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let checks = drive_checks(tree.root(), &DriveAddress::Path(path.clone()), true);
        let names: Vec<_> = checks.iter().map(|check| (check.name, check.status)).collect();
        assert_eq!(
            names[..3],
            [("owner", Status::Ok), ("direct I/O", Status::Ok), ("contents", Status::Ok)]
        );
        assert_eq!(names[4], ("health", Status::Skip));
        let file = std::fs::File::open(&path).unwrap();
        file.lock().unwrap();
        let checks = drive_checks(tree.root(), &DriveAddress::Path(path), true);
        assert_eq!((checks.len(), checks[0].status), (1, Status::Fail));
    }
}
