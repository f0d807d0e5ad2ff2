// SPDX-License-Identifier: Apache-2.0
//! `stanchion plan`: what checkpoints of a training job will cost, and what they save, before it
//! runs.
//!
//! The model is that of docs/performance/method.md, "The model of `stanchion plan`". It opens no
//! drive.

use clap::Args;
use serde::Serialize;
use stanchion_engine::{Error, PoolSizing, Redundancy};

use super::Subcommand;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output;
use crate::values::{parse_size, positive};

const EXAMPLES: &str = "\
Examples:
  stanchion plan --parameters 8e9 --iteration 2.5                 8 ranks and 8 drives in one node
  stanchion plan --parameters 405e9 --ranks 16384 --nodes 2048 --iteration 5 --failures-per-day 7.8
  stanchion plan --size 14.23GB --drive-rate 2.2 --iteration 2 --every 1 --json

Everything is computed from these options: measure --drive-rate with `stanchion bench write` and
--stage-rate with your own device-to-host copies. The best interval is Young's: the square root of
twice the cost of a checkpoint times the time between failures.";

/// Bytes of state of a parameter: 2 of weights, and 12 of a master copy and two moments in 32 bits.
const BYTES_PER_PARAMETER: f64 = 14.0;
const SECONDS_PER_DAY: f64 = 86_400.0;

/// Arguments of `stanchion plan`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// Parameters of the model, as in 8e9
    #[arg(long, value_name = "N", value_parser = positive, required_unless_present = "size")]
    parameters: Option<f64>,
    /// Bytes of checkpoint for each parameter
    #[arg(long, value_name = "BYTES", default_value_t = BYTES_PER_PARAMETER, value_parser = positive)]
    bytes_per_parameter: f64,
    /// Size of the whole checkpoint, instead of its parameters
    #[arg(long, value_name = "SIZE", conflicts_with = "parameters", value_parser = parse_size)]
    size: Option<u64>,
    /// Ranks that write, over all nodes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Drives in each node
    #[arg(long = "drives", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=32))]
    drives_per_node: u32,
    /// What one drive writes, in GB/s
    #[arg(long, value_name = "GB/s", default_value_t = 3.0, value_parser = positive)]
    drive_rate: f64,
    /// What one drive reads, in GB/s
    #[arg(long, value_name = "GB/s", default_value_t = 6.0, value_parser = positive)]
    read_rate: f64,
    /// Capacity of one drive
    #[arg(long, value_name = "SIZE", default_value = "7.68TB", value_parser = parse_size)]
    drive_size: u64,
    /// Room on each drive for metadata, as `format --metadata-size` [default: as `format` chooses]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    metadata_size: Option<u64>,
    /// What one rank copies from its device to host memory, in GB/s
    #[arg(long, value_name = "GB/s", default_value_t = 20.0, value_parser = positive)]
    stage_rate: f64,
    /// Seconds of one iteration without checkpoints
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    iteration: f64,
    /// Iterations between two checkpoints
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Failures that stop the job, each day
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = positive)]
    failures_per_day: f64,
    /// Seconds to notice a failure and start again, without the restore
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = positive)]
    restart: f64,
    /// Each chunk on two drives
    #[arg(long)]
    mirror: bool,
}

/// What follows from the arguments. Byte counts are rounded down.
#[derive(Serialize, Clone, Debug)]
struct Plan {
    checkpoint_bytes: u64,
    node_bytes: u64,
    /// Written to each drive, copies included.
    drive_bytes: u64,
    /// From the start of a save to durable and visible.
    save_seconds: f64,
    restore_seconds: f64,
    interval_seconds: f64,
    /// The trainer waits for the whole save.
    synchronous: Stall,
    /// The save overlaps with the next iterations, and the trainer waits for the rest.
    overlapped: Stall,
    /// Iterations between checkpoints that lose least, when saves are overlapped and when not.
    best_every_synchronous: f64,
    best_every_overlapped: f64,
    /// Work that one failure costs: half an interval, restart, restore.
    lost_seconds_per_failure: f64,
    lost_seconds_per_day: f64,
    drive_bytes_per_day: u64,
    drive_writes_per_day: f64,
    /// Of the pool of a node: its unit of striping, what it holds, and its room for metadata.
    chunk_bytes: u64,
    pool_bytes: u64,
    metadata_bytes: u64,
    max_checkpoint_count: usize,
    typical_shard_count: u64,
}

