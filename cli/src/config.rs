//! Which drives, and with which options they are opened: flags, then environment, then file.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use stanchion_engine::DriveAddress;
use stanchion_engine::HugePages;
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

/// The drives that were named, maybe none, each once.
///
/// # Errors
/// For an address or a configuration file that makes no sense.
pub fn drives(common: &Common) -> Result<Vec<DriveAddress>, Failure> {
    // The mistakes of a file that was asked for are told even where something overrides it.
    let asked_for = common.config.as_deref().map(read_file).transpose()?;
    let mut named = common.drives.clone();
    if named.is_empty() {
        named = from_environment()?;
    }
    if named.is_empty() {
        named = match asked_for {
            Some(drives) => drives,
            None if Path::new(DEFAULT_FILE).exists() => read_file(Path::new(DEFAULT_FILE))?,
            None => Vec::new(),
        };
    }
    let parsed = named.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>()?;
    refuse_repeats(&parsed)?;
    Ok(parsed)
}

fn from_environment() -> Result<Vec<String>, Failure> {
    let Some(value) = env::var_os(DRIVES_VARIABLE) else { return Ok(Vec::new()) };
    let text = value
        .into_string()
        .map_err(|value| Failure::Usage(format!("{DRIVES_VARIABLE}={value:?} is not UTF-8")))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(str::to_owned).collect())
}

/// The second opening of a drive would find it in use, by this very process.
fn refuse_repeats(drives: &[DriveAddress]) -> Result<(), Failure> {
    let real = |address: &DriveAddress| match address {
        DriveAddress::Path(path) => {
            DriveAddress::Path(fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
        }
        other => other.clone(),
    };
    let mut seen = HashSet::new();
    match drives.iter().find(|address| !seen.insert(real(address))) {
        Some(address) => Err(Failure::Refused(format!("drive {address} is named twice"))),
        None => Ok(()),
    }
}

fn read_file(path: &Path) -> Result<Vec<String>, Failure> {
    let wrong = |text: &str| Failure::Usage(format!("configuration {}: {text}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
    let parsed = toml::from_str::<File>(&text).map_err(|error| wrong(error.to_string().trim()))?;
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

/// Options for opening the pool that was named.
///
/// # Errors
/// As [`required_drives`].
pub fn pool_options(common: &Common, mode: PoolMode) -> Result<PoolOptions, Failure> {
    let mut options = PoolOptions::new(required_drives(common)?);
    options.mode = mode;
    options.degraded = common.degraded;
    options.huge_pages = common.huge_pages.map_or(HugePages::Preferred, HugePages::from);
    options.reactors = common.reactors.map(usize::from);
    options.cores = common.cores.clone().map(|cores| cores.0);
    options.queue_depth = common.queue_depth;
    options.checksum_threads = common.checksum_threads.map(usize::from);
    Ok(options)
}

/// Opens the pool and leaves what it noticed to the caller.
///
/// # Errors
/// As [`Pool::open`], and as [`required_drives`].
pub fn open_silently(common: &Common, mode: PoolMode) -> Result<Pool, Failure> {
    Ok(Pool::open(&pool_options(common, mode)?)?)
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
