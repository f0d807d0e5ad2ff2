// SPDX-License-Identifier: Apache-2.0
//! Which crash images to check: subsets of the writes at risk, and torn writes in them. Pure.

use std::ops::Range;

use crate::device::sim::SimRng;

/// 512-byte sectors of a block. Every write is whole blocks.
const SECTORS_PER_BLOCK: u64 = 8;

/// What survives of the writes at risk, which are numbered from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    /// Writes that survive whole.
    pub(super) kept: Vec<bool>,
    /// One write of which only some sectors survive.
    pub(super) torn: Option<(usize, Range<u64>)>,
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
}

impl Effort {
    /// Checks nothing.
    pub(super) const NONE: Effort = Effort { exhaustive: 0, structured: false, random: 0 };
}

/// The choices for writes at risk, of which each has `blocks` blocks.
pub(super) fn choices(blocks: &[u64], effort: Effort, rng: &mut SimRng) -> Vec<Choice> {
    let count = blocks.len();
    let whole = |kept: Vec<bool>| Choice { kept, torn: None };
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
    }
    if effort.structured {
        for (torn, length) in blocks.iter().enumerate() {
            // Alone, with everything before it, or with all other writes.
            let reach = [0, torn, count][rng.index(3)];
            let kept = (0..count).map(|i| i < reach && i != torn).collect();
            choices.push(Choice { kept, torn: Some((torn, sectors(*length, rng))) });
        }
    }
    if count > effort.exhaustive {
        for _ in 0..effort.random {
            // Few, half or most of them.
            let density = 1 + rng.below(7);
            let kept: Vec<bool> = (0..count).map(|_| rng.below(8) < density).collect();
            let torn = rng.one_in(2).then(|| rng.index(count));
            let torn = torn.map(|torn| (torn, sectors(blocks[torn], rng)));
            choices.push(Choice { kept, torn });
        }
    }
    choices
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

    #[test]
    fn few_writes_give_every_subset() {
        let effort = Effort { exhaustive: 4, structured: false, random: 9 };
        let choices = choices(&[1, 1, 1, 1], effort, &mut SimRng::new(1));
        assert_eq!(choices.len(), 16);
        assert!((1..16).all(|i| !choices[..i].contains(&choices[i])));
    }

    #[test]
    fn many_writes_give_prefixes_singles_and_torn_ones() {
        let effort = Effort { exhaustive: 2, structured: true, random: 5 };
        let choices = choices(&[1, 16, 1], effort, &mut SimRng::new(1));
        assert_eq!(choices.len(), 4 + 3 + 3 + 3 + 5);
        assert!(choices.iter().any(|choice| choice.kept == [true, true, false]));
        assert!(choices.iter().any(|choice| choice.kept == [false, true, false]));
        assert!(choices.iter().any(|choice| choice.kept == [true, false, true]));
        for (torn, sectors) in choices.iter().filter_map(|choice| choice.torn.clone()) {
            let all = [8, 128, 8][torn];
            assert!(!sectors.is_empty() && sectors.end <= all && sectors != (0..all));
        }
    }
}
