// SPDX-License-Identifier: Apache-2.0
//! `stanchion rm`: removes checkpoints.

use clap::Args;
use serde::Serialize;
use stanchion_engine::{CheckpointInfo, CheckpointName, PoolMode};

use super::Subcommand;
use crate::ask::ask;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, Output};

const EXAMPLES: &str = "\
Examples:
  stanchion rm llama@100 --drive /data/a.img --drive /data/b.img
  stanchion rm llama@100 llama@200 --dry-run
  stanchion rm llama@100 llama@200 --yes     without a question; needed where there is no terminal

When the command ends, the checkpoints are durably removed. If one of them does not
exist, none is removed.";

/// Arguments of `stanchion rm`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Rm {
    /// The checkpoints
    #[arg(value_name = "NAME@STEP", required = true)]
    names: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Report {
    removed: Vec<Record>,
    /// With --dry-run.
    would_remove: Vec<Candidate>,
}

#[derive(Serialize)]
struct Candidate {
    name: String,
    step: u64,
    data_bytes: u64,
}

#[derive(Serialize)]
struct Record {
    name: String,
    step: u64,
    data_bytes: u64,
    generation: u64,
}

impl Subcommand for Rm {
    const NAME: &'static str = "rm";
    const ABOUT: &'static str = "Remove checkpoints";
    const GROUPS: &'static [Group] = &Group::ALL;

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let mut names =
            self.names.iter().map(|n| n.parse()).collect::<Result<Vec<CheckpointName>, _>>()?;
        names.sort();
        names.dedup();
        let mode = if self.dry_run { PoolMode::ReadOnly } else { PoolMode::ReadWrite };
        let pool = context.open(mode)?;
        let found = names.iter().map(|name| pool.find(name)).collect::<Result<Vec<_>, _>>()?;
        if self.dry_run {
            return show(&found, context.output);
        }
        if !self.yes {
            confirm(&found)?;
        }
        let mut removed = Vec::new();
        let mut result = Ok(());
        for info in &found {
            match pool.remove(&info.name) {
                Ok(generation) => removed.push(Record {
                    name: info.name.name.clone(),
                    step: info.name.step,
                    data_bytes: info.bytes,
                    generation: generation.0,
                }),
                Err(error) if removed.is_empty() => return Err(error.into()),
                Err(error) => {
                    result = Err(CommandError::Partial(format!(
                        "removed {} of {}, and no more: {}: {error}",
                        removed.len(),
                        output::count(found.len(), "checkpoint"),
                        info.name
                    )));
                    break;
                }
            }
            if !context.output.json {
                let size = output::size(info.bytes);
                let printed =
                    context.output.summary(format_args!("removed {} ({size})", info.name));
                context.output.reported(printed, format_args!("{} was removed", info.name));
            }
        }
        if context.output.json {
            let count = output::count(removed.len(), "checkpoint");
            let printed =
                context.output.document(Self::NAME, &Report { removed, would_remove: Vec::new() });
            context.output.reported(printed, format_args!("{count} removed"));
        }
        result
    }
}

/// What would be removed.
fn show(found: &[CheckpointInfo], output: Output) -> Result<(), CommandError> {
    if output.json {
        let candidate = |info: &CheckpointInfo| Candidate {
            name: info.name.name.clone(),
            step: info.name.step,
            data_bytes: info.bytes,
        };
        let would_remove = found.iter().map(candidate).collect();
        return output.document(Rm::NAME, &Report { removed: Vec::new(), would_remove });
    }
    for info in found {
        output.text(format_args!("would remove {} ({})", info.name, output::size(info.bytes)))?;
    }
    Ok(())
}

fn confirm(found: &[CheckpointInfo]) -> Result<(), CommandError> {
    let mut question = String::new();
    for info in found {
        let (size, time) = (output::size(info.bytes), output::time(info.committed_unix_ns));
        question.push_str(&format!("{} ({size}, committed {time})\n", info.name));
    }
    question.push_str("Remove for good? [y/N]");
    let names: Vec<String> = found.iter().map(|info| info.name.to_string()).collect();
    let answer = ask(&question, &format!("{} would be removed for good", names.join(", ")))?;
    match answer.to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CommandError::Refused("not confirmed; nothing was removed".into())),
    }
}
