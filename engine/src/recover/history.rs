// SPDX-License-Identifier: Apache-2.0
//! Which of the roots that were found count. Pure.
//!
//! - Every opening for writing begins an open epoch above all that it saw, at a generation above
//!   all that it saw. So in a pool with one owner at a time the newest root is the one with the
//!   highest epoch, and among those the one with the highest generation; going back from it, epochs
//!   never rise.
//! - A root that breaks this was written by an owner that another one had replaced: a write that a
//!   killed owner had in flight, or a root that could not be read when its generation was given up.
//!   It does not count, and its place is a bad one.
//! - Two openings may have begun the same epoch at the same generation, when the roots of the first
//!   landed after the second had looked. If both name the same catalogue and the same parent they
//!   say the same, and either will do. Otherwise nothing decides between them: two owners wrote
//!   the pool at once.
//! - The parent of each root is the root before it. Another root in its place is the trace of
//!   another owner.

use std::collections::BTreeMap;

use crate::format::Root;
use crate::limits::ROOT_SLOTS;
use crate::units::Generation;

/// The roots that count.
#[derive(Debug, Default)]
pub(super) struct History {
    /// At most one of each slot of the rings.
    pub(super) by_generation: BTreeMap<Generation, Root>,
    /// Where another owner's root stands in the place of a parent.
    pub(super) breaks: Vec<Break>,
}

/// A root whose parent is not the root before it, because another owner wrote that one.
#[derive(Clone, Debug)]
pub(crate) struct Break {
    pub(crate) root: Root,
    pub(crate) before: Root,
}

/// Two roots between which nothing decides.
#[derive(Debug)]
pub(super) struct TwoOwners {
    pub(super) one: Root,
    pub(super) other: Root,
}

impl History {
    /// Chooses among the roots that were found, in any order, each any number of times.
    pub(super) fn of<'a>(found: impl Iterator<Item = &'a Root>) -> Result<History, Box<TwoOwners>> {
        let mut distinct: BTreeMap<Generation, Vec<(&Root, [u8; 16])>> = BTreeMap::new();
        for root in found {
            let same = distinct.entry(root.generation).or_default();
            let id = root.id();
            if same.iter().all(|(_, known)| *known != id) {
                same.push((root, id));
            }
        }
        let all = distinct.values().flatten();
        let newest =
            all.max_by_key(|(root, id)| (root.epoch, root.generation, root.committed_unix_ns, *id));
        let Some((newest, newest_id)) = newest.copied() else { return Ok(History::default()) };
        let rival = distinct[&newest.generation].iter().find(|(root, id)| {
            *id != newest_id && root.epoch == newest.epoch && !says_the_same(root, newest)
        });
        if let Some((rival, _)) = rival {
            let (one, other) = (newest.clone(), (*rival).clone());
            return Err(Box::new(TwoOwners { one, other }));
        }
        let oldest = Generation((newest.generation.0 + 1).saturating_sub(ROOT_SLOTS));
        let mut history = History::default();
        history.by_generation.insert(newest.generation, newest.clone());
        let (mut parent, mut epoch) = (newest.parent, newest.epoch);
        for candidates in distinct.range(oldest..newest.generation).rev().map(|(_, same)| same) {
            let counts = candidates.iter().filter(|(root, _)| root.epoch <= epoch);
            let best = counts
                .max_by_key(|(root, id)| (*id == parent, root.epoch, root.committed_unix_ns, *id));
            let Some((root, id)) = best else { continue };
            epoch = root.epoch;
            if *id == parent {
                parent = root.parent;
            }
            history.by_generation.insert(root.generation, (*root).clone());
        }
        history.breaks = history.find_breaks();
        Ok(history)
    }

    /// The parent of a root, by identity: numbers of generations that were given up may lie
    /// between.
    pub(super) fn parent_of(&self, root: &Root) -> Option<&Root> {
        let mut older = self.by_generation.range(..root.generation).rev();
        older.find(|(_, other)| other.id() == root.parent).map(|(_, other)| other)
    }

    fn find_breaks(&self) -> Vec<Break> {
        let mut breaks = Vec::new();
        for (root, before) in self.by_generation.values().skip(1).zip(self.by_generation.values()) {
            // What lies between two numbers that do not follow each other is unknown. A root with
            // the same parent was given up.
            let is_next = before.generation.next() == root.generation;
            let given_up = before.parent == root.parent;
            if is_next && !given_up && self.parent_of(root).is_none() {
                breaks.push(Break { root: root.clone(), before: before.clone() });
            }
        }
        breaks
    }
}

/// Whether two roots of one generation lead to the same checkpoints and the same past.
fn says_the_same(one: &Root, other: &Root) -> bool {
    one.catalogue == other.catalogue && one.parent == other.parent
}
