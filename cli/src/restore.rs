//! `stanchion restore`: the shards of a checkpoint become files.
//!
//! - Bytes are verified before they are written, and files get their names only when all of them are
//!   whole and durable: until then they are nameless to everybody but this process.
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
use stanchion_engine::{
    BulkOptions, CheckpointName, Error, Pool, PoolMode, SegmentInfo, check_base_name,
};
use tempfile::TempPath;

use crate::args::{Common, parse_size};
use crate::config;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::{self, Output, plain};
use crate::progress::Progress;

const EXAMPLES: &str = "\
Examples:
  stanchion restore llama@100 -o restored/ --drive /data/a.img --drive /data/b.img
  stanchion restore llama -o newest/                      the newest step of llama
  stanchion restore llama@100 -o part/ --shard 'model*'   only some of its files

Every byte is checked; damage ends the command with code 3 and names what is hurt, and no file
appears. Where participants have shards of the same name, all shards of participant N go to
DIR/rankN/.";

/// Arguments of `stanchion restore`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RestoreArgs {
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
    format_version: u32,
    name: String,
    step: u64,
    files: Vec<PathBuf>,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
}

/// `NAME@STEP`, or the newest step of `NAME`.
///
/// # Errors
/// [`Error::NoSuchCheckpoint`], and [`Error::Usage`] for what is no name.
pub fn resolve(pool: &Pool, text: &str) -> Result<CheckpointName, Failure> {
    if text.contains('@') {
        return Ok(pool.find(&text.parse()?)?.name);
    }
    check_base_name(text)?;
    let newest = pool.latest(text).ok_or_else(|| Error::NoSuchCheckpoint(text.to_owned()))?;
    Ok(newest.name)
}

/// Runs it.
///
/// # Errors
/// Whatever kept the files from being restored; then none of them is there.
pub fn run(
    args: &RestoreArgs,
    common: &Common,
    output: Output,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let pool = config::open(common, PoolMode::ReadOnly, output)?;
    let name = resolve(&pool, &args.name)?;
    let segments = pool.segments(&name)?;
    let targets = choose(&name, &segments, args, output)?;
    if !args.force
        && let Some(target) = targets.iter().find(|target| target.path.symlink_metadata().is_ok())
    {
        return Err(exists(&target.path));
    }
    interrupt.defer();
    let started = Instant::now();
    let bytes = targets.iter().map(|target| target.end_bytes - target.start_bytes).sum();
    let progress = Progress::new(output, &format!("restoring {name}"), bytes);
    let mut bulk = pool.bulk_session(&BulkOptions { memory_bytes: args.buffer_size })?;
    let mut files = Files { targets: targets.iter(), open: None, whole: Vec::new() };
    let mut done = 0;
    for segment in &segments {
        let participant = segment.participant;
        let of_this = || targets.iter().filter(move |t| t.participant == participant);
        if of_this().next().is_none() {
            continue;
        }
        let ranges: Vec<_> = of_this().map(|target| target.start_bytes..target.end_bytes).collect();
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
        synced.map_err(|error| Failure::os(format!("writing {}", file.path.display()), error))?;
    }
    let paths = give_names(whole, args.force)?;
    drop(progress);
    let time = started.elapsed();
    if output.json {
        return output.document(&Report {
            format_version: 1,
            name: name.name,
            step: name.step,
            files: paths,
            bytes,
            seconds: time.as_secs_f64(),
            gb_per_s: output::gb_per_s(bytes, time),
        });
    }
    output.summary(format_args!(
        "restored {name}: {bytes} bytes ({}) in {}, {:.3} s, {}, verified",
        output::size(bytes),
        output::count(paths.len(), "file"),
        time.as_secs_f64(),
        output::rate(bytes, time)
    ))
}

fn exists(path: &Path) -> Failure {
    Failure::Refused(format!("{} exists; --force replaces it", path.display()))
}

/// The shards that were asked for, each with its path, by participant and offset. All names are
/// checked before anything is written.
fn choose(
    name: &CheckpointName,
    segments: &[SegmentInfo],
    args: &RestoreArgs,
    output: Output,
) -> Result<Vec<Target>, Failure> {
    let mut seen = HashSet::new();
    let all = || segments.iter().flat_map(|segment| &segment.shards);
    let unique = all().all(|shard| seen.insert(shard.name.as_str()));
    let wanted = |shard: &str| {
        args.shards.is_empty() || args.shards.iter().any(|pattern| pattern.matches(shard))
    };
    let mut targets = Vec::new();
    for segment in segments {
        if segment.shards.is_empty() && segment.len_bytes > 0 {
            output.notice(format_args!(
                "participant {} of {name} has {} bytes without a name, which cannot become a file",
                segment.participant, segment.len_bytes
            ));
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
        return Err(Failure::NotFound(match patterns.is_empty() {
            true => format!("{name} has no shards, so there is no file to restore"),
            false => format!(
                "no shard of {name} matches {}; `stanchion show {name}` lists them",
                patterns.join(" or ")
            ),
        }));
    }
    Ok(targets)
}

/// A name that leads out of the directory, or that no file can have, is not written.
fn check_file_name(checkpoint: &CheckpointName, name: &str) -> Result<(), Failure> {
    const MAX_FILE_NAME_BYTES: usize = 255;
    let is_plain = !name.is_empty()
        && name.len() <= MAX_FILE_NAME_BYTES
        && name != "."
        && name != ".."
        && !name.contains(['/', '\0']);
    if is_plain {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "shard {:?} of {checkpoint} cannot be a file in the output directory: its name is no plain \
         base name of at most {MAX_FILE_NAME_BYTES} bytes; --shard restores the others",
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
    /// Takes bytes of a segment, in order, which all belong to files.
    fn write(&mut self, participant: u32, bytes: &[u8], offset_bytes: u64) -> Result<(), Failure> {
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

    /// Makes the participant's files that are left, which are empty.
    fn finish_empty(&mut self, participant: u32) -> Result<(), Failure> {
        while self.open_next(participant, u64::MAX)? {
            self.close();
        }
        Ok(())
    }

    /// Whether a file is open that starts before `end` of the participant's segment.
    fn open_next(&mut self, participant: u32, end: u64) -> Result<bool, Failure> {
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

fn cannot_write(path: &Path, error: io::Error) -> Failure {
    Failure::os(format!("writing {}", path.display()), error)
}

/// A new file in the directory of `path`, with the permissions that new files have.
fn make_unnamed(path: &Path) -> Result<tempfile::NamedTempFile, Failure> {
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
fn give_names(files: Vec<Unnamed>, force: bool) -> Result<Vec<PathBuf>, Failure> {
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
            assert!(matches!(error, Failure::Refused(_)), "{bad:?}");
        }
    }
}
