//! What may be said on the command line, and before or after the subcommand.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use stanchion_engine::HugePages;

use crate::{
    bench, bind, doctor, drives, format, list, plan, restore, rm, save, show, verify, version,
};

const ABOUT: &str = "\
Saves deep-learning checkpoints to whole drives, and brings them back.

A pool is made once of whole drives with `stanchion format`. A checkpoint NAME@STEP becomes visible \
all at once when it is durable, or not at all; every byte is checked when it is read.";

const EXAMPLES: &str = "\
Examples:
  Make a pool of two files, save two files as a checkpoint, and bring them back:
    export STANCHION_DRIVES=$'/data/a.img\\n/data/b.img'
    stanchion format --size 4GiB --yes
    stanchion save llama@100 model.safetensors optimizer.pt
    stanchion list
    stanchion restore llama@100 -o restored/

Drives are named by address: a file, a block device (/dev/nvme0n1), a PCI function for SPDK
(pcie:0000:04:00.0), or an SPDK transport ID
(\"trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn...\"), with hostnqn:nqn...
where the target admits only hosts that it knows by name.
They are taken from --drive, else from STANCHION_DRIVES (one per line), else from --config.
Name every drive of a pool, in any order.

Exit codes: 0 done, 1 failed, 2 usage, 3 data damaged, 10 not found or not formatted,
11 in use by a live process, 12 refused because it could destroy data, 13 machine not set up,
130 interrupted.";

/// The command line.
#[derive(Parser, Debug)]
#[command(
    name = "stanchion", version, about = "Checkpoints on whole drives", long_about = ABOUT,
    after_help = EXAMPLES, arg_required_else_help = true, subcommand_required = true
)]
pub struct Cli {
    /// Said before the subcommand.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands, each with what may be said after it.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// List the drives of this machine, and what the given ones hold
    Drives(With<drives::DrivesArgs>),
    /// Make a pool of drives; what they hold is lost
    Format(With<format::FormatArgs>),
    /// List the checkpoints of a pool
    List(With<list::ListArgs>),
    /// Show a pool, or what one checkpoint consists of
    Show(With<show::ShowArgs>),
    /// Save files as a checkpoint
    Save(With<save::SaveArgs>),
    /// Write the files of a checkpoint into a directory
    Restore(With<restore::RestoreArgs>),
    /// Check every byte of a pool or of one checkpoint
    Verify(With<verify::VerifyArgs>),
    /// Remove checkpoints
    Rm(With<rm::RmArgs>),
    /// Measure how fast a pool saves or restores
    Bench(With<bench::BenchArgs>),
    /// Check what keeps this machine, and the given drives, from being used
    Doctor(With<doctor::DoctorArgs>),
    /// Take drives from the kernel and give them to SPDK
    Bind(With<bind::BindArgs>),
    /// Give drives back to the kernel
    Unbind(With<bind::UnbindArgs>),
    /// Work out what checkpoints of a training job will cost
    Plan(With<plan::PlanArgs>),
    /// Show the versions of the program and of its format
    Version(With<version::VersionArgs>),
}

/// A subcommand's own arguments, and the common ones again.
#[derive(Args, Debug)]
pub struct With<T: Args> {
    /// The subcommand's own.
    #[command(flatten)]
    pub own: T,
    /// The common ones.
    #[command(flatten)]
    pub common: Common,
}

/// How pages for buffers are taken.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Huge pages, or fail
    Required,
    /// Huge pages; ordinary ones where there are too few, which is said
    Preferred,
    /// Ordinary pages
    Off,
}

impl From<Pages> for HugePages {
    fn from(pages: Pages) -> HugePages {
        match pages {
            Pages::Required => HugePages::Required,
            Pages::Preferred => HugePages::Preferred,
            Pages::Off => HugePages::Off,
        }
    }
}

