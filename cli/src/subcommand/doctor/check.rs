// SPDX-License-Identifier: Apache-2.0
//! One check: what was looked at, what was found, and what fixes it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stanchion_engine::ErrorKind;

use crate::record::word;

/// How a check ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Status {
    /// As it should be.
    Ok,
    /// Not needed here, or cannot be known.
    Skip,
    /// It works, but worse than it could, or may stop working.
    Warn,
    /// What the user wants cannot work.
    Fail,
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Skip => "skip",
            Status::Warn => "warn",
            Status::Fail => "fail",
        }
    }
}

/// A check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// Of which drive, by serial where that is known, or of which PCI function.
    pub subject: Option<String>,
    pub status: Status,
    /// What a failure means: the exit code follows from it.
    pub kind: ErrorKind,
    /// What was found.
    pub evidence: String,
    /// The command that fixes it.
    pub fix: Option<String>,
}

/// A check as JSON.
#[derive(Serialize)]
pub struct CheckRecord {
    name: String,
    subject: Option<String>,
    status: &'static str,
    evidence: String,
    fix: Option<String>,
}

impl From<&Check> for CheckRecord {
    fn from(check: &Check) -> CheckRecord {
        CheckRecord {
            name: word(check.name),
            subject: check.subject.clone(),
            status: check.status.word(),
            evidence: check.evidence.clone(),
            fix: check.fix.clone(),
        }
    }
}

impl Check {
    pub fn new(name: &'static str, status: Status, evidence: impl Into<String>) -> Check {
        let (kind, evidence) = (ErrorKind::Environment, evidence.into());
        Check { name, subject: None, status, kind, evidence, fix: None }
    }

    pub fn ok(name: &'static str, evidence: impl Into<String>) -> Check {
        Check::new(name, Status::Ok, evidence)
    }

    pub fn skip(name: &'static str, evidence: impl Into<String>) -> Check {
        Check::new(name, Status::Skip, evidence)
    }

    /// A failure where it is needed; otherwise the check counts as skipped.
    pub fn lacking(name: &'static str, needed: bool, evidence: impl Into<String>) -> Check {
        Check::new(name, if needed { Status::Fail } else { Status::Skip }, evidence)
    }

    pub fn of(mut self, subject: impl Into<String>) -> Check {
        self.subject = Some(subject.into());
        self
    }

    pub fn kind(mut self, kind: ErrorKind) -> Check {
        self.kind = kind;
        self
    }

    pub fn fix(mut self, command: impl Into<String>) -> Check {
        self.fix = Some(command.into());
        self
    }
}

/// What the given drives, or those that were taken from the kernel, need.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Needs {
    /// Huge pages: a drive of SPDK.
    pub spdk: bool,
    /// The IOMMU, vfio, locked memory: a drive of SPDK on PCIe.
    pub pcie: bool,
    /// io_uring: a drive of the kernel.
    pub kernel: bool,
}

/// The machine below a directory: `/`, except in tests.
#[derive(Clone, Copy, Debug)]
pub struct Root<'a>(pub &'a Path);

impl Root<'_> {
    pub fn path(self, absolute: &str) -> PathBuf {
        self.0.join(absolute.trim_start_matches('/'))
    }

    pub fn exists(self, absolute: &str) -> bool {
        self.path(absolute).exists()
    }

    /// The trimmed text of a file.
    pub fn text(self, absolute: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(absolute)).ok()?.trim().to_owned())
    }

    pub fn number(self, absolute: &str) -> Option<u64> {
        self.text(absolute)?.parse().ok()
    }

    /// Names in a directory, sorted.
    pub fn names(self, absolute: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(absolute)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}
