// SPDX-License-Identifier: Apache-2.0
//! Which drive gets which chunk. Pure.
//!
//! Chunks go round-robin over the drives, so that all of them write at once and finish together. A
//! drive with too little room gets what it can hold, and the others share the rest. The two copies
//! of a mirrored chunk lie on different drives.

use crate::units::{Copies, DriveIndex, Location};

/// How many slots each drive gives to `chunks` chunks of `copies` copies, given its free slots;
/// `None` when there is no room. No drive gives more than one slot for a chunk.
pub(crate) fn shares(chunks: u64, copies: u8, free: &[u64], first: usize) -> Option<Vec<u64>> {
    let slots = chunks.checked_mul(copies.into())?;
    if copies == 1 {
        return share_out(slots, free, first);
    }
    let usable: Vec<u64> = free.iter().map(|slots| (*slots).min(chunks)).collect();
    share_out(slots, &usable, first)
}

/// How many chunks of `copies` copies each fit into the free slots.
pub(crate) fn capacity(copies: u8, free: &[u64]) -> u64 {
    let total: u64 = free.iter().sum();
    let largest = free.iter().copied().max().unwrap_or(0);
    match copies {
        1 => total,
        // Each chunk on the largest drive needs its second copy on another drive.
        _ => (total / 2).min(total - largest),
    }
}

/// How many of `slots` each drive gives, given how many it can. The remainder of the division goes
/// to the drives that follow `first`, so that many small segments do not all burden the same drive.
fn share_out(slots: u64, free: &[u64], first: usize) -> Option<Vec<u64>> {
    let mut share = vec![0; free.len()];
    let mut left = slots;
    while left > 0 {
        let mut open: Vec<usize> = (0..free.len())
            .map(|step| (first + step) % free.len())
            .filter(|drive| share[*drive] < free[*drive])
            .collect();
        if open.is_empty() {
            return None;
        }
        // The drive with the smallest share gets the remainder first.
        open.sort_by_key(|drive| share[*drive]);
        let each = left / open.len() as u64;
        let mut extra = left % open.len() as u64;
        for drive in open {
            let wanted = each + u64::from(extra > 0);
            extra = extra.saturating_sub(1);
            let given = wanted.min(free[drive] - share[drive]);
            share[drive] += given;
            left -= given;
        }
    }
    Some(share)
}

/// Where each chunk of a segment lies, from the slots that each drive gave according to [`shares`].
pub(crate) fn place(slots: &[Vec<u64>], copies: u8, first: usize) -> Vec<Copies> {
    if copies == 1 {
        return interleave(slots, first).into_iter().map(Copies::one).collect();
    }
    pair(slots, first)
}

/// Pairs slots of different drives. In the list of all slots, drive after drive, a slot's partner
/// is half the list further: no drive has more than half of them, so that is another drive. Pairs
/// of the same two drives alternate in which drive is read first, and the chunks go round-robin
/// over the pairs of drives.
fn pair(slots: &[Vec<u64>], first: usize) -> Vec<Copies> {
    let rotated = (0..slots.len()).map(|step| (first + step) % slots.len());
    let list: Vec<Location> = rotated
        .flat_map(|drive| {
            let drive_index = DriveIndex(drive as u16);
            slots[drive].iter().map(move |slot| Location { drive: drive_index, slot: *slot })
        })
        .collect();
    let (lower, upper) = list.split_at(list.len() / 2);
    let pairs: Vec<Copies> = lower
        .iter()
        .zip(upper)
        .map(|(one, other)| Copies { first: *one, second: Some(*other) })
        .collect();
    let drives = |pair: &Copies| (pair.first.drive, pair.second.map(|second| second.drive));
    let groups: Vec<&[Copies]> = pairs.chunk_by(|a, b| drives(a) == drives(b)).collect();
    let rounds = groups.iter().map(|group| group.len()).max().unwrap_or(0);
    let mut placed = Vec::with_capacity(pairs.len());
    for round in 0..rounds {
        for pair in groups.iter().filter_map(|group| group.get(round)) {
            placed.push(match pair.second {
                Some(second) if round % 2 == 1 => {
                    Copies { first: second, second: Some(pair.first) }
                }
                _ => *pair,
            });
        }
    }
    placed
}

