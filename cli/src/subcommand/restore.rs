// SPDX-License-Identifier: Apache-2.0
//! `stanchion restore`: the shards of a checkpoint become files.
//!
//! - Bytes are verified before they are written, and files get their names only when all of them
//!   are whole and durable; until then they have temporary names.
//! - Names come from a drive, so they are not trusted: only plain base names are written.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use glob::Pattern;
use serde::Serialize;
use stanchion_engine::{BulkOptions, CheckpointName, PoolMode, SegmentInfo};
use tempfile::TempPath;

use super::Subcommand;
use crate::checkpoint::resolve;
use crate::context::Context;
use crate::drive_files;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, Output, plain};
use crate::progress_bar::ProgressBar;
use crate::values::parse_size;

const EXAMPLES: &str = "\
Examples:
  stanchion restore llama@100 -o restored/ --drive /data/a.img --drive /data/b.img
  stanchion restore llama -o newest/                      the newest step of llama
  stanchion restore llama@100 -o part/ --shard 'model*'   only some of its files

Every byte is checked. If bytes are damaged, the command names them, writes no file, and ends with
code 3. Where participants have shards of the same name, all shards of participant N go to
DIR/rankN/.";

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
    /// Only shards whose names match; may be repeated
    #[arg(long = "shard", value_name = "GLOB", value_parser = parse_glob)]
    shards: Vec<Pattern>,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    /// Memory for buffers
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    buffer_size: u64,
}

fn parse_glob(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| error.to_string())
}

/// A shard that becomes a file.
struct Target {
    participant: u32,
    start_bytes: u64,
    end_bytes: u64,
    path: PathBuf,
}

/// A file that is whole but has no name yet; dropping it removes it.
struct Unnamed {
    temporary: TempPath,
    path: PathBuf,
}

#[derive(Serialize)]
struct Report {
    name: String,
    step: u64,
    files: Vec<PathBuf>,
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
        let targets = choose(&name, &segments, self, output)?;
        let existing = targets.iter().find(|target| target.path.symlink_metadata().is_ok());
        if let Some(target) = existing.filter(|_| !self.force) {
            return Err(exists(&target.path));
        }
        let paths = targets.iter().map(|target| target.path.as_path());
        drive_files::refuse(paths, &context.drives()?)?;
        interrupt.defer();
        let started = Instant::now();
        let data_bytes = targets.iter().map(|target| target.end_bytes - target.start_bytes).sum();
        let progress = ProgressBar::new(output, &format!("restoring {name}"), data_bytes);
        let mut bulk = pool.bulk_session(&BulkOptions { memory_bytes: self.buffer_size })?;
        let mut files = Files { targets: targets.iter(), open: None, whole: Vec::new() };
        let mut done = 0;
        for segment in &segments {
            let participant = segment.participant;
            let of_this = || targets.iter().filter(move |t| t.participant == participant);
            if of_this().next().is_none() {
                continue;
            }
            let ranges: Vec<_> = of_this().map(|t| t.start_bytes..t.end_bytes).collect();
            let mut watch = |bytes| {
                progress.set(done + bytes);
                interrupt.check(&format!("{name} was not restored"))
            };
            let mut write = |bytes: &[u8], offset| files.write(participant, bytes, offset);
            bulk.restore(&name, participant, &ranges, &[], &mut write, &mut watch)?;
            files.finish_empty(participant)?;
            done += ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        }
        let whole = files.whole;
        for file in &whole {
            interrupt.check(&format!("{name} was not restored"))?;
            let synced = File::open(&file.temporary).and_then(|opened| opened.sync_all());
            synced.map_err(|error| cannot_write(&file.path, error))?;
        }
        let paths = give_names(whole, self.force)?;
        drop(progress);
        let time = started.elapsed();
        if output.json {
            let gb_per_s = output::gb_per_s(data_bytes, time);
            return output.document(
                Self::NAME,
                &Report {
                    name: name.name,
                    step: name.step,
                    files: paths,
                    data_bytes,
                    seconds: time.as_secs_f64(),
                    gb_per_s,
                },
            );
        }
        output.summary(format_args!(
            "restored {name}: {data_bytes} bytes ({}) in {}, {:.3} s, {}, verified",
            output::size(data_bytes),
            output::count(paths.len(), "file"),
            time.as_secs_f64(),
            output::rate(data_bytes, time)
        ))
    }
}

fn exists(path: &Path) -> CommandError {
    CommandError::Refused(format!("{} exists; pass --force to replace it", path.display()))
}

/// The requested shards, each with its path, by participant and offset. All names are
/// checked before anything is written.
fn choose(
    name: &CheckpointName,
    segments: &[SegmentInfo],
    args: &Restore,
    output: Output,
) -> Result<Vec<Target>, CommandError> {
    let mut seen = HashSet::new();
    let all = || segments.iter().flat_map(|segment| &segment.shards);
    let unique = all().all(|shard| seen.insert(shard.name.as_str()));
    let wanted = |shard: &str| {
        args.shards.is_empty() || args.shards.iter().any(|pattern| pattern.matches(shard))
    };
    let mut targets = Vec::new();
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
        let directory = match unique {
            true => args.output.clone(),
            false => args.output.join(format!("rank{}", segment.participant)),
        };
        for shard in segment.shards.iter().filter(|shard| wanted(&shard.name)) {
            check_file_name(name, &shard.name)?;
            targets.push(Target {
                participant: segment.participant,
                start_bytes: shard.offset_bytes,
                end_bytes: shard.offset_bytes + shard.len_bytes,
                path: directory.join(&shard.name),
            });
        }
    }
    if targets.is_empty() {
        let patterns: Vec<_> = args.shards.iter().map(Pattern::as_str).collect();
        return Err(CommandError::NotFound(match patterns.is_empty() {
            true => format!("{name} has no shards, so there is no file to restore"),
            false => format!(
                "no shard of {name} matches {}; `stanchion show {name}` lists them",
                patterns.join(" or ")
            ),
        }));
    }
    Ok(targets)
}

