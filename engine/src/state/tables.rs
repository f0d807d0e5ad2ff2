// SPDX-License-Identifier: Apache-2.0
//! Where a participant's segment table and shard list get their units.
//!
//! - A few drives have a copy each, so that metadata takes little room and opening a pool reads
//!   from all drives. They take turns; a drive with clearly more room comes first.
//! - Tables take units from the end of the area, manifests from its start, where they need the same
//!   units free on every drive. So neither breaks up the room of the other before the area is full.
//! - A table and its list follow each other in the same units: both are written and freed at once.
//! - Where fewer drives take part than there are copies, absent drives get the other copies:
//!   nothing is written there yet, and the drive that takes the place gets them when it is filled.

use std::cmp::Reverse;

use crate::extent::ExtentMap;
use crate::format::layout::META_UNIT_BLOCKS;
use crate::format::{Layout, MAX_TABLE_RUNS, TableRun};
use crate::limits::BLOCK_BYTES;
use crate::state::holding::Run;
use crate::state::pool_state::State;
use crate::units::DriveIndex;

/// Drives whose free room differs by less than this part of the area take turns.
const EVEN_PART: u64 = 16;

/// Where a participant's table and list lie: the runs of every copy.
#[derive(Debug, Default)]
pub(super) struct TablePlaces {
    pub(super) table: Vec<TableRun>,
    pub(super) list: Vec<TableRun>,
}

impl State {
    /// Units for the copies of a table and a list, or `None` when a drive too few of those that
    /// take part has room; then some may be in use, and free space has to be derived again. A copy
    /// on an absent drive is left out where that has no room.
    pub(super) fn place_tables(
        &mut self,
        table_blocks: u64,
        list_blocks: u64,
        turn: u64,
    ) -> Option<TablePlaces> {
        let live: Vec<usize> = self.label.live().map(DriveIndex::as_usize).collect();
        let absent: Vec<usize> =
            (0..self.label.drives.len()).filter(|drive| !live.contains(drive)).collect();
        let wanted = usize::from(self.label.table_copies);
        let copies = live.len().min(wanted);
        let even = (self.label.layout.meta_units() / EVEN_PART).max(1);
        let in_turn = |mut order: Vec<usize>| {
            let first = (turn % order.len().max(1) as u64) as usize;
            order.rotate_left(first);
            order.sort_by_key(|drive| Reverse(self.meta[*drive].free() / even));
            order
        };
        let order = [in_turn(live), in_turn(absent)].concat();
        let units = (table_blocks + list_blocks).div_ceil(META_UNIT_BLOCKS);
        let mut places = TablePlaces::default();
        let mut copy = 0;
        for drive in order {
            if usize::from(copy) == wanted {
                break;
            }
            let Some(runs) = self.meta[drive].allocate_back(units, MAX_TABLE_RUNS) else {
                continue;
            };
            let runs = runs.into_iter().map(|run| blocks_of(&self.label.layout, run));
            let piece = |(first_block, blocks): (u64, u64)| TableRun {
                drive: DriveIndex(drive as u16),
                copy,
                blocks: blocks as u32,
                first_block,
            };
            let (table, rest) = split(runs, table_blocks);
            let (list, _) = split(rest.into_iter(), list_blocks);
            places.table.extend(table.into_iter().map(piece));
            places.list.extend(list.into_iter().map(piece));
            copy += 1;
        }
        let enough = copy > 0 && usize::from(copy) >= copies;
        enough.then_some(places)
    }

    /// Units for a manifest, the same on every drive: a drive that comes back gets it there, too.
    pub(super) fn place_manifest(&mut self, blocks: u64) -> Option<Run> {
        let count = blocks.div_ceil(META_UNIT_BLOCKS);
        let start = ExtentMap::lowest_common_run(&self.meta, count)?;
        self.meta.iter_mut().for_each(|map| {
            map.cover(start, count);
        });
        Some(Run { start, count })
    }
}

/// Blocks on a drive: first and count.
type BlockRun = (u64, u64);

/// The blocks on a drive of a run of units.
fn blocks_of(layout: &Layout, (start, count): (u64, u64)) -> BlockRun {
    (layout.meta_unit_offset(start) / BLOCK_BYTES, count * META_UNIT_BLOCKS)
}

/// The first `blocks` blocks of these runs, and the rest.
fn split(runs: impl Iterator<Item = BlockRun>, blocks: u64) -> (Vec<BlockRun>, Vec<BlockRun>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut missing = blocks;
    for (first, count) in runs {
        let part = count.min(missing);
        missing -= part;
        if part > 0 {
            before.push((first, part));
        }
        if part < count {
            after.push((first + part, count - part));
        }
    }
    (before, after)
}
