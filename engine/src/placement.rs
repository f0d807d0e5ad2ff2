//! Which drive gets which chunk. Pure.
//!
//! Chunks go round the drives, so that all of them write at once and finish together. A drive that
//! has too little room gets what it can hold, and the others share the rest.

use crate::units::{DriveIndex, Location};

/// How many of `chunks` each drive gets, given its free slots; `None` when there is no room. The
/// remainder of the division goes to the drives that follow `first`, so that many small segments
/// do not all burden the same drive.
pub(crate) fn shares(chunks: u64, free: &[u64], first: usize) -> Option<Vec<u64>> {
    let mut share = vec![0; free.len()];
    let mut left = chunks;
    while left > 0 {
        let mut open: Vec<usize> = (0..free.len())
            .map(|step| (first + step) % free.len())
            .filter(|drive| share[*drive] < free[*drive])
            .collect();
        if open.is_empty() {
            return None;
        }
        // Whoever has least so far is first to get of the remainder.
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

/// The order of a segment's chunks over the slots that each drive gave: round the drives from
/// `first`, each drive's slots in ascending order.
pub(crate) fn interleave(slots: &[Vec<u64>], first: usize) -> Vec<Location> {
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
        assert_eq!(shares(10, &[100, 2, 100], 0), Some(vec![4, 2, 4]));
        assert_eq!(shares(2, &[100, 100, 100], 1), Some(vec![0, 1, 1]));
        assert_eq!(shares(0, &[0], 0), Some(vec![0]));
        assert_eq!(shares(5, &[2, 2], 0), None);
    }

    proptest! {
        #[test]
        fn shares_fit_and_add_up(chunks in 0..500_u64, free in prop::collection::vec(0..200_u64, 1..9), first in 0..9_usize) {
            match shares(chunks, &free, first) {
                Some(share) => {
                    prop_assert_eq!(share.iter().sum::<u64>(), chunks);
                    prop_assert!(share.iter().zip(&free).all(|(s, f)| s <= f));
                }
                None => prop_assert!(free.iter().sum::<u64>() < chunks),
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
