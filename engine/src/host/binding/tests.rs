// SPDX-License-Identifier: Apache-2.0
//! Plans over made-up machines, and their writes, with a thread that acts as the kernel.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::error::ErrorKind;

const DRIVE: &str = "0000:04:00.0";
const OTHER: &str = "0000:05:00.0";
const VFIO: BindOptions = BindOptions { driver: UserSpaceDriver::VfioPci, without_iommu: false };

/// A machine with two NVMe controllers that the kernel drives, one IOMMU group each.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        for driver in ["nvme", "vfio-pci", "uio_pci_generic"] {
            machine.file(&format!("sys/bus/pci/drivers/{driver}/unbind"), "");
        }
        machine.file("sys/module/vfio_iommu_type1/x", "");
        machine.file("sys/bus/pci/drivers_probe", "");
        for (number, function) in [DRIVE, OTHER].into_iter().enumerate() {
            let dir = machine.dir(function);
            machine.file(&format!("{dir}/class"), "0x010802\n");
            machine.file(&format!("{dir}/driver_override"), "(null)\n");
            machine.link(&format!("{dir}/driver"), "sys/bus/pci/drivers/nvme");
            machine
                .link(&format!("{dir}/iommu_group"), &format!("sys/kernel/iommu_groups/{number}"));
            machine.file(&format!("sys/kernel/iommu_groups/{number}/type"), "DMA-FQ\n");
            machine.link(&format!("sys/kernel/iommu_groups/{number}/devices/{function}"), &dir);
            machine.link(&format!("sys/bus/pci/devices/{function}"), &dir);
            machine.controller(function, number);
        }
        machine
    }

    fn dir(&self, function: &str) -> String {
        format!("sys/devices/pci0000:00/{function}")
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, to: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(self.0.path().join(to), path).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.0.path().join(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    /// Adds what the kernel's driver shows for a function: a controller with one namespace.
    fn controller(&self, function: &str, number: usize) {
        let controller = format!("{}/nvme/nvme{number}", self.dir(function));
        self.file(&format!("{controller}/serial"), &format!("S{number}  \n"));
        self.file(&format!("{controller}/model"), "ACME\n");
        let disk = format!("{controller}/nvme{number}n1");
        self.file(&format!("{disk}/dev"), &format!("259:{number}\n"));
        self.file(&format!("{disk}/size"), "2000\n");
        self.link(&format!("{disk}/device"), &controller);
        for link in ["sys/block", "sys/class/block"] {
            self.link(&format!("{link}/nvme{number}n1"), &disk);
        }
        self.link(&format!("sys/dev/block/259:{number}"), &disk);
        self.file(&format!("dev/nvme{number}n1"), "");
    }

    fn binder(&self) -> Binder {
        Binder::below(self.0.path())
    }

    fn plan(&self, options: &BindOptions) -> Result<Change, Error> {
        let mut plan = self.binder().plan_bind(&[DRIVE.into()], options)?;
        Ok(plan.remove(0))
    }

    #[track_caller]
    fn refuses(&self, options: &BindOptions, kind: ErrorKind, texts: &[&str]) {
        let error = self.plan(options).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        for text in texts {
            assert!(error.to_string().contains(text), "{text:?} is not in {error}");
        }
    }
}

fn write(path: &str, text: &str) -> Write {
    Write { path: path.into(), text: text.into() }
}

#[test]
fn a_free_drive_is_moved_by_three_writes() {
    let change = Machine::new().plan(&VFIO).unwrap();
    assert_eq!(
        change.writes,
        [
            write("/sys/bus/pci/devices/0000:04:00.0/driver_override", "vfio-pci"),
            write("/sys/bus/pci/devices/0000:04:00.0/driver/unbind", DRIVE),
            write("/sys/bus/pci/drivers_probe", DRIVE),
        ]
    );
    assert_eq!((change.modules.len(), change.doubts.len()), (0, 0));
    assert_eq!(change.function.serial.as_deref(), Some("S0"));
    assert_eq!(change.function.namespaces[0].name, "nvme0n1");
}

#[test]
fn what_is_in_use_is_refused_by_its_serial() {
    let machine = Machine::new();
    machine.file("proc/self/mountinfo", "1 0 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n");
    machine.refuses(&VFIO, ErrorKind::Refused, &["(S0)", "mounted at /data", "nothing overrides"]);
    machine.remove("proc");
    machine.file("proc/swaps", "Filename Type\n/dev/nvme0n1 partition 1 0 -2\n");
    machine.refuses(&VFIO, ErrorKind::Refused, &["(S0)", "active swap"]);
    machine.remove("proc");
    let holder = format!("{}/nvme/nvme0/nvme0n1/holders/md0", machine.dir(DRIVE));
    machine.file(&holder, "");
    machine.refuses(&VFIO, ErrorKind::Refused, &["(S0)", "held by /dev/md0"]);
    machine.remove(&holder);
    for node in ["nvme0n1", "nvme0", "ng0n1"] {
        machine.file("proc/77/comm", "trainer\n");
        fs::create_dir_all(machine.0.path().join("proc/77/fd")).unwrap();
        symlink(format!("/dev/{node}"), machine.0.path().join("proc/77/fd/3")).unwrap();
        machine.refuses(&VFIO, ErrorKind::Busy, &["S0", "trainer (pid 77)"]);
        machine.remove("proc");
    }
    machine.plan(&VFIO).unwrap();
}

#[test]
fn partitions_are_a_doubt_that_the_caller_may_override() {
    let machine = Machine::new();
    let partition = format!("{}/nvme/nvme0/nvme0n1/nvme0n1p1", machine.dir(DRIVE));
    machine.file(&format!("{partition}/partition"), "1\n");
    machine.file(&format!("{partition}/dev"), "259:9\n");
    assert_eq!(machine.plan(&VFIO).unwrap().doubts[0].what, "partitioned");
    machine.file("proc/self/mountinfo", "1 0 259:9 / / rw - ext4 /dev/nvme0n1p1 rw\n");
    machine.refuses(&VFIO, ErrorKind::Refused, &["/dev/nvme0n1p1 is mounted at /"]);
}

#[test]
fn an_iommu_group_goes_as_a_whole() {
    let machine = Machine::new();
    let (group, nic) = ("sys/kernel/iommu_groups/0/devices", "0000:00:1f.6");
    machine.file(&format!("{}/class", machine.dir(nic)), "0x020000\n");
    machine.link(&format!("sys/bus/pci/devices/{nic}"), &machine.dir(nic));
    machine.link(&format!("{group}/{nic}"), &machine.dir(nic));
    machine.plan(&VFIO).unwrap(); // it has no driver
    machine.link(&format!("{}/driver", machine.dir(nic)), "sys/bus/pci/drivers/e1000e");
    machine.refuses(&VFIO, ErrorKind::Refused, &["group 0", nic, "e1000e", "(S0)"]);
    machine.file(&format!("{}/class", machine.dir(nic)), "0x060400\n");
    machine.plan(&VFIO).unwrap(); // a bridge
    machine.link(&format!("{group}/{OTHER}"), &machine.dir(OTHER));
    machine.refuses(&VFIO, ErrorKind::Refused, &[OTHER]);
    machine.binder().plan_bind(&[DRIVE.into(), OTHER.into()], &VFIO).unwrap();
}

#[test]
fn without_an_iommu_the_caller_must_accept_that() {
    let machine = Machine::new();
    let uio = BindOptions { driver: UserSpaceDriver::UioPciGeneric, without_iommu: false };
    machine.refuses(&uio, ErrorKind::Environment, &["--no-iommu", "uio_pci_generic"]);
    let uio = BindOptions { without_iommu: true, ..uio };
    machine.refuses(&uio, ErrorKind::Environment, &["blocks a drive of uio_pci_generic"]);
    machine.remove(&format!("{}/iommu_group", machine.dir(DRIVE)));
    machine.refuses(&VFIO, ErrorKind::Environment, &["intel_iommu=on", "--no-iommu"]);
    assert_eq!(machine.plan(&uio).unwrap().writes.len(), 3);
    let change = machine.plan(&BindOptions { without_iommu: true, ..VFIO }).unwrap();
    assert!(change.writes[0].path.ends_with("enable_unsafe_noiommu_mode"));
}

#[test]
fn only_nvme_controllers_are_bound() {
    let machine = Machine::new();
    let missing = machine.binder().plan_bind(&["0000:09:00.0".into()], &VFIO).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    machine.file(&format!("{}/class", machine.dir(DRIVE)), "0x020000\n");
    machine.refuses(&VFIO, ErrorKind::Usage, &["not an NVMe controller", "0x020000"]);
    let address = "/dev/nvme1n1".parse().unwrap();
    assert_eq!(pci::function_of(machine.0.path(), &address).unwrap(), OTHER);
    for (address, kind) in [
        ("/dev/nvme7n1", ErrorKind::NotFound),
        ("trtype:TCP traddr:10.0.0.1 trsvcid:4420 subnqn:x", ErrorKind::Usage),
    ] {
        let error = pci::function_of(machine.0.path(), &address.parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

/// Ends the thread that acts as the kernel, however its test ends.
struct SetAtTheEnd<'a>(&'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Does what the kernel does when an attribute of `function` is written.
fn play_kernel(machine: &Machine, function: &str, over: &AtomicBool) {
    let root = machine.0.path();
    let dir = root.join(machine.dir(function));
    let (probe, unbind) = (root.join("sys/bus/pci/drivers_probe"), dir.join("driver/unbind"));
    let take = |path: &Path| {
        let asked = fs::read_to_string(path).is_ok_and(|text| text == function);
        asked && fs::write(path, "").is_ok()
    };
    while !over.load(Ordering::Acquire) {
        if take(&unbind) {
            fs::remove_file(dir.join("driver")).unwrap();
            let _ = fs::remove_dir_all(dir.join("nvme"));
            for path in ["sys/block/nvme0n1", "sys/class/block/nvme0n1", "dev/nvme0n1"] {
                let _ = fs::remove_file(root.join(path));
            }
        }
        if !dir.join("driver").exists() && take(&probe) {
            let wanted = fs::read_to_string(dir.join("driver_override")).unwrap();
            let driver = if wanted == "\n" { "nvme" } else { wanted.trim_end() };
            if driver == "nvme" {
                machine.controller(function, 0);
            }
            machine.link(
                &format!("{}/driver", machine.dir(function)),
                &format!("sys/bus/pci/drivers/{driver}"),
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_drive_is_bound_and_unbound() {
    let machine = Machine::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetAtTheEnd(&over);
        scope.spawn(|| play_kernel(&machine, DRIVE, &over));
        let (binder, drives) = (machine.binder(), [DRIVE.to_owned()]);
        let bound = binder.apply(&machine.plan(&VFIO).unwrap()).unwrap();
        assert_eq!((bound.driver.as_deref(), bound.namespaces.len()), (Some("vfio-pci"), 0));
        assert!(machine.plan(&VFIO).unwrap().is_empty(), "it is bound already");
        // A process that uses it blocks the unbind.
        machine.file("proc/77/comm", "trainer\n");
        fs::create_dir_all(machine.0.path().join("proc/77/fd")).unwrap();
        symlink("/dev/vfio/0", machine.0.path().join("proc/77/fd/9")).unwrap();
        assert_eq!(binder.plan_unbind(&drives).unwrap_err().kind(), ErrorKind::Busy);
        machine.remove("proc");
        let change = binder.plan_unbind(&drives).unwrap().remove(0);
        let back = binder.apply(&change).unwrap();
        assert_eq!(back.serial.as_deref(), Some("S0"));
        assert!(binder.plan_unbind(&drives).unwrap()[0].is_empty(), "the kernel has it already");
    });
}

#[test]
fn a_driver_that_does_not_take_it_leaves_it_to_the_kernel() {
    let machine = Machine::new();
    let change = machine.plan(&VFIO).unwrap();
    // No thread acts as the kernel: nothing happens, and the time limit passes.
    let error = machine.binder().apply(&change).unwrap_err();
    assert!(error.to_string().contains("bound to driver nvme instead of vfio-pci"), "{error}");
    let root = machine.0.path();
    let override_now =
        fs::read_to_string(root.join(machine.dir(DRIVE)).join("driver_override")).unwrap();
    assert!(override_now.starts_with('\n'), "{override_now:?}");
    assert!(fs::read_to_string(root.join("sys/bus/pci/drivers_probe")).unwrap().starts_with(DRIVE));
}
