// SPDX-License-Identifier: Apache-2.0
//! `stanchion show`: a pool, or what one checkpoint consists of.

use clap::Args;
use serde::Serialize;
use stanchion_engine::{
    CheckpointInfo, CheckpointName, Error, Pool, PoolMode, Redundancy, SegmentInfo, Shard,
};

use super::Subcommand;
use crate::checkpoint::{DriveBytes, bytes_by_drive, resolve};
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, Output, plain};
use crate::record::drive_state;
use crate::tree::entry::{Entry, Kind};

const EXAMPLES: &str = "\
Examples:
  stanchion show --drive /data/a.img --drive /data/b.img     the pool: drives, capacity, free space
  stanchion show llama@100                                   its shards, and its bytes on each drive
  stanchion show llama --json                                the newest step of llama";

/// Arguments of `stanchion show`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Show {
    /// A checkpoint; without a step, the one with the highest step; without a name, the pool
    #[arg(value_name = "NAME[@STEP]")]
    name: Option<String>,
}

/// One of the two is null.
#[derive(Default, Serialize)]
struct Report {
    pool: Option<PoolRecord>,
    checkpoint: Option<CheckpointRecord>,
}

#[derive(Serialize)]
struct PoolRecord {
    uuid: String,
    generation: u64,
    created_at: String,
    chunk_bytes: u64,
    checkpoint_count: usize,
    max_checkpoint_count: usize,
    metadata_bytes: u64,
    typical_shard_count: u64,
    capacity_bytes: u64,
    free_bytes: Option<u64>,
    copies: u8,
    drives: Vec<DriveRecord>,
}

#[derive(Serialize)]
struct DriveRecord {
    uuid: String,
    serial: String,
    address: String,
    model: String,
    back_end: &'static str,
    capacity_bytes: u64,
    volatile_cache: Option<bool>,
    reservations: Option<bool>,
    /// "member", "absent" or "rebuilding".
    state: &'static str,
}

#[derive(Serialize)]
struct CheckpointRecord {
    name: String,
    step: u64,
    uuid: String,
    data_bytes: u64,
    participant_count: u32,
    committed_at: String,
    generation: u64,
    drives: Vec<DriveBytes>,
    shards: Vec<ShardRecord>,
}

#[derive(Serialize)]
struct ShardRecord {
    participant: u32,
    name: String,
    offset_bytes: u64,
    len_bytes: u64,
    dtype: String,
    shape: Vec<u64>,
    /// "file", "directory" or "link".
    kind: &'static str,
    mode: Option<String>,
    modified_at: Option<String>,
    link_target: Option<String>,
    may_have_changed: bool,
}

impl ShardRecord {
    fn new(participant: u32, shard: Shard) -> ShardRecord {
        // What no file can be made of is shown all the same.
        let entry = Entry::of(&shard.attributes).ok();
        let entry = entry.as_ref();
        let kind = entry.map(|entry| &entry.kind);
        let modified = entry.and_then(|entry| entry.modified_ns);
        ShardRecord {
            participant,
            name: shard.name,
            offset_bytes: shard.offset_bytes,
            len_bytes: shard.len_bytes,
            dtype: shard.dtype,
            shape: shard.shape,
            kind: match kind {
                Some(Kind::File) => "file",
                Some(Kind::Directory) => "directory",
                Some(Kind::Link(_)) | None => "link",
            },
            mode: entry.and_then(|entry| entry.mode).map(|mode| format!("{mode:04o}")),
            modified_at: modified.and_then(|ns| u64::try_from(ns).ok()).map(output::exact_time),
            link_target: match kind {
                Some(Kind::Link(target)) => Some(String::from_utf8_lossy(target).into_owned()),
                _ => None,
            },
            may_have_changed: entry.is_some_and(|entry| entry.may_have_changed),
        }
    }

    /// Its name as `ls -F` shows it.
    fn shown(&self) -> String {
        match (&self.link_target, self.kind) {
            (Some(target), _) => format!("{} -> {}", plain(&self.name), plain(target)),
            (None, "directory") => format!("{}/", plain(&self.name)),
            _ => plain(&self.name),
        }
    }
}

impl Subcommand for Show {
    const NAME: &'static str = "show";
    const ABOUT: &'static str = "Show a pool, or the shards of one checkpoint";
    const GROUPS: &'static [Group] = &[Group::Drives, Group::Engine, Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let pool = context.open(PoolMode::ReadOnly)?;
        match &self.name {
            Some(name) => show_checkpoint(&pool, &resolve(&pool, name)?, context.output),
            None => show_pool(&pool, context.output),
        }
    }
}

