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
//! - Where the parent of a root is there, it decides what lies between the two: numbers that were
//!   given up, in an epoch from the parent's to the child's. A root of a lower epoch is a late one,
//!   and must not hide the parent. Where the parent is gone, because another owner's root took its
//!   place, epochs still never rise.
//! - Two openings may have begun the same epoch at the same generation, when the roots of the first
//!   landed after the second had looked. If both name the same catalogue and the same parent they
//!   say the same, and either will do. Otherwise nothing decides between them: two owners wrote
//!   the pool at once.
//! - The parent of each root is the root before it. Another root in its place is the trace of
//!   another owner.

use std::collections::BTreeMap;

use crate::format::Root;
use crate::limits::ROOT_SLOTS;
use crate::planted::{Bug, planted};
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
        // The epoch of the parent of `child`, if it is there.
        let epoch_of_parent = |child: &Root| {
            let mut older = distinct.range(oldest..child.generation).flat_map(|(_, same)| same);
            let parent = older.find(|(root, id)| *id == child.parent && root.epoch <= child.epoch);
            parent.map(|(root, _)| root.epoch)
        };
        let (mut parent, mut highest) = (newest.parent, newest.epoch);
        let mut of_parent = epoch_of_parent(newest);
        for candidates in distinct.range(oldest..newest.generation).rev().map(|(_, same)| same) {
            let lowest = of_parent.unwrap_or(0);
            let counts =
                candidates.iter().filter(|(root, _)| (lowest..=highest).contains(&root.epoch));
            let best = counts
                .max_by_key(|(root, id)| (*id == parent, root.epoch, root.committed_unix_ns, *id));
            let Some((root, id)) = best else { continue };
            if *id == parent {
                parent = root.parent;
                highest = root.epoch;
                of_parent = epoch_of_parent(root);
            } else if of_parent.is_none() {
                highest = root.epoch;
            }
            history.by_generation.insert(root.generation, (*root).clone());
        }
        history.breaks = history.find_breaks();
        Ok(history)
    }

    /// The parent of a root, by identity: numbers of generations that were given up may lie
    /// between.
    pub(super) fn parent_of(&self, root: &Root) -> Option<&Root> {
        let mut older = self.by_generation.range(..root.generation).rev().map(|(_, other)| other);
        older.find(|other| other.id() == root.parent || planted(Bug::ParentNotChecked))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{MetaExtent, Owner};

    fn root(generation: u64, epoch: u64, parent: Option<&Root>) -> Root {
        Root {
            pool: uuid::Uuid::from_u128(7),
            generation: Generation(generation),
            epoch,
            parent: parent.map_or([9; 16], Root::id),
            catalogue: MetaExtent { offset_bytes: 0, len_bytes: 0, hash: [0; 16] },
            committed_unix_ns: generation,
            owner: Owner::default(),
        }
    }

    /// The roots that count, the newest first: generation and epoch.
    fn counting(found: &[&Root]) -> Vec<(u64, u64)> {
        let history = History::of(found.iter().copied()).unwrap();
        history.by_generation.values().rev().map(|root| (root.generation.0, root.epoch)).collect()
    }

    #[test]
    fn a_late_root_between_a_root_and_its_parent_hides_nothing() {
        let seven = root(7, 2, None);
        let eight = root(8, 2, Some(&seven));
        let late = root(9, 1, None);
        let ten = root(10, 3, Some(&eight));
        assert_eq!(counting(&[&ten, &late, &eight, &seven]), [(10, 3), (8, 2), (7, 2)]);
        let history = History::of([&late, &seven, &ten, &eight].into_iter()).unwrap();
        assert_eq!(history.parent_of(&ten), Some(&eight));
        assert_eq!(history.parent_of(&eight), Some(&seven));
        assert!(history.breaks.is_empty());
        // Late roots in several places, also below the parent.
        let later = root(11, 1, Some(&late));
        let twelve = root(12, 3, Some(&eight));
        let six = root(6, 1, None);
        let all = [&six, &seven, &eight, &late, &later, &twelve];
        assert_eq!(counting(&all), [(12, 3), (8, 2), (7, 2), (6, 1)]);
    }

    #[test]
    fn a_number_that_was_given_up_counts_between_its_neighbours() {
        let eight = root(8, 2, None);
        let given_up = root(9, 2, Some(&eight));
        let ten = root(10, 3, Some(&eight));
        assert_eq!(counting(&[&ten, &given_up, &eight]), [(10, 3), (9, 2), (8, 2)]);
        // An epoch above the child's is a late one of the owner that was given up.
        let above = root(9, 4, Some(&eight));
        let newest = root(11, 5, Some(&ten));
        assert_eq!(counting(&[&newest, &ten, &above, &eight]), [(11, 5), (10, 3), (8, 2)]);
    }

    #[test]
    fn a_late_root_in_the_place_of_a_parent_is_a_break() {
        let eight = root(8, 2, None);
        let late = root(9, 1, None);
        let gone = root(9, 3, Some(&eight));
        let ten = root(10, 3, Some(&gone));
        let history = History::of([&ten, &late].into_iter()).unwrap();
        assert_eq!(history.parent_of(&ten), None);
        assert_eq!(history.breaks.len(), 1);
        // Epochs never rise, so what lies behind it does not count.
        assert_eq!(counting(&[&ten, &late, &eight]), [(10, 3), (9, 1)]);
    }
}
