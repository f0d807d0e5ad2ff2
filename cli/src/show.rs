//! `stanchion show`: a pool, or what one checkpoint consists of.

use clap::Args;
use serde::Serialize;
use stanchion_engine::{
    CheckpointInfo, CheckpointName, DriveState, Error, Pool, PoolMode, Redundancy, SegmentInfo,
};

use crate::args::Common;
use crate::config;
use crate::exit::Failure;
use crate::output::{self, Output, plain};
use crate::restore::resolve;
use crate::save::{DriveBytes, bytes_by_drive};

const EXAMPLES: &str = "\
Examples:
  stanchion show --drive /data/a.img --drive /data/b.img     the pool: drives, capacity, free space
  stanchion show llama@100                                   its shards, and its bytes on each drive
  stanchion show llama --json                                the newest step of llama";

/// Arguments of `stanchion show`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ShowArgs {
    /// A checkpoint; without a step, the one with the highest step; without a name, the pool
    #[arg(value_name = "NAME[@STEP]")]
    name: Option<String>,
}

#[derive(Serialize)]
struct PoolDocument {
    format_version: u32,
    pool: String,
    generation: u64,
    created_at: String,
    chunk_bytes: u64,
    checkpoints: usize,
    max_checkpoints: usize,
    capacity_bytes: u64,
    free_bytes: Option<u64>,
    copies: u8,
    drives: Vec<DriveRecord>,
}

#[derive(Serialize)]
struct DriveRecord {
    serial: String,
    address: String,
    model: String,
    back_end: &'static str,
    capacity_bytes: u64,
    volatile_cache: Option<bool>,
    /// "member", "absent" or "rebuilding".
    state: &'static str,
    uuid: String,
}

#[derive(Serialize)]
struct CheckpointDocument {
    format_version: u32,
    name: String,
    step: u64,
    id: String,
    bytes: u64,
    participants: u32,
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
    bytes: u64,
    dtype: String,
    shape: Vec<u64>,
}

/// Runs it.
///
/// # Errors
/// When the pool cannot be opened, or the checkpoint does not exist or cannot be read.
pub fn run(args: &ShowArgs, common: &Common, output: Output) -> Result<(), Failure> {
    let pool = config::open(common, PoolMode::ReadOnly, output)?;
    match &args.name {
        Some(name) => show_checkpoint(&pool, &resolve(&pool, name)?, output),
        None => show_pool(&pool, output),
    }
}

fn show_pool(pool: &Pool, output: Output) -> Result<(), Failure> {
    let info = pool.info();
    let checkpoints = pool.list();
    let used_bytes = used_bytes(pool, &checkpoints, info.chunk_bytes, output)?;
    let free_bytes = used_bytes.map(|used| info.capacity_bytes.saturating_sub(used));
    let drives: Vec<DriveRecord> = info
        .drives
        .into_iter()
        .map(|drive| DriveRecord {
            serial: drive.serial,
            address: drive.address,
            model: drive.model,
            back_end: drive.back_end,
            capacity_bytes: drive.capacity_bytes,
            volatile_cache: drive.volatile_cache,
            state: match drive.state {
                DriveState::Member => "member",
                DriveState::Absent => "absent",
                DriveState::Rebuilding => "rebuilding",
            },
            uuid: drive.uuid.to_string(),
        })
        .collect();
    if output.json {
        return output.document(&PoolDocument {
            format_version: 1,
            pool: info.pool.to_string(),
            generation: info.generation.0,
            created_at: output::time(info.created_unix_ns),
            chunk_bytes: info.chunk_bytes,
            checkpoints: checkpoints.len(),
            max_checkpoints: info.max_checkpoints,
            capacity_bytes: info.capacity_bytes,
            free_bytes,
            copies: info.redundancy.copies(),
            drives,
        });
    }
    output.text(format_args!(
        "pool {}{}, made {}, generation {}\n\
         {} of at most {} checkpoints; {} free of {}; chunks of {}\n",
        info.pool,
        if info.redundancy == Redundancy::Mirror { ", a mirror" } else { "" },
        output::time(info.created_unix_ns),
        info.generation,
        checkpoints.len(),
        info.max_checkpoints,
        free_bytes.map_or_else(|| "an unknown part".to_owned(), output::size),
        output::size(info.capacity_bytes),
        output::size(info.chunk_bytes),
    ))?;
    let header = ["SERIAL", "ADDRESS", "MODEL", "SIZE", "BACK END", "VOLATILE CACHE", "STATE"];
    let mut table = output::table(&header, &["SIZE"]);
    for drive in drives {
        let cache = drive.volatile_cache.map_or("unknown", |yes| if yes { "yes" } else { "no" });
        table.add_row([
            plain(&drive.serial),
            plain(&drive.address),
            plain(&drive.model),
            output::size(drive.capacity_bytes),
            drive.back_end.to_owned(),
            cache.to_owned(),
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
) -> Result<Option<u64>, Failure> {
    let mut used_bytes = Some(0);
    for info in checkpoints {
        match pool.segments(&info.name) {
            Ok(segments) => {
                let chunks = |s: &SegmentInfo| s.len_bytes.div_ceil(chunk_bytes);
                let bytes = segments.iter().map(chunks).sum::<u64>() * chunk_bytes;
                used_bytes = used_bytes.map(|used| used + bytes);
            }
            Err(Error::Damaged(damage)) => {
                output.notice(damage);
                used_bytes = None;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(used_bytes)
}

fn show_checkpoint(pool: &Pool, name: &CheckpointName, output: Output) -> Result<(), Failure> {
    let info = pool.find(name)?;
    let drives = bytes_by_drive(pool, name)?;
    let segments = pool.segments(name)?;
    let shards: Vec<ShardRecord> = segments
        .into_iter()
        .flat_map(|segment| {
            segment.shards.into_iter().map(move |shard| ShardRecord {
                participant: segment.participant,
                name: shard.name,
                offset_bytes: shard.offset_bytes,
                bytes: shard.len_bytes,
                dtype: shard.dtype,
                shape: shard.shape,
            })
        })
        .collect();
    if output.json {
        return output.document(&CheckpointDocument {
            format_version: 1,
            name: info.name.name,
            step: info.name.step,
            id: info.id.to_string(),
            bytes: info.bytes,
            participants: info.participants,
            committed_at: output::time(info.committed_unix_ns),
            generation: info.generation.0,
            drives,
            shards,
        });
    }
    output.text(format_args!(
        "{name}: {} bytes ({}), {} participants, committed {}, generation {}, id {}\n",
        info.bytes,
        output::size(info.bytes),
        info.participants,
        output::time(info.committed_unix_ns),
        info.generation,
        info.id
    ))?;
    let mut table = output::table(&["SERIAL", "ADDRESS", "SIZE"], &["SIZE"]);
    for drive in drives {
        table.add_row([plain(&drive.serial), plain(&drive.address), output::size(drive.bytes)]);
    }
    output.text(format_args!("{}\n", output::lines(&table)))?;
    let header = ["PARTICIPANT", "SHARD", "SIZE", "OFFSET", "DTYPE", "SHAPE"];
    let mut table = output::table(&header, &["PARTICIPANT", "SIZE", "OFFSET"]);
    for shard in shards {
        let shape: Vec<String> = shard.shape.iter().map(u64::to_string).collect();
        table.add_row([
            shard.participant.to_string(),
            plain(&shard.name),
            output::size(shard.bytes),
            shard.offset_bytes.to_string(),
            plain(&shard.dtype),
            shape.join("x"),
        ]);
    }
    output.text(output::lines(&table))
}
