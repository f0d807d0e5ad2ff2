//! `stanchion format`: makes a pool. The only command that destroys what it was not told the name of,
//! so it shows what that is, asks, and refuses what may be somebody's.

use std::io::{IsTerminal as _, Write as _, stderr, stdin};

use clap::{Args, ValueEnum};
use serde::Serialize;
use stanchion_engine::{Content, FormatOptions, Redundancy, Survey, format_pool, survey};

use crate::args::{Common, parse_size};
use crate::config;
use crate::drives::{SurveyRecord, survey_table};
use crate::exit::Failure;
use crate::output::{self, Output, plain};

const EXAMPLES: &str = "\
Examples:
  stanchion format --drive a.img --drive b.img --size 1GiB --yes    files, made of that size
  stanchion format --drive /dev/nvme1n1 --drive /dev/nvme2n1        asks for the last 4 of each serial
  stanchion format --redundancy mirror --drive /dev/nvme1n1 --drive /dev/nvme2n1
  stanchion format --drive /dev/nvme1n1 --dry-run                   shows what is there, and stops

Blank drives, and pools without checkpoints, are formatted. Drives that hold anything else are
refused; --force overrides that. Nothing overrides a drive that is mounted, held, swapped on,
read-only, or owned by a live process.";

/// Characters of a serial that confirm it.
const CONFIRM_CHARS: usize = 4;

/// Arguments of `stanchion format`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct FormatArgs {
    /// Size of files that do not exist yet
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// The unit of striping, a power of two [default: 1MiB, or less where a drive takes less]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    chunk_size: Option<u64>,
    /// On how many drives each chunk lies
    #[arg(long, value_enum, default_value_t = Copies::None)]
    redundancy: Copies,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Destroy a pool with checkpoints, or somebody's data
    #[arg(long)]
    force: bool,
    /// Show what is there and what would be refused; write nothing
    #[arg(long)]
    dry_run: bool,
}

/// What may be lost without losing a checkpoint.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copies {
    /// One: all space is used, and what a drive holds is lost with it
    None,
    /// Two: half of the space is used, and any one drive may be lost
    Mirror,
}

impl From<Copies> for Redundancy {
    fn from(copies: Copies) -> Redundancy {
        match copies {
            Copies::None => Redundancy::None,
            Copies::Mirror => Redundancy::Mirror,
        }
    }
}

#[derive(Serialize)]
struct Document {
    format_version: u32,
    dry_run: bool,
    found: Vec<SurveyRecord>,
    pool: Option<PoolRecord>,
}

#[derive(Serialize)]
struct PoolRecord {
    pool: String,
    chunk_bytes: u64,
    capacity_bytes: u64,
    copies: u8,
    drives: Vec<DriveRecord>,
}

#[derive(Serialize)]
struct DriveRecord {
    serial: String,
    uuid: String,
    capacity_bytes: u64,
}

/// Runs it.
///
/// # Errors
/// Refusals, and whatever kept the pool from being made.
pub fn run(args: &FormatArgs, common: &Common, output: Output) -> Result<(), Failure> {
    let addresses = config::required_drives(common)?;
    let surveys = survey(&addresses)?;
    if !output.json && !output.quiet {
        output.text(output::lines(&survey_table(&surveys)))?;
    }
    for survey in &surveys {
        if survey.content == Content::Absent && args.size.is_none() {
            return Err(Failure::NotFound(format!(
                "drive {}: no such file; --size SIZE makes one of that size",
                survey.address
            )));
        }
        survey.check(args.force)?;
    }
    if !args.dry_run {
        confirm(args, &surveys)?;
    }
    let found = surveys.iter().map(SurveyRecord::from).collect();
    if args.dry_run {
        return match output.json {
            true => {
                output.document(&Document { format_version: 1, dry_run: true, found, pool: None })
            }
            false => output.summary("dry run: nothing was written"),
        };
    }
    let report = format_pool(&FormatOptions {
        chunk_bytes: args.chunk_size,
        redundancy: args.redundancy.into(),
        create_bytes: args.size,
        force: args.force,
        ..FormatOptions::new(addresses)
    })?;
    if !output.json {
        return output.summary(format_args!(
            "made pool {} of {} drives: {} for checkpoints, in chunks of {}",
            report.pool,
            match report.redundancy {
                Redundancy::None => format!("{}", report.drives.len()),
                Redundancy::Mirror => format!("{} mirrored", report.drives.len()),
            },
            output::size(report.capacity_bytes),
            output::size(report.chunk_bytes)
        ));
    }
    let drives = report.drives.into_iter().map(|drive| DriveRecord {
        serial: drive.serial,
        uuid: drive.uuid.to_string(),
        capacity_bytes: drive.capacity_bytes,
    });
    output.document(&Document {
        format_version: 1,
        dry_run: false,
        found,
        pool: Some(PoolRecord {
            pool: report.pool.to_string(),
            chunk_bytes: report.chunk_bytes,
            capacity_bytes: report.capacity_bytes,
            copies: report.redundancy.copies(),
            drives: drives.collect(),
        }),
    })
}

/// On a terminal the user types the end of each serial; elsewhere `--yes` stands for that.
fn confirm(args: &FormatArgs, surveys: &[Survey]) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    if !stdin().is_terminal() {
        return Err(Failure::Refused(
            "what these drives hold would be lost; --yes says that it may be".into(),
        ));
    }
    for survey in surveys {
        let address = &survey.address;
        let (loss, what, text) = match survey.content {
            Content::Absent => (format!("{address} will be made"), "address", address.as_str()),
            _ => {
                let serial = survey.serial();
                (format!("What {address} ({serial}) holds will be lost"), "serial", serial)
            }
        };
        let wanted = last_chars(text);
        let question = plain(&format!(
            "{loss}. Type the last {} characters of its {what}: ",
            wanted.chars().count()
        ));
        let mut answer = String::new();
        let asked = stderr().write_all(question.as_bytes()).and_then(|()| stderr().flush());
        asked
            .and_then(|()| stdin().read_line(&mut answer))
            .map_err(|error| Failure::os("asking on the terminal", error))?;
        if answer.trim() != wanted.trim() {
            return Err(Failure::Refused("that is not it; nothing was written".into()));
        }
    }
    Ok(())
}

fn last_chars(text: &str) -> &str {
    let start = text.char_indices().rev().nth(CONFIRM_CHARS - 1).map_or(0, |(at, _)| at);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_serial() {
        assert_eq!(last_chars("S4EWNX0R"), "NX0R");
        assert_eq!(last_chars("ab"), "ab");
        assert_eq!(last_chars("naïve"), "aïve");
    }
}
