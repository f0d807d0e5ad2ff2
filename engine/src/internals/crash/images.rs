// SPDX-License-Identifier: Apache-2.0
//! Which crash images to check: subsets of the writes at risk, and torn writes in them. Pure.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::device::sim::{SimRng, WriteId};

/// 512-byte sectors of a block. Every write is whole blocks.
const SECTORS_PER_BLOCK: u64 = 8;

/// The units of a drive that writes by reading, changing and writing again.
const UNITS_BYTES: [u64; 2] = [16 << 10, 64 << 10];

/// A write that a power cut may drop.
#[derive(Clone, Debug)]
pub(super) struct Risk {
    pub(super) drive: usize,
    pub(super) id: WriteId,
    pub(super) offset_bytes: u64,
    pub(super) blocks: u64,
}

/// What survives of the writes at risk, which are numbered from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    /// Writes that survive whole.
    pub(super) kept: Vec<bool>,
    /// Writes of which only some sectors survive, at most one of each drive.
    pub(super) torn: Vec<(usize, Range<u64>)>,
    /// Torn writes take the rest of the drive's unit of this size with them; 0: they do not.
    pub(super) unit_bytes: u64,
}

/// How many images to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Effort {
    /// All subsets of up to this many writes at risk.
    pub(super) exhaustive: usize,
    /// The subsets that a serial drive would leave; each write alone, missing, and torn.
    pub(super) structured: bool,
    /// Random subsets by the seed, where not all are checked.
    pub(super) random: usize,
    /// Torn writes may take the rest of the drive's unit with them.
    pub(super) units: bool,
}

impl Effort {
    /// Checks nothing.
    pub(super) const NONE: Effort =
        Effort { exhaustive: 0, structured: false, random: 0, units: true };
}

/// The choices for writes at risk.
pub(super) fn choices(risks: &[Risk], effort: Effort, rng: &mut SimRng) -> Vec<Choice> {
    let count = risks.len();
    let whole = |kept: Vec<bool>| Choice { kept, torn: Vec::new(), unit_bytes: 0 };
    let taken = u64::from(effort.units);
    let mut choices = Vec::new();
    if effort == Effort::NONE {
        return choices;
    }
    if count <= effort.exhaustive {
        let masks = 0..1_u64 << count;
        choices.extend(masks.map(|mask| whole((0..count).map(|i| mask >> i & 1 == 1).collect())));
    } else if effort.structured {
        choices.extend((0..=count).map(|end| whole((0..count).map(|i| i < end).collect())));
        choices.extend((0..count).map(|one| whole((0..count).map(|i| i == one).collect())));
        choices.extend((0..count).map(|one| whole((0..count).map(|i| i != one).collect())));
        // One drive loses its cache and the others keep theirs, or the other way round.
        let of =
            |drive: usize, lost| whole(risks.iter().map(|r| (r.drive == drive) != lost).collect());
        let drives = drives_of(risks);
        if drives.len() > 1 {
            choices.extend(drives.iter().flat_map(|drive| [of(*drive, true), of(*drive, false)]));
        }
    }
    if effort.structured {
        for (torn, risk) in risks.iter().enumerate() {
            // Alone, with everything before it, or with all other writes.
            let reach = [0, torn, count][rng.index(3)];
            let kept = (0..count).map(|i| i < reach && i != torn).collect();
            let torn = vec![(torn, sectors(risk.blocks, rng))];
            // In some cases it takes its neighbours.
            let unit_bytes = [0, 0, UNITS_BYTES[0], UNITS_BYTES[1]][rng.index(4)] * taken;
            choices.push(Choice { kept, torn, unit_bytes });
        }
        let everywhere = every_drive_tears(risks, rng).into_iter();
        choices.extend(everywhere.map(|all| Choice { unit_bytes: all.unit_bytes * taken, ..all }));
    }
    if count > effort.exhaustive {
        for _ in 0..effort.random {
            // Few, half or most of them.
            let density = 1 + rng.below(7);
            let kept: Vec<bool> = (0..count).map(|_| rng.below(8) < density).collect();
            let torn = rng.one_in(2).then(|| rng.index(count));
            let torn = torn.map(|torn| (torn, sectors(risks[torn].blocks, rng)));
            let unit_bytes = [0, UNITS_BYTES[0], UNITS_BYTES[1]][rng.index(3)] * taken;
            choices.push(Choice { kept, torn: torn.into_iter().collect(), unit_bytes });
        }
    }
    choices
}

fn drives_of(risks: &[Risk]) -> BTreeSet<usize> {
    risks.iter().map(|risk| risk.drive).collect()
}

/// On every drive at once, one of the writes is torn, and takes its neighbours.
fn every_drive_tears(risks: &[Risk], rng: &mut SimRng) -> Option<Choice> {
    let mut torn = Vec::new();
    for drive in drives_of(risks) {
        let own: Vec<usize> = (0..risks.len()).filter(|i| risks[*i].drive == drive).collect();
        let write = own[rng.index(own.len())];
        torn.push((write, sectors(risks[write].blocks, rng)));
    }
    let all = rng.one_in(2);
    let kept = (0..risks.len()).map(|i| all && torn.iter().all(|(torn, _)| *torn != i)).collect();
    let unit_bytes = UNITS_BYTES[rng.index(2)];
    (!torn.is_empty()).then_some(Choice { kept, torn, unit_bytes })
}

/// Sectors at the start or at the end of a write; in half the cases the cut is in its first block.
fn sectors(blocks: u64, rng: &mut SimRng) -> Range<u64> {
    let all = blocks * SECTORS_PER_BLOCK;
    let within = if rng.one_in(2) { SECTORS_PER_BLOCK } else { all };
    let cut = 1 + rng.below(within - 1);
    if rng.one_in(2) { 0..cut } else { cut..all }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes of these lengths, by turns on drives 0 and 1.
    fn risks(blocks: &[u64]) -> Vec<Risk> {
        let risk = |(number, blocks): (usize, &u64)| Risk {
            drive: number % 2,
            id: WriteId(number as u64),
            offset_bytes: (number as u64) << 20,
            blocks: *blocks,
        };
        blocks.iter().enumerate().map(risk).collect()
    }

    #[test]
    fn few_writes_give_every_subset() {
        let effort = Effort { exhaustive: 4, structured: false, random: 9, units: true };
        let choices = choices(&risks(&[1, 1, 1, 1]), effort, &mut SimRng::new(1));
        assert_eq!(choices.len(), 16);
        assert!((1..16).all(|i| !choices[..i].contains(&choices[i])));
    }

    #[test]
    fn many_writes_give_prefixes_singles_lost_caches_and_torn_ones() {
        let effort = Effort { exhaustive: 2, structured: true, random: 5, units: true };
        let choices = choices(&risks(&[1, 16, 1]), effort, &mut SimRng::new(1));
        assert_eq!(choices.len(), 4 + 3 + 3 + 4 + 3 + 1 + 5);
        assert!(choices.iter().any(|choice| choice.kept == [true, true, false]));
        assert!(choices.iter().any(|choice| choice.kept == [false, true, false]));
        assert!(choices.iter().any(|choice| choice.kept == [true, false, true]));
        assert!(choices.iter().any(|choice| choice.torn.len() == 2 && choice.unit_bytes > 0));
        for (torn, sectors) in choices.iter().flat_map(|choice| choice.torn.clone()) {
            let all = [8, 128, 8][torn];
            assert!(!sectors.is_empty() && sectors.end <= all && sectors != (0..all));
        }
    }
}
