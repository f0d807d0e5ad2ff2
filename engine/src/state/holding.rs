// SPDX-License-Identifier: Apache-2.0
//! The space of a checkpoint.

use crate::error::Damage;
use crate::format::{CatalogueEntry, Layout, MetaExtent, TableRun};
use crate::name::CheckpointName;
use crate::state::availability::Spread;
use crate::units::{Copies, Location};

/// A run of units that one checkpoint holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) count: u64,
}

/// The space of a checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holding {
    /// By drive: data slots.
    pub(crate) data: Vec<Vec<Run>>,
    /// By drive: units of the metadata area.
    pub(crate) meta: Vec<Vec<Run>>,
    /// Which drives its chunks are on.
    pub(crate) spread: Spread,
}

impl Holding {
    pub(crate) fn new(drives: usize) -> Holding {
        let none = vec![Vec::new(); drives];
        Holding { data: none.clone(), meta: none, spread: Spread::default() }
    }

    /// Adds every copy of a chunk; consecutive slots of a drive become one run.
    pub(crate) fn add_chunk(&mut self, copies: Copies) {
        self.spread.add(copies);
        copies.iter().for_each(|location| self.add_location(location));
    }

    fn add_location(&mut self, location: Location) {
        let runs = &mut self.data[location.drive.as_usize()];
        match runs.last_mut() {
            Some(run) if run.start + run.count == location.slot => run.count += 1,
            _ => runs.push(Run { start: location.slot, count: 1 }),
        }
    }

    /// Adds the units of a manifest: the same on every drive.
    pub(crate) fn add_manifest(&mut self, layout: &Layout, extent: &MetaExtent) {
        if let Some((start, count)) = layout.meta_units_of(extent) {
            self.add_common(Run { start, count });
        }
    }

    /// Adds units on every drive.
    pub(crate) fn add_common(&mut self, run: Run) {
        self.meta.iter_mut().for_each(|runs| runs.push(run));
    }

    /// Adds the units of one participant's table and list, which may share units. They are known to
    /// lie in the metadata areas.
    pub(crate) fn add_tables<'a>(
        &mut self,
        layout: &Layout,
        runs: impl IntoIterator<Item = &'a TableRun>,
    ) {
        let mut units: Vec<(usize, u64, u64)> = runs
            .into_iter()
            .filter_map(|run| {
                let (start, count) = layout.meta_units_of_run(run)?;
                Some((run.drive.as_usize(), start, start + count))
            })
            .collect();
        units.sort_unstable();
        let mut units = units.into_iter();
        let Some(mut joined) = units.next() else { return };
        let mut add = |(drive, start, end): (usize, u64, u64)| {
            self.meta[drive].push(Run { start, count: end - start });
        };
        for (drive, start, end) in units {
            if drive == joined.0 && start <= joined.2 {
                joined.2 = joined.2.max(end);
            } else {
                add(joined);
                joined = (drive, start, end);
            }
        }
        add(joined);
    }
}

/// A committed checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) entry: CatalogueEntry,
    pub(crate) holding: Holding,
    /// Why its metadata cannot be read on any drive, if so. It can be removed, but not restored.
    pub(crate) damage: Option<Damage>,
}

impl Committed {
    pub(crate) fn name(&self) -> CheckpointName {
        CheckpointName { name: self.entry.name.clone(), step: self.entry.step }
    }
}
