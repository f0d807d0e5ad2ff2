// SPDX-License-Identifier: Apache-2.0
//! Turns a completion's code into an error that a person can act on.

use crate::error::{Damage, Error, IoError};
use crate::format::{SegmentTable, Shard};
use crate::name::CheckpointName;
use crate::pool::handle::Pool;
use crate::ring::{CompleteEntry, codes};
use crate::state::Use;

impl Pool {
    /// The error behind a failed read or write of a segment: what failed, on which drive.
    pub fn explain(
        &self,
        name: &CheckpointName,
        participant: u32,
        completion: &CompleteEntry,
    ) -> Error {
        let hold = match self.open.hold(name, Use::Inspect) {
            Ok(hold) => hold,
            Err(error) => return error,
        };
        match self.open.read_segment_table(&hold, participant) {
            Ok(table) => {
                let error = explain(self, name, &table, 0, completion);
                self.open.or_stale(hold.committed(), error)
            }
            Err(error) => error,
        }
    }
}

/// Turns a failed completion into an error that names the drive, the shard and the place. `copy` is
/// the copy of the chunk that failed.
fn explain(
    pool: &Pool,
    name: &CheckpointName,
    table: &SegmentTable,
    copy: usize,
    completion: &CompleteEntry,
) -> Error {
    let chunk = completion.aux / table.chunk_bytes;
    if chunk as usize >= table.chunks.len() {
        let what = codes::describe(completion.result);
        return Error::Usage(format!("{name}: participant {}: {what}", table.participant));
    }
    let is_damage = is_damage(completion);
    let shards = match pool.open.hold(name, Use::Inspect) {
        Ok(hold) if is_damage => pool.open.read_shards(&hold, table.participant).ok(),
        _ => None,
    };
    let shards = shards.unwrap_or_default();
    let damage = chunk_damage(pool, (name, &shards), table, chunk as usize, copy, completion);
    if is_damage {
        return damage.into();
    }
    let source = match completion.result {
        codes::REMOVED => IoError::Removed,
        codes::IO if completion.detail != 0 => IoError::Nvme {
            sct: (completion.detail >> 8) as u8,
            sc: completion.detail as u8,
            dnr: false,
        },
        code => IoError::Os(i32::try_from(-code).unwrap_or(libc::EIO)),
    };
    let copies = table.chunks[chunk as usize].copies;
    let drive = copies.iter().nth(copy).unwrap_or(copies.first).drive;
    let address = pool.open.context.info[drive.as_usize()].address.clone();
    let Damage { serial, offset_bytes, .. } = damage;
    let offset_bytes = offset_bytes.unwrap_or(0);
    Error::Io { serial, address, what: "read", offset_bytes, source }
}

/// Whether the bytes themselves are bad, as opposed to a failure that another try may not have.
pub(super) fn is_damage(completion: &CompleteEntry) -> bool {
    let unreadable = completion.detail >> 8 == 2;
    completion.result == codes::CHECKSUM || completion.result == codes::SHORT || unreadable
}

/// The damage of one copy of a chunk of the table, as a failed read or write of it shows.
pub(super) fn chunk_damage(
    pool: &Pool,
    (name, shards): (&CheckpointName, &[Shard]),
    table: &SegmentTable,
    chunk: usize,
    copy: usize,
    completion: &CompleteEntry,
) -> Damage {
    let copies = table.chunks[chunk].copies;
    let location = copies.iter().nth(copy).unwrap_or(copies.first);
    let (serial, offset_bytes) = {
        let state = pool.open.context.state();
        let label = state.label();
        let serial = label.drives[location.drive.as_usize()].serial.clone();
        (serial, label.layout.slot_offset(location.slot))
    };
    let start = chunk as u64 * table.chunk_bytes;
    let end = (start + table.chunk_bytes).min(table.len_bytes);
    let shards: Vec<&str> = shards
        .iter()
        .filter(|s| s.offset_bytes < end && s.offset_bytes + s.len_bytes > start)
        .map(|shard| shard.name.as_str())
        .take(4)
        .collect();
    let shard = if shards.is_empty() { None } else { Some(shards.join(", ")) };
    let participant = table.participant;
    Damage {
        what: "data",
        serial,
        offset_bytes: Some(offset_bytes),
        checkpoint: Some(name.to_string()),
        shard,
        generation: None,
        detail: format!(
            "bytes {start} to {end} of participant {participant}'s segment: {}",
            codes::describe_with_status(completion.result, completion.detail)
        ),
    }
}
