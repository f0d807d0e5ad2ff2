// SPDX-License-Identifier: Apache-2.0
//! The contents of one generation: planned from the state and the complete checkpoints.

use std::sync::Arc;

use crate::error::{Damage, Error};
use crate::format::{
    Attributes, Catalogue, CatalogueEntry, ChunkRecord, Encoded, Label, Manifest, MetaExtent,
    Owner, Root, SegmentRef, SegmentTable, ShardList, TableRef, TableRun,
};
use crate::name::CheckpointName;
use crate::state::{Change, Committed, OpenCheckpoint, State};
use crate::units::{DriveIndex, Generation};

/// A metadata object, in whole blocks, and where it goes.
#[derive(Debug)]
pub(super) struct MetaWrite {
    pub(super) bytes: Vec<u8>,
    pub(super) places: Places,
}

/// Where a metadata object goes.
#[derive(Debug)]
pub(super) enum Places {
    /// To this offset of every drive that takes part.
    Everywhere(u64),
    /// To these runs; each copy is the whole object.
    Runs(Vec<TableRun>),
}

impl MetaWrite {
    fn everywhere(encoded: Encoded) -> MetaWrite {
        let places = Places::Everywhere(encoded.extent.offset_bytes);
        MetaWrite { bytes: encoded.bytes, places }
    }

    /// The writes to these drives: drive, offset and bytes.
    pub(super) fn pieces<'a>(
        &'a self,
        live: impl Iterator<Item = DriveIndex> + 'a,
    ) -> Vec<(DriveIndex, u64, &'a [u8])> {
        let runs = match &self.places {
            Places::Everywhere(offset_bytes) => {
                return live.map(|drive| (drive, *offset_bytes, self.bytes.as_slice())).collect();
            }
            Places::Runs(runs) => runs,
        };
        let live: Vec<DriveIndex> = live.collect();
        let mut pieces = Vec::with_capacity(runs.len());
        for copy in runs.chunk_by(|a, b| a.copy == b.copy) {
            let mut left = self.bytes.as_slice();
            for run in copy {
                let (piece, rest) = left.split_at((run.len_bytes() as usize).min(left.len()));
                left = rest;
                pieces.push((run.drive, run.offset_bytes(), piece));
            }
        }
        pieces.retain(|(drive, ..)| live.contains(drive));
        pieces
    }
}

/// Everything that makes one generation.
#[derive(Debug)]
pub(crate) struct Plan {
    /// All of it except the root.
    pub(super) metadata: Vec<MetaWrite>,
    /// Defines which drives take part.
    pub(super) label: Label,
    /// The generation before, and the id of its root; `None` where the drives need not all have it.
    pub(super) before: Option<(Generation, [u8; 16])>,
    /// Whether another owner may write the pool, too; no one has a pool that is being made.
    pub(super) is_watched: bool,
    /// How the state changes once the plan is carried out. Its root is that of the generation.
    pub(crate) change: Change,
}

impl Plan {
    /// Plans the commit of open checkpoints whose segments are whole. `crc64` gives the checksum of
    /// each chunk of (open checkpoint, participant).
    pub(crate) fn of_checkpoints(
        state: &State,
        ready: &[u64],
        crc64: &dyn Fn(u64, u32) -> Vec<u64>,
        now_unix_ns: u64,
    ) -> Result<Plan, Error> {
        state.check_poison()?;
        let mut added = Vec::new();
        let mut metadata = Vec::new();
        for number in ready {
            let Some(open) = state.open_checkpoint(*number) else { continue };
            let crc64 = |participant| crc64(*number, participant);
            added.push(Arc::new(describe(state, open, &crc64, now_unix_ns, &mut metadata)));
        }
        let gone = Gone { removed: None, consumed: ready.to_vec() };
        Ok(Plan::new(state, added, gone, metadata, now_unix_ns))
    }

    /// Plans the removal of a checkpoint.
    pub(crate) fn of_removal(
        state: &State,
        name: &CheckpointName,
        now_unix_ns: u64,
    ) -> Result<Plan, Error> {
        state.check_poison()?;
        if state.find(name).is_none() {
            return Err(Error::NoSuchCheckpoint(name.to_string()));
        }
        let gone = Gone { removed: Some(name.clone()), consumed: Vec::new() };
        Ok(Plan::new(state, Vec::new(), gone, Vec::new(), now_unix_ns))
    }

    /// Plans a generation without changes: frees the space of what the one before removed. With
    /// `opening` it begins that open epoch, of that owner.
    pub(crate) fn empty(
        state: &State,
        opening: Option<(u64, &Owner)>,
        now_unix_ns: u64,
    ) -> Result<Plan, Error> {
        state.check_poison()?;
        let mut plan = Plan::new(state, Vec::new(), Gone::default(), Vec::new(), now_unix_ns);
        if let Some((epoch, owner)) = opening {
            // The newest root may be on one drive only: this generation brings it to all.
            plan.before = None;
            plan.change.root.epoch = epoch;
            plan.change.root.owner = owner.clone();
        }
        Ok(plan)
    }

    /// Whether a reader will accept it.
    pub(super) fn check(&self) -> Result<(), Error> {
        let root = &self.change.root;
        root.check().map_err(|detail| Damage {
            what: "root",
            serial: String::new(),
            offset_bytes: None,
            checkpoint: None,
            shard: None,
            generation: None,
            detail: format!("no root can follow: {detail}"),
        })?;
        // The slot has room for every name, but not for any number of attributes.
        root.validate(&self.label.layout).map_err(|_| Error::NoMetadataSpace)
    }

