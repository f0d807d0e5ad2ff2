// SPDX-License-Identifier: Apache-2.0
//! What tests of several modules use: loop devices and mounts.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// Runs a tool; `None`, with a message, when it is not installed; panics when it fails.
pub(crate) fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    match Command::new(name).args(arguments).env("PATH", path).output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} {arguments:?}: {errors}");
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Err(error) => {
            eprintln!("skipped: {name} cannot be run: {error}");
            None
        }
    }
}

/// A loop device over a file, detached when dropped.
pub(crate) struct LoopDevice(pub(crate) PathBuf);

impl LoopDevice {
    /// `None`, with a message, where loop devices cannot be made.
    pub(crate) fn new(file: &Path, options: &[&str]) -> Option<LoopDevice> {
        if !is_root() {
            eprintln!("skipped: loop devices need root");
            return None;
        }
        let file = file.to_str().unwrap();
        let arguments = [options, &["--nooverlap", "--find", "--show", file]].concat();
        let device = LoopDevice(tool("losetup", &arguments)?.into());
        // A killed test may have left the partition that it made.
        device.remove_partition();
        Some(device)
    }

    /// Some kernels keep partitions that `addpart` made when the device is detached.
    fn remove_partition(&self) {
        let delpart = Command::new("/usr/bin/delpart").args([self.name(), "1"]).output();
        let _ = delpart
            .or_else(|_| Command::new("/usr/sbin/delpart").args([self.name(), "1"]).output());
    }

    pub(crate) fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.remove_partition();
        let _ = Command::new("/usr/sbin/losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A mounted file system, unmounted when dropped.
pub(crate) struct Mounted(pub(crate) tempfile::TempDir);

impl Mounted {
    pub(crate) fn new(device: &LoopDevice) -> Option<Mounted> {
        let dir = tempfile::tempdir().unwrap();
        tool("mount", &[device.name(), dir.path().to_str().unwrap()])?;
        Some(Mounted(dir))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}
