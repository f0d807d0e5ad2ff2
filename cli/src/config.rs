// SPDX-License-Identifier: Apache-2.0
//! Which drives: from `--drive`, else `--config`, else the environment, else the default file. The
//! first of these that is given is the only one that counts. docs/configuration.md describes them.

use std::collections::HashSet;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stanchion_engine::DriveAddress;

use crate::error::CommandError;
use crate::options::DriveOptions;

/// Drives, one per line, where neither `--drive` nor `--config` is given.
pub const DRIVES_VARIABLE: &str = "STANCHION_DRIVES";
/// Read where nothing else names drives, if it exists.
pub const DEFAULT_FILE: &str = "/etc/stanchion/stanchion.toml";
/// Far more than 32 drives need.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The keys of a configuration file.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Keys {
    /// Every drive of the pool, by address.
    drives: Vec<String>,
}

/// The drives that were named, maybe none, each once.
///
/// # Errors
/// For an address or a configuration file that is wrong.
pub fn drives(options: &DriveOptions) -> Result<Vec<DriveAddress>, CommandError> {
    // A mistake in a named file is an error even where --drive overrides the file.
    let named = options.config.as_deref().map(read_file).transpose()?;
    let drives = if !options.drives.is_empty() {
        parse(&options.drives)?
    } else if let Some(drives) = named {
        drives
    } else if let Some(drives) = from_environment()? {
        drives
    } else if Path::new(DEFAULT_FILE).exists() {
        read_file(Path::new(DEFAULT_FILE))?
    } else {
        Vec::new()
    };
    refuse_repeats(&drives)?;
    Ok(drives)
}

fn parse(texts: &[String]) -> Result<Vec<DriveAddress>, CommandError> {
    // It would be another file, and is seen by no one.
    if let Some(text) = texts.iter().find(|text| text.trim() != text.as_str()) {
        return Err(CommandError::Usage(format!(
            "address {text:?} starts or ends with a blank; leave the blank out"
        )));
    }
    Ok(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
}

/// The drives of the variable; `None` where it is unset or blank.
fn from_environment() -> Result<Option<Vec<DriveAddress>>, CommandError> {
    let Some(value) = env::var_os(DRIVES_VARIABLE) else { return Ok(None) };
    let text = value.into_string().map_err(|value| {
        CommandError::Usage(format!(
            "{DRIVES_VARIABLE}={value:?} is not UTF-8; set it to one address a line"
        ))
    })?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    if lines.is_empty() { Ok(None) } else { parse(&lines).map(Some) }
}

/// Opened twice, the drive would be found in use, by this process.
fn refuse_repeats(drives: &[DriveAddress]) -> Result<(), CommandError> {
    let real = |address: &DriveAddress| match address {
        DriveAddress::Path(path) => {
            DriveAddress::Path(fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
        }
        other => other.clone(),
    };
    let mut seen = HashSet::new();
    match drives.iter().find(|address| !seen.insert(real(address))) {
        Some(address) => Err(CommandError::Usage(format!(
            "drive {address} is named twice; name each drive of the pool once"
        ))),
        None => Ok(()),
    }
}

fn read_file(path: &Path) -> Result<Vec<DriveAddress>, CommandError> {
    let what = || format!("configuration {}", path.display());
    let wrong = |text: &str| CommandError::Usage(format!("{}: {text}", what()));
    let failed = |error: io::Error| CommandError::path(what(), error);
    // Opening a FIFO would wait for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(wrong("not a regular file; name a file with drives = [\"ADDRESS\", ...]"));
    }
    let bytes = read_bounded(file).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(&format!("larger than {MAX_FILE_BYTES} bytes, the most that is read")));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("not UTF-8"))?;
    let keys = toml::from_str::<Keys>(&text).map_err(|error| wrong(error.to_string().trim()))?;
    if keys.drives.is_empty() {
        return Err(wrong("names no drive; add drives = [\"ADDRESS\", ...]"));
    }
    let drives =
        parse(&keys.drives).map_err(|error| CommandError::Usage(format!("{}: {error}", what())))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(drives.into_iter().map(|drive| below(folder, drive)).collect())
}

fn read_bounded(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A relative path in a configuration file starts at the file's folder.
fn below(folder: &Path, drive: DriveAddress) -> DriveAddress {
    match drive {
        DriveAddress::Path(path) => DriveAddress::Path(PathBuf::from_iter([folder, &path])),
        other => other,
    }
}

/// The drives that were named, at least one.
///
/// # Errors
/// When there are none, and as [`drives`].
pub fn required_drives(options: &DriveOptions) -> Result<Vec<DriveAddress>, CommandError> {
    let drives = drives(options)?;
    if drives.is_empty() {
        return Err(CommandError::Usage(format!(
            "no drive was named; pass --drive ADDRESS for each drive of the pool, or set \
             {DRIVES_VARIABLE}, or list them in {DEFAULT_FILE}"
        )));
    }
    Ok(drives)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<DriveAddress>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool.toml");
        fs::write(&path, text).unwrap();
        let relative = |drive: DriveAddress| match drive {
            DriveAddress::Path(path) => DriveAddress::Path(
                path.strip_prefix(folder.path()).map(Path::to_owned).unwrap_or(path),
            ),
            other => other,
        };
        let drives = read_file(&path).map_err(|error| error.to_string())?;
        Ok(drives.into_iter().map(relative).collect())
    }

    #[test]
    fn unknown_keys_are_mistakes() {
        let path = |text: &str| DriveAddress::Path(text.into());
        assert_eq!(read("drives = ['a', 'b c']").unwrap(), [path("a"), path("b c")]);
        for (text, part) in [
            ("drive = ['a']", "unknown field"),
            ("", "missing field"),
            ("drives = []", "names no drive"),
            ("drives = ['']", "address is empty"),
            ("drives = 'a'", "expected a sequence"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part) && error.contains("pool.toml"), "{text}: {error}");
        }
    }

    #[test]
    fn only_relative_paths_start_at_the_folder() {
        let below = |text: &str| below(Path::new("/etc/pools"), text.parse().unwrap()).to_string();
        assert_eq!(below("a.img"), "/etc/pools/a.img");
        assert_eq!(below("../a.img"), "/etc/pools/../a.img");
        assert_eq!(below("/data/a.img"), "/data/a.img");
        assert_eq!(below("pcie:04:00.0"), "trtype:PCIe traddr:0000:04:00.0");
    }
}
