// SPDX-License-Identifier: Apache-2.0
//! The drives, and runs of the real binary on them.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::Numbers;
use super::model::Files;
use super::operation::Step;
use super::target::Target;

pub const MIB: u64 = 1 << 20;

const DRIVES: usize = 2;
/// No run of the command takes longer, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Runs of a command that find no answer from the target in time.
const CONNECT_TRIES: u32 = 5;
/// Each block of a file starts with a number of its own, so that no other block can take its place.
const STAMPED_BYTES: usize = 4096;

/// A directory with drives in it, reached through the kernel or through SPDK.
pub struct Rig {
    /// `None` once it is kept for inspection.
    directory: Option<TempDir>,
    drive_bytes: u64,
    /// What `--drive` is given.
    drives: Vec<String>,
    /// Serves the drives, where SPDK drives them.
    target: Option<Target>,
    /// Connections that the target did not answer in time.
    pub unanswered: Cell<u64>,
    noise: Vec<u8>,
    stamp: u64,
    /// What is being done, for messages.
    pub context: String,
}

/// How a run ended that may have been killed.
pub enum Ended {
    Killed,
    Exited(Outcome),
}

#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    stdout: String,
    pub stderr: String,
}

impl Outcome {
    #[track_caller]
    pub fn ok(self, rig: &Rig) -> Outcome {
        self.fails(rig, 0)
    }

