// SPDX-License-Identifier: Apache-2.0
//! `stanchion bench ladder`: the published remedies, one rung at a time: what each of them gains,
//! and what the trainer waits for.
//!
//! The first three rungs write a scratch file, as a program without an engine would; the others
//! save through the pool, commit included. Every rung copies the bytes once from ordinary memory,
//! which stands for the device's. Each round runs all rungs in turn, so that a machine that slows
//! down slows all of them.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Serialize;
use stanchion_engine::DriveAddress;
use stanchion_engine::{
    BulkOptions, BulkSession, CheckpointName, CheckpointSpec, Pool, SessionBuffer, SessionOptions,
};

use super::args::Bench;
use super::median::median;
use super::scratch::Scratch;
use crate::error::CommandError;
use crate::interrupt::Interrupt;
use crate::output::{self, Output};

/// Bytes of random source; larger checkpoints repeat it.
const SOURCE_BYTES: u64 = 256 << 20;
/// What one write of the file rungs moves.
const PIECE_BYTES: usize = 8 << 20;
/// O_DIRECT takes whole blocks of this.
const BLOCK_BYTES: u64 = 4096;
/// Iterations of the overlapped rung in each round.
const ITERATIONS: u32 = 5;
/// The compute of an iteration, as a multiple of the save that overlaps with it, unless it is
/// given.
const COMPUTE_FACTOR: f64 = 1.5;

/// The rungs, from the bottom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rung {
    Buffered,
    Direct,
    DoubleBuffered,
    Striped,
    Divided,
    Overlapped,
}

impl Rung {
    const ALL: [Rung; 6] = [
        Rung::Buffered,
        Rung::Direct,
        Rung::DoubleBuffered,
        Rung::Striped,
        Rung::Divided,
        Rung::Overlapped,
    ];

    fn name(self) -> &'static str {
        match self {
            Rung::Buffered => "buffered",
            Rung::Direct => "direct",
            Rung::DoubleBuffered => "double_buffered",
            Rung::Striped => "striped",
            Rung::Divided => "divided",
            Rung::Overlapped => "overlapped",
        }
    }

    fn what(self, drives: usize, ranks: u32) -> String {
        match self {
            Rung::Buffered => "one file through the page cache, then fsync".into(),
            Rung::Direct => "the same past the page cache, one write at a time".into(),
            Rung::DoubleBuffered => "one buffer is filled while the other is written".into(),
            Rung::Striped => format!("one rank, {drives} drives, committed"),
            Rung::Divided => format!("{ranks} ranks, {drives} drives, committed once"),
            Rung::Overlapped => format!("{ranks} ranks save during the next iteration"),
        }
    }
}

#[derive(Serialize)]
struct Report {
    data_bytes: u64,
    drive_count: usize,
    rank_count: u32,
    rungs: Vec<RungRecord>,
    train: TrainRecord,
}

#[derive(Serialize)]
struct RungRecord {
    rung: &'static str,
    what: String,
    seconds: f64,
    min_seconds: f64,
    max_seconds: f64,
    gb_per_s: f64,
    /// The time of the rung below, over this one's.
    gain: f64,
    /// What the trainer waits for each checkpoint.
    stall_seconds: f64,
}

/// The overlapped rung, and the same iterations without saves.
#[derive(Serialize)]
struct TrainRecord {
    compute_seconds: f64,
    iteration_seconds: f64,
    iteration_without_saves_seconds: f64,
    /// What saves add to an iteration, over an iteration without them.
    stall_share: f64,
}

/// One iteration of the overlapped rung.
#[derive(Clone, Copy)]
struct Iteration {
    save: Duration,
    with_saves: Duration,
    without: Duration,
}

/// What the rungs work with.
struct Ladder<'a> {
    pool: &'a Pool,
    args: &'a Bench,
    interrupt: &'a Interrupt,
    source: Vec<u8>,
    scratch_file: PathBuf,
    name: CheckpointName,
}

/// Removes the scratch file, also after an error.
struct RemoveFile<'a>(&'a Path);

impl Drop for RemoveFile<'_> {
    fn drop(&mut self) {
        // Fails harmlessly if it was never made.
        let _ = std::fs::remove_file(self.0);
    }
}