/// Refuses a name that leads out of the directory, or that no file can have.
fn check_file_name(checkpoint: &CheckpointName, name: &str) -> Result<(), CommandError> {
    const MAX_FILE_NAME_BYTES: usize = 255;
    let is_plain = !name.is_empty()
        && name.len() <= MAX_FILE_NAME_BYTES
        && name != "."
        && name != ".."
        && !name.contains(['/', '\0']);
    if is_plain {
        return Ok(());
    }
    Err(CommandError::Refused(format!(
        "shard {:?} of {checkpoint} cannot be a file in the output directory: its name is not a \
         plain base name of at most {MAX_FILE_NAME_BYTES} bytes; pass --shard to restore the others",
        plain(name)
    )))
}

/// Writes the files, one after the other, without names.
struct Files<'a> {
    targets: std::slice::Iter<'a, Target>,
    open: Option<(&'a Target, tempfile::NamedTempFile)>,
    whole: Vec<Unnamed>,
}

impl<'a> Files<'a> {
    /// Writes bytes of a segment, in order, which all belong to files.
    fn write(
        &mut self,
        participant: u32,
        bytes: &[u8],
        offset_bytes: u64,
    ) -> Result<(), CommandError> {
        let end = offset_bytes + bytes.len() as u64;
        while self.open_next(participant, end)? {
            let Some((target, file)) = &mut self.open else { break };
            let from = target.start_bytes.max(offset_bytes);
            let to = target.end_bytes.min(end);
            if from < to {
                let part = &bytes[(from - offset_bytes) as usize..(to - offset_bytes) as usize];
                file.write_all(part).map_err(|error| cannot_write(&target.path, error))?;
            }
            if target.end_bytes > end {
                break;
            }
            self.close();
        }
        Ok(())
    }

    /// Makes the participant's remaining files, which are empty.
    fn finish_empty(&mut self, participant: u32) -> Result<(), CommandError> {
        while self.open_next(participant, u64::MAX)? {
            self.close();
        }
        Ok(())
    }

    /// Whether a file is open that starts before `end` of the participant's segment.
    fn open_next(&mut self, participant: u32, end: u64) -> Result<bool, CommandError> {
        if self.open.is_some() {
            return Ok(true);
        }
        let next = self.targets.as_slice().first();
        let Some(target) = next.filter(|t| t.participant == participant && t.start_bytes < end)
        else {
            return Ok(false);
        };
        self.targets.next();
        self.open = Some((target, make_unnamed(&target.path)?));
        Ok(true)
    }

    fn close(&mut self) {
        if let Some((target, file)) = self.open.take() {
            let (temporary, path) = (file.into_temp_path(), target.path.clone());
            self.whole.push(Unnamed { temporary, path });
        }
    }
}

fn cannot_write(path: &Path, error: io::Error) -> CommandError {
    CommandError::os(format!("writing {}", path.display()), error)
}

/// A new file in the directory of `path`, with the permissions that new files have.
fn make_unnamed(path: &Path) -> Result<tempfile::NamedTempFile, CommandError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(|error| cannot_write(directory, error))?;
    tempfile::Builder::new()
        .prefix(".stanchion-")
        .suffix(".partial")
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(directory)
        .map_err(|error| cannot_write(path, error))
}

/// Gives all files their names and makes those durable.
fn give_names(files: Vec<Unnamed>, force: bool) -> Result<Vec<PathBuf>, CommandError> {
    let mut paths = Vec::with_capacity(files.len());
    let mut directories = HashSet::new();
    for Unnamed { temporary, path } in files {
        let renamed = match force {
            true => temporary.persist(&path),
            false => temporary.persist_noclobber(&path),
        };
        renamed.map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => exists(&path),
            _ => cannot_write(&path, error.error),
        })?;
        directories.extend(path.parent().map(Path::to_path_buf));
        paths.push(path);
    }
    for directory in directories {
        let synced = File::open(&directory).and_then(|opened| opened.sync_all());
        synced.map_err(|error| cannot_write(&directory, error))?;
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_written() {
        let checkpoint = CheckpointName::new("a", 1).unwrap();
        for good in ["a", "..a", "a b", ".hidden", "-rf", &"x".repeat(255)] {
            assert!(check_file_name(&checkpoint, good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "/etc/passwd", "a/b", "../x", "a\0b", &"x".repeat(256)] {
            let error = check_file_name(&checkpoint, bad).unwrap_err();
            assert!(matches!(error, CommandError::Refused(_)), "{bad:?}");
        }
    }
}
