// SPDX-License-Identifier: Apache-2.0
//! Which units of an area of a drive are used: its chunk slots, or its units of metadata.
//!
//! Invariants:
//! - The map is in memory only. It is derived from the reachable manifests at open, so a crash can
//!   neither leak a unit nor free one twice.
//! - A unit is used or free. To use a used one or release a free one is an error that changes
//!   nothing.
//! - `free` is the number of zero bits below `len`; bits at and above `len` are set.

use thiserror::Error;

const WORD_BITS: u64 = u64::BITS as u64;

/// The shortest runs that `allocate_many` takes in each of its passes, when no single run is long
/// enough: long runs first, so that drives write sequentially, in few passes over a full map.
const SHORTEST_RUNS: [u64; 3] = [256, 16, 1];

/// Maps a word to one in which the units of one state are set.
type View = fn(u64) -> u64;
const USED: View = |word| word;
const FREE: View = |word| !word;

/// A unit to be used is already used, or does not exist.
#[cfg(any(test, feature = "internals"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("unit {at} is used already, or does not exist")]
pub struct AlreadyUsed {
    /// The first such unit.
    pub at: u64,
}

/// A unit to be released is not used, or does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("unit {at} is not used, or does not exist")]
pub struct NotUsed {
    /// The first such unit.
    pub at: u64,
}

/// The used units of one area.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtentMap {
    /// One bit a unit, set when used.
    words: Vec<u64>,
    len: u64,
    free: u64,
    /// Where the next search starts: behind the last allocation.
    cursor: u64,
}

impl ExtentMap {
    /// A map of `len` free units; one bit of memory each.
    pub fn new(len: u64) -> Self {
        let mut words = vec![0; len.div_ceil(WORD_BITS) as usize];
        if let Some(last) = words.last_mut()
            && !len.is_multiple_of(WORD_BITS)
        {
            *last = u64::MAX << (len % WORD_BITS);
        }
        ExtentMap { words, len, free: len, cursor: 0 }
    }

    /// Units.
    #[cfg(any(test, feature = "internals"))]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the map has no units at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Units that are not used.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Whether a unit is used; a unit that does not exist counts as used.
    pub fn is_used(&self, unit: u64) -> bool {
        unit >= self.len || self.words[word_of(unit)] >> (unit % WORD_BITS) & 1 == 1
    }

    /// Uses `count` units from `start`, all of which must be free.
    #[cfg(any(test, feature = "internals"))]
    pub fn mark_used(&mut self, start: u64, count: u64) -> Result<(), AlreadyUsed> {
        if let Some(at) = self.first_unlike(start, count, USED) {
            return Err(AlreadyUsed { at });
        }
        self.set(start, count);
        Ok(())
    }

    /// Frees all units. The next search starts where it would have.
    pub fn clear(&mut self) {
        let cursor = self.cursor;
        *self = ExtentMap::new(self.len);
        self.cursor = cursor;
    }

    /// Marks those of `count` units from `start` as used that exist and are free: more than one
    /// manifest may name a unit. Returns whether none was used before.
    pub fn cover(&mut self, start: u64, count: u64) -> bool {
        let end = start.saturating_add(count).min(self.len);
        let free_before = self.free;
        let mut from = start;
        while let Some(free) = self.first(from, end, FREE) {
            let until = self.first(free, end, USED).unwrap_or(end);
            self.set(free, until - free);
            from = until;
        }
        free_before - self.free == count
    }

    /// Releases `count` units from `start`, all of which must be used.
    pub fn release(&mut self, start: u64, count: u64) -> Result<(), NotUsed> {
        if let Some(at) = self.first_unlike(start, count, FREE) {
            return Err(NotUsed { at });
        }
        for_words(start, count, |word, mask| self.words[word] &= !mask);
        self.free += count;
        Ok(())
    }

    /// Uses `count` units in one run and returns the first, or `None` when there is no such run.
    pub fn allocate_run(&mut self, count: u64) -> Option<u64> {
        if count == 0 || count > self.free {
            return None;
        }
        let (start, _) = self.runs(count).find(|(_, run)| *run == count)?;
        self.set(start, count);
        self.cursor = start + count;
        Some(start)
    }

