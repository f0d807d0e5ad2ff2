// SPDX-License-Identifier: Apache-2.0
//! `stanchion bench`: how fast a pool saves and restores, durable and verified.
//!
//! It saves a scratch checkpoint `stanchion-bench@N`, and removes it at the end, also after an
//! error or Ctrl-C.

mod args;
mod ladder;
mod median;
mod scratch;

use std::fs::File;
use std::io::Read as _;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use stanchion_engine::{
    BulkOptions, BulkSession, CheckpointName, CheckpointSpec, Pool, PoolMode, Saved,
};

use super::Subcommand;
use crate::checkpoint::bytes_by_drive;
use crate::context::Context;
use crate::error::CommandError;
use crate::interrupt::Interrupt;
use crate::options::Group;
use crate::output::{self, Output};
use crate::progress_bar::ProgressBar;
pub use args::Bench;
use args::What;
use median::median;
use scratch::Scratch;

/// The scratch checkpoint's name.
const SCRATCH: &str = "stanchion-bench";

#[derive(Serialize)]
struct Report {
    what: &'static str,
    data_bytes: u64,
    drive_count: usize,
    runs: Vec<Run>,
    median_gb_per_s: f64,
}

#[derive(Serialize)]
struct Run {
    seconds: f64,
    gb_per_s: f64,
    /// Only of writes.
    commit_tail_seconds: Option<f64>,
    cpu_seconds: f64,
    drives: Vec<DriveRate>,
}

#[derive(Serialize)]
struct DriveRate {
    serial: String,
    data_bytes: u64,
    gb_per_s: f64,
}

impl Subcommand for Bench {
    const NAME: &'static str = "bench";
    const ABOUT: &'static str = "Measure how fast a pool saves or restores";
    const GROUPS: &'static [Group] = &Group::ALL;

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let (output, interrupt) = (context.output, &context.interrupt);
        let pool = context.open(PoolMode::ReadWrite)?;
        interrupt.defer();
        // A scratch checkpoint that a killed run left stays; its number is not used again.
        let step = pool.latest(SCRATCH).map_or(Some(0), |left| left.name.step.checked_add(1));
        let step = step.ok_or_else(|| {
            CommandError::Failed(format!("{SCRATCH} has no step left; remove its last one"))
        })?;
        let name = CheckpointName::new(SCRATCH, step)?;
        if self.what == What::Ladder {
            return ladder::run(self, &pool, &context.required_drives()?, name, output, interrupt);
        }
        let mut scratch = Scratch::new(&pool, name.clone());
        let mut bulk = pool.bulk_session(&BulkOptions { memory_bytes: self.buffer_size })?;
        fill_randomly(&mut bulk)?;
        let mut runs = Vec::new();
        if self.what == What::Read {
            save(&mut bulk, &mut scratch, self.size, output, interrupt)?;
        }
        for number in 1..=self.runs {
            let cpu_before = cpu_time();
            let (time, commit_tail) = match self.what {
                What::Write => {
                    let saved = save(&mut bulk, &mut scratch, self.size, output, interrupt)?;
                    (saved.time, Some(saved.commit_tail))
                }
                _ => (restore(&mut bulk, &name, self.size, output, interrupt)?, None),
            };
            let cpu = cpu_time().saturating_sub(cpu_before);
            let run = describe(&pool, &name, self.size, time, commit_tail, cpu)?;
            if !output.json {
                print_run(number, &run, output)?;
            }
            runs.push(run);
            if self.what == What::Write {
                scratch.remove()?;
            }
        }
        scratch.remove()?;
        let median_gb_per_s = median(runs.iter().map(|run| run.gb_per_s).collect());
        let what = if self.what == What::Write { "write" } else { "read" };
        if output.json {
            let (data_bytes, drive_count) = (self.size, pool.info().drives.len());
            return output.document(
                Self::NAME,
                &Report { what, data_bytes, drive_count, runs, median_gb_per_s },
            );
        }
        output.text(format_args!(
            "{what} of {}: median {median_gb_per_s:.2} GB/s over {}",
            output::size(self.size),
            output::count(runs.len(), "run")
        ))
    }
}

/// Bytes that no drive can compress.
fn fill_randomly(bulk: &mut BulkSession<'_>) -> Result<(), CommandError> {
    let failed = |error| CommandError::os("reading /dev/urandom", error);
    let mut random = File::open("/dev/urandom").map_err(failed)?;
    for buffer in bulk.buffers() {
        random.read_exact(buffer?).map_err(failed)?;
    }
    Ok(())
}

fn save(
    bulk: &mut BulkSession<'_>,
    scratch: &mut Scratch<'_>,
    len_bytes: u64,
    output: Output,
    interrupt: &Interrupt,
) -> Result<Saved, CommandError> {
    let spec = CheckpointSpec::single(scratch.name.clone(), len_bytes);
    let progress = ProgressBar::new(output, "writing", len_bytes);
    let mut watch = |bytes| {
        progress.set(bytes);
        interrupt.check(&format!("{} was not saved", spec.name))
    };
    let saved = bulk.save(&spec, &[], &mut |_, _| Ok(()), &mut watch)?;
    scratch.exists = true;
    Ok(saved)
}

fn restore(
    bulk: &mut BulkSession<'_>,
    name: &CheckpointName,
    len_bytes: u64,
    output: Output,
    interrupt: &Interrupt,
) -> Result<Duration, CommandError> {
    let progress = ProgressBar::new(output, "reading", len_bytes);
    let mut watch = |bytes| {
        progress.set(bytes);
        interrupt.check(&format!("{name} was not restored"))
    };
    let started = Instant::now();
    let whole = 0..len_bytes;
    let ranges = std::slice::from_ref(&whole);
    bulk.restore(name, 0, ranges, &[], &mut |_, _| Ok(()), &mut watch)?;
    Ok(started.elapsed())
}

/// CPU time of all threads of this process so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn describe(
    pool: &Pool,
    name: &CheckpointName,
    bytes: u64,
    time: Duration,
    commit_tail: Option<Duration>,
    cpu: Duration,
) -> Result<Run, CommandError> {
    let drives = bytes_by_drive(pool, name)?.into_iter().map(|drive| DriveRate {
        serial: drive.serial,
        data_bytes: drive.data_bytes,
        gb_per_s: output::gb_per_s(drive.data_bytes, time),
    });
    Ok(Run {
        seconds: time.as_secs_f64(),
        gb_per_s: output::gb_per_s(bytes, time),
        commit_tail_seconds: commit_tail.map(|tail| tail.as_secs_f64()),
        cpu_seconds: cpu.as_secs_f64(),
        drives: drives.collect(),
    })
}

fn print_run(number: u32, run: &Run, output: Output) -> Result<(), CommandError> {
    let tail = run
        .commit_tail_seconds
        .map_or_else(String::new, |s| format!(", commit tail {:.1} ms", s * 1e3));
    let drives: Vec<String> =
        run.drives.iter().map(|drive| format!("{:.2}", drive.gb_per_s)).collect();
    output.text(format_args!(
        "run {number}: {:.3} s, {:.2} GB/s{tail}, {:.2} CPU s, by drive {} GB/s",
        run.seconds,
        run.gb_per_s,
        run.cpu_seconds,
        drives.join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
    }
}