#[derive(Serialize, Clone, Copy, Debug)]
struct Stall {
    seconds_per_checkpoint: f64,
    /// Of the time that training takes with checkpoints.
    share: f64,
}

impl Plan {
    fn new(args: &PlanArgs) -> Result<Plan, Error> {
        let drives = vec![args.drive_size; args.drives_per_node as usize];
        let redundancy = if args.mirror { Redundancy::Mirror } else { Redundancy::None };
        let pool = PoolSizing::plan(&drives, redundancy, None, args.metadata_size)?;
        let checkpoint_bytes = match (args.size, args.parameters) {
            (Some(bytes), _) => bytes as f64,
            (None, parameters) => parameters.unwrap_or(0.0) * args.bytes_per_parameter,
        };
        let copies = if args.mirror { 2.0 } else { 1.0 };
        let bytes_per_node = checkpoint_bytes / f64::from(args.nodes);
        let bytes_per_drive = copies * bytes_per_node / f64::from(args.drives_per_node);
        // Staging and writing are one pipeline, so the slower of the two is what a save takes.
        let stage_seconds = checkpoint_bytes / f64::from(args.ranks) / (args.stage_rate * 1e9);
        let save_seconds = (bytes_per_drive / (args.drive_rate * 1e9)).max(stage_seconds);
        // A restore reads one copy, from all drives.
        let read_bytes = bytes_per_node / f64::from(args.drives_per_node);
        let restore_seconds = (read_bytes / (args.read_rate * 1e9)).max(stage_seconds);
        let compute_seconds = args.iteration * f64::from(args.every);
        let stall = |seconds: f64| Stall {
            seconds_per_checkpoint: seconds,
            share: seconds / (compute_seconds + seconds),
        };
        let synchronous = stall(save_seconds);
        let overlapped = stall((save_seconds - compute_seconds).max(0.0));
        let interval_seconds = compute_seconds + overlapped.seconds_per_checkpoint;
        let mean_seconds_between_failures = SECONDS_PER_DAY / args.failures_per_day;
        let best = (2.0 * save_seconds * mean_seconds_between_failures).sqrt() / args.iteration;
        let lost_seconds_per_failure = interval_seconds / 2.0 + args.restart + restore_seconds;
        let drive_bytes_per_day = bytes_per_drive * SECONDS_PER_DAY / interval_seconds;
        Ok(Plan {
            checkpoint_bytes: checkpoint_bytes as u64,
            node_bytes: bytes_per_node as u64,
            drive_bytes: bytes_per_drive as u64,
            save_seconds,
            restore_seconds,
            interval_seconds,
            synchronous,
            overlapped,
            best_every_synchronous: best.max(1.0),
            // Saving as often as the drives can costs nothing: the save just has to fit.
            best_every_overlapped: (save_seconds / args.iteration).ceil().max(1.0),
            lost_seconds_per_failure,
            lost_seconds_per_day: lost_seconds_per_failure * args.failures_per_day,
            drive_bytes_per_day: drive_bytes_per_day as u64,
            drive_writes_per_day: drive_bytes_per_day / args.drive_size as f64,
            chunk_bytes: pool.chunk_bytes,
            pool_bytes: pool.capacity_bytes,
            metadata_bytes: pool.metadata_bytes,
            max_checkpoint_count: pool.max_checkpoints,
            typical_shard_count: pool.typical_shards,
        })
    }
}