    /// Uses `count` units and appends them to `out`, ascending; when fewer are free, uses none and
    /// returns `false`. Takes one run if there is one, otherwise long runs before short ones.
    #[must_use]
    pub fn allocate_many(&mut self, count: u64, out: &mut Vec<u64>) -> bool {
        if count > self.free {
            return false;
        }
        if let Some(start) = self.allocate_run(count) {
            out.extend(start..start + count);
            return true;
        }
        let first = out.len();
        let mut missing = count;
        for shortest in SHORTEST_RUNS {
            // Collected before use, because using a run changes what is being walked.
            let mut taken = Vec::new();
            for (start, run) in self.runs(u64::MAX).filter(|(_, run)| *run >= shortest) {
                if missing == 0 {
                    break;
                }
                let part = run.min(missing);
                missing -= part;
                taken.push((start, part));
            }
            for (start, part) in taken {
                self.set(start, part);
                self.cursor = start + part;
                out.extend(start..start + part);
            }
        }
        debug_assert_eq!(missing, 0, "`free` counts the zero bits");
        out[first..].sort_unstable();
        true
    }

    /// Uses `count` units as near to the end as they lie and returns them, in one run if there is
    /// one, otherwise in at most `most_runs`, long ones first. `None` when that is not possible.
    pub fn allocate_back(&mut self, count: u64, most_runs: usize) -> Option<Vec<(u64, u64)>> {
        if count == 0 || count > self.free {
            return None;
        }
        let single = self.runs_back(count).find(|(_, run)| *run == count);
        let taken = single.map(|run| vec![run]).or_else(|| {
            let mut all: Vec<(u64, u64)> = self.runs_back(count).collect();
            all.sort_by_key(|(_, run)| std::cmp::Reverse(*run));
            let mut missing = count;
            let mut taken = Vec::new();
            for (start, run) in all.into_iter().take(most_runs) {
                let part = run.min(missing);
                missing -= part;
                taken.push((start + run - part, part));
                if missing == 0 {
                    return Some(taken);
                }
            }
            None
        })?;
        taken.iter().for_each(|(start, run)| self.set(*start, *run));
        Some(taken)
    }

    /// The start of the lowest run of `count` units that are free in each of the maps.
    pub fn lowest_common_run(maps: &[ExtentMap], count: u64) -> Option<u64> {
        let len = maps.iter().map(|map| map.len).min()?;
        let mut start = 0_u64;
        'search: while start.checked_add(count)? <= len {
            for map in maps {
                if let Some(used) = map.last(start, start + count, USED) {
                    start = map.first(used + 1, map.len, FREE)?;
                    continue 'search;
                }
            }
            return Some(start);
        }
        None
    }

    /// Every free unit once, in runs as start and length, from the end. Runs are cut at `longest`.
    fn runs_back(&self, longest: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut to = self.len;
        std::iter::from_fn(move || {
            let end = self.last(0, to, FREE)? + 1;
            let least = end.saturating_sub(longest);
            to = self.last(least, end, USED).map_or(least, |used| used + 1);
            Some((to, end - to))
        })
    }

    /// Every free unit once, in runs as start and length: those that start after the cursor, then
    /// those before it. A run that contains the cursor is one of the latter. Runs are cut at
    /// `longest`, so that a search for a short run does not walk over a long one.
    fn runs(&self, longest: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let splits = self.cursor > 0 && !self.is_used(self.cursor - 1);
        let behind = if splits {
            self.first(self.cursor, self.len, USED).unwrap_or(self.len)
        } else {
            self.cursor
        };
        self.runs_from(behind, longest)
            .chain(self.runs_from(0, longest).take_while(move |(start, _)| *start < behind))
    }

    fn runs_from(&self, from: u64, longest: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut from = from;
        std::iter::from_fn(move || {
            let start = self.first(from, self.len, FREE)?;
            let most = start.saturating_add(longest).min(self.len);
            from = self.first(start, most, USED).unwrap_or(most);
            Some((start, from - start))
        })
    }

    fn set(&mut self, start: u64, count: u64) {
        for_words(start, count, |word, mask| self.words[word] |= mask);
        self.free -= count;
    }

    /// The first of `count` units from `start` that has the state `view`, or does not exist.
    fn first_unlike(&self, start: u64, count: u64, view: View) -> Option<u64> {
        if count == 0 {
            return None;
        }
        let end = start.saturating_add(count);
        let beyond = (end > self.len).then_some(self.len.max(start));
        self.first(start, end.min(self.len), view).or(beyond)
    }

    /// The first unit of `from..to` that has the state `view`. `to` is at most the map's length.
    fn first(&self, from: u64, to: u64, view: View) -> Option<u64> {
        if from >= to {
            return None;
        }
        let mut at = word_of(from);
        let mut bits = view(self.words[at]) & (u64::MAX << (from % WORD_BITS));
        while bits == 0 {
            at += 1;
            if at as u64 * WORD_BITS >= to {
                return None;
            }
            bits = view(self.words[at]);
        }
        let unit = at as u64 * WORD_BITS + u64::from(bits.trailing_zeros());
        (unit < to).then_some(unit)
    }

    /// The last unit of `from..to` that has the state `view`. `to` is at most the map's length.
    fn last(&self, from: u64, to: u64, view: View) -> Option<u64> {
        if from >= to {
            return None;
        }
        let mut at = word_of(to - 1);
        let mut bits = view(self.words[at]) & (u64::MAX >> (WORD_BITS - 1 - (to - 1) % WORD_BITS));
        while bits == 0 {
            if at as u64 * WORD_BITS <= from {
                return None;
            }
            at -= 1;
            bits = view(self.words[at]);
        }
        let unit = at as u64 * WORD_BITS + u64::from(bits.ilog2());
        (unit >= from).then_some(unit)
    }
}

