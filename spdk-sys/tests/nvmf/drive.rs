// SPDX-License-Identifier: Apache-2.0
//! A drive, its commands and buffers, for the tests; and a target that one test starts for itself.

use std::cell::Cell;
use std::ffi::{CString, c_int, c_void};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use spdk_sys::*;

/// Status code type and status code.
pub const SUCCESS: (u16, u16) = (0, 0);

/// A request and its result. Boxed: the shim keeps a pointer to it while it is outstanding.
pub struct Command {
    pub request: stn_spdk_request,
    pub completions: Cell<u32>,
    pub status: Cell<(u16, u16)>,
}

impl Command {
    pub fn new() -> Box<Self> {
        let mut command = Box::new(Self {
            request: stn_spdk_request::default(),
            completions: Cell::new(0),
            status: Cell::new((u16::MAX, u16::MAX)),
        });
        command.request.complete = Some(note_completion);
        command.request.context = (&raw const *command).cast_mut().cast();
        command
    }
}

extern "C" fn note_completion(context: *mut c_void, sct: u16, sc: u16, _dnr: bool) {
    // SAFETY: the context is the boxed Command that owns the request and is alive; only its cells
    // are borrowed, since the submitter may have borrowed the request next to them.
    let (completions, status) = unsafe {
        let command = context.cast::<Command>();
        (&(*command).completions, &(*command).status)
    };
    completions.set(completions.get() + 1);
    status.set((sct, sc));
}

pub struct Drive {
    pub controller: *mut stn_spdk_controller,
    pub namespace: *mut stn_spdk_namespace,
    pub qpair: *mut stn_spdk_qpair,
    pub sector_bytes: usize,
    pub sector_count: u64,
}

/// SAFETY of the calls on `Drive`: one thread, pointers valid from connect to detach, requests
/// boxed and buffers alive until polled to completion.
impl Drive {
    pub fn write(
        &self,
        command: &mut Command,
        buffer: *const u8,
        lba: u64,
        bytes: usize,
        flags: u32,
    ) -> c_int {
        let count = (bytes / self.sector_bytes) as u32;
        // SAFETY: see above.
        unsafe {
            stn_spdk_write(
                self.qpair,
                self.namespace,
                &mut command.request,
                buffer.cast(),
                lba,
                count,
                flags,
            )
        }
    }

    pub fn read(&self, command: &mut Command, buffer: *mut u8, lba: u64, bytes: usize) -> c_int {
        let count = (bytes / self.sector_bytes) as u32;
        // SAFETY: see above.
        unsafe {
            stn_spdk_read(
                self.qpair,
                self.namespace,
                &mut command.request,
                buffer.cast(),
                lba,
                count,
                0,
            )
        }
    }

    pub fn flush(&self, command: &mut Command) -> c_int {
        // SAFETY: see above.
        unsafe { stn_spdk_flush(self.qpair, self.namespace, &mut command.request) }
    }

    /// Polls until each command has completed once; more than once, or a silent queue, fails the
    /// test.
    pub fn finish(&self, commands: &[Box<Command>]) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while commands.iter().any(|command| command.completions.get() == 0) {
            // SAFETY: see above.
            let polled = unsafe { stn_spdk_qpair_process_completions(self.qpair, 0) };
            assert!(polled >= 0, "poll failed: {polled}");
            assert!(Instant::now() < deadline, "a command did not complete in 30 s");
        }
        assert!(commands.iter().all(|command| command.completions.get() == 1));
    }

    pub fn finish_with(&self, command: Box<Command>, status: (u16, u16)) {
        let commands = [command];
        self.finish(&commands);
        assert_eq!(commands[0].status.get(), status);
    }
}

/// Bytes that differ between positions and between seeds.
pub fn fill(buffer: &mut [u8], seed: u64) {
    for (index, word) in buffer.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(
            &(seed << 32 | index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes(),
        );
    }
}

pub struct Buffer {
    pub start: *mut u8,
    pub bytes: usize,
}

impl Buffer {
    pub fn new(bytes: usize) -> Self {
        // SAFETY: the environment is up.
        let start = unsafe { stn_spdk_dma_zmalloc(bytes, 4096) }.cast::<u8>();
        assert!(!start.is_null(), "no huge pages left: run scripts/hugepages");
        Self { start, bytes }
    }

    pub fn slice(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` zeroed bytes at `start`, ours alone; called only while no command is
        // outstanding on them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: from stn_spdk_dma_zmalloc, and every command on it has completed.
        unsafe { stn_spdk_dma_free(self.start.cast()) }
    }
}

pub struct OwnTarget {
    run_dir: PathBuf,
    pub address: CString,
    /// The only host that it admits.
    pub host: CString,
}

impl OwnTarget {
    /// Whether a target can run here; prints the reason if not.
    pub fn can_start() -> bool {
        let prefix = std::env::var_os("STANCHION_SPDK_PREFIX");
        let prefix = prefix.map_or_else(|| PathBuf::from("/opt/stanchion-spdk"), PathBuf::from);
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
        let is_there = prefix.join("bin/nvmf_tgt").exists();
        if !is_root || !is_there {
            eprintln!("skipped: it needs root, and nvmf_tgt in {}", prefix.display());
        }
        is_root && is_there
    }

    /// The test's `number`th.
    pub fn start(number: u32) -> Self {
        let name = format!("stanchion-nvmf-{}-{number}", std::process::id());
        let run_dir = std::env::temp_dir().join(name);
        let output = target_script("start", &run_dir)
            .args(["--size", "64MiB", "--port", "0", "--owner", &std::process::id().to_string()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).unwrap();
        let (address, host) = printed.trim().split_once(" hostnqn:").unwrap();
        let (address, host) = (CString::new(address).unwrap(), CString::new(host).unwrap());
        Self { run_dir, address, host }
    }

    /// A second address of its drive: SPDK connects to one address once in a process.
    pub fn add_address(&self) -> CString {
        let text = self.address.to_str().unwrap();
        let field = |name: &str| {
            let found = text.split(' ').find_map(|field| field.strip_prefix(name));
            found.unwrap().to_owned()
        };
        let prefix = std::env::var_os("STANCHION_SPDK_PREFIX");
        let prefix = prefix.map_or_else(|| PathBuf::from("/opt/stanchion-spdk"), PathBuf::from);
        let added = process::Command::new("/usr/bin/python3")
            .arg(prefix.join("scripts/rpc.py"))
            .args(["-s", self.run_dir.join("rpc.sock").to_str().unwrap()])
            .args(["nvmf_subsystem_add_listener", &field("subnqn:"), "-t", "tcp", "-f", "ipv4"])
            .args(["-a", "127.0.0.2", "-s", &field("trsvcid:")])
            .output()
            .unwrap();
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
        CString::new(text.replace("127.0.0.1", "127.0.0.2")).unwrap()
    }

    pub fn kill(&self) {
        let pid = std::fs::read_to_string(self.run_dir.join("pid")).unwrap();
        // SAFETY: a system call on the process that `start` started.
        assert_eq!(unsafe { libc::kill(pid.trim().parse().unwrap(), libc::SIGKILL) }, 0);
    }
}

impl Drop for OwnTarget {
    fn drop(&mut self) {
        let _ = target_script("stop", &self.run_dir).status();
        let _ = std::fs::remove_dir_all(&self.run_dir);
    }
}

fn target_script(command: &str, run_dir: &Path) -> process::Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/nvmf-target");
    let mut process = process::Command::new(script);
    process.arg(command).arg("--run-dir").arg(run_dir);
    process
}