/// Runs the ladder.
///
/// # Errors
/// The first failure; scratch file and checkpoint are removed in any case.
pub fn run(
    args: &Bench,
    pool: &Pool,
    drives: &[DriveAddress],
    name: CheckpointName,
    output: Output,
    interrupt: &Interrupt,
) -> Result<(), CommandError> {
    let scratch_file = scratch_file(args, drives)?;
    let _remove = RemoveFile(&scratch_file);
    let source = random(args.size.min(SOURCE_BYTES))?;
    let ladder = Ladder { pool, args, interrupt, source, scratch_file: scratch_file.clone(), name };
    ladder.prepare_file()?;
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); Rung::ALL.len()];
    let mut iterations = Vec::new();
    for round in 1..=args.runs {
        for (rung, times) in Rung::ALL.iter().zip(&mut times) {
            interrupt.check("the bench was not finished")?;
            if !output.json && !output.quiet {
                output.notice("round", format_args!("round {round}: {}", rung.name()));
            }
            let time = match rung {
                Rung::Buffered => ladder.buffered()?,
                Rung::Direct => ladder.direct()?,
                Rung::DoubleBuffered => ladder.double_buffered()?,
                Rung::Striped => ladder.save(1)?,
                Rung::Divided => ladder.save(args.ranks)?,
                Rung::Overlapped => {
                    let found = ladder.overlapped(compute(args, &iterations))?;
                    iterations.extend_from_slice(&found);
                    let saves = found.iter().map(|one| one.save.as_secs_f64());
                    Duration::from_secs_f64(median(saves.collect()))
                }
            };
            times.push(time.as_secs_f64());
        }
    }
    report(&ladder, &times, &iterations, output)
}

/// Of one iteration: the given time, or longer than the measured saves.
fn compute(args: &Bench, seen: &[Iteration]) -> Option<Duration> {
    if let Some(seconds) = args.compute {
        return Some(Duration::from_secs_f64(seconds));
    }
    let slowest = seen.iter().map(|one| one.save).max()?;
    Some(slowest.mul_f64(COMPUTE_FACTOR))
}

/// Where the file rungs write: in the folder of the first drive that is a file, unless it is given.
fn scratch_file(args: &Bench, drives: &[DriveAddress]) -> Result<PathBuf, CommandError> {
    if let Some(path) = &args.scratch {
        if path.exists() {
            return Err(CommandError::Refused(format!(
                "{} exists; pass --scratch with the name of a new file",
                path.display()
            )));
        }
        return Ok(path.clone());
    }
    let found = drives.iter().find_map(|drive| match drive {
        DriveAddress::Path(path) if path.is_file() => path.parent().map(Path::to_owned),
        _ => None,
    });
    let folder = found.ok_or_else(|| {
        CommandError::Usage(
            "pass --scratch FILE, on a file system of a similar drive: the first rungs write it"
                .into(),
        )
    })?;
    Ok(folder.join(format!(".stanchion-ladder-{}", std::process::id())))
}

fn random(len_bytes: u64) -> Result<Vec<u8>, CommandError> {
    let failed = |error| CommandError::os("reading /dev/urandom", error);
    let mut bytes = vec![0; len_bytes as usize];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(failed)?;
    Ok(bytes)
}