fn show_pool(pool: &Pool, output: Output) -> Result<(), CommandError> {
    let info = pool.info();
    let checkpoints = pool.list();
    let used_bytes = used_bytes(pool, &checkpoints, info.chunk_bytes, output)?;
    let free_bytes = used_bytes.map(|used| info.capacity_bytes.saturating_sub(used));
    let drives: Vec<DriveRecord> = info
        .drives
        .into_iter()
        .map(|drive| DriveRecord {
            uuid: drive.uuid.to_string(),
            serial: drive.serial,
            address: drive.address,
            model: drive.model,
            back_end: drive.back_end,
            capacity_bytes: drive.capacity_bytes,
            volatile_cache: drive.volatile_cache,
            reservations: drive.reservations,
            state: drive_state(drive.state),
        })
        .collect();
    if output.json {
        let pool = PoolRecord {
            uuid: info.pool.to_string(),
            generation: info.generation.0,
            created_at: output::exact_time(info.created_unix_ns),
            chunk_bytes: info.chunk_bytes,
            checkpoint_count: checkpoints.len(),
            max_checkpoint_count: info.max_checkpoints,
            metadata_bytes: info.metadata_bytes,
            typical_shard_count: info.typical_shards,
            capacity_bytes: info.capacity_bytes,
            free_bytes,
            copies: info.redundancy.copies(),
            drives,
        };
        return output.document(Show::NAME, &Report { pool: Some(pool), ..Report::default() });
    }
    output.text(format_args!(
        "pool {}{}, made {}, generation {}\n\
         {} of at most {} checkpoints; {} free of {}; chunks of {}\n\
         {} of metadata on each drive: room for some {} shards\n",
        info.pool,
        if info.redundancy == Redundancy::Mirror { ", a mirror" } else { "" },
        output::time(info.created_unix_ns),
        info.generation,
        checkpoints.len(),
        info.max_checkpoints,
        free_bytes.map_or_else(|| "an unknown part".to_owned(), output::size),
        output::size(info.capacity_bytes),
        output::size(info.chunk_bytes),
        output::size(info.metadata_bytes),
        info.typical_shards,
    ))?;
    let header = [
        "SERIAL",
        "ADDRESS",
        "MODEL",
        "SIZE",
        "BACK END",
        "VOLATILE CACHE",
        "RESERVATIONS",
        "STATE",
    ];
    let mut table = output::table(&header, &["SIZE"]);
    for drive in drives {
        let yes_or_no = |known: Option<bool>| match known {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        let (cache, reservations) =
            (yes_or_no(drive.volatile_cache), yes_or_no(drive.reservations));
        table.add_row([
            plain(&drive.serial),
            plain(&drive.address),
            plain(&drive.model),
            output::size(drive.capacity_bytes),
            drive.back_end.to_owned(),
            cache.to_owned(),
            reservations.to_owned(),
            drive.state.to_owned(),
        ]);
    }
    output.text(output::lines(&table))
}

/// What the checkpoints occupy, in whole chunks. `None` when one of them cannot be read: what it
/// occupies is then unknown.
fn used_bytes(
    pool: &Pool,
    checkpoints: &[CheckpointInfo],
    chunk_bytes: u64,
    output: Output,
) -> Result<Option<u64>, CommandError> {
    let mut used_bytes = Some(0);
    for info in checkpoints {
        match pool.segments(&info.name) {
            Ok(segments) => {
                let chunks = |s: &SegmentInfo| s.len_bytes.div_ceil(chunk_bytes);
                let bytes = segments.iter().map(chunks).sum::<u64>() * chunk_bytes;
                used_bytes = used_bytes.map(|used| used + bytes);
            }
            Err(Error::Damaged(damage)) => {
                output.notice("damaged", damage);
                used_bytes = None;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(used_bytes)
}

fn show_checkpoint(pool: &Pool, name: &CheckpointName, output: Output) -> Result<(), CommandError> {
    let info = pool.find(name)?;
    let drives = bytes_by_drive(pool, name)?;
    let segments = pool.segments(name)?;
    let shards: Vec<ShardRecord> = segments
        .into_iter()
        .flat_map(|segment| {
            let participant = segment.participant;
            segment.shards.into_iter().map(move |shard| ShardRecord::new(participant, shard))
        })
        .collect();
    if output.json {
        let checkpoint = CheckpointRecord {
            name: info.name.name,
            step: info.name.step,
            uuid: info.id.to_string(),
            data_bytes: info.bytes,
            participant_count: info.participants,
            committed_at: output::exact_time(info.committed_unix_ns),
            generation: info.generation.0,
            drives,
            shards,
        };
        let report = Report { checkpoint: Some(checkpoint), ..Report::default() };
        return output.document(Show::NAME, &report);
    }
    output.text(format_args!(
        "{name}: {} bytes ({}), {}, committed {}, generation {}, id {}\n",
        info.bytes,
        output::size(info.bytes),
        output::count(info.participants as usize, "participant"),
        output::time(info.committed_unix_ns),
        info.generation,
        info.id
    ))?;
    let mut table = output::table(&["SERIAL", "ADDRESS", "SIZE"], &["SIZE"]);
    for drive in drives {
        table.add_row([
            plain(&drive.serial),
            plain(&drive.address),
            output::size(drive.data_bytes),
        ]);
    }
    output.text(format_args!("{}\n", output::lines(&table)))?;
    let header = ["PARTICIPANT", "SHARD", "SIZE", "OFFSET", "DTYPE", "SHAPE"];
    let mut table = output::table(&header, &["PARTICIPANT", "SIZE", "OFFSET"]);
    for shard in shards {
        let shape: Vec<String> = shard.shape.iter().map(u64::to_string).collect();
        table.add_row([
            shard.participant.to_string(),
            shard.shown(),
            output::size(shard.len_bytes),
            shard.offset_bytes.to_string(),
            plain(&shard.dtype),
            shape.join("x"),
        ]);
    }
    output.text(output::lines(&table))
}
