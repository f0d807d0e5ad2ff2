//! `stanchion rm`: removes checkpoints.

use std::io::{IsTerminal as _, Write as _, stderr, stdin};

use clap::Args;
use serde::Serialize;
use stanchion_engine::{CheckpointInfo, CheckpointName, PoolMode};

use crate::args::Common;
use crate::config;
use crate::exit::Failure;
use crate::output::{self, Output};

const EXAMPLES: &str = "\
Examples:
  stanchion rm llama@100 --drive /data/a.img --drive /data/b.img
  stanchion rm llama@100 llama@200 --yes     on a terminal, without being asked

When the command ends they are durably gone. If one of them does not exist, none is removed.";

/// Arguments of `stanchion rm`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RmArgs {
    /// The checkpoints
    #[arg(value_name = "NAME@STEP", required = true)]
    names: Vec<String>,
    /// Do not ask on a terminal
    #[arg(short, long)]
    yes: bool,
}

#[derive(Serialize)]
struct Document {
    format_version: u32,
    removed: Vec<Record>,
}

#[derive(Serialize)]
struct Record {
    name: String,
    step: u64,
    bytes: u64,
    generation: u64,
}

/// Runs it.
///
/// # Errors
/// When a checkpoint does not exist or cannot be removed.
pub fn run(args: &RmArgs, common: &Common, output: Output) -> Result<(), Failure> {
    let mut names =
        args.names.iter().map(|n| n.parse()).collect::<Result<Vec<CheckpointName>, _>>()?;
    names.sort();
    names.dedup();
    let pool = config::open(common, PoolMode::ReadWrite, output)?;
    let found = names.iter().map(|name| pool.find(name)).collect::<Result<Vec<_>, _>>()?;
    if !args.yes && stdin().is_terminal() {
        ask(&found)?;
    }
    let mut removed = Vec::new();
    for info in found {
        let generation = pool.remove(&info.name)?.0;
        if !output.json {
            output.summary(format_args!("removed {} ({})", info.name, output::size(info.bytes)))?;
        }
        let CheckpointName { name, step } = info.name;
        removed.push(Record { name, step, bytes: info.bytes, generation });
    }
    if output.json {
        output.document(&Document { format_version: 1, removed })?;
    }
    Ok(())
}

fn ask(found: &[CheckpointInfo]) -> Result<(), Failure> {
    let mut question = String::new();
    for info in found {
        let (size, time) = (output::size(info.bytes), output::time(info.committed_unix_ns));
        question.push_str(&format!("{} ({size}, committed {time})\n", info.name));
    }
    question.push_str("Remove for good? [y/N] ");
    let mut answer = String::new();
    let asked = stderr().write_all(question.as_bytes()).and_then(|()| stderr().flush());
    asked
        .and_then(|()| stdin().read_line(&mut answer))
        .map_err(|error| Failure::os("asking on the terminal", error))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::Refused("nothing was removed".into())),
    }
}
