// SPDX-License-Identifier: Apache-2.0
//! What the tests of the command share: a directory with drives in it, and runs of the real binary.

// Each test file uses its own part of this.
#![allow(dead_code, missing_docs)]

pub mod participants;
pub mod places;
pub mod schema;
pub mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;
pub const DRIVE_BYTES: u64 = 48 * MIB;

/// A directory, the command's working directory, with drives `a.img`, `b.img` ...
pub struct Place {
    directory: TempDir,
    pub drives: Vec<String>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    pub fn new(output: Output) -> Outcome {
        let outcome = Outcome {
            // A signal is not an exit: none of these runs may end by one.
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
        outcome
    }

    /// It ended well.
    #[track_caller]
    pub fn ok(self) -> Outcome {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// It ended with this code, and stderr says all of this.
    #[track_caller]
    pub fn fails(self, code: i32, texts: &[&str]) -> Outcome {
        assert!(self.stderr.contains("stanchion: error: "), "{self:?}");
        self.ended(code, texts)
    }

    /// The same where JSON was asked for.
    #[track_caller]
    pub fn fails_as_json(self, code: i32, texts: &[&str]) -> Outcome {
        assert_eq!(self.error()["exit_code"], code, "{self:?}");
        self.ended(code, texts)
    }

    /// The error on stderr, as JSON.
    #[track_caller]
    pub fn error(&self) -> Value {
        let line = self.stderr.lines().last().unwrap_or_default();
        let error: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{self:?}"));
        assert_eq!(error["level"], "error", "{self:?}");
        error
    }

    #[track_caller]
    fn ended(self, code: i32, texts: &[&str]) -> Outcome {
        assert_eq!(self.code, code, "{self:?}");
        for text in texts {
            assert!(self.stderr.contains(text), "{text:?} is not in {self:?}");
        }
        self
    }

    /// What it printed, as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Place {
    /// An empty directory; nothing is formatted.
    pub fn empty() -> Place {
        Place { directory: tempfile::tempdir().unwrap(), drives: Vec::new() }
    }

    /// A pool of this many drives.
    pub fn with_pool(drives: usize) -> Place {
        Place::with_pool_of(drives, DRIVE_BYTES)
    }

    /// A pool of drives of this size.
    pub fn with_pool_of(drives: usize, drive_bytes: u64) -> Place {
        let mut place = Place::empty();
        place.drives = (0..drives as u8).map(|n| format!("{}.img", char::from(b'a' + n))).collect();
        place.run(&["format", "--size", &drive_bytes.to_string(), "--yes"]).ok();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file of the directory.
    pub fn file(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// A file of zeros that takes no space.
    pub fn sparse_file(&self, name: &str, len_bytes: u64) {
        fs::File::create(self.path(name)).unwrap().set_len(len_bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The command with these arguments, without drives.
    pub fn bare(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stanchion"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_remove("STANCHION_DRIVES")
            .stdin(Stdio::null());
        command
    }

    /// The command with these arguments and the pool's drives, without huge pages.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.bare(arguments);
        command.args(page_options(arguments));
        for drive in &self.drives {
            command.args(["--drive", drive]);
        }
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::new(self.command(arguments).output().unwrap())
    }

    /// Runs the command over these drives only, without huge pages.
    pub fn run_on(&self, drives: &[&str], arguments: &[&str]) -> Outcome {
        let mut command = self.bare(arguments);
        command.args(page_options(arguments));
        drives.iter().for_each(|drive| {
            command.args(["--drive", drive]);
        });
        run(command)
    }

    pub fn run_bare(&self, arguments: &[&str]) -> Outcome {
        Outcome::new(self.bare(arguments).output().unwrap())
    }

    /// Starts the command, with its output kept for [`Place::finish`].
    pub fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The same, where HUP is "default" or "ignore" at its start, whatever it is here.
    pub fn start_with_hup(&self, disposition: &str, arguments: &[&str]) -> Child {
        let inner = self.command(arguments);
        let mut command = Command::new("env");
        command.arg(format!("--{disposition}-signal=HUP")).arg(inner.get_program());
        command.args(inner.get_args()).current_dir(self.directory.path());
        command.env_remove("STANCHION_DRIVES").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub fn finish(&self, child: Child) -> Outcome {
        Outcome::new(child.wait_with_output().unwrap())
    }

    /// The names in the directory that start with `prefix`, hidden ones too.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(directory)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Number of checkpoints that `list` shows.
    pub fn checkpoints(&self) -> usize {
        self.run(&["list", "--json"]).ok().json()["checkpoints"].as_array().unwrap().len()
    }

    /// Free and whole capacity, as `show` reports them.
    pub fn free_and_capacity(&self) -> (u64, u64) {
        let pool = self.run(&["show", "--json"]).ok().json()["pool"].take();
        (pool["free_bytes"].as_u64().unwrap(), pool["capacity_bytes"].as_u64().unwrap())
    }
}

/// Turns huge pages off, for the subcommands that take any.
pub fn page_options(arguments: &[&str]) -> &'static [&'static str] {
    const WITHOUT_POOL: [&str; 7] =
        ["bind", "doctor", "drives", "format", "plan", "unbind", "version"];
    let is_without = |word: &&str| WITHOUT_POOL.contains(&word.trim_start_matches("--"));
    match arguments.iter().any(is_without) || arguments.is_empty() {
        true => &[],
        false => &["--huge-pages", "off"],
    }
}

/// Runs a command and parses what it prints.
pub fn run(mut command: Command) -> Outcome {
    Outcome::new(command.output().unwrap())
}

/// Waits until a counter of the process in /proc/PID/io (`rchar`: bytes read, `wchar`: written) has
/// reached this many bytes.
pub fn wait_for_io(child: &Child, counter: &str, bytes: u64) {
    let path = format!("/proc/{}/io", child.id());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(counter)?.strip_prefix(": "));
        match line.and_then(|number| number.parse::<u64>().ok()) {
            Some(moved) if moved >= bytes => return,
            _ => assert!(Instant::now() < deadline, "{counter} stays below {bytes}: {text}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal, as Ctrl-C or `kill` do.
pub fn signal(child: &Child, name: &str) {
    let status =
        Command::new("sh").arg("-c").arg(format!("kill -{name} {}", child.id())).status().unwrap();
    assert!(status.success());
}

/// A small seeded generator (SplitMix64), so that a failure can be repeated.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, len_bytes: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = std::iter::repeat_with(|| self.next().to_le_bytes())
            .take(len_bytes.div_ceil(8))
            .flatten()
            .collect();
        bytes.truncate(len_bytes);
        bytes
    }
}
