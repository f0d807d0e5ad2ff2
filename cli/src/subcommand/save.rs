// SPDX-License-Identifier: Apache-2.0
//! `stanchion save`: files and directories become the shards of one checkpoint.
//!
//! Everything is looked at before space is reserved. Files lie in the segment one after the other,
//! in the order in which they were found, and are read while earlier bytes are being written.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use stanchion_engine::Shard;
use stanchion_engine::{BulkOptions, CheckpointName, CheckpointSpec, Pool, PoolMode, Saved};

use super::Subcommand;
use crate::checkpoint::{DriveBytes, bytes_by_drive};
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, Output, plain};
use crate::progress_bar::ProgressBar;
use crate::tree::exclusion::Exclusion;
use crate::tree::source::Source;
use crate::tree::stream::Stream;
use crate::tree::walk::{Rules, Walk};
use crate::values::parse_size;

/// The longest list of paths.
const MAX_LIST_BYTES: u64 = 1 << 30;

const EXAMPLES: &str = "\
Examples:
  stanchion save llama@100 model.safetensors optimizer.pt --drive /data/a.img --drive /data/b.img
  stanchion save llama@100 global_step100 latest     directories with all that is in them
  stanchion save llama@100 checkpoint/.              its contents only, as `cp -r checkpoint/. DIR`
  stanchion save llama@100 run --exclude '*.tmp' --exclude run/logs
  find . -name '*.pt' -print0 | stanchion save llama@100 --files-from -
  tar c run | stanchion save run@1 - --as run.tar

Each file becomes a shard named by its path: below the last part of the PATH that it was found in.
Modes, times, empty directories, and links that stay in their directory are kept. The checkpoint is
visible, and the command ends with code 0, when everything is durable on every drive. Until then
Ctrl-C ends the save and leaves nothing.";

/// Arguments of `stanchion save`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Save {
    /// The new checkpoint: a name and a training step, as in llama@100
    #[arg(value_name = "NAME@STEP")]
    name: String,
    /// Files and directories; of DIR/. the contents only; - is standard input, and needs --as
    #[arg(value_name = "PATH", required_unless_present = "files_from")]
    paths: Vec<PathBuf>,
    /// Also the paths in this file (- is standard input): one a line, or each with a zero byte
    /// behind it; they are kept as with --relative
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// Name files by the whole PATH, which starts at the current directory
    #[arg(long)]
    relative: bool,
    /// Leave out what matches: a name in any directory, or with a / in it a path from the top; may
    /// be repeated
    #[arg(long = "exclude", value_name = "GLOB", value_parser = Exclusion::parse)]
    exclusions: Vec<Exclusion>,
    /// What to do with links that leave their directory
    #[arg(long, value_enum, value_name = "HOW", default_value = "follow")]
    outside_links: OutsideLinks,
    /// The name of what is read from standard input
    #[arg(long = "as", value_name = "NAME")]
    as_name: Option<String>,
    /// Save files that change meanwhile, such as logs, as they are read; the checkpoint notes it
    #[arg(long)]
    allow_changing: bool,
    /// Memory for buffers
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    buffer_size: u64,
}

/// What to do with links that leave their directory.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum OutsideLinks {
    /// Save what they lead to
    Follow,
    /// Save nothing
    Refuse,
}

#[derive(Serialize)]
struct Report {
    name: String,
    step: u64,
    shard_count: usize,
    data_bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    commit_tail_seconds: f64,
    generation: u64,
    drives: Vec<DriveBytes>,
    /// Files that changed while they were saved.
    changed_files: Vec<String>,
}

impl Subcommand for Save {
    const NAME: &'static str = "save";
    const ABOUT: &'static str = "Save files and directories as a checkpoint";
    const GROUPS: &'static [Group] = &Group::ALL;

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let (output, interrupt) = (context.output, &context.interrupt);
        let name: CheckpointName = self.name.parse()?;
        let sources = self.look()?;
        let shards = pack(&sources)?;
        let len_bytes = shards.last().map_or(0, |shard| shard.offset_bytes + shard.len_bytes);
        let pool = context.open(PoolMode::ReadWrite)?;
        interrupt.defer();
        let (participants, participant) = (1, 0);
        let spec =
            CheckpointSpec { name: name.clone(), participants, participant, len_bytes, shards };
        let progress = ProgressBar::new(output, &format!("saving {name}"), len_bytes);
        let mut stream = Stream::new(&sources, self.allow_changing);
        if len_bytes == 0 {
            stream.finish()?;
        }
        let mut bulk = pool.bulk_session(&BulkOptions { memory_bytes: self.buffer_size })?;
        let mut watch = |bytes| {
            progress.set(bytes);
            interrupt.check(&format!("{name} was not saved"))
        };
        let mut fill = |into: &mut [u8], offset: u64| {
            let is_last = offset + into.len() as u64 == len_bytes;
            stream.read(into)?;
            if is_last { stream.finish() } else { Ok(()) }
        };
        let saved = bulk.save(&spec, &[], &mut fill, &mut watch)?;
        drop((progress, bulk));
        for source in stream.changed() {
            output.notice(
                "file_changed",
                format_args!("{} changed while it was being saved", source.shown()),
            );
        }
        let changed = stream.changed().iter().map(|source| source.shown()).collect();
        let printed = report(&pool, &spec, &saved, changed, output);
        let generation = saved.generation;
        output.reported(printed, format_args!("{name} was saved, in generation {generation}"));
        Ok(())
    }
}

