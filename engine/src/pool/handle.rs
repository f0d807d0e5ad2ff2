// SPDX-License-Identifier: Apache-2.0
//! The handle of an open pool: information about the pool and its checkpoints, and its sessions.
//!
//! It keeps no state of its own: everything is in the context that it shares with its sessions.
//! Work on the drives' metadata runs on the keeper's thread.

use std::sync::Arc;

#[cfg(any(test, feature = "internals"))]
use crate::device::Device;
use crate::drives::Drives;
use crate::error::{Damage, Error};
use crate::format::{Catalogue, CatalogueEntry, Label, SegmentTable, Shard};
use crate::name::CheckpointName;
use crate::notice::Notice;
use crate::pool::info::{CheckpointInfo, PoolDrive, PoolInfo, SegmentInfo};
use crate::pool::open::open;
#[cfg(any(test, feature = "internals"))]
use crate::pool::open::open_on;
use crate::pool::open_pool::OpenPool;
use crate::pool::options::{PoolMode, PoolOptions};
use crate::pool::sizing::PoolSizing;
use crate::recover::holdings::read_holdings;
use crate::session::{Session, SessionOptions};
use crate::state::{Availability, Committed, Holding, Use};
use crate::units::Generation;

/// An open pool. Shared by reference between threads; sessions are made from it.
///
/// Its sessions keep the pool open. When the pool and its last session are dropped, the reactors
/// finish everything in flight and end, the drives are closed and the pool's lock is released.
pub struct Pool {
    pub(super) open: Arc<OpenPool>,
    notices: Vec<Notice>,
}

impl Pool {
    /// Opens the pool on these drives.
    ///
    /// Opening for writing commits an empty generation. That rolls forward a commit that had
    /// reached only some drives. Opening for reading writes nothing.
    ///
    /// # Errors
    /// Each refusal has its own variant: see [`Error`].
    pub fn open(options: &PoolOptions) -> Result<Pool, Error> {
        let (open, notices) = open(options)?;
        Ok(Pool { open: Arc::new(open), notices })
    }

    /// Opens the pool on devices that the caller has opened, for example simulated ones.
    /// `options.drives` is ignored; with [`PoolMode::ReadWrite`] the devices must be writable.
    ///
    /// # Errors
    /// As [`Pool::open`].
    #[cfg(any(test, feature = "internals"))]
    pub fn open_on(devices: Vec<Box<dyn Device>>, options: &PoolOptions) -> Result<Pool, Error> {
        let (open, notices) = open_on(devices, options)?;
        Ok(Pool { open: Arc::new(open), notices })
    }

    /// Conditions that opening the pool found and handled.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// The pool's state now.
    pub fn info(&self) -> PoolInfo {
        let state = self.open.context.state();
        let label = state.label();
        let sizing = PoolSizing::of(label);
        let drives =
            label.drives.iter().zip(&self.open.context.info).map(|(entry, info)| PoolDrive {
                uuid: entry.uuid,
                serial: entry.serial.clone(),
                address: info.address.clone(),
                model: info.model.clone(),
                back_end: info.back_end,
                capacity_bytes: entry.capacity_bytes,
                state: entry.state,
                volatile_cache: info.volatile_cache,
                reservations: info.reservations,
            });
        PoolInfo {
            pool: label.pool,
            generation: state.root().generation,
            epoch: state.root().epoch,
            created_unix_ns: label.created_unix_ns,
            chunk_bytes: label.layout.chunk_bytes(),
            max_checkpoints: sizing.max_checkpoints,
            metadata_bytes: sizing.metadata_bytes,
            typical_shards: sizing.typical_shards,
            capacity_bytes: sizing.capacity_bytes,
            redundancy: label.redundancy(),
            free_bytes: (self.open.context.mode == PoolMode::ReadWrite).then(|| state.free_bytes()),
            drives: drives.collect(),
        }
    }

    /// All checkpoints, by name and step. In a pool that is open for reading their metadata is read
    /// now; opening for writing has read it.
    pub fn list(&self) -> Vec<CheckpointInfo> {
        let all = self.open.context.state().checkpoints().cloned().collect();
        self.describe(all)
    }

    /// The checkpoint of that name with the largest step.
    pub fn latest(&self, name: &str) -> Option<CheckpointInfo> {
        let latest = self.open.context.state().latest(name).cloned()?;
        self.describe(vec![latest]).pop()
    }

    /// One checkpoint.
    ///
    /// # Errors
    /// [`Error::NoSuchCheckpoint`].
    pub fn find(&self, name: &CheckpointName) -> Result<CheckpointInfo, Error> {
        let committed = self.open.find(name)?;
        let described = self.describe(vec![committed]).pop();
        described.ok_or_else(|| Error::NoSuchCheckpoint(name.to_string()))
    }

