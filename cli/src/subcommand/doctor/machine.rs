// SPDX-License-Identifier: Apache-2.0
//! The IOMMU, vfio, cores, io_uring and lock files.

use stanchion_engine::host::lock_files;
use stanchion_engine::try_io_uring;

use super::check::{Check, Needs, Root, Status};

pub fn checks(root: Root<'_>, needs: Needs) -> Vec<Check> {
    vec![
        iommu(root, needs),
        vfio(root, needs),
        cores(root),
        io_uring(root, needs, try_io_uring()),
        lock_files(root),
    ]
}

fn iommu(root: Root<'_>, needs: Needs) -> Check {
    const NAME: &str = "IOMMU";
    let (units, groups) =
        (root.names("/sys/class/iommu"), root.names("/sys/kernel/iommu_groups").len());
    if groups > 0 {
        return Check::ok(NAME, format!("{} with {groups} groups", units.join(", ")));
    }
    // A drive of uio or of vfio without an IOMMU works, and can write anywhere.
    let status = if needs.pcie { Status::Warn } else { Status::Skip };
    let evidence = "none in use: drives on PCIe can write to any memory";
    Check::new(NAME, status, evidence)
        .fix("add intel_iommu=on or amd_iommu=on to the kernel's command line, enable it in the firmware, and reboot")
}

fn vfio(root: Root<'_>, needs: Needs) -> Check {
    const NAME: &str = "vfio modules";
    let missing: Vec<&str> = ["vfio-pci", "vfio_iommu_type1"]
        .into_iter()
        .filter(|module| !root.exists(&format!("/sys/module/{}", module.replace('-', "_"))))
        .collect();
    if missing.is_empty() {
        return Check::ok(NAME, "vfio-pci and vfio_iommu_type1 are loaded");
    }
    // With uio the drives need neither.
    let status = if needs.pcie { Status::Warn } else { Status::Skip };
    Check::new(NAME, status, format!("not loaded: {}", missing.join(", ")))
        .fix(format!("modprobe -a {}", missing.join(" ")))
}

fn cores(root: Root<'_>) -> Check {
    const NAME: &str = "cores";
    let nodes = root
        .names("/sys/devices/system/node")
        .iter()
        .filter(|name| {
            name.strip_prefix("node").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        })
        .count();
    let online = root.text("/sys/devices/system/cpu/online").unwrap_or_default();
    let isolated = root.text("/sys/devices/system/cpu/isolated").filter(|text| !text.is_empty());
    let count = count_cores(&online);
    let evidence = format!(
        "cores {online} online on {} NUMA nodes{}",
        nodes.max(1),
        isolated.map_or_else(String::new, |cores| format!(", {cores} isolated"))
    );
    match count {
        0 => Check::skip(NAME, "the kernel does not report it"),
        1 => Check::new(
            NAME,
            Status::Warn,
            format!("{evidence}: the reactor and the trainer share it"),
        ),
        _ => Check::ok(NAME, evidence),
    }
}

/// Cores in a list as in `0-3,8`.
fn count_cores(list: &str) -> usize {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').filter_map(count).sum()
}

fn io_uring(root: Root<'_>, needs: Needs, tried: std::io::Result<()>) -> Check {
    const NAME: &str = "io_uring";
    let setting = root.number("/proc/sys/kernel/io_uring_disabled");
    let Err(error) = tried else { return Check::ok(NAME, "a ring was set up") };
    let said = setting.map_or_else(String::new, |n| format!(", kernel.io_uring_disabled={n}"));
    // The engine then uses threads instead, and prints a notice.
    let status = if needs.kernel { Status::Warn } else { Status::Skip };
    let evidence = format!("{error}{said}: blocking threads do the I/O of kernel drives instead");
    Check::new(NAME, status, evidence).fix(match setting {
        Some(1 | 2) => "sysctl -w kernel.io_uring_disabled=0",
        _ => "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile",
    })
}