impl Save {
    /// Looks at everything that is named.
    fn look(&self) -> Result<Vec<Source>, CommandError> {
        let is_stdin = |path: &&PathBuf| path.as_os_str() == "-";
        let reads_stdin = self.paths.iter().any(|path| is_stdin(&path));
        match (&self.as_name, reads_stdin) {
            (None, true) => {
                return Err(CommandError::Usage(
                    "- is standard input, which has no name; pass --as NAME, or ./- for a file of \
                     that name"
                        .into(),
                ));
            }
            (Some(_), false) => {
                return Err(CommandError::Usage(
                    "--as names what is read from standard input; pass - as PATH, too".into(),
                ));
            }
            _ => {}
        }
        let list = self.files_from.as_deref();
        if reads_stdin && list.is_some_and(|list| list.as_os_str() == "-") {
            return Err(CommandError::Usage(
                "standard input is named twice: as a file to save and for --files-from".into(),
            ));
        }
        let mut walk = Walk::new(Rules {
            exclusions: self.exclusions.clone(),
            refuses_outside_links: self.outside_links == OutsideLinks::Refuse,
            allows_changes: self.allow_changing,
        });
        for path in self.paths.iter().filter(|path| !is_stdin(path)) {
            match self.relative {
                true => walk.add_relative(path)?,
                false => walk.add(path)?,
            }
        }
        for path in list.map_or(Ok(Vec::new()), read_list)? {
            walk.add_relative(&path)?;
        }
        if let Some(name) = &self.as_name {
            walk.add_spooled(name, spool()?)?;
        }
        walk.finish()
    }
}

/// The paths in a list.
fn read_list(list: &Path) -> Result<Vec<PathBuf>, CommandError> {
    let what = || match list.as_os_str() == "-" {
        true => "the list of files on standard input".to_owned(),
        false => format!("the list of files {}", plain(&list.to_string_lossy())),
    };
    let mut bytes = Vec::new();
    let read = match list.as_os_str() == "-" {
        true => io::stdin().lock().take(MAX_LIST_BYTES + 1).read_to_end(&mut bytes),
        false => {
            File::open(list).and_then(|file| file.take(MAX_LIST_BYTES + 1).read_to_end(&mut bytes))
        }
    };
    let len_bytes = read.map_err(|error| CommandError::path(what(), error))?;
    if len_bytes as u64 > MAX_LIST_BYTES {
        return Err(CommandError::Usage(format!(
            "{} is longer than {MAX_LIST_BYTES} bytes; save the directories instead",
            what()
        )));
    }
    let separator = if bytes.contains(&0) { 0 } else { b'\n' };
    let paths = bytes.split(|byte| *byte == separator).filter(|path| !path.is_empty());
    Ok(paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect())
}

/// What comes from standard input, in a file without a name: space is reserved before the first
/// byte is written, so its length must be known.
fn spool() -> Result<File, CommandError> {
    let failed = |error| {
        CommandError::os(
            format!(
                "keeping standard input in {}, where TMPDIR may name another directory",
                std::env::temp_dir().display()
            ),
            error,
        )
    };
    let mut file = tempfile::tempfile().map_err(failed)?;
    io::copy(&mut io::stdin().lock(), &mut file).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(file)
}

/// One after the other, without gaps, which is the order that a segment table wants.
fn pack(sources: &[Source]) -> Result<Vec<Shard>, CommandError> {
    let mut offset_bytes: u64 = 0;
    let mut shards = Vec::with_capacity(sources.len());
    for source in sources.iter().filter(|source| !source.name.is_empty()) {
        let (name, len_bytes) = (source.name.clone(), source.len_bytes);
        let attributes = source.entry.to_attributes().map_err(CommandError::Usage)?;
        shards.push(Shard { name, offset_bytes, len_bytes, attributes, ..Shard::default() });
        offset_bytes = offset_bytes.checked_add(len_bytes).ok_or_else(|| {
            CommandError::Usage("the files have more than 2^64 bytes together".into())
        })?;
    }
    Ok(shards)
}

fn report(
    pool: &Pool,
    spec: &CheckpointSpec,
    saved: &Saved,
    changed_files: Vec<String>,
    output: Output,
) -> Result<(), CommandError> {
    let drives = bytes_by_drive(pool, &spec.name)?;
    let data_bytes = spec.len_bytes;
    if output.json {
        return output.document(
            Save::NAME,
            &Report {
                name: spec.name.name.clone(),
                step: spec.name.step,
                shard_count: spec.shards.len(),
                data_bytes,
                seconds: saved.time.as_secs_f64(),
                gb_per_s: output::gb_per_s(data_bytes, saved.time),
                commit_tail_seconds: saved.commit_tail.as_secs_f64(),
                generation: saved.generation,
                drives,
                changed_files,
            },
        );
    }
    output.summary(format_args!(
        "saved {}: {data_bytes} bytes ({}) in {}, {:.3} s, {}, commit tail {:.1} ms, generation {}",
        spec.name,
        output::size(data_bytes),
        output::count(spec.shards.len(), "shard"),
        saved.time.as_secs_f64(),
        output::rate(data_bytes, saved.time),
        saved.commit_tail.as_secs_f64() * 1e3,
        saved.generation
    ))?;
    for drive in drives {
        output.summary(format_args!(
            "  {} ({}): {}",
            drive.serial,
            drive.address,
            output::size(drive.data_bytes)
        ))?;
    }
    Ok(())
}
