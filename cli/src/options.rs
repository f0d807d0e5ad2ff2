// SPDX-License-Identifier: Apache-2.0
//! The options that several subcommands share. Each may stand before the subcommand or after it.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, FromArgMatches as _, ValueEnum};
use stanchion_engine::HugePages;

use crate::values::{Cores, parse_cores, positive};

/// A set of options that a subcommand takes as a whole, or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// [`DriveOptions`].
    Drives,
    /// [`WriteOptions`].
    Write,
    /// [`EngineOptions`].
    Engine,
    /// [`OutputOptions`].
    Output,
}

impl Group {
    /// All of them, in the order of the help.
    pub const ALL: [Group; 4] = [Group::Drives, Group::Write, Group::Engine, Group::Output];

    /// The command with the options of this group.
    pub fn add_to(self, command: clap::Command) -> clap::Command {
        match self {
            Group::Drives => DriveOptions::augment_args(command),
            Group::Write => WriteOptions::augment_args(command),
            Group::Engine => EngineOptions::augment_args(command),
            Group::Output => OutputOptions::augment_args(command),
        }
    }

    /// An option of this group that was given on the command line, if any.
    pub fn given_in(self, matches: &ArgMatches) -> Option<String> {
        let command = self.add_to(clap::Command::new("group"));
        let given = command.get_arguments().find(|argument| {
            let source = matches.value_source(argument.get_id().as_str());
            source == Some(ValueSource::CommandLine)
        });
        given.and_then(|argument| argument.get_long()).map(|name| format!("--{name}"))
    }
}

/// Which drives.
#[derive(Args, Clone, Default, Debug)]
#[command(next_help_heading = "Pool options")]
pub struct DriveOptions {
    /// A drive, by address; repeat it for each drive of the pool
    #[arg(long = "drive", value_name = "ADDRESS")]
    pub drives: Vec<String>,
    /// File with `drives = ["ADDRESS", ...]` [default: /etc/stanchion/stanchion.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// How a pool is opened for writing.
#[derive(Args, Clone, Copy, Default, Debug)]
#[command(next_help_heading = "Pool options")]
pub struct WriteOptions {
    /// Allow writes while drives are missing; a drive that was left out must be re-admitted
    #[arg(long)]
    pub degraded: bool,
    /// Take the pool from an owner on another host, or in another container, that has ended
    #[arg(long)]
    pub take_over: bool,
}

/// How the engine runs.
#[derive(Args, Clone, Default, Debug)]
#[command(next_help_heading = "Engine options")]
pub struct EngineOptions {
    /// Open the generation before the newest one where that cannot be read; a command that writes
    /// continues from there, and what was committed or removed later is lost
    #[arg(long, help_heading = "Pool options")]
    pub fall_back: bool,
    /// Wait for so long until the pool is free, where another process has it; at least once each
    /// second it is tried again
    #[arg(long, help_heading = "Pool options", value_name = "SECONDS", value_parser = positive)]
    pub wait: Option<f64>,
    /// Pages for buffers [default: preferred]
    #[arg(long, value_enum, value_name = "HOW")]
    pub huge_pages: Option<Pages>,
    /// Cores to pin the polling threads to, as in 2,3 or 4-7 [default: the last ones]
    #[arg(long, value_name = "LIST", value_parser = parse_cores)]
    pub cores: Option<Cores>,
    /// Polling threads [default: one for each drive, if there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub reactors: Option<u16>,
    /// Commands in flight on each drive [default: 16 with SPDK, 64 with the kernel]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub queue_depth: Option<u32>,
    /// Threads that compute checksums [default: a quarter of the cores, 1 to 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub checksum_threads: Option<u16>,
}

/// What is printed.
#[derive(Args, Clone, Copy, Default, Debug)]
#[command(next_help_heading = "Output options")]
pub struct OutputOptions {
    /// Print the result as one JSON document; print messages as JSON lines on stderr
    #[arg(long)]
    pub json: bool,
    /// Print no progress, notices or summaries
    #[arg(short, long)]
    pub quiet: bool,
    /// Print more messages; repeat it for more
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// Which pages buffers lie in.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Huge pages; fail where there are too few
    Required,
    /// Huge pages; ordinary pages and a warning where there are too few
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

/// The shared options of one run.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// Which drives.
    pub drives: DriveOptions,
    /// How a pool is opened for writing.
    pub write: WriteOptions,
    /// How the engine runs.
    pub engine: EngineOptions,
    /// What is printed.
    pub output: OutputOptions,
}

impl Options {
    /// Reads those groups that the matches know.
    ///
    /// # Errors
    /// When a required option is missing; there are none.
    pub fn read(matches: &ArgMatches, groups: &[Group]) -> Result<Options, clap::Error> {
        let mut options = Options::default();
        for group in groups {
            match group {
                Group::Drives => options.drives = DriveOptions::from_arg_matches(matches)?,
                Group::Write => options.write = WriteOptions::from_arg_matches(matches)?,
                Group::Engine => options.engine = EngineOptions::from_arg_matches(matches)?,
                Group::Output => options.output = OutputOptions::from_arg_matches(matches)?,
            }
        }
        Ok(options)
    }

    /// Merges these, from before the subcommand, with those from after it. Drives add up; of other
    /// values the later one counts.
    pub fn and_then(mut self, later: Options) -> Options {
        self.drives.drives.extend(later.drives.drives);
        Options {
            drives: DriveOptions {
                drives: self.drives.drives,
                config: later.drives.config.or(self.drives.config),
            },
            write: WriteOptions {
                degraded: self.write.degraded || later.write.degraded,
                take_over: self.write.take_over || later.write.take_over,
            },
            engine: EngineOptions {
                fall_back: later.engine.fall_back || self.engine.fall_back,
                wait: later.engine.wait.or(self.engine.wait),
                huge_pages: later.engine.huge_pages.or(self.engine.huge_pages),
                cores: later.engine.cores.or(self.engine.cores),
                reactors: later.engine.reactors.or(self.engine.reactors),
                queue_depth: later.engine.queue_depth.or(self.engine.queue_depth),
                checksum_threads: later.engine.checksum_threads.or(self.engine.checksum_threads),
            },
            output: OutputOptions {
                json: self.output.json || later.output.json,
                quiet: self.output.quiet || later.output.quiet,
                verbose: self.output.verbose.saturating_add(later.output.verbose),
            },
        }
    }
}