fn lock_files(root: Root<'_>) -> Check {
    const NAME: &str = "lock files";
    let files = lock_files::lock_files(root.0);
    let held: Vec<String> = files
        .iter()
        .filter(|file| file.is_held && !file.is_stale)
        .map(|file| match file.holders.is_empty() {
            true => file.last_owner.clone().unwrap_or_default().lines().take(1).collect(),
            false => file.holders.join(", "),
        })
        .collect();
    if let Some(stale) = files.iter().find(|file| file.is_stale) {
        let evidence = format!(
            "{} is locked by I/O of a process that has ended: {}",
            stale.path.display(),
            stale.holders.join(", ")
        );
        return Check::new(NAME, Status::Warn, evidence)
            .fix("wait until that I/O has ended; reboot if it does not end");
    }
    let evidence = match held.len() {
        0 => format!("{}, none held", files.len()),
        count => format!("{}, {count} held by {}", files.len(), held.join("; ")),
    };
    Check::ok(NAME, evidence)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;

    const PCIE: Needs = Needs { spdk: true, pcie: true, kernel: false };
    const KERNEL: Needs = Needs { spdk: false, pcie: false, kernel: true };

    #[test]
    fn an_iommu_has_groups() {
        let tree = Tree::new();
        assert_eq!(iommu(tree.root(), PCIE).status, Status::Warn);
        assert_eq!(iommu(tree.root(), KERNEL).status, Status::Skip);
        tree.file("sys/class/iommu/dmar0/x", "");
        tree.file("sys/kernel/iommu_groups/0/type", "DMA");
        assert_eq!(iommu(tree.root(), PCIE).evidence, "dmar0 with 1 groups");
    }

    #[test]
    fn both_vfio_modules_are_wanted() {
        let tree = Tree::new();
        tree.file("sys/module/vfio_pci/x", "");
        let one = vfio(tree.root(), PCIE);
        assert_eq!(one.status, Status::Warn);
        assert_eq!(one.fix.as_deref(), Some("modprobe -a vfio_iommu_type1"));
        tree.file("sys/module/vfio_iommu_type1/x", "");
        assert_eq!(vfio(tree.root(), PCIE).status, Status::Ok);
    }

    #[test]
    fn one_core_is_few() {
        let tree = Tree::new();
        assert_eq!(cores(tree.root()).status, Status::Skip);
        tree.file("sys/devices/system/cpu/online", "0\n");
        assert_eq!(cores(tree.root()).status, Status::Warn);
        tree.file("sys/devices/system/cpu/online", "0-3,8\n");
        tree.file("sys/devices/system/cpu/isolated", "2-3\n");
        tree.file("sys/devices/system/node/node0/x", "");
        let evidence = cores(tree.root()).evidence;
        assert_eq!(evidence, "cores 0-3,8 online on 1 NUMA nodes, 2-3 isolated");
        assert_eq!(count_cores("0-3,8"), 5);
        assert_eq!(count_cores("3-1,x,"), 0);
    }

    #[test]
    fn what_forbids_io_uring() {
        let tree = Tree::new();
        let refused = || Err(std::io::ErrorKind::PermissionDenied.into());
        assert_eq!(io_uring(tree.root(), KERNEL, Ok(())).status, Status::Ok);
        let by_seccomp = io_uring(tree.root(), KERNEL, refused());
        assert!(by_seccomp.status == Status::Warn && by_seccomp.fix.unwrap().contains("seccomp"));
        tree.file("proc/sys/kernel/io_uring_disabled", "2\n");
        let by_sysctl = io_uring(tree.root(), KERNEL, refused());
        assert!(by_sysctl.evidence.contains("io_uring_disabled=2"));
        assert_eq!(by_sysctl.fix.as_deref(), Some("sysctl -w kernel.io_uring_disabled=0"));
        assert_eq!(io_uring(tree.root(), PCIE, refused()).status, Status::Skip);
    }

    #[test]
    fn lock_files_that_are_not_held_are_ok() {
        let tree = Tree::new();
        tree.file("run/stanchion/pool-x.lock", "process 4 (stanchion)");
        let found = lock_files(tree.root());
        assert_eq!((found.status, found.evidence.as_str()), (Status::Ok, "1, none held"));
    }
}
