// SPDX-License-Identifier: Apache-2.0
//! `stanchion format`: makes a pool. It destroys what drives hold, so it shows what that is, asks,
//! and refuses drives that hold data.

use clap::{Args, ValueEnum};
use serde::Serialize;
use stanchion_engine::host::safety::volatile_place;
use stanchion_engine::{
    Content, DriveAddress, FormatOptions, FormatReport, Notice, Redundancy, Survey,
    WITHOUT_RESERVATIONS, format_pool, survey,
};

use super::Subcommand;
use crate::ask::ask;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, Output};
use crate::record::SurveyRecord;
use crate::survey::table;
use crate::values::parse_size;

const EXAMPLES: &str = "\
Examples:
  stanchion format --drive a.img --drive b.img --size 1GiB --yes    makes files of that size
  stanchion format --drive /dev/nvme1n1 --drive /dev/nvme2n1        asks for the end of each serial
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
pub struct Format {
    /// Size of files that do not exist yet
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// The unit of striping, a power of two [default: 1MiB; 4MiB in pools above 60 TB, 16MiB above
    /// 250 TB; less where a drive takes less]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    chunk_size: Option<u64>,
    /// Room on each drive for tables and names of shards; the number of checkpoints follows from it
    /// [default: 1/128 of the smallest drive, more of one below 40 GB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    metadata_size: Option<u64>,
    /// How many drives hold a copy of each chunk
    #[arg(long, value_enum, default_value_t = Copies::None)]
    redundancy: Copies,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Destroy a pool with checkpoints, or other data
    #[arg(long)]
    force: bool,
    /// Take drives from an owner on another host, or in another container, that has ended
    #[arg(long)]
    take_over: bool,
    /// Show what is there and what would be refused; write nothing
    #[arg(long)]
    dry_run: bool,
}

/// What may be lost without losing a checkpoint.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copies {
    /// One: all space is used; data on a lost drive is lost
    None,
    /// Two: half of the space is used; any one drive may be lost
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
struct Report {
    dry_run: bool,
    /// What the drives held before.
    surveys: Vec<SurveyRecord>,
    pool: Option<PoolRecord>,
}

#[derive(Serialize)]
struct PoolRecord {
    uuid: String,
    chunk_bytes: u64,
    metadata_bytes: u64,
    max_checkpoint_count: usize,
    typical_shard_count: u64,
    capacity_bytes: u64,
    copies: u8,
    drives: Vec<DriveRecord>,
}

#[derive(Serialize)]
struct DriveRecord {
    uuid: String,
    serial: String,
    capacity_bytes: u64,
}

impl From<&FormatReport> for PoolRecord {
    fn from(made: &FormatReport) -> PoolRecord {
        let drives = made.drives.iter().map(|drive| DriveRecord {
            uuid: drive.uuid.to_string(),
            serial: drive.serial.clone(),
            capacity_bytes: drive.capacity_bytes,
        });
        PoolRecord {
            uuid: made.pool.to_string(),
            chunk_bytes: made.sizing.chunk_bytes,
            metadata_bytes: made.sizing.metadata_bytes,
            max_checkpoint_count: made.sizing.max_checkpoints,
            typical_shard_count: made.sizing.typical_shards,
            capacity_bytes: made.sizing.capacity_bytes,
            copies: made.redundancy.copies(),
            drives: drives.collect(),
        }
    }
}

impl Subcommand for Format {
    const NAME: &'static str = "format";
    const ABOUT: &'static str = "Make a pool of drives; what they hold is lost";
    const GROUPS: &'static [Group] = &[Group::Drives, Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let (addresses, output) = (context.required_drives()?, context.output);
        let found = survey(&addresses)?;
        if !output.json && !output.quiet {
            output.text(output::lines(&table(&found)))?;
        }
        for (survey, address) in found.iter().zip(&addresses) {
            warn(survey, address, output);
            if survey.content == Content::Absent && self.size.is_none() {
                return Err(CommandError::NotFound(format!(
                    "drive {}: no such file; pass --size SIZE to make it",
                    survey.address
                )));
            }
            survey.check(self.force)?;
        }
        let surveys = found.iter().map(SurveyRecord::from).collect();
        if self.dry_run {
            return match output.json {
                true => output.document(Self::NAME, &Report { dry_run: true, surveys, pool: None }),
                false => output.summary("dry run: nothing was written"),
            };
        }
        if !self.yes {
            confirm(&found)?;
        }
        let made = format_pool(&FormatOptions {
            chunk_bytes: self.chunk_size,
            metadata_bytes: self.metadata_size,
            redundancy: self.redundancy.into(),
            create_bytes: self.size,
            take_over: self.take_over,
            force: self.force,
            ..FormatOptions::new(addresses)
        })?;
        let without: Vec<&str> = made.without_reservations.iter().map(String::as_str).collect();
        if !without.is_empty() {
            let drives = without.join(", ");
            output.notice("no_reservations", format_args!("{drives}: {WITHOUT_RESERVATIONS}"));
        }
        if output.json {
            let pool = Some(PoolRecord::from(&made));
            return output.document(Self::NAME, &Report { dry_run: false, surveys, pool });
        }
        output.summary(format_args!(
            "made pool {} of {}{}: {} for checkpoints, in chunks of {}; room for {} checkpoints, \
             and with {} of metadata on each drive for some {} shards",
            made.pool,
            output::count(made.drives.len(), "drive"),
            if made.redundancy == Redundancy::Mirror { ", mirrored" } else { "" },
            output::size(made.sizing.capacity_bytes),
            output::size(made.sizing.chunk_bytes),
            made.sizing.max_checkpoints,
            output::size(made.sizing.metadata_bytes),
            made.sizing.typical_shards
        ))
    }
}

/// About a drive that forgets what it was to keep.
fn warn(survey: &Survey, address: &DriveAddress, output: Output) {
    if let DriveAddress::Path(path) = address
        && let Some(place) = volatile_place(path)
    {
        output.notice("volatile_place", format_args!("drive {address} lies in {place}"));
    }
    if let Some(notice) = survey.info.as_ref().and_then(Notice::of_cache) {
        output.pool_notice(&notice);
    }
}

/// On a terminal the user types the end of each serial; elsewhere `--yes` stands for that.
fn confirm(surveys: &[Survey]) -> Result<(), CommandError> {
    for survey in surveys {
        let address = &survey.address;
        let (loss, what, text) = match survey.content {
            Content::Absent => (format!("{address} will be made"), "address", address.as_str()),
            _ => {
                let serial = survey.serial();
                (format!("The contents of {address} ({serial}) will be lost"), "serial", serial)
            }
        };
        let wanted = last_chars(text);
        let question =
            format!("{loss}. Type the last {} characters of its {what}:", wanted.chars().count());
        if ask(&question, "the contents of these drives would be lost")? != wanted.trim() {
            return Err(CommandError::Refused(format!(
                "the {what} of {address} does not match; nothing was written"
            )));
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