impl Subcommand for PlanArgs {
    const NAME: &'static str = "plan";
    const ABOUT: &'static str = "Compute what checkpoints of a training job will cost";
    const GROUPS: &'static [Group] = &[Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let (plan, output) = (Plan::new(self)?, context.output);
        if output.json {
            output.document(Self::NAME, &plan)?;
        } else {
            output.text(table(&plan))?;
        }
        if plan.overlapped.seconds_per_checkpoint > 0.0 {
            output.notice(
                "save_too_slow",
                format_args!(
                    "a save takes longer than the {} iterations that it overlaps with: save every \
                     {:.0} instead, or add drives",
                    self.every, plan.best_every_overlapped
                ),
            );
        }
        Ok(())
    }
}

fn table(plan: &Plan) -> String {
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let rows = [
        ("checkpoint", format!("{} in all", output::size(plan.checkpoint_bytes))),
        ("on each node", output::size(plan.node_bytes)),
        ("to each drive", output::size(plan.drive_bytes)),
        ("save, until durable", seconds(plan.save_seconds)),
        ("restore", seconds(plan.restore_seconds)),
        ("between checkpoints", seconds(plan.interval_seconds)),
        (
            "stall, waiting for each save",
            format!(
                "{} each, {} of the time",
                seconds(plan.synchronous.seconds_per_checkpoint),
                percent(plan.synchronous.share)
            ),
        ),
        (
            "stall, saving during training",
            format!(
                "{} each, {} of the time",
                seconds(plan.overlapped.seconds_per_checkpoint),
                percent(plan.overlapped.share)
            ),
        ),
        ("best interval, waiting", format!("every {:.0} iterations", plan.best_every_synchronous)),
        (
            "best interval, overlapped",
            format!("every {:.0} iterations", plan.best_every_overlapped),
        ),
        ("lost per failure", seconds(plan.lost_seconds_per_failure)),
        ("lost per day", seconds(plan.lost_seconds_per_day)),
        (
            "written to each drive per day",
            format!(
                "{}, {:.2} times its size",
                output::size(plan.drive_bytes_per_day),
                plan.drive_writes_per_day
            ),
        ),
        (
            "pool of a node",
            format!(
                "{} in chunks of {}, at most {} checkpoints",
                output::size(plan.pool_bytes),
                output::size(plan.chunk_bytes),
                plan.max_checkpoint_count
            ),
        ),
        (
            "metadata on each drive",
            format!(
                "{}, for some {} shards",
                output::size(plan.metadata_bytes),
                plan.typical_shard_count
            ),
        ),
    ];
    let mut table = output::table(&["", ""], &[]);
    for (what, value) in rows {
        table.add_row([what.to_owned(), value]);
    }
    output::lines(&table).trim_start_matches('\n').to_owned()
}

