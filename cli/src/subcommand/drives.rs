// SPDX-License-Identifier: Apache-2.0
//! `stanchion drives`: what this machine has, and what the given drives hold.

use std::path::Path;

use clap::Args;
use serde::Serialize;
use stanchion_engine::host::inventory::{self, DriveKind, HostDrive};
use stanchion_engine::host::safety::Findings;
use stanchion_engine::survey;

use super::Subcommand;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, plain};
use crate::record::{HostDriveRecord, SurveyRecord};
use crate::survey::{in_use, table};

const EXAMPLES: &str = "\
Examples:
  stanchion drives                                           the drives of this machine
  stanchion drives --drive /dev/nvme1n1 --drive a.img        also what these two hold

The first list opens nothing. The second reads the ends of each drive and changes nothing.";

/// `stanchion drives` has no arguments of its own.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Drives {}

#[derive(Serialize)]
struct Report {
    drives: Vec<HostDriveRecord>,
    surveys: Vec<SurveyRecord>,
}

impl Subcommand for Drives {
    const NAME: &'static str = "drives";
    const ABOUT: &'static str = "List the drives of this machine, and what the given ones hold";
    const GROUPS: &'static [Group] = &[Group::Drives, Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let (given, output) = (context.drives()?, context.output);
        let drives = inventory::list(Path::new("/"));
        let mut surveys = Vec::new();
        let mut errors = Vec::new();
        for address in &given {
            match survey(std::slice::from_ref(address)) {
                Ok(found) => surveys.extend(found),
                Err(error) => errors.push(error),
            }
        }
        if output.json {
            output.document(
                Self::NAME,
                &Report {
                    drives: drives.iter().map(HostDriveRecord::from).collect(),
                    surveys: surveys.iter().map(SurveyRecord::from).collect(),
                },
            )?;
        } else {
            output.text(output::lines(&inventory_table(&drives)))?;
            if !surveys.is_empty() {
                output.text(format_args!("\n{}", output::lines(&table(&surveys))))?;
            }
        }
        let count = errors.len();
        match errors.pop() {
            None => Ok(()),
            Some(error) if count == 1 && given.len() == 1 => Err(error.into()),
            Some(last) => {
                errors.iter().for_each(|error| output.notice("drive_unreadable", error));
                let text =
                    format!("{count} of {} given drives cannot be read: {last}", given.len());
                let all_alike = errors.iter().all(|error| error.kind() == last.kind());
                match surveys.is_empty() && all_alike {
                    true => Err(CommandError::of_kind(last.kind(), plain(&text))),
                    false => Err(CommandError::Partial(plain(&text))),
                }
            }
        }
    }
}

fn inventory_table(drives: &[HostDrive]) -> comfy_table::Table {
    let header = ["ADDRESS", "KIND", "SERIAL", "MODEL", "SIZE", "DRIVER", "NUMA", "IN USE"];
    let mut table = output::table(&header, &["SIZE", "NUMA"]);
    for drive in drives {
        let text = |value: &Option<String>| value.as_deref().map_or_else(|| "-".into(), plain);
        table.add_row([
            plain(&drive.address),
            match drive.kind {
                DriveKind::BlockDevice => "block device".to_owned(),
                DriveKind::NvmeController => "NVMe controller".to_owned(),
            },
            text(&drive.serial),
            text(&drive.model),
            drive.capacity_bytes.map_or_else(|| "-".into(), output::size),
            text(&drive.driver),
            drive.numa_node.map_or_else(|| "-".into(), |node| node.to_string()),
            plain(&in_use(&Findings(drive.in_use.clone()))),
        ]);
    }
    table
}