    #[track_caller]
    pub fn fails(self, rig: &Rig, code: i32) -> Outcome {
        assert_eq!(self.code, code, "{}: {self:?}", rig.context);
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Rig {
    fn new(drive_bytes: u64) -> Rig {
        let mut numbers = Numbers(0);
        let noise = std::iter::repeat_with(|| numbers.next().to_le_bytes());
        Rig {
            directory: Some(tempfile::tempdir().unwrap()),
            drive_bytes,
            drives: (0..DRIVES).map(|drive| format!("drive{drive}.img")).collect(),
            target: None,
            unanswered: Cell::new(0),
            noise: noise.take((MIB / 8) as usize).flatten().collect(),
            stamp: 0,
            context: "before the first round".into(),
        }
    }

    /// Over files.
    pub fn kernel(drive_bytes: u64) -> Rig {
        Rig::new(drive_bytes)
    }

    /// Over an NVMe-oF target whose drives are files; `None`, with a message, where it cannot run.
    pub fn spdk(drive_bytes: u64) -> Option<Rig> {
        if !cfg!(feature = "spdk") {
            eprintln!("skipped: the command was built without SPDK (--features spdk)");
            return None;
        }
        let mut rig = Rig::new(drive_bytes);
        // Written out, so that the target's writes never wait for the file system to find space.
        for drive in 0..DRIVES {
            let file = File::create(rig.path().join(format!("drive{drive}.img"))).unwrap();
            file.write_all_at(&vec![0; drive_bytes as usize], 0).unwrap();
            file.sync_all().unwrap();
        }
        let (count, size) = (DRIVES.to_string(), format!("{}M", drive_bytes / MIB));
        let backing = format!("aio:{}", rig.path().display());
        // Its log is in the folder of the drives, and is kept with them.
        let options = ["--drives", &count, "--size", &size, "--backing", &backing];
        let target = Target::start_in(&rig.path().join("target"), &options)?;
        rig.drives = target.drives.iter().map(ToString::to_string).collect();
        rig.target = Some(target);
        Some(rig)
    }

    fn path(&self) -> &Path {
        self.directory.as_ref().unwrap().path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stanchion"));
        command.args(arguments).current_dir(self.path()).env_remove("STANCHION_DRIVES");
        for drive in &self.drives {
            command.args(["--drive", drive]);
        }
        // Only SPDK needs huge pages. `format` takes none.
        if self.target.is_none() && arguments.first() != Some(&"format") {
            command.args(["--huge-pages", "off"]);
        }
        command.stdin(Stdio::null());
        command
    }

    /// The command line of a step.
    pub fn arguments(&self, step: &Step) -> Vec<String> {
        let words: Vec<&str> = match step {
            Step::Save { name, .. } => vec!["save", name, "--buffer-size", "8MiB"],
            Step::Remove { .. } => vec!["rm", "--yes"],
            Step::Format { force: true } => vec!["format", "--yes", "--force"],
            Step::Format { force: false } => vec!["format", "--yes"],
        };
        let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        words.push("--json".into());
        match step {
            Step::Save { name, files } => {
                words.extend(files.iter().map(|(file, _)| format!("from/{name}/{file}")));
            }
            Step::Remove { names } => words.extend(names.iter().cloned()),
            Step::Format { .. } => words.extend(["--size".into(), self.drive_bytes.to_string()]),
        }
        words
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        match self.run_until(&arguments, None) {
            (Ended::Exited(outcome), _) => outcome,
            (Ended::Killed, _) => panic!("{}: {arguments:?} was killed", self.context),
        }
    }

    /// Runs the command and kills it after `instant`, if it has not ended by then. Also returns
    /// how long it ran. When this returns, the process has ended.
    ///
    /// SPDK gives a target two seconds to answer a connection, which a busy machine may miss. Then
    /// nothing has happened yet; the miss is counted, and the command is run again.
    pub fn run_until(&self, arguments: &[String], instant: Option<Duration>) -> (Ended, Duration) {
        for _ in 0..CONNECT_TRIES {
            let ended = self.run_once(arguments, instant);
            let Ended::Exited(outcome) = &ended.0 else { return ended };
            if !outcome.stderr.contains("no NVMe controller answered") {
                return ended;
            }
            self.unanswered.set(self.unanswered.get() + 1);
        }
        panic!("{}: the target does not answer", self.context)
    }

    fn run_once(&self, arguments: &[String], instant: Option<Duration>) -> (Ended, Duration) {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        // Files, not pipes: the command goes on although nothing reads them.
        let (stdout, stderr) = (self.path().join("stdout"), self.path().join("stderr"));
        let mut command = self.command(&words);
        command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        let started = Instant::now();
        let mut child = command.spawn().unwrap();
        if let Some(instant) = instant {
            std::thread::sleep(instant.saturating_sub(started.elapsed()));
            child.kill().unwrap();
        } else {
            while child.try_wait().unwrap().is_none() {
                if started.elapsed() > TIMEOUT {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    panic!("{}: {arguments:?} does not end", self.context);
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        }
        let status = child.wait().unwrap();
        let took = started.elapsed();
        let Some(code) = status.code() else {
            assert!(instant.is_some() && status.signal() == Some(9), "{arguments:?}: {status}");
            return (Ended::Killed, took);
        };
        let stdout = fs::read_to_string(stdout).unwrap();
        let stderr = fs::read_to_string(stderr).unwrap();
        assert!(!stderr.contains("panicked"), "{}: {stderr}", self.context);
        (Ended::Exited(Outcome { code, stdout, stderr }), took)
    }

    /// Restores a checkpoint and compares every byte.
    pub fn restores(&self, name: &str, files: &Files) {
        self.run(&["restore", name, "-o", "out", "--buffer-size", "8MiB"]).ok(self);
        let out = self.path().join("out");
        for (file, bytes) in files {
            let restored = fs::read(out.join(file)).unwrap();
            assert!(restored == *bytes, "{}: {name}, {file} differs", self.context);
        }
        assert_eq!(fs::read_dir(&out).unwrap().count(), files.len(), "{}: {name}", self.context);
        fs::remove_dir_all(out).unwrap();
    }

    fn from(&self) -> PathBuf {
        self.path().join("from")
    }

    /// Makes files to be saved, of these lengths.
    pub fn make_files(&mut self, name: &str, lengths: &[u64], numbers: &mut Numbers) -> Files {
        let directory = self.from().join(name);
        fs::create_dir_all(&directory).unwrap();
        let mut files = Files::new();
        for (number, len_bytes) in lengths.iter().enumerate() {
            let start = numbers.between(0, MIB - 1) as usize;
            let turned = [&self.noise[start..], &self.noise[..start]].concat();
            let mut bytes = turned.repeat(len_bytes.div_ceil(MIB) as usize);
            bytes.truncate(*len_bytes as usize);
            for block in bytes.chunks_mut(STAMPED_BYTES) {
                self.stamp += 1;
                let stamp = self.stamp.to_le_bytes();
                let len = block.len().min(stamp.len());
                block[..len].copy_from_slice(&stamp[..len]);
            }
            let file = format!("{}-{number}.bin", name.replace('@', "-"));
            fs::write(directory.join(&file), &bytes).unwrap();
            files.push((file, bytes));
        }
        files
    }

    /// Removes the files of all checkpoints but these; the model has the bytes.
    pub fn forget_files<'a>(&self, but: impl Iterator<Item = &'a String>) {
        let but: Vec<&String> = but.collect();
        let Ok(entries) = fs::read_dir(self.from()) else { return };
        for entry in entries {
            let entry = entry.unwrap();
            if but.iter().all(|name| ***name != *entry.file_name()) {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
    }

    /// Removes the pool from the drives. Files are deleted; drives that a target serves stay, and
    /// everything around their data is erased.
    pub fn blank(&self) {
        for drive in 0..DRIVES {
            let path = self.path().join(format!("drive{drive}.img"));
            if self.target.is_none() {
                let _ = fs::remove_file(path);
                continue;
            }
            let file: File = OpenOptions::new().write(true).open(path).unwrap();
            let zeros = vec![0; 4 * MIB as usize];
            file.write_all_at(&zeros, 0).unwrap();
            file.write_all_at(&zeros, self.drive_bytes - 4 * MIB).unwrap();
            // The target reads past the page cache.
            file.sync_all().unwrap();
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.target = None;
        if std::thread::panicking()
            && let Some(directory) = self.directory.take()
        {
            eprintln!("{}: the drives are kept in {}", self.context, directory.keep().display());
        }
    }
}