fn seconds(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".to_owned(),
        short if short < 1.0 => format!("{:.1} ms", short * 1e3),
        medium if medium < 600.0 => format!("{medium:.2} s"),
        long if long < 36_000.0 => format!("{:.1} min", long / 60.0),
        longer => format!("{:.1} h", longer / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        plan: PlanArgs,
    }

    fn plan(line: &str) -> Plan {
        let words = std::iter::once("plan").chain(line.split_whitespace());
        Plan::new(&Line::try_parse_from(words).unwrap().plan).unwrap()
    }

    fn is_near(found: f64, expected: f64, tolerance: f64) {
        let off = (found / expected - 1.0).abs();
        assert!(off <= tolerance, "{found} is {:.1} % from {expected}", 100.0 * off);
    }

    const GIB: f64 = (1_u64 << 30) as f64;

    /// FastPersist (arXiv 2406.13768): checkpoints of GPT-3 models; MLPerf Storage: of Llama 3
    /// ones.
    #[test]
    fn sizes_are_the_published_ones() {
        for (parameters, gib) in
            [("1.3e9", 17.0), ("2.7e9", 35.0), ("6.7e9", 88.0), ("13e9", 173.0)]
        {
            let found = plan(&format!("--parameters {parameters} --iteration 1"));
            is_near(found.checkpoint_bytes as f64 / GIB, gib, 0.025);
        }
        for (parameters, gib) in [("8.03e9", 105.0), ("70.55e9", 912.0)] {
            let found = plan(&format!("--parameters {parameters} --iteration 1"));
            is_near(found.checkpoint_bytes as f64 / GIB, gib, 0.01);
        }
    }

    /// DeepSpeedExamples, model_checkpoint: 14.23 GB (GiB there) on eight drives took 0.80 s at
    /// 17.75 a second.
    #[test]
    fn times_are_the_published_ones() {
        let found = plan("--size 14.23GiB --drive-rate 2.382 --iteration 2");
        is_near(found.save_seconds, 0.80, 0.01);
        assert!(
            found.overlapped.seconds_per_checkpoint == 0.0 && found.best_every_overlapped == 1.0
        );
        is_near(found.synchronous.share, 0.80 / 2.80, 0.01);
    }

    /// 14.2 GB every 2 s over eight drives of 7.68 TB is about ten drive writes a day.
    #[test]
    fn wear_is_the_published_one() {
        let found = plan("--size 14.2GB --iteration 2 --drive-rate 3");
        is_near(found.drive_writes_per_day, 10.0, 0.01);
    }

    /// Llama 3 405B: 419 stops in 54 days. At one save in half an hour each costs a quarter of an
    /// hour and the restart.
    #[test]
    fn a_failure_costs_half_an_interval_and_the_restart() {
        let found = plan(
            "--parameters 405e9 --ranks 16384 --nodes 2048 --iteration 5 --every 360 \
             --failures-per-day 7.759 --restart 600",
        );
        is_near(found.lost_seconds_per_failure, 900.0 + 600.0, 0.01);
        assert!(found.restore_seconds < 1.0, "{found:?}");
    }

    #[test]
    fn copies_cost_drives_not_restores() {
        let one = plan("--size 100GB --iteration 1 --stage-rate 1000");
        let two = plan("--size 100GB --iteration 1 --stage-rate 1000 --mirror");
        is_near(two.save_seconds, 2.0 * one.save_seconds, 1e-9);
        is_near(two.restore_seconds, one.restore_seconds, 1e-9);
    }

    #[test]
    fn a_save_that_does_not_fit_stalls() {
        let found = plan("--size 240GB --iteration 1 --drives 8 --drive-rate 3");
        is_near(found.save_seconds, 10.0, 1e-9);
        is_near(found.overlapped.seconds_per_checkpoint, 9.0, 1e-9);
        is_near(found.best_every_overlapped, 10.0, 1e-9);
    }

    #[test]
    fn the_pool_of_a_node_is_the_one_that_format_makes() {
        let found = plan("--size 10GB --iteration 1 --drives 8 --drive-size 15TB");
        assert_eq!((found.chunk_bytes, found.max_checkpoint_count), (4 << 20, 65_536));
        assert!(found.metadata_bytes.abs_diff(15_000_000_000_000 / 128) < 65_536);
        // 100,000 tensors in each of the checkpoints that its data has room for.
        assert!(found.typical_shard_count > found.pool_bytes / 10_000_000_000 * 100_000);
        let sized = plan("--size 1GB --iteration 1 --drive-size 1TB --metadata-size 8GiB");
        assert_eq!((sized.metadata_bytes, sized.max_checkpoint_count), (8 << 30, 32_768));
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["--iteration 1", "--size 1GB --iteration 0", "--parameters x --iteration 1"] {
            let words = std::iter::once("plan").chain(line.split_whitespace());
            assert!(Line::try_parse_from(words).is_err(), "{line}");
        }
    }

    #[test]
    fn times_are_readable() {
        let texts = [(0.0, "0 s"), (0.0123, "12.3 ms"), (2.0, "2.00 s"), (1200.0, "20.0 min")];
        texts.iter().for_each(|(time, text)| assert_eq!(seconds(*time), *text));
        assert_eq!(seconds(72_000.0), "20.0 h");
    }
}
