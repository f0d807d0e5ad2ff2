// SPDX-License-Identifier: Apache-2.0
//! An NVMe-oF target of a test's own, on loopback: drives for the SPDK back end.
//!
//! Included by path from the command's tests, too.

// Each test binary uses its part of this.
#![allow(dead_code)]

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use stanchion_testing::DriveAddress;

/// A running target; ended when dropped.
pub struct Target {
    run_dir: PathBuf,
    /// Removed with the target, if it is its own.
    own_dir: Option<tempfile::TempDir>,
    /// 0 until it has one.
    port: u16,
    /// The name of the only host that its drives admit, if there is one.
    host: Option<String>,
    options: Vec<String>,
    /// One for each drive.
    pub drives: Vec<DriveAddress>,
    /// One target at a time on this machine, for every test runner. The lock of a folder leaves
    /// nothing behind.
    _turn: File,
}

impl Target {
    /// Starts `scripts/nvmf-target` with these options. `None`, with a message, where it cannot
    /// run.
    pub fn start(options: &[&str]) -> Option<Target> {
        let directory = tempfile::tempdir().unwrap();
        let mut target = Target::start_in(directory.path(), options)?;
        target.own_dir = Some(directory);
        Some(target)
    }

    /// As [`Target::start`], with its log and its other files in a directory of the caller.
    pub fn start_in(run_dir: &Path, options: &[&str]) -> Option<Target> {
        if std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() != 0) {
            eprintln!("skipped: an NVMe-oF target needs root");
            return None;
        }
        let prefix = prefix();
        if !prefix.join("bin/nvmf_tgt").exists() {
            eprintln!("skipped: no nvmf_tgt in {}; run scripts/install-spdk", prefix.display());
            return None;
        }
        let turn = File::open("/sys/kernel/mm").unwrap();
        turn.lock().unwrap();
        let mut target = Target {
            run_dir: run_dir.to_owned(),
            own_dir: None,
            port: 0,
            host: None,
            options: options.iter().map(ToString::to_string).collect(),
            drives: Vec::new(),
            _turn: turn,
        };
        target.restart();
        Some(target)
    }

    /// Starts it again after [`Target::kill`], under the same addresses.
    pub fn restart(&mut self) {
        let mut start = self.script("start");
        if let Some(host) = &self.host {
            start.args(["--host-nqn", host]);
        }
        let output = start
            .args(["--port", &self.port.to_string()])
            .args(["--owner", &std::process::id().to_string()])
            .args(&self.options)
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nvmf-target: {complaint}");
        let addresses = String::from_utf8(output.stdout).unwrap();
        self.drives = addresses.lines().map(|line| line.parse().unwrap()).collect();
        let value = |key| addresses.split_whitespace().find_map(|word| word.strip_prefix(key));
        self.port = value("trsvcid:").unwrap().parse().unwrap();
        self.host = value("hostnqn:").map(str::to_owned);
    }

    /// Kills it at once; this looks like a lost network.
    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    /// Stops it; this looks like a network that delivers nothing. [`Target::thaw`] continues it.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Continues a frozen target.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        let pid = std::fs::read_to_string(self.run_dir.join("pid")).unwrap();
        let pid = pid.trim().parse().unwrap();
        // SAFETY: plain call; the process is the one that `restart` started.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "kill of {pid}");
    }

    /// Sends the running target a command, by SPDK's own tool.
    ///
    /// # Panics
    /// When it refuses.
    pub fn rpc(&self, arguments: &[&str]) {
        let output = self.try_rpc(arguments);
        let complaint = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{arguments:?}: {complaint}");
    }

    /// The same; returns the output.
    pub fn try_rpc(&self, arguments: &[&str]) -> Output {
        let mut process = Command::new("/usr/bin/python3");
        process.arg(prefix().join("scripts/rpc.py")).arg("-s").arg(self.run_dir.join("rpc.sock"));
        process.args(arguments).output().unwrap()
    }

    /// The name of a drive's subsystem.
    pub fn nqn(drive: usize) -> String {
        format!("nqn.2026-01.io.stanchion:drive{drive}")
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
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

fn prefix() -> PathBuf {
    let prefix = std::env::var_os("STANCHION_SPDK_PREFIX");
    prefix.map_or_else(|| PathBuf::from("/opt/stanchion-spdk"), PathBuf::from)
}