    /// Plans the first generation of a new pool. It has no owner yet.
    pub(super) fn first(label: &Label) -> Plan {
        let generation = Generation(1);
        let (catalogue, extent) = encode_catalogue(label, generation, Vec::new());
        let root = Root {
            pool: label.pool,
            generation,
            epoch: 1,
            parent: [0; 16],
            catalogue: extent,
            committed_unix_ns: label.created_unix_ns,
            owner: Owner::default(),
        };
        let change = Change { root, added: Vec::new(), removed: None, consumed: Vec::new() };
        Plan {
            metadata: vec![catalogue],
            label: label.clone(),
            before: None,
            is_watched: false,
            change,
        }
    }

    fn new(
        state: &State,
        added: Vec<Arc<Committed>>,
        gone: Gone,
        mut metadata: Vec<MetaWrite>,
        now_unix_ns: u64,
    ) -> Plan {
        let label = state.label().clone();
        let generation = state.next_generation();
        let Gone { removed, consumed } = gone;
        let is_removed = |entry: &CatalogueEntry| {
            removed.as_ref().is_some_and(|gone| gone.name == entry.name && gone.step == entry.step)
        };
        let kept = state.checkpoints().map(|committed| &committed.entry);
        let mut entries: Vec<_> = kept.filter(|entry| !is_removed(entry)).collect();
        for Committed { entry, .. } in added.iter().map(Arc::as_ref) {
            let at = entries.partition_point(|other| other.key() < entry.key());
            entries.insert(at, entry);
        }
        let (catalogue, extent) = encode_catalogue(&label, generation, entries);
        metadata.push(catalogue);
        let root = Root {
            pool: label.pool,
            generation,
            epoch: state.root().epoch,
            parent: state.root().id(),
            catalogue: extent,
            committed_unix_ns: now_unix_ns,
            owner: state.root().owner.clone(),
        };
        let before = Some((state.root().generation, state.root().id()));
        let change = Change { root, added, removed, consumed };
        Plan { metadata, label, before, is_watched: true, change }
    }

    /// The generation that it makes.
    pub(crate) fn generation(&self) -> Generation {
        self.change.root.generation
    }
}

/// What a generation removes.
#[derive(Default)]
struct Gone {
    /// A checkpoint.
    removed: Option<CheckpointName>,
    /// Open checkpoints: they are committed.
    consumed: Vec<u64>,
}

fn encode_catalogue(
    label: &Label,
    generation: Generation,
    entries: Vec<&CatalogueEntry>,
) -> (MetaWrite, MetaExtent) {
    let offset_bytes = label.layout.catalogue_offset(generation);
    let encoded = Catalogue { pool: label.pool, generation, entries }.encode(offset_bytes);
    let extent = encoded.extent;
    (MetaWrite::everywhere(encoded), extent)
}

/// Encodes the tables, the lists and the manifest of an open checkpoint.
fn describe(
    state: &State,
    open: &OpenCheckpoint,
    crc64: &dyn Fn(u32) -> Vec<u64>,
    now_unix_ns: u64,
    metadata: &mut Vec<MetaWrite>,
) -> Committed {
    let pool = state.label().pool;
    let layout = &state.label().layout;
    let mut bytes = 0;
    let mut segments = Vec::with_capacity(open.segments.len());
    for (participant, segment) in (0..).zip(&open.segments) {
        let Some(segment) = segment else { continue };
        let records = segment.copies.iter().zip(crc64(participant));
        let table = SegmentTable {
            pool,
            checkpoint: open.identity.id,
            participant,
            len_bytes: segment.len_bytes,
            chunk_bytes: layout.chunk_bytes(),
            chunks: records.map(|(copies, crc64)| ChunkRecord { crc64, copies: *copies }).collect(),
        };
        let list = ShardList {
            pool,
            checkpoint: open.identity.id,
            participant,
            len_bytes: segment.len_bytes,
            shards: segment.shards.clone(),
        };
        let mut place = |encoded: Encoded, runs: &[TableRun]| {
            let places = Places::Runs(runs.to_vec());
            metadata.push(MetaWrite { bytes: encoded.bytes, places });
            TableRef::of(&encoded.extent, runs.to_vec())
        };
        let table = place(table.encode(), &segment.table);
        let list = place(list.encode(), &segment.list);
        bytes += segment.len_bytes;
        segments.push(SegmentRef { len_bytes: segment.len_bytes, table, list });
    }
    let participants = segments.len() as u32;
    let manifest = Manifest {
        pool,
        checkpoint: open.identity.id,
        name: open.name.name.clone(),
        step: open.name.step,
        segments,
    };
    let unit = open.manifest.map_or(0, |run| run.start);
    let encoded = manifest.encode(layout.meta_unit_offset(unit));
    let extent = encoded.extent;
    metadata.push(MetaWrite::everywhere(encoded));
    let entry = CatalogueEntry {
        id: open.identity.id,
        name: open.name.name.clone(),
        step: open.name.step,
        bytes,
        participants,
        committed_unix_ns: now_unix_ns,
        generation: state.next_generation(),
        manifest: extent,
        access: open.identity.access,
        pinned: false,
        attributes: Attributes::default(),
    };
    Committed { entry, holding: open.holding.clone(), damage: None }
}
