// SPDX-License-Identifier: Apache-2.0
//! The arguments of `stanchion bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::values::{parse_size, positive};

const EXAMPLES: &str = "\
Examples:
  stanchion bench write --size 4GiB --runs 3 --drive /data/a.img --drive /data/b.img
  stanchion bench read --json
  stanchion bench ladder --size 1GiB --ranks 4      what each published remedy gains, and the stall

A write is timed from the first byte to the durable commit; a read is verified. The bytes are
random, and are made once for each buffer, before the clock starts. CPU seconds are those of all
threads of this process. The ladder copies its bytes from ordinary memory on every rung; compute
is simulated by sleeping.";

/// Arguments of `stanchion bench`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    /// What to measure
    #[arg(value_enum)]
    pub(super) what: What,
    /// Size of the scratch checkpoint
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub size: u64,
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Memory for buffers
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    pub buffer_size: u64,
    /// Ladder: ranks that divide a checkpoint
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Ladder: seconds of compute in each iteration [default: 1.5 times the slowest save]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub compute: Option<f64>,
    /// Ladder: file that the rungs without a pool write [default: one in the folder of a drive
    /// file]
    #[arg(long, value_name = "FILE")]
    pub scratch: Option<PathBuf>,
}

/// What is measured.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// Saving, until it is durable
    Write,
    /// Restoring into memory, verified
    Read,
    /// Saving, with the published remedies added one at a time
    Ladder,
}
