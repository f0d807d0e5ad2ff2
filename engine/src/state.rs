//! The state of an open pool: what is committed, what is being written, what is free. Pure.
//!
//! - Free space is derived: a data slot or metadata block is used if and only if a checkpoint of
//!   one of the two newest generations, or an open checkpoint, names it. Nothing else is stored, so
//!   nothing can leak or be freed twice.
//! - What generation `g` removes is therefore reusable once `g + 1` is committed, and not earlier:
//!   the two newest generations are never written.
//! - The state changes when a commit is durable ([`State::committed`]), not when it is planned.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::commit::{CommitPlan, MetaWrite};
use crate::error::{Damage, Error};
use crate::extent::ExtentMap;
use crate::format::{
    Catalogue, CatalogueEntry, ChunkRecord, Label, Layout, Manifest, MetaExtent, Root, SegmentRef,
    SegmentTable, Shard, blocks_of, segment,
};
use crate::limits::{MAX_PARTICIPANTS, MAX_SEGMENT_BYTES};
use crate::name::{CheckpointName, check_base_name};
use crate::placement;
use crate::units::{Generation, Location};

/// A run of units that one checkpoint holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) count: u64,
}

/// What a checkpoint occupies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holding {
    /// By drive: data slots.
    pub(crate) data: Vec<Vec<Run>>,
    /// Blocks of the metadata area.
    pub(crate) meta: Vec<Run>,
}

impl Holding {
    pub(crate) fn new(drives: usize) -> Holding {
        Holding { data: vec![Vec::new(); drives], meta: Vec::new() }
    }

    /// Adds a data slot; consecutive slots of a drive become one run.
    pub(crate) fn add_location(&mut self, location: Location) {
        let runs = &mut self.data[location.drive.as_usize()];
        match runs.last_mut() {
            Some(run) if run.start + run.count == location.slot => run.count += 1,
            _ => runs.push(Run { start: location.slot, count: 1 }),
        }
    }

    /// Adds the blocks of a metadata object, which was checked to lie in the metadata area.
    pub(crate) fn add_meta(&mut self, layout: &Layout, extent: &MetaExtent) {
        if let Some((start, count)) = layout.meta_blocks_of(extent) {
            self.meta.push(Run { start, count });
        }
    }
}

/// A committed checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) entry: CatalogueEntry,
    pub(crate) holding: Holding,
    /// Why its metadata cannot be read on any drive, if so. It can be removed, not restored.
    pub(crate) damage: Option<Damage>,
}

impl Committed {
    pub(crate) fn name(&self) -> CheckpointName {
        CheckpointName { name: self.entry.name.clone(), step: self.entry.step }
    }
}

/// One participant's part of an open checkpoint.
#[derive(Debug)]
struct OpenSegment {
    length_bytes: u64,
    shards: Vec<Shard>,
    locations: Vec<Location>,
    /// Blocks reserved for its segment table.
    table: Run,
    /// Every byte is written.
    whole: bool,
    /// No write of it is under way or can begin.
    ended: bool,
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct OpenCheckpoint {
    id: Uuid,
    name: CheckpointName,
    segments: Vec<Option<OpenSegment>>,
    /// Blocks reserved for its manifest.
    manifest: Run,
    holding: Holding,
    /// It will not be committed. Its space is free once every segment has ended.
    doomed: bool,
}

/// What a participant declares when it joins a checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointSpec {
    /// The checkpoint.
    pub name: CheckpointName,
    /// How many writers there are; the same for each of them.
    pub participants: u32,
    /// Which of them this is, from 0.
    pub participant: u32,
    /// The length of this participant's segment.
    pub length_bytes: u64,
    /// Named ranges of the segment, in ascending order.
    pub shards: Vec<Shard>,
}

/// How far a checkpoint is after a participant said that its segment is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Others are not done.
    Waiting,
    /// All are: commit it.
    Ready,
    /// It was given up.
    Doomed,
}

/// Why a participant could not join.
#[derive(Debug)]
pub(crate) enum BeginError {
    /// There may be room after an empty commit; the error if not.
    Reclaim {
        no_space: Error,
    },
    Failed(Error),
}