    fn describe(&self, committed: Vec<Arc<Committed>>) -> Vec<CheckpointInfo> {
        let label = self.open.context.state().label().clone();
        let known = match self.open.context.mode {
            PoolMode::ReadWrite => None,
            PoolMode::ReadOnly => {
                let entries = committed.iter().map(|committed| committed.entry.clone()).collect();
                let label = label.clone();
                self.open.on_keeper(move |k| read_again(k.drives(), &label, entries)).ok()
            }
        };
        match known {
            Some(known) => known.iter().map(|committed| describe(committed, &label)).collect(),
            None => committed.iter().map(|committed| describe(committed, &label)).collect(),
        }
    }

    /// The segments of one checkpoint.
    ///
    /// # Errors
    /// [`Error::NoSuchCheckpoint`], or [`Error::Damaged`] when no drive has sound metadata of it.
    pub fn segments(&self, name: &CheckpointName) -> Result<Vec<SegmentInfo>, Error> {
        let hold = self.open.hold(name, Use::Inspect)?;
        let mut segments = Vec::new();
        for participant in 0..hold.committed().entry.participants {
            let (table, shards) = self.open.read_segment_and_shards(&hold, participant)?;
            segments.push(describe_segment(&table, shards, self.open.context.info.len()));
        }
        Ok(segments)
    }

    /// Removes a checkpoint. When this returns the removal is durable; the next generation makes
    /// the space free.
    ///
    /// # Errors
    /// [`Error::NoSuchCheckpoint`]; [`Error::Busy`] while a session of this process restores it;
    /// a failed command on a drive.
    pub fn remove(&self, name: &CheckpointName) -> Result<Generation, Error> {
        self.open.context.require_writable()?;
        let name = name.clone();
        self.open.on_keeper(move |keeper| keeper.remove(&name))?
    }

    /// A session for one trainer thread.
    ///
    /// # Errors
    /// When its memory cannot be allocated.
    pub fn session(&self, options: &SessionOptions) -> Result<Session, Error> {
        Session::new(&self.open, options)
    }
}

/// Reads the metadata of checkpoints. What cannot be read is damage of that checkpoint, for a
/// reader.
fn read_again(
    drives: &mut dyn Drives,
    label: &Label,
    entries: Vec<CatalogueEntry>,
) -> Vec<Committed> {
    let of = |entries| Catalogue { pool: label.pool, generation: Generation(1), entries };
    let all = of(entries);
    if let Ok(all) = read_holdings(drives, label, &all, &mut |_, _, _| {}) {
        return all;
    }
    let one = |entry: CatalogueEntry| {
        let alone = of(vec![entry.clone()]);
        let read = read_holdings(drives, label, &alone, &mut |_, _, _| {});
        match read.map(|mut read| read.pop()) {
            Ok(Some(read)) => read,
            Ok(None) => {
                Committed { entry, holding: Holding::new(label.drives.len()), damage: None }
            }
            Err(error) => {
                let damage = Damage {
                    what: "manifest",
                    serial: String::new(),
                    offset_bytes: None,
                    checkpoint: Some(format!("{}@{}", entry.name, entry.step)),
                    shard: None,
                    generation: None,
                    detail: error.to_string(),
                };
                let holding = Holding::new(label.drives.len());
                Committed { entry, holding, damage: Some(damage) }
            }
        }
    };
    all.entries.into_iter().map(one).collect()
}

fn describe(committed: &Committed, label: &Label) -> CheckpointInfo {
    let entry = &committed.entry;
    CheckpointInfo {
        id: entry.id,
        name: committed.name(),
        bytes: entry.bytes,
        participants: entry.participants,
        committed_unix_ns: entry.committed_unix_ns,
        generation: entry.generation,
        damage: committed.damage.clone(),
        availability: match (committed.holding.spread.availability(label), &committed.damage) {
            (known @ Availability::Lost { .. }, _) | (known, None) => known,
            (_, Some(_)) => Availability::Unknown,
        },
    }
}

fn describe_segment(table: &SegmentTable, shards: Vec<Shard>, drives: usize) -> SegmentInfo {
    let mut bytes_per_drive = vec![0; drives];
    for (number, chunk) in table.chunks.iter().enumerate() {
        let start = number as u64 * table.chunk_bytes;
        let bytes = (table.len_bytes - start).min(table.chunk_bytes);
        for location in chunk.copies.iter() {
            bytes_per_drive[location.drive.as_usize()] += bytes;
        }
    }
    SegmentInfo {
        participant: table.participant,
        len_bytes: table.len_bytes,
        shards,
        bytes_per_drive,
    }
}