fn word_of(unit: u64) -> usize {
    (unit / WORD_BITS) as usize
}

/// Calls `with` for each word that `count` units from `start` touch, with their bits.
fn for_words(start: u64, count: u64, mut with: impl FnMut(usize, u64)) {
    let end = start + count;
    let mut at = start;
    while at < end {
        let bits = (WORD_BITS - at % WORD_BITS).min(end - at);
        let mask = (u64::MAX >> (WORD_BITS - bits)) << (at % WORD_BITS);
        with(word_of(at), mask);
        at += bits;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        MarkUsed(u64, u64),
        Release(u64, u64),
        AllocateRun(u64),
        AllocateMany(u64),
        AllocateBack(u64, usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..420_u64, 0..150_u64).prop_map(|(start, count)| Step::MarkUsed(start, count)),
            (0..420_u64, 0..20_u64).prop_map(|(start, count)| Step::Release(start, count)),
            (0..420_u64, 0..150_u64).prop_map(|(start, count)| Step::Release(start, count)),
            (0..100_u64).prop_map(Step::AllocateRun),
            (0..200_u64).prop_map(Step::AllocateMany),
            (0..200_u64, 1..6_usize).prop_map(|(count, most)| Step::AllocateBack(count, most)),
        ]
    }

    /// The same as one `bool` a unit.
    struct Model(Vec<bool>);

    impl Model {
        /// The first unit of a range that is not as wanted; beyond the end none is.
        fn first_unlike(&self, used: bool, start: u64, count: u64) -> Option<u64> {
            (start..start + count).find(|i| self.0.get(*i as usize) != Some(&used))
        }

        fn set(&mut self, used: bool, units: impl IntoIterator<Item = u64>) {
            units.into_iter().for_each(|i| self.0[i as usize] = used);
        }

        fn longest_free_run(&self) -> u64 {
            self.free_runs().into_iter().max().unwrap_or(0)
        }

        fn free_runs(&self) -> Vec<u64> {
            self.0.split(|used| *used).map(|run| run.len() as u64).collect()
        }

        fn free(&self) -> u64 {
            self.0.iter().filter(|used| !**used).count() as u64
        }
    }

    fn take(map: &mut ExtentMap, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::MarkUsed(start, count) => {
                let expected = model.first_unlike(false, start, count);
                prop_assert_eq!(map.mark_used(start, count).err().map(|e| e.at), expected);
                if expected.is_none() {
                    model.set(true, start..start + count);
                }
            }
            Step::Release(start, count) => {
                let expected = model.first_unlike(true, start, count);
                prop_assert_eq!(map.release(start, count).err().map(|e| e.at), expected);
                if expected.is_none() {
                    model.set(false, start..start + count);
                }
            }
            Step::AllocateRun(count) => {
                let possible = count > 0 && count <= model.longest_free_run();
                let start = map.allocate_run(count);
                prop_assert_eq!(start.is_some(), possible);
                if let Some(start) = start {
                    prop_assert_eq!(model.first_unlike(false, start, count), None);
                    model.set(true, start..start + count);
                }
            }
            Step::AllocateMany(count) => {
                let possible = count <= model.free();
                let mut out = vec![u64::MAX];
                prop_assert_eq!(map.allocate_many(count, &mut out), possible);
                prop_assert_eq!(out.remove(0), u64::MAX, "`out` is appended to");
                prop_assert_eq!(out.len() as u64, if possible { count } else { 0 });
                prop_assert!(out.windows(2).all(|w| w[0] < w[1]), "ascending, none twice");
                prop_assert!(out.iter().all(|i| !model.0[*i as usize]));
                model.set(true, out);
            }
            Step::AllocateBack(count, most_runs) => {
                let mut runs = model.free_runs();
                runs.sort_unstable_by_key(|run| std::cmp::Reverse(*run));
                let possible = count > 0 && count <= runs.iter().take(most_runs).sum();
                let taken = map.allocate_back(count, most_runs);
                prop_assert_eq!(taken.is_some(), possible);
                let Some(taken) = taken else { return Ok(()) };
                let single = count <= model.longest_free_run();
                let most_runs = if single { 1 } else { most_runs };
                prop_assert!(taken.len() <= most_runs);
                prop_assert_eq!(taken.iter().map(|(_, run)| run).sum::<u64>(), count);
                if let [(start, run)] = taken[..] {
                    let above = (start + 1..model.0.len() as u64 - run + 1)
                        .find(|above| model.first_unlike(false, *above, run).is_none());
                    prop_assert_eq!(above, None, "a run nearer to the end");
                }
                for (start, run) in taken {
                    prop_assert_eq!(model.first_unlike(false, start, run), None);
                    model.set(true, start..start + run);
                }
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn agrees_with_the_model(len in 0..400_u64, steps in vec(any_step(), 0..60)) {
            let (mut map, mut model) = (ExtentMap::new(len), Model(vec![false; len as usize]));
            for step in steps {
                take(&mut map, &mut model, step)?;
                prop_assert_eq!(map.free(), model.free());
                for (unit, used) in model.0.iter().enumerate() {
                    prop_assert_eq!(map.is_used(unit as u64), *used);
                }
            }
            prop_assert_eq!((map.len(), map.is_empty()), (len, len == 0));
            prop_assert!(map.is_used(len));
        }
    }

    proptest! {
        #[test]
        fn a_common_run_is_the_lowest(
            used in vec(vec(any::<bool>(), 150), 1..4),
            gaps in vec((0..150_u64, 0..70_u64), 0..4),
            count in 1..70_u64,
        ) {
            let mut models: Vec<Model> = used.into_iter().map(Model).collect();
            for (start, len) in gaps {
                models.iter_mut().for_each(|m| m.set(false, start..(start + len).min(150)));
            }
            let maps: Vec<ExtentMap> = models.iter().map(|model| {
                let mut map = ExtentMap::new(150);
                (0..150).filter(|unit| model.0[*unit as usize]).for_each(|unit| {
                    map.cover(unit, 1);
                });
                map
            }).collect();
            let is_free = |start: &u64| {
                start + count <= 150
                    && models.iter().all(|model| model.first_unlike(false, *start, count).is_none())
            };
            prop_assert_eq!(ExtentMap::lowest_common_run(&maps, count), (0..150).find(is_free));
        }
    }

    #[test]
    fn allocation_goes_forward_and_wraps() {
        let mut map = ExtentMap::new(100);
        assert_eq!(map.allocate_run(40), Some(0));
        assert_eq!(map.allocate_run(40), Some(40));
        map.release(0, 40).unwrap();
        assert_eq!(map.allocate_run(10), Some(80), "not back to what was just released");
        assert_eq!(map.allocate_run(30), Some(0));
        assert_eq!(map.allocate_run(11), None);
        assert_eq!(map.free(), 20);
    }

    #[test]
    fn long_runs_are_taken_before_short_ones() {
        let mut map = ExtentMap::new(1000);
        map.mark_used(0, 1000).unwrap();
        for (start, count) in [(10, 1), (20, 2), (100, 300), (500, 20), (600, 260)] {
            map.release(start, count).unwrap();
        }
        let mut out = Vec::new();
        assert!(map.allocate_many(570, &mut out));
        let expected: Vec<u64> = (100..400).chain(500..510).chain(600..860).collect();
        assert_eq!(out, expected);
        assert!(!map.allocate_many(14, &mut out), "13 are free");
        assert!(map.allocate_many(13, &mut out));
        assert_eq!(map.free(), 0);
    }

    #[test]
    fn huge_ranges_are_errors() {
        let mut map = ExtentMap::new(100);
        assert_eq!(map.mark_used(1, u64::MAX), Err(AlreadyUsed { at: 100 }));
        assert_eq!(map.mark_used(u64::MAX, u64::MAX), Err(AlreadyUsed { at: u64::MAX }));
        map.mark_used(0, 100).unwrap();
        assert_eq!(map.release(1, u64::MAX), Err(NotUsed { at: 100 }));
        assert_eq!(map.release(u64::MAX, u64::MAX), Err(NotUsed { at: u64::MAX }));
    }

    #[test]
    fn a_million_fragmented_units() {
        let len = 1 << 20;
        let mut map = ExtentMap::new(len);
        map.mark_used(0, len).unwrap();
        for unit in (0..len).step_by(2) {
            map.release(unit, 1).unwrap();
        }
        assert_eq!(map.allocate_run(2), None);
        let mut out = Vec::new();
        assert!(map.allocate_many(len / 2, &mut out));
        assert!(out.iter().copied().eq((0..len).step_by(2)));
    }
}