/// The state.
#[derive(Debug)]
pub(crate) struct State {
    label: Label,
    /// The newest root; its generation is the pool's.
    root: Root,
    /// The newest generation of which any drive had a trace; after a fallback newer than the root.
    newest_seen: Generation,
    /// By name and step.
    current: BTreeMap<CheckpointName, Arc<Committed>>,
    /// What the generation before held.
    previous: Vec<Arc<Committed>>,
    open: BTreeMap<u64, OpenCheckpoint>,
    next_open: u64,
    data: Vec<ExtentMap>,
    meta: ExtentMap,
    /// Set by a failed flush or root write; every later write is refused with it.
    poison: Option<(&'static str, String)>,
}

impl State {
    /// The state of a pool as recovery found it. The generation before counts as equal: whoever
    /// opens a pool for writing commits first, which makes it so.
    pub(crate) fn new(
        label: Label,
        root: Root,
        newest_seen: Generation,
        committed: Vec<Committed>,
    ) -> State {
        let data =
            label.drives.iter().map(|d| ExtentMap::new(label.layout.data_slots(d.capacity_bytes)));
        let mut state = State {
            data: data.collect(),
            meta: ExtentMap::new(label.layout.meta_blocks()),
            root,
            newest_seen,
            current: committed.into_iter().map(|c| (c.name(), Arc::new(c))).collect(),
            previous: Vec::new(),
            open: BTreeMap::new(),
            next_open: 1,
            label,
            poison: None,
        };
        state.derive_free_space();
        state
    }

    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) fn checkpoints(&self) -> impl Iterator<Item = &Arc<Committed>> {
        self.current.values()
    }

    fn next_generation(&self) -> Generation {
        self.newest_seen.max(self.root.generation).next()
    }

    /// Bytes that new checkpoints may take now, over all drives, in whole chunks.
    pub(crate) fn free_bytes(&self) -> u64 {
        let slots: u64 = self.data.iter().map(ExtentMap::free).sum();
        slots * self.label.layout.chunk_bytes()
    }

    /// By drive: free data slots.
    pub(crate) fn free_slots(&self) -> Vec<u64> {
        self.data.iter().map(ExtentMap::free).collect()
    }

    /// Checkpoints that are being written.
    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn find(&self, name: &CheckpointName) -> Option<&Arc<Committed>> {
        self.current.get(name)
    }

    /// The checkpoint of that name with the largest step.
    pub(crate) fn latest(&self, name: &str) -> Option<&Arc<Committed>> {
        let of_name = CheckpointName { name: name.to_owned(), step: 0 }..=CheckpointName {
            name: name.to_owned(),
            step: u64::MAX,
        };
        self.current.range(of_name).next_back().map(|(_, committed)| committed)
    }

    /// Refuses every later write.
    pub(crate) fn poison(&mut self, what: &'static str, detail: String) {
        self.poison.get_or_insert((what, detail));
    }

    pub(crate) fn check_poison(&self) -> Result<(), Error> {
        match &self.poison {
            Some((what, detail)) => Err(Error::Poisoned { what, detail: detail.clone() }),
            None => Ok(()),
        }
    }

    /// Recomputes which units are used. Units named twice are counted once.
    fn derive_free_space(&mut self) {
        self.data.iter_mut().for_each(ExtentMap::clear);
        self.meta.clear();
        let committed = self.current.values().chain(&self.previous).map(|c| &c.holding);
        for holding in committed.chain(self.open.values().map(|open| &open.holding)) {
            for (map, runs) in self.data.iter_mut().zip(&holding.data) {
                runs.iter().for_each(|run| map.cover(run.start, run.count));
            }
            holding.meta.iter().for_each(|run| self.meta.cover(run.start, run.count));
        }
    }

    /// Lets a participant join a checkpoint, making the checkpoint if it is the first. Reserves the
    /// space of its segment, or reserves nothing. The result is the number of the open checkpoint.
    pub(crate) fn begin(&mut self, spec: &CheckpointSpec, id: Uuid) -> Result<u64, BeginError> {
        self.check_poison().map_err(BeginError::Failed)?;
        check_spec(spec).map_err(BeginError::Failed)?;
        if self.current.contains_key(&spec.name) {
            return Err(BeginError::Failed(Error::CheckpointExists(spec.name.to_string())));
        }
        let joined = self.open.iter().find(|(_, open)| open.name == spec.name).map(|(n, _)| *n);
        if let Some(number) = joined {
            let open = &self.open[&number];
            check_join(open, spec).map_err(BeginError::Failed)?;
        } else if self.current.len() + self.open.len() >= self.label.layout.max_checkpoints() {
            return Err(BeginError::Failed(Error::TooMany {
                what: "checkpoints in the pool",
                limit: self.label.layout.max_checkpoints() as u64,
            }));
        }
        let Some(reserved) = self.reserve(spec, joined.is_none()) else {
            // Units of the generation before become free when one more generation is committed.
            let reclaimable = self
                .previous
                .iter()
                .any(|old| !self.current.get(&old.name()).is_some_and(|new| Arc::ptr_eq(old, new)));
            let no_space =
                Error::NoSpace { needed_bytes: spec.length_bytes, free_bytes: self.free_bytes() };
            return Err(if reclaimable {
                BeginError::Reclaim { no_space }
            } else {
                BeginError::Failed(no_space)
            });
        };
        let number = joined.unwrap_or_else(|| {
            let number = self.next_open;
            self.next_open += 1;
            let segments = (0..spec.participants).map(|_| None).collect();
            let holding = Holding::new(self.label.drives.len());
            let manifest = reserved.manifest.unwrap_or(Run { start: 0, count: 0 });
            let name = spec.name.clone();
            let open = OpenCheckpoint { id, name, segments, manifest, holding, doomed: false };
            self.open.insert(number, open);
            number
        });
        if let Some(open) = self.open.get_mut(&number) {
            reserved.locations.iter().for_each(|location| open.holding.add_location(*location));
            open.holding.meta.extend(reserved.manifest);
            open.holding.meta.push(reserved.table);
            open.segments[spec.participant as usize] = Some(OpenSegment {
                length_bytes: spec.length_bytes,
                shards: spec.shards.clone(),
                locations: reserved.locations,
                table: reserved.table,
                whole: false,
                ended: false,
            });
        }
        Ok(number)
    }

