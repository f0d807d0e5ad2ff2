// SPDX-License-Identifier: Apache-2.0
//! Files that a command must not replace: those that are drives of a pool, or that the kernel uses.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stanchion_engine::host::safety;
use stanchion_engine::{Content, DriveAddress, ErrorKind, survey};

use crate::error::CommandError;

/// No drive is smaller.
const MIN_DRIVE_BYTES: u64 = 32 << 20;

/// Refuses paths at which a drive lies: one of `drives`, or of any pool.
///
/// # Errors
/// [`CommandError::Refused`].
pub fn refuse<'a>(
    paths: impl Iterator<Item = &'a Path>,
    drives: &[DriveAddress],
) -> Result<(), CommandError> {
    let files = drives.iter().filter_map(|drive| match drive {
        DriveAddress::Path(path) => Some(path.as_path()),
        DriveAddress::Spdk { .. } => None,
    });
    let files: Vec<&Path> = files.collect();
    for path in paths {
        let Some(why) = reason(path, &files) else { continue };
        return Err(CommandError::Refused(format!(
            "{}: {why}; nothing overrides this: restore into another directory",
            path.display()
        )));
    }
    Ok(())
}

fn reason(path: &Path, drives: &[&Path]) -> Option<String> {
    let own = |drive: &&&Path| same_file(path, drive) || place(path) == place(drive);
    if drives.iter().any(|drive| own(&drive)) {
        return Some("it is a drive of this pool".into());
    }
    // Replacing a link leaves what it leads to.
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() < MIN_DRIVE_BYTES {
        return None;
    }
    if let Some(finding) = safety::inspect(path).ok()?.never_overridable().next() {
        return Some(format!("it is in use ({})", finding.evidence));
    }
    match survey(&[DriveAddress::Path(path.to_owned())]) {
        Ok(surveys) => surveys.into_iter().find_map(|survey| match survey.content {
            Content::Pool { pool, .. } => Some(format!("it is a drive of pool {pool}")),
            _ => None,
        }),
        Err(error) if error.kind() == ErrorKind::Busy => Some(error.to_string()),
        Err(_) => None,
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// The folder, by its own name, and the name in it; not where a link there leads to.
fn place(path: &Path) -> Option<(PathBuf, std::ffi::OsString)> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
    Some((folder, path.file_name()?.to_owned()))
}