impl Ladder<'_> {
    /// The bytes at an offset of the checkpoint.
    fn copy(&self, into: &mut [u8], offset_bytes: u64) {
        let mut at = (offset_bytes % self.source.len() as u64) as usize;
        let mut done = 0;
        while done < into.len() {
            let len = (into.len() - done).min(self.source.len() - at);
            into[done..done + len].copy_from_slice(&self.source[at..at + len]);
            done += len;
            at = 0;
        }
    }

    fn failed(&self, error: std::io::Error) -> CommandError {
        CommandError::os(format!("writing {}", self.scratch_file.display()), error)
    }

    /// Makes the file and writes it once: the first write of a block also changes the file system's
    /// own records, and no rung should pay for that.
    fn prepare_file(&self) -> Result<(), CommandError> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&self.scratch_file).map_err(|error| self.failed(error))?;
        self.buffered().map(|_| ())
    }

    fn buffered(&self) -> Result<Duration, CommandError> {
        let started = Instant::now();
        let failed = |error| self.failed(error);
        let mut file = OpenOptions::new().write(true).open(&self.scratch_file).map_err(failed)?;
        let mut left = self.args.size;
        while left > 0 {
            let len = left.min(self.source.len() as u64) as usize;
            file.write_all(&self.source[..len]).map_err(failed)?;
            left -= len as u64;
        }
        file.sync_all().map_err(failed)?;
        Ok(started.elapsed())
    }

    fn open_direct(&self) -> Result<File, CommandError> {
        let mut options = OpenOptions::new();
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let opened = options.write(true).custom_flags(flags).open(&self.scratch_file);
        opened.map_err(|error| self.failed(error))
    }

    /// Aligned memory that O_DIRECT takes: the engine's.
    fn aligned(
        &self,
        count: usize,
    ) -> Result<(stanchion_engine::Session, Vec<SessionBuffer>), CommandError> {
        let memory_bytes = (count * PIECE_BYTES) as u64;
        let mut session = self.pool.session(&SessionOptions { memory_bytes, ring_entries: 2 })?;
        let alloc = |_| session.alloc(PIECE_BYTES as u64);
        let buffers = (0..count).map(alloc).collect::<Result<Vec<_>, _>>()?;
        Ok((session, buffers))
    }

    /// The pieces of the file: offset and length in whole blocks.
    fn pieces(&self) -> impl Iterator<Item = (u64, usize)> {
        let end = self.args.size.next_multiple_of(BLOCK_BYTES);
        (0..end)
            .step_by(PIECE_BYTES)
            .map(move |at| (at, (end - at).min(PIECE_BYTES as u64) as usize))
    }

    fn direct(&self) -> Result<Duration, CommandError> {
        let (_session, mut buffers) = self.aligned(1)?;
        let started = Instant::now();
        let file = self.open_direct()?;
        for (offset_bytes, len_bytes) in self.pieces() {
            let bytes = &mut buffers[0].as_mut_slice()?[..len_bytes];
            self.copy(bytes, offset_bytes);
            file.write_all_at(bytes, offset_bytes).map_err(|error| self.failed(error))?;
        }
        file.sync_data().map_err(|error| self.failed(error))?;
        let time = started.elapsed();
        drop(buffers);
        Ok(time)
    }

    fn double_buffered(&self) -> Result<Duration, CommandError> {
        let (_session, buffers) = self.aligned(2)?;
        let started = Instant::now();
        let file = self.open_direct()?;
        let (to_writer, filled) = mpsc::channel::<(SessionBuffer, u64, usize)>();
        let (to_filler, free) = mpsc::channel::<SessionBuffer>();
        buffers.into_iter().for_each(|buffer| _ = to_filler.send(buffer));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| -> Result<(), CommandError> {
                // Moved here, so that the filler sees its end.
                let to_filler = to_filler;
                for (buffer, offset_bytes, len_bytes) in filled {
                    let bytes = &buffer.as_slice()?[..len_bytes];
                    file.write_all_at(bytes, offset_bytes).map_err(|error| self.failed(error))?;
                    // The filler is done when it has no more to fill.
                    let _ = to_filler.send(buffer);
                }
                file.sync_data().map_err(|error| self.failed(error))
            });
            for (offset_bytes, len_bytes) in self.pieces() {
                // A writer that ended early has failed; its error is returned below.
                let Ok(mut buffer) = free.recv() else { break };
                self.copy(&mut buffer.as_mut_slice()?[..len_bytes], offset_bytes);
                if to_writer.send((buffer, offset_bytes, len_bytes)).is_err() {
                    break;
                }
            }
            drop(to_writer);
            let written = writer.join();
            written.unwrap_or_else(|_| Err(CommandError::Failed("the writer panicked".into())))
        })?;
        Ok(started.elapsed())
    }

    /// Saves the checkpoint by this many ranks, each a thread with a session of its own, and
    /// removes it.
    fn save(&self, ranks: u32) -> Result<Duration, CommandError> {
        let mut sessions = self.bulk_sessions(ranks)?;
        let mut scratch = Scratch::new(self.pool, self.name.clone());
        let time = self.save_with(&mut sessions)?;
        scratch.exists = true;
        scratch.remove()?;
        Ok(time)
    }

    fn bulk_sessions(&self, ranks: u32) -> Result<Vec<BulkSession<'_>>, CommandError> {
        let memory_bytes = self.args.buffer_size / u64::from(ranks);
        let session = |_| Ok(self.pool.bulk_session(&BulkOptions { memory_bytes })?);
        (0..ranks).map(session).collect()
    }

    /// From the first copy to the commit, which all ranks wait for.
    fn save_with(&self, sessions: &mut [BulkSession<'_>]) -> Result<Duration, CommandError> {
        let ranks = sessions.len() as u64;
        let started = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(sessions)
                .map(|(rank, session)| scope.spawn(move || self.save_rank(session, rank, ranks)))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(CommandError::Failed("a rank panicked".into())))
            })
        })?;
        Ok(started.elapsed())
    }

    fn save_rank(
        &self,
        session: &mut BulkSession<'_>,
        rank: u64,
        ranks: u64,
    ) -> Result<(), CommandError> {
        let (start, end) = (self.args.size * rank / ranks, self.args.size * (rank + 1) / ranks);
        let spec = CheckpointSpec {
            name: self.name.clone(),
            participants: ranks as u32,
            participant: rank as u32,
            len_bytes: end - start,
            shards: Vec::new(),
        };
        let mut fill = |bytes: &mut [u8], offset: u64| {
            self.copy(bytes, start + offset);
            Ok(())
        };
        let mut watch = |_| self.interrupt.check(&format!("{} was not saved", spec.name));
        session.save(&spec, &[], &mut fill, &mut watch).map(|_| ())
    }

    /// Iterations whose compute overlaps with the save of the one before, and as many without
    /// saves.
    fn overlapped(&self, compute: Option<Duration>) -> Result<Vec<Iteration>, CommandError> {
        let mut sessions = self.bulk_sessions(self.args.ranks)?;
        let compute = match compute {
            Some(compute) => compute,
            None => {
                let mut scratch = Scratch::new(self.pool, self.name.clone());
                let save = self.save_with(&mut sessions)?;
                scratch.exists = true;
                scratch.remove()?;
                save.mul_f64(COMPUTE_FACTOR)
            }
        };
        let mut iterations = Vec::new();
        for _ in 0..ITERATIONS {
            self.interrupt.check("the bench was not finished")?;
            let started = Instant::now();
            std::thread::sleep(compute);
            let without = started.elapsed();

            let mut scratch = Scratch::new(self.pool, self.name.clone());
            let started = Instant::now();
            let save = std::thread::scope(|scope| {
                let saving = scope.spawn(|| self.save_with(&mut sessions));
                // The device computes; the processors are free, but for the thread that feeds it.
                std::thread::sleep(compute);
                // The step that changes the weights waits here.
                saving
                    .join()
                    .unwrap_or_else(|_| Err(CommandError::Failed("a rank panicked".into())))
            })?;
            let with_saves = started.elapsed();
            scratch.exists = true;
            scratch.remove()?;
            iterations.push(Iteration { save, with_saves, without });
        }
        Ok(iterations)
    }
}

