// SPDX-License-Identifier: Apache-2.0
//! The state, and how free space is derived from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::Error;
use crate::extent::ExtentMap;
use crate::format::{DriveEntry, DriveState, Label, Root};
use crate::limits::{CATALOGUE_SLOTS, ROOT_SLOTS};
use crate::name::CheckpointName;
use crate::placement;
use crate::planted::{Bug, planted};
use crate::state::holding::{Committed, Holding, Run};
use crate::state::in_use::InUse;
use crate::state::open_checkpoint::OpenCheckpoint;
use crate::units::{Generation, Location};

/// What a generation adds to the one before it, and what it removes.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The generation's root.
    pub(crate) root: Root,
    pub(crate) added: Vec<Arc<Committed>>,
    pub(crate) removed: Option<CheckpointName>,
    /// Open checkpoints that it commits.
    pub(crate) consumed: Vec<u64>,
}

/// The state.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) label: Label,
    /// The newest root; its generation is the pool's.
    pub(super) root: Root,
    /// The generation before it: its catalogue must be kept, too.
    pub(super) before: Option<Generation>,
    /// The newest generation of which a trace was found; after a fallback it is newer than the
    /// root.
    pub(super) newest_seen: Generation,
    /// By name and step.
    pub(super) current: BTreeMap<CheckpointName, Arc<Committed>>,
    /// What the generation before held and this one does not hold.
    pub(super) retired: Vec<Arc<Committed>>,
    /// Those whose metadata could not be read when the pool was opened.
    pub(super) damaged: Vec<Arc<Committed>>,
    pub(super) open: BTreeMap<u64, OpenCheckpoint>,
    pub(super) next_open: u64,
    pub(super) in_use: InUse,
    pub(super) data: Vec<ExtentMap>,
    /// By drive: units of the metadata area.
    pub(super) meta: Vec<ExtentMap>,
    /// Some unit is named more than once, which no sound pool has. Then the release of
    /// one checkpoint that names it does not make it free.
    pub(super) has_overlaps: bool,
    /// Slots of the root rings that cannot be written: their generations are skipped.
    pub(super) bad_roots: BTreeSet<u64>,
    /// Slots that could not be written: not used while the pool is open.
    pub(super) bad: Vec<Location>,
    /// Set by a failed flush or root write; every later write fails with it.
    pub(super) poison: Option<(&'static str, String)>,
}

