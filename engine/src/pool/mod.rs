//! A pool: drives formatted together, opened by one owner.

mod admit;
mod explain;
pub(crate) mod format;
mod info;
pub(crate) mod keeper;
pub(crate) mod open;
mod options;
pub(crate) mod shared;
mod threads;
mod verify;
mod verify_data;

use std::sync::Arc;

use uuid::Uuid;

use crate::device::Device;
use crate::error::Error;
use crate::format::{Label, SegmentTable};
use crate::host::lock::PoolLock;
use crate::name::CheckpointName;
use crate::pool::keeper::Keeper;
use crate::pool::shared::Shared;
use crate::pool::threads::Threads;
use crate::recover::metadata;
use crate::session::{Session, SessionOptions};
use crate::state::Committed;
use crate::units::Generation;

pub use crate::notice::Notice;
pub use admit::{Admission, admit, admit_on};
pub use format::{Content, FormatOptions, FormatReport, Survey, format, format_on, survey};
pub use info::{CheckpointInfo, PoolDrive, PoolInfo, SegmentInfo};
pub use options::{PoolMode, PoolOptions};
pub use verify::{VerifyProgress, VerifyReport};

/// An open pool. Shared by reference between threads; sessions are made from it.
///
/// Its sessions keep the pool open. When it and the last of them are dropped, the reactors end after
/// everything under way has ended, the drives are given back and the pool's lock is let go.
pub struct Pool {
    shared: Arc<Shared>,
    notices: Vec<Notice>,
    open: Arc<Open>,
}

/// What keeps a pool open. Dropped in this order: the threads own the drives, and the lock goes last.
pub(crate) struct Open {
    _threads: Threads,
    _lock: PoolLock,
}

impl Pool {
    /// Opens the pool on these drives.
    ///
    /// For writing this commits an empty generation, which rolls forward a commit that had reached
    /// only some drives. For reading only nothing is written.
    ///
    /// # Errors
    /// Each refusal has its own: see [`Error`].
    pub fn open(options: &PoolOptions) -> Result<Pool, Error> {
        open::open(options)
    }

    /// Opens the pool on devices that the caller has opened: simulated ones, say. `options.drives` is
    /// not looked at; with [`PoolMode::ReadWrite`] the devices must be writable.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_on(devices: Vec<Box<dyn Device>>, options: &PoolOptions) -> Result<Pool, Error> {
        open::open_on(devices, options)
    }

    /// What opening it had to deal with.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Facts about the pool now.
    pub fn info(&self) -> PoolInfo {
        let state = self.shared.state();
        let label = state.label();
        let drives = label.drives.iter().zip(&self.shared.info).map(|(entry, info)| PoolDrive {
            uuid: entry.uuid,
            serial: entry.serial.clone(),
            address: info.address.clone(),
            model: info.model.clone(),
            back_end: info.back_end,
            capacity_bytes: entry.capacity_bytes,
            state: entry.state,
            volatile_cache: info.volatile_cache,
        });
        PoolInfo {
            pool: label.pool,
            generation: state.root().generation,
            epoch: state.root().epoch,
            created_unix_ns: label.created_unix_ns,
            chunk_bytes: label.layout.chunk_bytes(),
            max_checkpoints: label.layout.max_checkpoints(),
            capacity_bytes: format::capacity_bytes(label),
            redundancy: label.redundancy(),
            free_bytes: (self.shared.mode == PoolMode::ReadWrite).then(|| state.free_bytes()),
            drives: drives.collect(),
        }
    }

    /// All checkpoints, by name and step.
    pub fn list(&self) -> Vec<CheckpointInfo> {
        let state = self.shared.state();
        state.checkpoints().map(|committed| describe(committed, state.label())).collect()
    }

    /// The checkpoint of that name with the largest step.
    pub fn latest(&self, name: &str) -> Option<CheckpointInfo> {
        let state = self.shared.state();
        state.latest(name).map(|committed| describe(committed, state.label()))
    }

    /// One checkpoint.
    ///
    /// # Errors
    /// [`Error::NoSuchCheckpoint`].
    pub fn find(&self, name: &CheckpointName) -> Result<CheckpointInfo, Error> {
        let committed = find(&self.shared, name)?;
        Ok(describe(&committed, self.shared.state().label()))
    }

    /// What one checkpoint consists of.
    ///
    /// # Errors
    /// [`Error::NoSuchCheckpoint`], or [`Error::Damaged`] when no drive has sound metadata of it.
    pub fn segments(&self, name: &CheckpointName) -> Result<Vec<SegmentInfo>, Error> {
        let committed = find(&self.shared, name)?;
        let mut segments = Vec::new();
        for participant in 0..committed.entry.participants {
            let table = read_segment_table(&self.shared, &committed, participant)?;
            segments.push(describe_segment(&table, self.shared.info.len()));
        }
        Ok(segments)
    }

    /// Removes a checkpoint. When this returns it is durably gone; its space is used again from the
    /// next generation on.
    ///
    /// # Errors
    /// [`Error::NoSuchCheckpoint`]; [`Error::Busy`] while a session of this process restores it;
    /// a failed command on a drive.
    pub fn remove(&self, name: &CheckpointName) -> Result<Generation, Error> {
        self.shared.require_writable()?;
        let name = name.clone();
        self.shared.on_keeper(move |keeper| keeper.remove(&name))?
    }

    /// A session for one trainer thread.
    ///
    /// # Errors
    /// When its memory cannot be had.
    pub fn session(&self, options: &SessionOptions) -> Result<Session, Error> {
        Session::new(&self.shared, &self.open, options)
    }
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
        health: committed.holding.spread.health(label),
    }
}

fn describe_segment(table: &SegmentTable, drives: usize) -> SegmentInfo {
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
        shards: table.shards.clone(),
        bytes_per_drive,
    }
}

/// The committed checkpoint of this name.
pub(crate) fn find(shared: &Shared, name: &CheckpointName) -> Result<Arc<Committed>, Error> {
    let found = shared.state().find(name).cloned();
    found.ok_or_else(|| Error::NoSuchCheckpoint(name.to_string()))
}

/// Reads a participant's segment table from any drive that has a sound copy.
pub(crate) fn read_segment_table(
    shared: &Shared,
    committed: &Committed,
    participant: u32,
) -> Result<SegmentTable, Error> {
    let entry = committed.entry.clone();
    let label: Label = shared.state().label().clone();
    shared.on_keeper(move |keeper: &mut Keeper| {
        let drives = keeper.drives();
        let found = metadata::read_manifest(drives, &label, &entry, participant as usize);
        let manifest = metadata::sound(found)?;
        if participant as usize >= manifest.segments.len() {
            return Err(Error::Usage(format!(
                "{}@{} has {} participants; there is no participant {participant}",
                entry.name,
                entry.step,
                manifest.segments.len()
            )));
        }
        let found = metadata::read_table(drives, &label, &entry, &manifest, participant);
        metadata::sound(found)
    })?
}

/// A new identity, ordered by time.
pub(crate) fn new_id() -> Uuid {
    Uuid::now_v7()
}
