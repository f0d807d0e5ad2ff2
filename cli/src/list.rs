//! `stanchion list`: the checkpoints of a pool.

use clap::Args;
use serde::Serialize;
use stanchion_engine::{Availability, CheckpointInfo, PoolMode, check_base_name};

use crate::args::Common;
use crate::config;
use crate::exit::Failure;
use crate::output::{self, Output, plain};

const EXAMPLES: &str = "\
Examples:
  stanchion list --drive /data/a.img --drive /data/b.img
  stanchion list llama --json     the steps of llama; none is an empty list, not an error";

/// Arguments of `stanchion list`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    /// Only checkpoints of this name
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

#[derive(Serialize)]
struct Document {
    format_version: u32,
    checkpoints: Vec<Record>,
}

#[derive(Serialize)]
struct Record {
    name: String,
    step: u64,
    bytes: u64,
    participants: u32,
    committed_at: String,
    generation: u64,
    id: String,
    /// "whole", "one copy" or "lost".
    health: &'static str,
    /// Serials of the missing drives that have what is lost.
    needs_drives: Vec<String>,
}

impl From<CheckpointInfo> for Record {
    fn from(info: CheckpointInfo) -> Record {
        let (health, needs_drives) = match info.health {
            Availability::Whole => ("whole", Vec::new()),
            Availability::OneCopy => ("one copy", Vec::new()),
            Availability::Lost { drives, .. } => ("lost", drives),
        };
        Record {
            health,
            needs_drives,
            name: info.name.name,
            step: info.name.step,
            bytes: info.bytes,
            participants: info.participants,
            committed_at: output::time(info.committed_unix_ns),
            generation: info.generation.0,
            id: info.id.to_string(),
        }
    }
}

/// Runs it.
///
/// # Errors
/// When the pool cannot be opened.
pub fn run(args: &ListArgs, common: &Common, output: Output) -> Result<(), Failure> {
    if let Some(name) = &args.name {
        check_base_name(name)?;
    }
    let pool = config::open(common, PoolMode::ReadOnly, output)?;
    let wanted = |info: &CheckpointInfo| args.name.as_ref().is_none_or(|n| *n == info.name.name);
    let checkpoints: Vec<Record> =
        pool.list().into_iter().filter(wanted).map(Record::from).collect();
    if output.json {
        return output.document(&Document { format_version: 1, checkpoints });
    }
    if checkpoints.is_empty() {
        output.notice("no checkpoints");
        return Ok(());
    }
    // The state of each is told where something is not as it should be.
    let all_whole = checkpoints.iter().all(|record| record.health == "whole");
    let mut header = vec!["CHECKPOINT", "SIZE", "PARTICIPANTS", "COMMITTED", "GENERATION"];
    if !all_whole {
        header.push("DATA");
    }
    let mut table = output::table(&header, &["SIZE", "PARTICIPANTS", "GENERATION"]);
    for record in checkpoints {
        let mut row = vec![
            format!("{}@{}", record.name, record.step),
            output::size(record.bytes),
            record.participants.to_string(),
            record.committed_at,
            record.generation.to_string(),
        ];
        if !all_whole {
            row.push(match record.needs_drives.is_empty() {
                true => record.health.to_owned(),
                false => plain(&format!("lost with {}", record.needs_drives.join(", "))),
            });
        }
        table.add_row(row);
    }
    output.text(output::lines(&table))
}