impl State {
    /// The state of a pool as recovery found it. The generation before counts as equal: opening for
    /// writing commits first, which makes it equal.
    pub(crate) fn new(
        label: Label,
        root: Root,
        before: Option<Generation>,
        newest_seen: Generation,
        committed: Vec<Committed>,
    ) -> State {
        // Nothing is allocated on a drive that is absent, and no one has seen its capacity: a
        // forged label must not ask for memory with it.
        let slots = |drive: &DriveEntry| match drive.state {
            DriveState::Absent => 0,
            DriveState::Member | DriveState::Rebuilding => {
                label.layout.data_slots(drive.capacity_bytes)
            }
        };
        let data = label.drives.iter().map(|drive| ExtentMap::new(slots(drive)));
        let current: BTreeMap<_, _> =
            committed.into_iter().map(|c| (c.name(), Arc::new(c))).collect();
        let damaged = current.values().filter(|c| c.damage.is_some()).cloned().collect();
        let data = data.collect();
        let mut state = State {
            data,
            meta: vec![ExtentMap::new(label.layout.meta_units()); label.drives.len()],
            has_overlaps: false,
            root,
            before,
            newest_seen,
            current,
            retired: Vec::new(),
            damaged,
            open: BTreeMap::new(),
            next_open: 1,
            in_use: InUse::default(),
            bad_roots: BTreeSet::new(),
            bad: Vec::new(),
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

    /// The number of the next generation. Numbers are skipped where a generation was given up and
    /// the next one's catalogue would overwrite that of one of the two newest, and where a root
    /// cannot be written.
    pub(crate) fn next_generation(&self) -> Generation {
        let first = self.newest_seen.max(self.root.generation).next();
        let slot = |generation: Generation| generation.0 % CATALOGUE_SLOTS;
        let newest = [Some(self.root.generation), self.before];
        let spares =
            |next: &Generation| newest.iter().flatten().all(|kept| slot(*kept) != slot(*next));
        let is_usable = |next: &Generation| !self.bad_roots.contains(&(next.0 % ROOT_SLOTS));
        let numbers = std::iter::successors(Some(first), |number| Some(number.next()))
            .take(ROOT_SLOTS as usize)
            .filter(spares);
        // Where no root can be written, the commit fails, and says why.
        numbers.clone().find(is_usable).or_else(|| numbers.min()).unwrap_or(first)
    }

    /// Nothing may be written to these slots of the root rings, or they cannot be written.
    pub(crate) fn skip_root_slots(&mut self, slots: BTreeSet<u64>) {
        self.bad_roots.extend(slots);
    }

    /// The next generation cannot be made: it is passed over.
    pub(crate) fn skip_generation(&mut self) {
        self.newest_seen = self.next_generation();
    }

    /// The label has changed: a drive was removed or admitted.
    pub(crate) fn set_label(&mut self, label: Label) {
        self.label = label;
    }

    /// Copies of each chunk of a new checkpoint: as many as the pool was made for, unless too few
    /// drives take part.
    pub(crate) fn copies(&self) -> u8 {
        let live = self.label.live().take(usize::from(self.label.copies)).count();
        self.label.copies.min(live as u8)
    }

    /// Bytes that new checkpoints may take now, over all drives, in whole chunks.
    pub(crate) fn free_bytes(&self) -> u64 {
        placement::capacity(self.copies(), &self.free_slots()) * self.label.layout.chunk_bytes()
    }

    /// By drive: free data slots. A drive that does not take part has none.
    pub(crate) fn free_slots(&self) -> Vec<u64> {
        let mut free = vec![0; self.data.len()];
        for drive in self.label.live() {
            free[drive.as_usize()] = self.data[drive.as_usize()].free();
        }
        free
    }

    /// By drive: free units of the metadata area.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn free_meta_units(&self) -> Vec<u64> {
        self.meta.iter().map(ExtentMap::free).collect()
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

    /// A checkpoint that is being written, by its number.
    pub(crate) fn open_checkpoint(&self, number: u64) -> Option<&OpenCheckpoint> {
        self.open.get(&number)
    }

    /// The planned generation is durable on every drive: it is the pool's state now.
    pub(crate) fn adopt(&mut self, change: Change) -> Generation {
        let Change { root, added, removed, consumed } = change;
        assert_eq!(root.generation, self.next_generation(), "one commit at a time");
        for number in &consumed {
            self.open.remove(number);
        }
        // The generation before the previous one is not needed any more: what only it named is
        // free, unless it is still read. What is added was reserved while it was open, and
        // stays reserved.
        let mut freed = std::mem::take(&mut self.retired);
        self.retired.extend(removed.and_then(|name| self.current.remove(&name)));
        self.current.extend(added.into_iter().map(|committed| (committed.name(), committed)));
        if planted(Bug::ExtentFreedEarly) {
            freed.append(&mut self.retired);
        }
        self.before = Some(self.root.generation);
        self.newest_seen = root.generation;
        self.root = root;
        freed.retain(|gone| !self.in_use.holds(gone));
        self.forget(&freed);
        debug_assert!(
            self.free_space_is_derived(),
            "a unit is used that no checkpoint names, or the reverse"
        );
        self.root.generation
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

    /// Whether deriving free space would change nothing.
    fn free_space_is_derived(&mut self) -> bool {
        let kept = (self.data.clone(), self.meta.clone());
        self.derive_free_space();
        kept.0 == self.data && kept.1 == self.meta
    }

    /// No generation and no holder needs these any more: frees what only they name.
    pub(super) fn forget(&mut self, gone: &[Arc<Committed>]) {
        if !gone.is_empty() {
            self.damaged.retain(|d| !gone.iter().any(|gone| Arc::ptr_eq(gone, d)));
            self.release(gone);
        }
    }

    /// Frees what only these name.
    fn release(&mut self, freed: &[Arc<Committed>]) {
        let is_released =
            !self.has_overlaps && freed.iter().all(|gone| self.release_holding(&gone.holding));
        if !is_released {
            self.derive_free_space();
        }
    }

    /// Whether all of its units were used, and are free now.
    fn release_holding(&mut self, holding: &Holding) -> bool {
        let release = |map: &mut ExtentMap, runs: &[Run]| {
            runs.iter().all(|r| map.release(r.start, r.count).is_ok())
        };
        let data = self.data.iter_mut().zip(&holding.data).filter(|(map, _)| !map.is_empty());
        let meta = self.meta.iter_mut().zip(&holding.meta);
        data.chain(meta).all(|(map, runs)| release(map, runs))
    }

    /// Recomputes which units are used. Units named twice are counted once.
    pub(super) fn derive_free_space(&mut self) {
        self.data.iter_mut().for_each(ExtentMap::clear);
        self.meta.iter_mut().for_each(ExtentMap::clear);
        let mut once = true;
        let held = self.held_only();
        let committed = self.current.values().chain(&self.retired).map(|c| &c.holding);
        let open = self.open.values().map(|open| &open.holding);
        let held = held.iter().map(|committed| &committed.holding);
        for holding in committed.chain(open).chain(held) {
            let data = self.data.iter_mut().zip(&holding.data);
            let meta = self.meta.iter_mut().zip(&holding.meta);
            for (map, runs) in data.filter(|(map, _)| !map.is_empty()).chain(meta) {
                runs.iter().for_each(|run| once &= map.cover(run.start, run.count));
            }
        }
        self.has_overlaps = !once;
        for Location { drive, slot } in &self.bad {
            self.data[drive.as_usize()].cover(*slot, 1);
        }
    }
}