/// What every subcommand understands, before it or after it.
#[derive(Args, Clone, Default, Debug)]
#[command(next_help_heading = "Options of every subcommand")]
pub struct Common {
    /// A drive, by address; repeat it for each drive of the pool
    #[arg(long = "drive", value_name = "ADDRESS")]
    pub drives: Vec<String>,
    /// File with `drives = ["ADDRESS", ...]` [default: /etc/stanchion/stanchion.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Results as one JSON document on stdout, errors as JSON on stderr
    #[arg(long)]
    pub json: bool,
    /// No progress, no notices, no summaries
    #[arg(short, long)]
    pub quiet: bool,
    /// Tell more; repeat for even more
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    /// Write the pool although drives of it are missing; the others remember that
    #[arg(long)]
    pub degraded: bool,
    /// Pages for buffers [default: preferred]
    #[arg(long, value_enum, value_name = "HOW")]
    pub huge_pages: Option<Pages>,
    /// Cores to pin the polling threads to, as in 2,3 or 4-7
    #[arg(long, value_name = "LIST", value_parser = parse_cores)]
    pub cores: Option<Cores>,
    /// Polling threads [default: one for each drive, if there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub reactors: Option<u16>,
    /// Commands in flight on each drive [default: 16, or 64 where the kernel drives it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub queue_depth: Option<u32>,
    /// Threads that compute checksums [default: a quarter of the cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub checksum_threads: Option<u16>,
}

impl Common {
    /// These, said before the subcommand, with those said after it. Drives add up; of other values
    /// the later one counts.
    pub fn and_then(mut self, later: &Common) -> Common {
        self.drives.extend(later.drives.iter().cloned());
        Common {
            drives: self.drives,
            config: later.config.clone().or(self.config),
            json: self.json || later.json,
            quiet: self.quiet || later.quiet,
            verbose: self.verbose.saturating_add(later.verbose),
            degraded: self.degraded || later.degraded,
            huge_pages: later.huge_pages.or(self.huge_pages),
            cores: later.cores.clone().or(self.cores),
            reactors: later.reactors.or(self.reactors),
            queue_depth: later.queue_depth.or(self.queue_depth),
            checksum_threads: later.checksum_threads.or(self.checksum_threads),
        }
    }
}

/// Core numbers. A type of its own, so that clap takes one value for the whole list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cores(pub Vec<usize>);

fn parse_cores(text: &str) -> Result<Cores, String> {
    const MAX_CORE: usize = 65_535;
    let number = |text: &str| {
        let parsed = text.trim().parse::<usize>().ok().filter(|core| *core <= MAX_CORE);
        parsed.ok_or_else(|| format!("{text:?} is no core; give a list as in 2,3 or 4-7"))
    };
    let mut cores = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(format!("{part:?} runs backwards"));
                }
                cores.extend(first..=last);
            }
            None => cores.push(number(part)?),
        }
    }
    Ok(Cores(cores))
}

/// A size in bytes: `4096`, `4KiB`, `4K` (the same) or `4KB` (4000).
///
/// # Errors
/// When the text is no size.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    // One letter alone counts in powers of 1024, as in coreutils.
    let one_letter = text.len() >= 2
        && text.ends_with(|c: char| "KMGTPkmgtp".contains(c))
        && text[..text.len() - 1].ends_with(|c: char| c.is_ascii_digit() || c == ' ');
    let whole = if one_letter { format!("{text}iB") } else { text.to_owned() };
    let parsed = whole.parse::<bytesize::ByteSize>().map(|size| size.as_u64());
    parsed.map_err(|_| format!("{text:?} is no size; write it as 4096, 64KiB, 1.5GiB or 4KB"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4KiB", 4096),
            ("4kib", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("4KB", 4000),
            ("1GiB", 1 << 30),
            ("1.5 GiB", 3 << 29),
            ("2G", 2 << 30),
            ("3T", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "x", "-1", "4XB", "é", "4Ki B"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cores() {
        assert_eq!(parse_cores("2,4-6"), Ok(Cores(vec![2, 4, 5, 6])));
        for text in ["", "a", "3-1", "1,,2", "1-", "99999999"] {
            assert!(parse_cores(text).is_err(), "{text}");
        }
    }

    #[test]
    fn options_may_stand_on_both_sides() {
        let cli = Cli::try_parse_from([
            "stanchion",
            "--drive",
            "a",
            "--queue-depth",
            "4",
            "list",
            "--drive",
            "b",
            "--json",
            "--queue-depth",
            "8",
        ])
        .unwrap();
        let Command::List(list) = &cli.command else { panic!("{:?}", cli.command) };
        let common = cli.common.clone().and_then(&list.common);
        assert_eq!(common.drives, ["a", "b"]);
        assert!(common.json && !common.quiet);
        assert_eq!(common.queue_depth, Some(8));
    }
}
