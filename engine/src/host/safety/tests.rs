// SPDX-License-Identifier: Apache-2.0
use std::fs;

use super::*;
use crate::device::{OpenMode, kernel};
use crate::host::test_tools::{LoopDevice, Mounted, tool};

const IMAGE_BYTES: u64 = 16 << 20;

fn image(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("image");
    kernel::create_file(&path, IMAGE_BYTES).unwrap();
    path
}

fn signature_of(path: &Path) -> Option<String> {
    let bytes = fs::read(path).unwrap();
    let ranges = signature::Ends::ranges(bytes.len() as u64).into_iter();
    let parts = ranges.map(|range| bytes[range.start as usize..range.end as usize].to_vec());
    signature::Ends::new(bytes.len() as u64, parts.collect()).content()
}

fn whats(findings: &Findings) -> Vec<(&'static str, bool)> {
    findings.0.iter().map(|finding| (finding.what, finding.overridable)).collect()
}

#[test]
fn an_unused_file_is_clear_and_an_open_one_is_locked() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    assert!(inspect(&path).unwrap().is_clear());
    drop(kernel::open(&path, OpenMode::ReadOnly, 1).unwrap());
    let device = kernel::open(&path, OpenMode::ReadWrite, 1).unwrap();
    let findings = inspect(&path).unwrap();
    assert_eq!(whats(&findings), [("locked", false)]);
    assert!(findings.to_string().contains("this process"), "{findings}");
    drop(device);
    assert!(inspect(&path).unwrap().is_clear());
    assert!(matches!(inspect(dir.path()), Err(Error::Usage(_))));
    assert!(matches!(inspect(&dir.path().join("no")), Err(Error::DriveNotFound { .. })));
}

#[test]
fn the_lock_of_an_ended_process_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    // `flock` takes the lock and ends; the lock lives on in `sleep`, as that of a killed process
    // lives on in its writes inside the kernel.
    let script = "exec 9<\"$1\" && flock 9 && { sleep 0.5 & }";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&path);
    if !command.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: flock cannot be run");
        return;
    }
    let started = std::time::Instant::now();
    let findings = inspect(&path).unwrap();
    assert!(findings.is_clear(), "{findings:?}");
    let waited = started.elapsed();
    assert!(waited > std::time::Duration::from_millis(300), "it was not locked: {waited:?}");
    assert!(command.status().unwrap().success());
    kernel::open(&path, OpenMode::ReadWrite, 1).unwrap();
}

#[test]
fn a_mounted_loop_device_and_its_file_are_never_overridable() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let Some(device) = LoopDevice::new(&path, &[]) else { return };
    assert!(inspect(&device.0).unwrap().is_clear());
    let findings = inspect(&path).unwrap();
    assert_eq!(whats(&findings), [("held", false)]);
    assert!(findings.to_string().contains(device.name()), "{findings}");
    if tool("mkfs.ext4", &["-q", device.name()]).is_none() {
        return;
    }
    let Some(mounted) = Mounted::new(&device) else { return };
    let findings = inspect(&device.0).unwrap();
    assert!(whats(&findings).contains(&("mounted", false)), "{findings}");
    assert!(findings.to_string().contains(mounted.0.path().to_str().unwrap()), "{findings}");
    drop(mounted);
    assert!(inspect(&device.0).unwrap().is_clear());
}

#[test]
fn partitions_can_be_overridden_unless_one_is_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    // An MBR with one Linux partition of 8 MiB from the first MiB.
    let mut disk = fs::read(&path).unwrap();
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&16384u32.to_le_bytes());
    disk[510..512].copy_from_slice(b"\x55\xaa");
    fs::write(&path, &disk).unwrap();
    assert_eq!(signature_of(&path).as_deref(), Some("MBR partition table"));
    let Some(device) = LoopDevice::new(&path, &[]) else { return };
    // Not every kernel reads partition tables automatically.
    if tool("addpart", &[device.name(), "1", "2048", "16384"]).is_none() {
        return;
    }
    assert_eq!(whats(&inspect(&device.0).unwrap()), [("partitioned", true)]);
    let partition = format!("{}p1", device.name());
    if tool("mkfs.ext4", &["-q", &partition]).is_none() {
        return;
    }
    let target = tempfile::tempdir().unwrap();
    tool("mount", &[&partition, target.path().to_str().unwrap()]).unwrap();
    let mounted = Mounted(target);
    for name in [device.name(), &partition] {
        let findings = inspect(name.as_ref()).unwrap();
        assert!(whats(&findings).contains(&("mounted", false)), "{name}: {findings}");
    }
    drop(mounted);
    assert!(inspect(partition.as_ref()).unwrap().is_clear());
}

#[test]
fn a_read_only_device_is_never_overridable() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let Some(device) = LoopDevice::new(&path, &["--read-only"]) else { return };
    assert_eq!(whats(&inspect(&device.0).unwrap()), [("read-only", false)]);
}

#[test]
fn an_exclusive_claim_without_a_named_holder_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let Some(device) = LoopDevice::new(&path, &[]) else { return };
    let claim = reopen(&open_location(&device.0).unwrap(), true, libc::O_EXCL).unwrap();
    assert_eq!(whats(&inspect(&device.0).unwrap()), [("held", false)]);
    drop(claim);
}

#[test]
fn an_active_swap_file_is_found() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("proc")).unwrap();
    let swaps = "Filename Type Size Used Priority\n/swap\\040file file 1 0 -2\n";
    fs::write(root.path().join("proc/swaps"), swaps).unwrap();
    let swap = root.path().join("swap file");
    fs::write(&swap, b"x").unwrap();
    let system = System::below(root.path());
    let found = Findings(inspect_file(&system, &fs::metadata(&swap).unwrap()));
    assert_eq!(whats(&found), [("swap", false)]);
    let other = fs::metadata(root.path()).unwrap();
    assert!(inspect_file(&system, &other).is_empty());
}