    /// Takes units from the maps, all or none.
    fn reserve(&mut self, spec: &CheckpointSpec, first: bool) -> Option<Reserved> {
        let drives = self.label.drives.len();
        let chunk_bytes = self.label.layout.chunk_bytes();
        let chunks = spec.length_bytes.div_ceil(chunk_bytes);
        let table_bytes = SegmentTable::encoded_bytes(spec.length_bytes, chunk_bytes, &spec.shards);
        let table_blocks = blocks_of(table_bytes);
        let manifest_bytes = Manifest::encoded_bytes(&spec.name.name, spec.participants);
        let manifest_blocks = blocks_of(manifest_bytes);
        let share = placement::shares(chunks, &self.free_slots(), spec.participant as usize)?;
        let table = Run { start: self.meta.allocate_run(table_blocks)?, count: table_blocks };
        let manifest = match first.then(|| self.meta.allocate_run(manifest_blocks)) {
            None => None,
            Some(Some(start)) => Some(Run { start, count: manifest_blocks }),
            Some(None) => {
                self.derive_free_space();
                return None;
            }
        };
        let mut slots = vec![Vec::new(); drives];
        for (drive, count) in share.iter().enumerate() {
            // `shares` looked at the free counts, so this cannot fail.
            if !self.data[drive].allocate_many(*count, &mut slots[drive]) {
                self.derive_free_space();
                return None;
            }
        }
        let locations = placement::interleave(&slots, spec.participant as usize);
        Some(Reserved { locations, table, manifest })
    }

    /// Where the chunks of a participant's segment lie.
    pub(crate) fn locations(&self, open: u64, participant: u32) -> Option<&[Location]> {
        let segment = self.open.get(&open)?.segments.get(participant as usize)?.as_ref()?;
        Some(&segment.locations)
    }

    /// A participant says that its segment is whole, and that it writes no more.
    pub(crate) fn set_whole(&mut self, number: u64, participant: u32) -> Progress {
        let Some(open) = self.open.get_mut(&number) else { return Progress::Doomed };
        if let Some(Some(segment)) = open.segments.get_mut(participant as usize) {
            (segment.whole, segment.ended) = (true, true);
        }
        if open.doomed {
            self.free_if_ended(number);
            return Progress::Doomed;
        }
        if open.segments.iter().all(|s| s.as_ref().is_some_and(|segment| segment.whole)) {
            return Progress::Ready;
        }
        Progress::Waiting
    }

    /// The checkpoint will not be committed. Its space stays reserved while a segment of it may
    /// still be written.
    pub(crate) fn doom(&mut self, number: u64) {
        if let Some(open) = self.open.get_mut(&number) {
            open.doomed = true;
        }
        self.free_if_ended(number);
    }

    /// No write of this segment is under way or can begin.
    pub(crate) fn end_segment(&mut self, number: u64, participant: u32) {
        if let Some(open) = self.open.get_mut(&number)
            && let Some(Some(segment)) = open.segments.get_mut(participant as usize)
        {
            segment.ended = true;
        }
        self.free_if_ended(number);
    }

