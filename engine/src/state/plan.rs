//! Planning a generation: what is written, from the state and what is whole.

use std::sync::Arc;

use super::open_checkpoint::OpenCheckpoint;
use super::{Committed, State};
use crate::commit::{CommitPlan, MetaWrite};
use crate::error::Error;
use crate::format::{
    Catalogue, CatalogueEntry, ChunkRecord, Manifest, Root, SegmentRef, SegmentTable,
};
use crate::name::CheckpointName;
use crate::planted::{Bug, planted};
use crate::units::Generation;

/// A commit that is planned and not yet durable.
pub(crate) struct Planned {
    pub(crate) plan: CommitPlan,
    change: Change,
}

/// What a generation has that the one before it had not, and the other way round.
#[derive(Default)]
struct Change {
    added: Vec<Arc<Committed>>,
    removed: Option<CheckpointName>,
    /// Open checkpoints that it commits.
    consumed: Vec<u64>,
}

impl State {
    /// Plans the commit of open checkpoints whose segments are whole. `crc64` gives the checksum of
    /// each chunk of (open checkpoint, participant).
    pub(crate) fn plan_commit(
        &self,
        ready: &[u64],
        crc64: &dyn Fn(u64, u32) -> Vec<u64>,
        now_unix_ns: u64,
    ) -> Result<Planned, Error> {
        self.check_poison()?;
        let mut added = Vec::new();
        let mut metadata = Vec::new();
        for number in ready {
            let Some(open) = self.open.get(number) else { continue };
            added.push(Arc::new(self.describe(*number, open, crc64, now_unix_ns, &mut metadata)));
        }
        let change = Change { added, consumed: ready.to_vec(), ..Change::default() };
        Ok(self.plan(change, metadata, now_unix_ns))
    }

    /// Plans the removal of a checkpoint.
    pub(crate) fn plan_remove(&self, name: &CheckpointName, now: u64) -> Result<Planned, Error> {
        self.check_poison()?;
        if !self.current.contains_key(name) {
            return Err(Error::NoSuchCheckpoint(name.to_string()));
        }
        let change = Change { removed: Some(name.clone()), ..Change::default() };
        Ok(self.plan(change, Vec::new(), now))
    }

    /// Plans a generation with nothing new in it: makes what the one before removed reusable. With
    /// `epoch` it begins that open epoch.
    pub(crate) fn plan_empty(&self, epoch: Option<u64>, now: u64) -> Result<Planned, Error> {
        self.check_poison()?;
        let mut planned = self.plan(Change::default(), Vec::new(), now);
        planned.plan.root.epoch = epoch.unwrap_or(self.root.epoch);
        Ok(planned)
    }

    /// Encodes the tables and the manifest of an open checkpoint.
    fn describe(
        &self,
        number: u64,
        open: &OpenCheckpoint,
        crc64: &dyn Fn(u64, u32) -> Vec<u64>,
        now_unix_ns: u64,
        metadata: &mut Vec<MetaWrite>,
    ) -> Committed {
        let layout = &self.label.layout;
        let mut bytes = 0;
        let mut segments = Vec::with_capacity(open.segments.len());
        for (participant, segment) in open.segments.iter().enumerate() {
            let Some(segment) = segment else { continue };
            let sums = crc64(number, participant as u32);
            let records = segment.copies.iter().zip(sums);
            let table = SegmentTable {
                pool: self.label.pool,
                checkpoint: open.id,
                participant: participant as u32,
                len_bytes: segment.len_bytes,
                chunk_bytes: layout.chunk_bytes(),
                shards: segment.shards.clone(),
                chunks: records
                    .map(|(copies, crc64)| ChunkRecord { crc64, copies: *copies })
                    .collect(),
            };
            let offset_bytes = layout.meta_block_offset(segment.table.start);
            let encoded = table.encode(offset_bytes);
            metadata.push(MetaWrite { offset_bytes, bytes: encoded.bytes });
            bytes += segment.len_bytes;
            let len_bytes = segment.len_bytes;
            segments.push(SegmentRef { len_bytes, table: encoded.extent });
        }
        let participants = segments.len() as u32;
        let manifest = Manifest {
            pool: self.label.pool,
            checkpoint: open.id,
            name: open.name.name.clone(),
            step: open.name.step,
            segments,
        };
        let offset_bytes = layout.meta_block_offset(open.manifest.start);
        let encoded = manifest.encode(offset_bytes);
        metadata.push(MetaWrite { offset_bytes, bytes: encoded.bytes });
        let entry = CatalogueEntry {
            id: open.id,
            name: open.name.name.clone(),
            step: open.name.step,
            bytes,
            participants,
            committed_unix_ns: now_unix_ns,
            generation: self.next_generation(),
            manifest: encoded.extent,
        };
        Committed { entry, holding: open.holding.clone(), damage: None }
    }

    fn plan(&self, change: Change, mut metadata: Vec<MetaWrite>, now_unix_ns: u64) -> Planned {
        let generation = self.next_generation();
        let removed = change.removed.as_ref();
        let kept = self.current.iter().filter(|(name, _)| Some(*name) != removed);
        let mut entries: Vec<&CatalogueEntry> = kept.map(|(_, c)| &c.entry).collect();
        for Committed { entry, .. } in change.added.iter().map(Arc::as_ref) {
            let at = entries.partition_point(|other| other.key() < entry.key());
            entries.insert(at, entry);
        }
        let catalogue = Catalogue { pool: self.label.pool, generation, entries };
        let offset_bytes = self.label.layout.catalogue_offset(generation);
        let encoded = catalogue.encode(offset_bytes);
        metadata.push(MetaWrite { offset_bytes, bytes: encoded.bytes });
        let root = Root {
            pool: self.label.pool,
            generation,
            epoch: self.root.epoch,
            parent: self.root.id(),
            catalogue: encoded.extent,
            committed_unix_ns: now_unix_ns,
        };
        let label = self.label.clone();
        Planned { plan: CommitPlan { root, metadata, label }, change }
    }

    /// The planned generation is durable on every drive: it is the pool's state now.
    pub(crate) fn committed(&mut self, planned: Planned) -> Generation {
        assert_eq!(planned.plan.root.generation, self.next_generation(), "one commit at a time");
        let Change { added, removed, consumed } = planned.change;
        for number in &consumed {
            self.open.remove(number);
        }
        // Two generations ago nobody looks any more: what only that one named is free. What is added
        // was reserved while it was open, and stays so.
        let mut freed = std::mem::take(&mut self.retired);
        self.retired.extend(removed.and_then(|name| self.current.remove(&name)));
        self.current.extend(added.into_iter().map(|committed| (committed.name(), committed)));
        if planted(Bug::ExtentFreedEarly) {
            freed.append(&mut self.retired);
        }
        self.before = Some(self.root.generation);
        self.root = planned.plan.root;
        self.newest_seen = self.root.generation;
        if !freed.is_empty() {
            self.damaged.retain(|d| !freed.iter().any(|gone| Arc::ptr_eq(gone, d)));
            self.release(&freed);
        }
        debug_assert!(
            self.free_space_is_derived(),
            "a unit is used that nobody names, or the reverse"
        );
        self.root.generation
    }
}
