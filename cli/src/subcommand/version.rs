// SPDX-License-Identifier: Apache-2.0
//! `stanchion version`, and `stanchion --version`.

use clap::Args;
use serde::Serialize;
use stanchion_engine::{FORMAT_MAJOR as MAJOR, FORMAT_MINOR as MINOR};

use super::Subcommand;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;

const EXAMPLES: &str = "\
Examples:
  stanchion version
  stanchion version --json";

/// `stanchion version` has no arguments of its own.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Version {}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    disk_format_version: String,
    features: Features,
}

#[derive(Serialize)]
struct Features {
    spdk: bool,
}

impl Subcommand for Version {
    const NAME: &'static str = "version";
    const ABOUT: &'static str = "Print the versions of the program and of its on-disk format";
    const GROUPS: &'static [Group] = &[Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let report = Report {
            version: env!("CARGO_PKG_VERSION"),
            disk_format_version: format!("{MAJOR}.{MINOR}"),
            features: Features { spdk: cfg!(feature = "spdk") },
        };
        if context.output.json {
            return context.output.document(Self::NAME, &report);
        }
        context.output.text(format_args!(
            "stanchion {}\non-disk format {}\nspdk: {}",
            report.version,
            report.disk_format_version,
            if report.features.spdk { "yes" } else { "no" }
        ))
    }
}
