// SPDX-License-Identifier: Apache-2.0
//! `stanchion list`: the checkpoints of a pool.

use clap::Args;
use serde::Serialize;
use stanchion_engine::{Availability, CheckpointInfo, PoolMode, check_base_name};

use super::Subcommand;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, plain};

const EXAMPLES: &str = "\
Examples:
  stanchion list --drive /data/a.img --drive /data/b.img
  stanchion list llama --json     the steps of llama; none is an empty list, not an error";

/// Arguments of `stanchion list`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct List {
    /// Only checkpoints of this name
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

#[derive(Serialize)]
struct Report {
    checkpoints: Vec<Record>,
}

#[derive(Serialize)]
struct Record {
    name: String,
    step: u64,
    uuid: String,
    data_bytes: u64,
    participant_count: u32,
    committed_at: String,
    generation: u64,
    /// "whole", "one_copy", "lost" or "unknown".
    availability: &'static str,
    /// Serials of the missing drives that hold the lost data.
    needed_serials: Vec<String>,
}

impl From<&CheckpointInfo> for Record {
    fn from(info: &CheckpointInfo) -> Record {
        let (availability, needed_serials) = match &info.availability {
            Availability::Whole => ("whole", Vec::new()),
            Availability::OneCopy => ("one_copy", Vec::new()),
            Availability::Lost { drives, .. } => ("lost", drives.clone()),
            Availability::Unknown => ("unknown", Vec::new()),
        };
        Record {
            name: info.name.name.clone(),
            step: info.name.step,
            uuid: info.id.to_string(),
            data_bytes: info.bytes,
            participant_count: info.participants,
            committed_at: output::exact_time(info.committed_unix_ns),
            generation: info.generation.0,
            availability,
            needed_serials,
        }
    }
}

impl Subcommand for List {
    const NAME: &'static str = "list";
    const ABOUT: &'static str = "List the checkpoints of a pool";
    const GROUPS: &'static [Group] = &[Group::Drives, Group::Engine, Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        if let Some(name) = &self.name {
            check_base_name(name)?;
        }
        let pool = context.open(PoolMode::ReadOnly)?;
        let is_wanted = |info: &CheckpointInfo| {
            self.name.as_ref().is_none_or(|wanted| *wanted == info.name.name)
        };
        let checkpoints: Vec<_> = pool.list().into_iter().filter(is_wanted).collect();
        let output = context.output;
        if output.json {
            let checkpoints = checkpoints.iter().map(Record::from).collect();
            return output.document(Self::NAME, &Report { checkpoints });
        }
        if checkpoints.is_empty() {
            output.notice("no_checkpoints", "no checkpoints");
            return Ok(());
        }
        output.text(table(&checkpoints))
    }
}

/// Where all data is present, the table has no column for it.
fn table(checkpoints: &[CheckpointInfo]) -> String {
    let all_whole = checkpoints.iter().all(|info| info.availability == Availability::Whole);
    let mut header = vec!["CHECKPOINT", "SIZE", "PARTICIPANTS", "COMMITTED", "GENERATION"];
    if !all_whole {
        header.push("DATA");
    }
    let mut table = output::table(&header, &["SIZE", "PARTICIPANTS", "GENERATION"]);
    for info in checkpoints {
        let mut row = vec![
            info.name.to_string(),
            output::size(info.bytes),
            info.participants.to_string(),
            output::time(info.committed_unix_ns),
            info.generation.to_string(),
        ];
        if !all_whole {
            row.push(match &info.availability {
                Availability::Whole => "whole".to_owned(),
                Availability::OneCopy => "one copy".to_owned(),
                Availability::Unknown if info.damage.is_some() => "damaged".to_owned(),
                Availability::Unknown => "unknown".to_owned(),
                Availability::Lost { drives, .. } => {
                    plain(&format!("lost with {}", drives.join(", ")))
                }
            });
        }
        table.add_row(row);
    }
    output::lines(&table)
}
