// SPDX-License-Identifier: Apache-2.0
//! The space of a checkpoint.

use crate::error::Damage;
use crate::format::{CatalogueEntry, Layout, MetaExtent};
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
    /// Blocks of the metadata area.
    pub(crate) meta: Vec<Run>,
    /// Which drives its chunks are on.
    pub(crate) spread: Spread,
}

impl Holding {
    pub(crate) fn new(drives: usize) -> Holding {
        Holding { data: vec![Vec::new(); drives], meta: Vec::new(), spread: Spread::default() }
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

    /// Adds the blocks of a metadata object, which is known to lie in the metadata area.
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
    /// Why its metadata cannot be read on any drive, if so. It can be removed, but not restored.
    pub(crate) damage: Option<Damage>,
}

impl Committed {
    pub(crate) fn name(&self) -> CheckpointName {
        CheckpointName { name: self.entry.name.clone(), step: self.entry.step }
    }
}
