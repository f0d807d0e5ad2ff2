// SPDX-License-Identifier: Apache-2.0
//! `stanchion restore`: the shards of a checkpoint become files, directories and links.
//!
//! - Everything is looked at before anything is written. Bytes are verified before they are
//!   written, and nothing gets its place before all of it is whole and durable.
//! - Names come from a drive, so they are not trusted: only paths below the output directory are
//!   written, and none through a link.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use stanchion_engine::{BulkOptions, CheckpointName, PoolMode, SegmentInfo};

use super::Subcommand;
use crate::checkpoint::resolve;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, Output};
use crate::progress_bar::ProgressBar;
use crate::tree::building::Building;
use crate::tree::placing::Site;
use crate::tree::plan::Plan;
use crate::values::parse_size;

const EXAMPLES: &str = "\
Examples:
  stanchion restore llama@100 -o restored/ --drive /data/a.img --drive /data/b.img
  stanchion restore llama -o newest/                      the newest step of llama
  stanchion restore llama@100 -o part/ --shard 'model*'   only some of its files
  stanchion restore llama@100 -o part/ --shard run/logs   a directory with all that is in it

Every byte is checked. If bytes are damaged, the command names them, writes no file, and ends with
code 3. A new DIR appears when all of it is whole and durable; one that exists is filled then, file
by file. After a failure or a signal nothing is left. Where participants have shards of the same
name, all shards of participant N go to DIR/rankN/.";

/// Arguments of `stanchion restore`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Restore {
    /// The checkpoint; without a step, the one with the highest step
    #[arg(value_name = "NAME[@STEP]")]
    name: String,
    /// Directory for the files; it is made if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Only this shard, what lies in this directory, or the shards whose names match; may be
    /// repeated, and each must choose something
    #[arg(long = "shard", value_name = "GLOB")]
    shards: Vec<String>,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    /// Memory for buffers
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    buffer_size: u64,
}

#[derive(Serialize)]
struct Report {
    name: String,
    step: u64,
    files: Vec<String>,
    directory_count: usize,
    link_count: usize,
    data_bytes: u64,
    seconds: f64,
    gb_per_s: f64,
}

impl Subcommand for Restore {
    const NAME: &'static str = "restore";
    const ABOUT: &'static str = "Write the files of a checkpoint into a directory";
    const GROUPS: &'static [Group] = &[Group::Drives, Group::Engine, Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let (output, interrupt) = (context.output, &context.interrupt);
        let pool = context.open(PoolMode::ReadOnly)?;
        let name = resolve(&pool, &self.name)?;
        let segments = pool.segments(&name)?;
        let plan = Plan::new(&name, &segments, &self.shards)?;
        unnamed_bytes(&name, &segments, output);
        let site = Site::look(&self.output, &plan, self.force, &context.drives()?)?;
        interrupt.defer();
        let started = Instant::now();
        let data_bytes = plan.data_bytes();
        let progress = ProgressBar::new(output, &format!("restoring {name}"), data_bytes);
        let mut bulk = pool.bulk_session(&BulkOptions { memory_bytes: self.buffer_size })?;
        let mut staging = site.begin()?;
        let mut building = Building::new(&self.output, &mut staging, &plan)?;
        let mut done = 0;
        for segment in &segments {
            let participant = segment.participant;
            let of_this = plan.files.iter().filter(|t| t.participant == participant);
            let ranges: Vec<_> = of_this.map(|t| t.start_bytes..t.end_bytes).collect();
            if ranges.is_empty() {
                continue;
            }
            let mut watch = |bytes| {
                progress.set(done + bytes);
                interrupt.check(&format!("{name} was not restored"))
            };
            let mut write = |bytes: &[u8], offset| building.write(participant, bytes, offset);
            bulk.restore(&name, participant, &ranges, &[], &mut write, &mut watch)?;
            building.finish_empty(participant)?;
            done += ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        }
        building.finish(site.is_new())?;
        site.place(&plan, &mut staging, &|| interrupt.check(&format!("{name} was not restored")))?;
        drop((progress, staging));
        let time = started.elapsed();
        let paths: Vec<String> = plan
            .paths()
            .map(|path| self.output.join(path).to_string_lossy().into_owned())
            .collect();
        if output.json {
            let gb_per_s = output::gb_per_s(data_bytes, time);
            let printed = output.document(
                Self::NAME,
                &Report {
                    name: name.name.clone(),
                    step: name.step,
                    files: paths,
                    directory_count: plan.directories.len(),
                    link_count: plan.links.len(),
                    data_bytes,
                    seconds: time.as_secs_f64(),
                    gb_per_s,
                },
            );
            output.reported(printed, format_args!("{name} was restored"));
            return Ok(());
        }
        let printed = output.summary(format_args!(
            "restored {name}: {data_bytes} bytes ({}) in {}, {:.3} s, {}, verified",
            output::size(data_bytes),
            output::count(paths.len(), "file"),
            time.as_secs_f64(),
            output::rate(data_bytes, time)
        ));
        output.reported(printed, format_args!("{name} was restored"));
        Ok(())
    }
}

/// Bytes that no shard names have no file.
fn unnamed_bytes(name: &CheckpointName, segments: &[SegmentInfo], output: Output) {
    for segment in segments {
        if segment.shards.is_empty() && segment.len_bytes > 0 {
            output.notice(
                "unnamed_bytes",
                format_args!(
                    "participant {} of {name} has {} bytes without a shard name, which are not \
                     restored: read them with the library",
                    segment.participant, segment.len_bytes
                ),
            );
        }
    }
}
