//! Which units of an area are used: chunk slots of a drive, or blocks of the metadata area.
//!
//! Invariants:
//! - The map lives in memory only. It is derived from the reachable manifests at open, so a crash
//!   can neither leak a unit nor free one twice.
//! - A unit is used or free; using a used one and releasing a free one are errors that change
//!   nothing.
//! - `free` is the number of zero bits below `len`; bits at and above `len` are set.

use thiserror::Error;

const WORD_BITS: u64 = u64::BITS as u64;

/// The shortest run that `allocate_many` takes in each of its passes, when no single run is long
/// enough: long runs first, so that drives write sequentially, in few passes over a full map.
const SHORTEST_RUNS: [u64; 3] = [256, 16, 1];

/// A unit was to be used that is used already, or that the map does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("unit {at} is used already, or does not exist")]
pub struct AlreadyUsed {
    /// The first such unit.
    pub at: u64,
}

/// A unit was to be released that is not used, or that the map does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("unit {at} is not used, or does not exist")]
pub struct NotUsed {
    /// The first such unit.
    pub at: u64,
}

/// The used units of one area.
#[derive(Clone, Debug)]
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

    /// Whether a unit is used; one that does not exist is.
    pub fn is_used(&self, unit: u64) -> bool {
        unit >= self.len || self.words[word_of(unit)] >> (unit % WORD_BITS) & 1 == 1
    }

    /// Uses `count` units from `start`, all of which must be free.
    pub fn mark_used(&mut self, start: u64, count: u64) -> Result<(), AlreadyUsed> {
        if count == 0 {
            return Ok(());
        }
        let used = self.next_used(start);
        if start >= self.len || used - start < count {
            return Err(AlreadyUsed { at: used });
        }
        self.set(start, count);
        Ok(())
    }

    /// Forgets everything: all units are free. The next search starts where it would have.
    pub fn clear(&mut self) {
        let cursor = self.cursor;
        *self = ExtentMap::new(self.len);
        self.cursor = cursor;
    }

    /// Uses whichever of `count` units from `start` exist and are not used yet: more than one
    /// manifest may name a unit.
    pub fn cover(&mut self, start: u64, count: u64) {
        let end = start.saturating_add(count).min(self.len);
        let mut from = start;
        while let Some(free) = self.next_free(from).filter(|free| *free < end) {
            let until = self.next_used(free).min(end);
            self.set(free, until - free);
            from = until;
        }
    }

    /// Releases `count` units from `start`, all of which must be used.
    pub fn release(&mut self, start: u64, count: u64) -> Result<(), NotUsed> {
        if count == 0 {
            return Ok(());
        }
        let free = self.next_free(start).unwrap_or(self.len.max(start));
        if start >= self.len || free - start < count {
            return Err(NotUsed { at: free });
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
        let start = self.runs().find(|(_, run)| *run >= count).map(|(start, _)| start)?;
        self.set(start, count);
        self.cursor = start + count;
        Some(start)
    }

    /// Uses `count` units and appends them to `out`, ascending; or uses none and returns `false`
    /// when fewer are free. Takes one run where there is one, else long runs before short ones.
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
            // Gathered before use, because using a run moves what is being walked over.
            let mut taken = Vec::new();
            for (start, run) in self.runs().filter(|(_, run)| *run >= shortest) {
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

    /// Every free run once, as start and length: those that start behind the cursor, then those
    /// before it. A run that the cursor splits is one of the latter.
    fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let splits = self.cursor > 0 && !self.is_used(self.cursor - 1);
        let behind = if splits { self.next_used(self.cursor) } else { self.cursor };
        self.runs_from(behind)
            .chain(self.runs_from(0).take_while(|(start, _)| *start < self.cursor))
    }

    fn runs_from(&self, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut from = from;
        std::iter::from_fn(move || {
            let start = self.next_free(from)?;
            from = self.next_used(start);
            Some((start, from - start))
        })
    }

    fn set(&mut self, start: u64, count: u64) {
        for_words(start, count, |word, mask| self.words[word] |= mask);
        self.free -= count;
    }

    /// The first free unit at or behind `from`.
    fn next_free(&self, from: u64) -> Option<u64> {
        self.next_bit(from, |word| !word)
    }

    /// The first used unit at or behind `from`; the end of the map counts as used.
    fn next_used(&self, from: u64) -> u64 {
        self.next_bit(from, |word| word).map_or(self.len.max(from), |unit| unit.min(self.len))
    }

    /// The first unit at or behind `from` whose bit is set in what `view` makes of its word.
    fn next_bit(&self, from: u64, view: impl Fn(u64) -> u64) -> Option<u64> {
        if from >= self.len {
            return None;
        }
        let first = word_of(from);
        let mut masked = view(self.words[first]) & (u64::MAX << (from % WORD_BITS));
        let mut at = first;
        while masked == 0 {
            at += 1;
            masked = view(*self.words.get(at)?);
        }
        Some(at as u64 * WORD_BITS + u64::from(masked.trailing_zeros()))
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