fn report(
    ladder: &Ladder<'_>,
    times: &[Vec<f64>],
    iterations: &[Iteration],
    output: Output,
) -> Result<(), CommandError> {
    let (args, drives) = (ladder.args, ladder.pool.info().drives.len());
    let of = |pick: fn(&Iteration) -> Duration| {
        median(iterations.iter().map(|one| pick(one).as_secs_f64()).collect())
    };
    let train = TrainRecord {
        compute_seconds: of(|one| one.without),
        iteration_seconds: of(|one| one.with_saves),
        iteration_without_saves_seconds: of(|one| one.without),
        stall_share: median(
            iterations
                .iter()
                .map(|one| one.with_saves.as_secs_f64() / one.without.as_secs_f64() - 1.0)
                .collect(),
        ),
    };
    let mut rungs: Vec<RungRecord> = Vec::new();
    for (rung, times) in Rung::ALL.iter().zip(times) {
        let seconds = median(times.clone());
        let stall_seconds = match rung {
            Rung::Overlapped => {
                (train.iteration_seconds - train.iteration_without_saves_seconds).max(0.0)
            }
            _ => seconds,
        };
        rungs.push(RungRecord {
            rung: rung.name(),
            what: rung.what(drives, args.ranks),
            seconds,
            min_seconds: times.iter().copied().fold(f64::INFINITY, f64::min),
            max_seconds: times.iter().copied().fold(0.0, f64::max),
            gb_per_s: output::gb_per_s(args.size, Duration::from_secs_f64(seconds)),
            gain: rungs.last().map_or(1.0, |below| below.seconds / seconds),
            stall_seconds,
        });
    }
    if output.json {
        let (data_bytes, drive_count, rank_count) = (args.size, drives, args.ranks);
        return output.document(
            "bench-ladder",
            &Report { data_bytes, drive_count, rank_count, rungs, train },
        );
    }
    let header = ["RUNG", "SECONDS", "GB/S", "GAIN", "STALL", ""];
    let mut table = output::table(&header, &["SECONDS", "GB/S", "GAIN", "STALL"]);
    for rung in rungs {
        table.add_row([
            rung.rung.to_owned(),
            format!("{:.3}", rung.seconds),
            format!("{:.2}", rung.gb_per_s),
            format!("{:.2}", rung.gain),
            format!("{:.3} s", rung.stall_seconds),
            rung.what,
        ]);
    }
    output.text(output::lines(&table))?;
    output.text(format_args!(
        "{} saved each time. With {:.3} s of compute a save adds {:.2} % to an iteration",
        output::size(args.size),
        train.compute_seconds,
        100.0 * train.stall_share
    ))
}