/// The order of a segment's chunks over the slots that each drive gave: round-robin from `first`,
/// each drive's slots in ascending order.
fn interleave(slots: &[Vec<u64>], first: usize) -> Vec<Location> {
    let total = slots.iter().map(Vec::len).sum();
    let mut locations = Vec::with_capacity(total);
    let mut round = 0;
    while locations.len() < total {
        for step in 0..slots.len() {
            let drive = (first + step) % slots.len();
            if let Some(&slot) = slots[drive].get(round) {
                locations.push(Location { drive: DriveIndex(drive as u16), slot });
            }
        }
        round += 1;
    }
    locations
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_small_drive_gives_what_it_has() {
        assert_eq!(shares(10, 1, &[100, 2, 100], 0), Some(vec![4, 2, 4]));
        assert_eq!(shares(2, 1, &[100, 100, 100], 1), Some(vec![0, 1, 1]));
        assert_eq!(shares(0, 1, &[0], 0), Some(vec![0]));
        assert_eq!(shares(5, 1, &[2, 2], 0), None);
    }

    #[test]
    fn a_mirror_needs_two_drives_for_each_chunk() {
        assert_eq!(shares(10, 2, &[100, 100], 0), Some(vec![10, 10]));
        assert_eq!(shares(10, 2, &[100, 9], 0), None);
        assert_eq!(shares(10, 2, &[100, 4, 6], 0), Some(vec![10, 4, 6]));
        assert_eq!(shares(1, 2, &[100], 0), None);
        assert_eq!(shares(0, 2, &[0, 0], 0), Some(vec![0, 0]));
        assert_eq!(shares(u64::MAX, 2, &[1, 1], 0), None);
    }

    proptest! {
        #[test]
        fn shares_fit_and_add_up(
            chunks in 0..500_u64,
            copies in 1..=2_u8,
            free in prop::collection::vec(0..200_u64, 1..9),
            first in 0..9_usize,
        ) {
            match shares(chunks, copies, &free, first) {
                Some(share) => {
                    prop_assert!(chunks <= capacity(copies, &free));
                    prop_assert_eq!(share.iter().sum::<u64>(), chunks * u64::from(copies));
                    prop_assert!(share.iter().zip(&free).all(|(s, f)| s <= f));
                }
                None => prop_assert!(chunks > capacity(copies, &free)),
            }
        }

        #[test]
        fn every_slot_is_used_once_and_copies_lie_apart(
            chunks in 0..300_u64,
            free in prop::collection::vec(0..200_u64, 2..9),
            first in 0..9_usize,
        ) {
            let Some(share) = shares(chunks, 2, &free, first) else { return Ok(()) };
            let slots: Vec<Vec<u64>> = share.iter().map(|count| (0..*count).collect()).collect();
            let placed = place(&slots, 2, first);
            prop_assert_eq!(placed.len() as u64, chunks);
            let mut used = std::collections::HashSet::new();
            for copies in placed {
                prop_assert_eq!(copies.count(), 2);
                prop_assert!(copies.second.is_some_and(|second| second.drive != copies.first.drive));
                prop_assert!(copies.iter().all(|location| used.insert(location)));
            }
            prop_assert_eq!(used.len() as u64, 2 * chunks);
        }

        #[test]
        fn the_copies_read_first_are_spread_over_the_drives(each in 1..50_u64, drives in 2..9_usize) {
            let slots = vec![(0..2 * each).collect::<Vec<_>>(); drives];
            let placed = place(&slots, 2, 0);
            for drive in 0..drives {
                let first = placed.iter().filter(|copies| copies.first.drive.as_usize() == drive);
                // A drive is in at most three groups of pairs, each of which may end on its turn.
                prop_assert!((first.count() as u64).abs_diff(each) <= 3);
            }
        }

        #[test]
        fn neighbours_lie_on_different_drives(each in 1..50_usize, drives in 2..9_usize, first in 0..9_usize) {
            let slots = vec![(0..each as u64).collect::<Vec<_>>(); drives];
            let order = interleave(&slots, first);
            prop_assert_eq!(order.len(), each * drives);
            prop_assert!(order.windows(2).all(|pair| pair[0].drive != pair[1].drive));
        }
    }
}