    fn free_if_ended(&mut self, number: u64) {
        let over = self.open.get(&number).is_some_and(|open| {
            open.doomed && open.segments.iter().flatten().all(|segment| segment.ended)
        });
        if over {
            self.open.remove(&number);
            self.derive_free_space();
        }
    }

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
        let mut current = self.current.clone();
        current.extend(added.into_iter().map(|committed| (committed.name(), committed)));
        Ok(self.plan(current, metadata, now_unix_ns, ready.to_vec()))
    }

    /// Plans the removal of a checkpoint.
    pub(crate) fn plan_remove(&self, name: &CheckpointName, now: u64) -> Result<Planned, Error> {
        self.check_poison()?;
        let mut current = self.current.clone();
        current.remove(name).ok_or_else(|| Error::NoSuchCheckpoint(name.to_string()))?;
        Ok(self.plan(current, Vec::new(), now, Vec::new()))
    }

    /// Plans a generation with nothing new in it: makes what the one before removed reusable, and
    /// stamps a new open epoch when `new_epoch`.
    pub(crate) fn plan_empty(&self, new_epoch: bool, now: u64) -> Result<Planned, Error> {
        self.check_poison()?;
        let mut planned = self.plan(self.current.clone(), Vec::new(), now, Vec::new());
        if new_epoch {
            planned.plan.root.epoch = self.root.epoch + 1;
        }
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
            let records = segment.locations.iter().zip(sums);
            let table = SegmentTable {
                pool: self.label.pool,
                checkpoint: open.id,
                participant: participant as u32,
                length_bytes: segment.length_bytes,
                chunk_bytes: layout.chunk_bytes(),
                shards: segment.shards.clone(),
                chunks: records
                    .map(|(location, crc64)| ChunkRecord { crc64, location: *location })
                    .collect(),
            };
            let offset_bytes = layout.meta_block_offset(segment.table.start);
            let encoded = table.encode(offset_bytes);
            metadata.push(MetaWrite { offset_bytes, bytes: encoded.bytes });
            bytes += segment.length_bytes;
            let length_bytes = segment.length_bytes;
            segments.push(SegmentRef { length_bytes, table: encoded.extent });
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

    fn plan(
        &self,
        current: BTreeMap<CheckpointName, Arc<Committed>>,
        mut metadata: Vec<MetaWrite>,
        now_unix_ns: u64,
        consumed: Vec<u64>,
    ) -> Planned {
        let generation = self.next_generation();
        let catalogue = Catalogue {
            pool: self.label.pool,
            generation,
            entries: current.values().map(|committed| committed.entry.clone()).collect(),
        };
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
        let drives = self.label.drives.clone();
        let layout = self.label.layout.clone();
        Planned { plan: CommitPlan { root, metadata, drives, layout }, current, consumed }
    }

    /// The planned generation is durable on every drive: it is the pool's state now.
    pub(crate) fn committed(&mut self, planned: Planned) -> Generation {
        assert_eq!(planned.plan.root.generation, self.next_generation(), "one commit at a time");
        for number in &planned.consumed {
            self.open.remove(number);
        }
        let before = std::mem::replace(&mut self.current, planned.current);
        self.previous = before.into_values().collect();
        self.root = planned.plan.root;
        self.newest_seen = self.root.generation;
        // Two generations ago nobody looks any more: what only that one named is free.
        self.derive_free_space();
        self.root.generation
    }
}

/// A commit that is planned and not yet durable.
pub(crate) struct Planned {
    pub(crate) plan: CommitPlan,
    current: BTreeMap<CheckpointName, Arc<Committed>>,
    consumed: Vec<u64>,
}

struct Reserved {
    locations: Vec<Location>,
    table: Run,
    manifest: Option<Run>,
}

/// Checks what a participant declares.
fn check_spec(spec: &CheckpointSpec) -> Result<(), Error> {
    let usage = |text: String| Err(Error::Usage(format!("{}: {text}", spec.name)));
    check_base_name(&spec.name.name)?;
    if spec.participants == 0 || spec.participants > MAX_PARTICIPANTS {
        return usage(format!("a checkpoint has 1 to {MAX_PARTICIPANTS} participants"));
    }
    if spec.participant >= spec.participants {
        return usage(format!(
            "participant {} of {}: they are numbered from 0",
            spec.participant, spec.participants
        ));
    }
    if spec.length_bytes > MAX_SEGMENT_BYTES {
        return usage(format!("a segment has at most {MAX_SEGMENT_BYTES} bytes"));
    }
    segment::check_shards(&spec.shards, spec.length_bytes)
        .map_err(|why| Error::Usage(format!("{}: {why}", spec.name)))
}

fn check_join(open: &OpenCheckpoint, spec: &CheckpointSpec) -> Result<(), Error> {
    if open.doomed {
        return Err(Error::Busy {
            what: format!("checkpoint {}", spec.name),
            owner: "a save that is being given up".into(),
        });
    }
    if open.segments.len() != spec.participants as usize {
        return Err(Error::Usage(format!(
            "{}: begun with {} participants, not {}",
            spec.name,
            open.segments.len(),
            spec.participants
        )));
    }
    if open.segments[spec.participant as usize].is_some() {
        return Err(Error::CheckpointExists(format!(
            "{} (participant {} is being written)",
            spec.name, spec.participant
        )));
    }
    Ok(())
}
