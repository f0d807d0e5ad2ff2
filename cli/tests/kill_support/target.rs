//! An NVMe-oF target of the test's own, on loopback.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::rig::MIB;

/// A running target; ended when dropped.
pub struct Target {
    /// Beside the drives: kept with them.
    run_dir: PathBuf,
    /// One address a drive.
    pub drives: Vec<String>,
    /// One target at a time on this machine, whatever runs the tests.
    _turn: File,
}

impl Target {
    /// Starts one with its drives in the files `drive0.img` ... of `files`. `None`, with a message,
    /// where it cannot run.
    pub fn start(drives: usize, drive_bytes: u64, files: &Path) -> Option<Target> {
        if !cfg!(feature = "spdk") {
            eprintln!("skipped: the command was built without SPDK (--features spdk)");
            return None;
        }
        if std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() != 0) {
            eprintln!("skipped: an NVMe-oF target needs root");
            return None;
        }
        let prefix = std::env::var_os("STANCHION_SPDK_PREFIX");
        let prefix = prefix.map_or_else(|| PathBuf::from("/opt/stanchion-spdk"), PathBuf::from);
        if !prefix.join("bin/nvmf_tgt").exists() {
            eprintln!("skipped: no nvmf_tgt in {}; run scripts/install-spdk", prefix.display());
            return None;
        }
        let turn = File::create(std::env::temp_dir().join("stanchion-test-nvmf.lock")).unwrap();
        turn.lock().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut target = Target { run_dir: files.join("target"), drives: Vec::new(), _turn: turn };
        let output = target
            .script("start")
            .args(["--port", &port.to_string(), "--drives", &drives.to_string()])
            .args(["--size", &format!("{}M", drive_bytes / MIB)])
            .args(["--backing", &format!("aio:{}", files.display())])
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nvmf-target: {complaint}");
        let addresses = String::from_utf8(output.stdout).unwrap();
        target.drives = addresses.lines().map(str::to_owned).collect();
        Some(target)
    }

    fn script(&self, command: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/nvmf-target");
        let mut process = Command::new(script);
        process.arg(command).arg("--run-dir").arg(&self.run_dir);
        process
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.script("stop").output();
    }
}
