//! Which drives, and with which options they are opened: flags, then environment, then file.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stanchion_engine::address::DriveAddress;
use stanchion_engine::memory::HugePages;
use stanchion_engine::{Pool, PoolMode, PoolOptions};

use crate::args::Common;
use crate::exit::Failure;
use crate::output::Output;

/// Drives, one per line, where no `--drive` is given.
pub const DRIVES_VARIABLE: &str = "STANCHION_DRIVES";
/// Read where neither flags nor environment name drives, if it exists.
const DEFAULT_FILE: &str = "/etc/stanchion/stanchion.toml";

/// The configuration file.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct File {
    /// Every drive of the pool, by address.
    #[serde(default)]
    drives: Vec<String>,
}

/// The drives that were named, maybe none.
///
/// # Errors
/// For an address or a configuration file that makes no sense.
pub fn drives(common: &Common) -> Result<Vec<DriveAddress>, Failure> {
    // A file that was asked for is read, and its mistakes are told, even where a flag overrides it.
    let from_file = read_file(common.config.as_deref())?;
    let from_environment = env::var_os(DRIVES_VARIABLE)
        .map(|value| value.into_string())
        .transpose()
        .map_err(|value| Failure::Usage(format!("{DRIVES_VARIABLE}={value:?} is not UTF-8")))?
        .unwrap_or_default();
    let lines = from_environment.lines().map(str::trim).filter(|line| !line.is_empty());
    let from_environment: Vec<String> = lines.map(str::to_owned).collect();
    let named = [common.drives.clone(), from_environment, from_file];
    let chosen = named.into_iter().find(|drives| !drives.is_empty()).unwrap_or_default();
    chosen.iter().map(|address| address.parse().map_err(Failure::from)).collect()
}

fn read_file(asked_for: Option<&Path>) -> Result<Vec<String>, Failure> {
    let path = asked_for.map_or_else(|| PathBuf::from(DEFAULT_FILE), Path::to_path_buf);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound && asked_for.is_none() => {
            return Ok(Vec::new());
        }
        Err(error) => {
            return Err(Failure::Usage(format!("configuration {}: {error}", path.display())));
        }
    };
    let parsed = toml::from_str::<File>(&text).map_err(|error| {
        Failure::Usage(format!("configuration {}: {}", path.display(), error.to_string().trim()))
    })?;
    Ok(parsed.drives)
}

/// The drives that were named.
///
/// # Errors
/// When there are none, and as [`drives`].
pub fn required_drives(common: &Common) -> Result<Vec<DriveAddress>, Failure> {
    let drives = drives(common)?;
    if drives.is_empty() {
        return Err(Failure::Usage(format!(
            "no drive was named; give --drive ADDRESS for each drive of the pool, or set \
             {DRIVES_VARIABLE}, or name them in {DEFAULT_FILE}"
        )));
    }
    Ok(drives)
}

/// Opens the pool and leaves what it noticed to the caller.
///
/// # Errors
/// As [`Pool::open`], and as [`required_drives`].
pub fn open_silently(common: &Common, mode: PoolMode) -> Result<Pool, Failure> {
    let mut options = PoolOptions::new(required_drives(common)?);
    options.mode = mode;
    options.huge_pages = common.huge_pages.map_or(HugePages::Preferred, HugePages::from);
    options.reactors = common.reactors.map(usize::from);
    options.cores = common.cores.clone().map(|cores| cores.0);
    options.queue_depth = common.queue_depth.unwrap_or(options.queue_depth);
    options.checksum_threads = common.checksum_threads.map(usize::from);
    Ok(Pool::open(&options)?)
}

/// Opens the pool and tells what it noticed.
///
/// # Errors
/// As [`open_silently`].
pub fn open(common: &Common, mode: PoolMode, output: Output) -> Result<Pool, Failure> {
    let pool = open_silently(common, mode)?;
    output.notices(pool.notices());
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_mistakes() {
        let good = toml::from_str::<File>("drives = ['a', 'b c']").unwrap();
        assert_eq!(good.drives, ["a", "b c"]);
        let error = toml::from_str::<File>("drive = ['a']").unwrap_err();
        assert!(error.to_string().contains("drive"), "{error}");
    }
}
