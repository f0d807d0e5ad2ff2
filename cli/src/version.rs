//! `stanchion version`.

use clap::Args;
use serde::Serialize;
use stanchion_engine::{FORMAT_MAJOR as MAJOR, FORMAT_MINOR as MINOR};

use crate::exit::Failure;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  stanchion version
  stanchion version --json";

/// `stanchion version` has no arguments of its own.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct VersionArgs {}

#[derive(Serialize)]
struct Document {
    format_version: u32,
    version: &'static str,
    disk_format: String,
    features: Features,
}

#[derive(Serialize)]
struct Features {
    spdk: bool,
}

/// Runs it.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(_: &VersionArgs, output: Output) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let disk_format = format!("{MAJOR}.{MINOR}");
    let spdk = cfg!(feature = "spdk");
    if output.json {
        let features = Features { spdk };
        return output.document(&Document { format_version: 1, version, disk_format, features });
    }
    let spdk = if spdk { "yes" } else { "no" };
    output.text(format_args!("stanchion {version}\non-disk format {disk_format}\nspdk: {spdk}"))
}
