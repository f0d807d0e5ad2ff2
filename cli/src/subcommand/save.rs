// SPDX-License-Identifier: Apache-2.0
//! `stanchion save`: files become the shards of one checkpoint.
//!
//! The files lie in the segment one after the other, in the order given. They are read while
//! earlier bytes of them are being written. If a file changes meanwhile, the save fails.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use stanchion_engine::Shard;
use stanchion_engine::{BulkOptions, CheckpointName, CheckpointSpec, Pool, PoolMode, Saved};

use super::Subcommand;
use crate::checkpoint::{DriveBytes, bytes_by_drive};
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, Output};
use crate::progress_bar::ProgressBar;
use crate::values::parse_size;

const EXAMPLES: &str = "\
Examples:
  stanchion save llama@100 model.safetensors optimizer.pt --drive /data/a.img --drive /data/b.img
  stanchion save llama@200 shard-*.bin --buffer-size 256MiB --json

Each file becomes a shard under its base name. The checkpoint is visible, and the command ends with
code 0, when everything is durable on every drive. Until then Ctrl-C ends the save and leaves
nothing.";

/// Arguments of `stanchion save`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Save {
    /// The new checkpoint: a name and a training step, as in llama@100
    #[arg(value_name = "NAME@STEP")]
    name: String,
    /// Regular files; they may be empty
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Memory for buffers
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    buffer_size: u64,
}

/// A file to be saved.
struct Source {
    path: PathBuf,
    name: String,
    /// Its metadata when its space was reserved.
    metadata: Metadata,
}

/// The files of a save, read one after the other.
struct Sources<'a> {
    left: std::slice::Iter<'a, Source>,
    /// The file being read, and how many of its bytes are left.
    open: Option<(&'a Source, File, u64)>,
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
}

impl Subcommand for Save {
    const NAME: &'static str = "save";
    const ABOUT: &'static str = "Save files as a checkpoint";
    const GROUPS: &'static [Group] = &Group::ALL;

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let (output, interrupt) = (context.output, &context.interrupt);
        let name: CheckpointName = self.name.parse()?;
        let sources = look_at(&self.files)?;
        let shards = pack(&sources);
        let len_bytes = shards.last().map_or(0, |shard| shard.offset_bytes + shard.len_bytes);
        let pool = context.open(PoolMode::ReadWrite)?;
        interrupt.defer();
        let (participants, participant) = (1, 0);
        let spec =
            CheckpointSpec { name: name.clone(), participants, participant, len_bytes, shards };
        let progress = ProgressBar::new(output, &format!("saving {name}"), len_bytes);
        let mut reader = Sources { left: sources.iter(), open: None };
        let mut bulk = pool.bulk_session(&BulkOptions { memory_bytes: self.buffer_size })?;
        let mut watch = |bytes| {
            progress.set(bytes);
            interrupt.check(&format!("{name} was not saved"))
        };
        let saved = bulk.save(&spec, &[], &mut |into, _| reader.read(into), &mut watch)?;
        drop((progress, bulk));
        report(&pool, &spec, &saved, output)
    }
}

fn look_at(files: &[PathBuf]) -> Result<Vec<Source>, CommandError> {
    let mut names = HashSet::new();
    let mut sources = Vec::with_capacity(files.len());
    for path in files {
        let shown = path.display();
        let metadata = fs::metadata(path)
            .map_err(|error| CommandError::path(format!("file {shown}"), error))?;
        if !metadata.is_file() {
            return Err(CommandError::Usage(format!(
                "{shown} is not a regular file; name the files to save"
            )));
        }
        let base = path.file_name().and_then(|name| name.to_str());
        let Some(base) = base else {
            return Err(CommandError::Usage(format!(
                "{shown}: its base name is not UTF-8; rename it"
            )));
        };
        if !names.insert(base.to_owned()) {
            return Err(CommandError::Usage(format!(
                "two files have the base name {base}; shards are restored under their base names, \
                 so rename one, or save it as another checkpoint"
            )));
        }
        sources.push(Source { path: path.clone(), name: base.to_owned(), metadata });
    }
    Ok(sources)
}

/// One after the other, without gaps, which is the order that a segment table wants.
fn pack(sources: &[Source]) -> Vec<Shard> {
    let mut offset_bytes = 0;
    let mut shards = Vec::with_capacity(sources.len());
    for source in sources {
        let len_bytes = source.metadata.len();
        let (dtype, shape) = (String::new(), Vec::new());
        let name = source.name.clone();
        shards.push(Shard { name, offset_bytes, len_bytes, dtype, shape, ..Shard::default() });
        offset_bytes += len_bytes;
    }
    shards
}

impl Source {
    /// Opens the file, if it is still the one whose size was read.
    fn open(&self) -> Result<File, CommandError> {
        let file = File::open(&self.path).map_err(|error| self.failed(error))?;
        self.check_unchanged(&file)?;
        Ok(file)
    }

    /// Fails if the file changed since its space was reserved.
    fn check_unchanged(&self, file: &File) -> Result<(), CommandError> {
        let now = file.metadata().map_err(|error| self.failed(error))?;
        let identity = |m: &Metadata| (m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec());
        if identity(&now) == identity(&self.metadata) {
            return Ok(());
        }
        if now.len() < self.metadata.len() {
            return Err(self.is_shorter(now.len()));
        }
        Err(CommandError::Failed(format!(
            "{} changed while it was being saved; the checkpoint was not saved: save again once the \
             file is complete",
            self.path.display()
        )))
    }

    fn is_shorter(&self, len_bytes: u64) -> CommandError {
        CommandError::Failed(format!(
            "{} became shorter while it was being saved, {len_bytes} bytes instead of {}; the \
             checkpoint was not saved: save again once the file is complete",
            self.path.display(),
            self.metadata.len()
        ))
    }

    fn failed(&self, error: std::io::Error) -> CommandError {
        CommandError::os(format!("reading {}", self.path.display()), error)
    }
}

impl Sources<'_> {
    /// Reads on, over the ends of files, until `into` is full. There are as many bytes as were
    /// declared: the caller asks for no more.
    fn read(&mut self, mut into: &mut [u8]) -> Result<(), CommandError> {
        while !into.is_empty() {
            let Some((source, file, left)) = &mut self.open else {
                let Some(source) = self.left.next() else {
                    return Err(CommandError::Failed(
                        "the files ended before the checkpoint".into(),
                    ));
                };
                self.open = Some((source, source.open()?, source.metadata.len()));
                continue;
            };
            let wanted = (*left).min(into.len() as u64) as usize;
            let mut count = 0;
            while count < wanted {
                match file.read(&mut into[count..wanted]) {
                    Ok(0) => return Err(source.is_shorter(source.metadata.len() - *left)),
                    Ok(more) => {
                        count += more;
                        *left -= more as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(source.failed(error)),
                }
            }
            into = &mut into[count..];
            if *left == 0 {
                source.check_unchanged(file)?;
                self.open = None;
            }
        }
        Ok(())
    }
}

fn report(
    pool: &Pool,
    spec: &CheckpointSpec,
    saved: &Saved,
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
