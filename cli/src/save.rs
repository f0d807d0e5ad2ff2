//! `stanchion save`: files become the shards of one checkpoint.
//!
//! The files lie in the segment one after the other, in the order given. They are read while earlier
//! bytes of them are being written, and whoever changes a file meanwhile spoils the save, which is
//! noticed and given up.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use stanchion_engine::Shard;
use stanchion_engine::{BulkOptions, CheckpointName, CheckpointSpec, Pool, PoolMode, Saved};

use crate::args::{Common, parse_size};
use crate::config;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::{self, Output};
use crate::progress::Progress;

const EXAMPLES: &str = "\
Examples:
  stanchion save llama@100 model.safetensors optimizer.pt --drive /data/a.img --drive /data/b.img
  stanchion save llama@200 shard-*.bin --buffer-size 256MiB --json

Each file becomes a shard under its base name. The checkpoint is visible, and the command ends with
code 0, when everything is durable on every drive; until then Ctrl-C gives it up without a trace.";

/// Arguments of `stanchion save`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SaveArgs {
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
    /// As it was when its space was reserved.
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
    format_version: u32,
    name: String,
    step: u64,
    shards: usize,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    commit_tail_ms: f64,
    generation: u64,
    drives: Vec<DriveBytes>,
}

/// Bytes of a checkpoint on one drive.
#[derive(Serialize)]
pub struct DriveBytes {
    /// The drive's serial.
    pub serial: String,
    /// Its address.
    pub address: String,
    /// Data bytes of the checkpoint there.
    pub bytes: u64,
}

/// Runs it.
///
/// # Errors
/// Whatever kept the checkpoint from being saved.
pub fn run(
    args: &SaveArgs,
    common: &Common,
    output: Output,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let name: CheckpointName = args.name.parse()?;
    let sources = look_at(&args.files)?;
    let shards = pack(&sources);
    let len_bytes = shards.last().map_or(0, |shard| shard.offset_bytes + shard.len_bytes);
    let pool = config::open(common, PoolMode::ReadWrite, output)?;
    interrupt.defer();
    let spec =
        CheckpointSpec { name: name.clone(), participants: 1, participant: 0, len_bytes, shards };
    let progress = Progress::new(output, &format!("saving {name}"), len_bytes);
    let mut reader = Sources { left: sources.iter(), open: None };
    let mut bulk = pool.bulk_session(&BulkOptions { memory_bytes: args.buffer_size })?;
    let mut watch = |bytes| {
        progress.set(bytes);
        interrupt.check(&format!("{name} was given up"))
    };
    let saved = bulk.save(&spec, &[], &mut |into, _| reader.read(into), &mut watch)?;
    drop((progress, bulk));
    tell(&pool, &spec, &saved, output)
}

fn look_at(files: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    let mut names = HashSet::new();
    let mut sources = Vec::with_capacity(files.len());
    for path in files {
        let shown = path.display();
        let metadata =
            fs::metadata(path).map_err(|error| Failure::os(format!("file {shown}"), error))?;
        if !metadata.is_file() {
            return Err(Failure::Usage(format!("{shown} is not a regular file")));
        }
        let base = path.file_name().and_then(|name| name.to_str());
        let Some(base) = base else {
            return Err(Failure::Usage(format!("{shown}: its base name is not UTF-8")));
        };
        if !names.insert(base.to_owned()) {
            return Err(Failure::Usage(format!(
                "two files have the base name {base}; shards are restored under their base names, \
                 so rename one or save it as another checkpoint"
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
        shards.push(Shard { name, offset_bytes, len_bytes, dtype, shape });
        offset_bytes += len_bytes;
    }
    shards
}

impl Source {
    /// The file, if it is still the one that was looked at.
    fn open(&self) -> Result<File, Failure> {
        let file = File::open(&self.path).map_err(|error| self.failed(error))?;
        self.check_unchanged(&file)?;
        Ok(file)
    }

    /// Fails if somebody wrote to the file since its space was reserved.
    fn check_unchanged(&self, file: &File) -> Result<(), Failure> {
        let now = file.metadata().map_err(|error| self.failed(error))?;
        let identity = |m: &Metadata| (m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec());
        if identity(&now) == identity(&self.metadata) {
            return Ok(());
        }
        if now.len() < self.metadata.len() {
            return Err(self.is_shorter(now.len()));
        }
        Err(Failure::Failed(format!(
            "{} changed while it was being saved; the checkpoint is given up",
            self.path.display()
        )))
    }

    fn is_shorter(&self, len_bytes: u64) -> Failure {
        Failure::Failed(format!(
            "{} has become shorter while it was being saved, {len_bytes} bytes instead of {}; \
             the checkpoint is given up",
            self.path.display(),
            self.metadata.len()
        ))
    }

    fn failed(&self, error: std::io::Error) -> Failure {
        Failure::os(format!("reading {}", self.path.display()), error)
    }
}

impl Sources<'_> {
    /// Reads on, over the ends of files, until `into` is full. There are as many bytes as were
    /// declared: the caller asks for no more.
    fn read(&mut self, mut into: &mut [u8]) -> Result<(), Failure> {
        while !into.is_empty() {
            let Some((source, file, left)) = &mut self.open else {
                let Some(source) = self.left.next() else {
                    return Err(Failure::Failed("the files ended before the checkpoint".into()));
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

/// Bytes of a checkpoint by drive, in the order of the pool's drive table.
///
/// # Errors
/// When its metadata cannot be read.
pub fn bytes_by_drive(pool: &Pool, name: &CheckpointName) -> Result<Vec<DriveBytes>, Failure> {
    let info = pool.info();
    let mut drives: Vec<DriveBytes> = info
        .drives
        .into_iter()
        .map(|drive| DriveBytes { serial: drive.serial, address: drive.address, bytes: 0 })
        .collect();
    for segment in pool.segments(name)? {
        for (drive, bytes) in drives.iter_mut().zip(segment.bytes_per_drive) {
            drive.bytes += bytes;
        }
    }
    Ok(drives)
}

fn tell(pool: &Pool, spec: &CheckpointSpec, saved: &Saved, output: Output) -> Result<(), Failure> {
    let drives = bytes_by_drive(pool, &spec.name)?;
    let bytes = spec.len_bytes;
    let commit_tail_ms = saved.commit_tail.as_secs_f64() * 1e3;
    if output.json {
        return output.document(&Report {
            format_version: 1,
            name: spec.name.name.clone(),
            step: spec.name.step,
            shards: spec.shards.len(),
            bytes,
            seconds: saved.time.as_secs_f64(),
            gb_per_s: output::gb_per_s(bytes, saved.time),
            commit_tail_ms,
            generation: saved.generation,
            drives,
        });
    }
    output.summary(format_args!(
        "saved {}: {} bytes ({}) in {}, {:.3} s, {}, commit tail {commit_tail_ms:.1} ms, \
         generation {}",
        spec.name,
        bytes,
        output::size(bytes),
        output::count(spec.shards.len(), "shard"),
        saved.time.as_secs_f64(),
        output::rate(bytes, saved.time),
        saved.generation
    ))?;
    for drive in drives {
        output.summary(format_args!(
            "  {} ({}): {}",
            drive.serial,
            drive.address,
            output::size(drive.bytes)
        ))?;
    }
    Ok(())
}
