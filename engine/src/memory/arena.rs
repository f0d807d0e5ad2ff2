// SPDX-License-Identifier: Apache-2.0
//! An arena: cuts one region into buffers. Control path only: it locks and allocates.
//!
//! - Buffers start and end at block boundaries and never overlap.
//! - A range is allocated again only when its [`Buffer`] is dropped, no table has it registered,
//!   and no request in flight names it. Until then it waits in limbo; each allocation checks limbo.
//! - [`BufferUsage`] keeps the count. Code that makes a buffer reachable for a device calls `begin`
//!   first, and `end` when the device can no longer touch it: a session around its ring (submit to
//!   completion), a reactor around its commands (accept to completion). Each does so for itself.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Region;
use super::table::Registration;
use super::usage::BufferUsage;
use crate::error::Error;
use crate::limits::BLOCK_BYTES;
use crate::units::round_up;

/// Allocates ranges of one region.
#[derive(Clone)]
pub struct Arena {
    memory: Arc<ArenaMemory>,
}

/// A region and its allocated ranges; shared by the arena and its buffers.
struct ArenaMemory {
    region: Arc<Region>,
    ranges: Mutex<Ranges>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    offset_bytes: u64,
    len_bytes: u64,
}

impl Range {
    fn end(self) -> u64 {
        self.offset_bytes + self.len_bytes
    }
}

#[derive(Default)]
struct Ranges {
    /// By offset; no two are adjacent.
    free: Vec<Range>,
    limbo: Vec<(Range, Arc<BufferUsage>)>,
}

impl Ranges {
    /// First fit.
    fn take(&mut self, len_bytes: u64) -> Option<u64> {
        let place = self.free.iter().position(|range| range.len_bytes >= len_bytes)?;
        let range = &mut self.free[place];
        let offset_bytes = range.offset_bytes;
        range.offset_bytes += len_bytes;
        range.len_bytes -= len_bytes;
        if range.len_bytes == 0 {
            self.free.remove(place);
        }
        Some(offset_bytes)
    }

    fn give_back(&mut self, mut range: Range) {
        let mut place = self.free.partition_point(|free| free.offset_bytes < range.offset_bytes);
        if let Some(after) = self.free.get(place) {
            assert!(range.end() <= after.offset_bytes, "a range was given back twice");
            if range.end() == after.offset_bytes {
                range.len_bytes += after.len_bytes;
                self.free.remove(place);
            }
        }
        if let Some(before) = place.checked_sub(1).map(|before| self.free[before]) {
            assert!(before.end() <= range.offset_bytes, "a range was given back twice");
            if before.end() == range.offset_bytes {
                range = Range {
                    offset_bytes: before.offset_bytes,
                    len_bytes: before.len_bytes + range.len_bytes,
                };
                place -= 1;
                self.free.remove(place);
            }
        }
        self.free.insert(place, range);
    }

    fn empty_limbo(&mut self) {
        let limbo = std::mem::take(&mut self.limbo);
        for (range, usage) in limbo {
            if usage.is_unreachable() {
                self.give_back(range);
            } else {
                self.limbo.push((range, usage));
            }
        }
    }
}

impl Arena {
    /// All of the region, free. No other code may allocate from it.
    pub fn new(region: Arc<Region>) -> Arena {
        let all = Range { offset_bytes: 0, len_bytes: region.len_bytes() };
        let ranges = Mutex::new(Ranges { free: vec![all], limbo: Vec::new() });
        Arena { memory: Arc::new(ArenaMemory { region, ranges }) }
    }

    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        &self.memory.region
    }

    /// A buffer of `len_bytes`, rounded up to whole blocks. Its old bytes are not cleared.
    ///
    /// # Errors
    /// [`Error::Usage`] for no bytes at all; [`Error::Environment`] when no free range is large
    /// enough.
    pub fn alloc(&self, len_bytes: u64) -> Result<Buffer, Error> {
        let rounded = round_up(len_bytes, BLOCK_BYTES).filter(|&rounded| rounded != 0);
        let Some(len_bytes) = rounded else {
            return Err(Error::Usage(format!("a buffer of {len_bytes} bytes cannot be allocated")));
        };
        let mut ranges = self.memory.lock();
        ranges.empty_limbo();
        let Some(offset_bytes) = ranges.take(len_bytes) else {
            let free = ranges.free.iter().map(|range| range.len_bytes);
            return Err(Error::Environment(format!(
                "buffer memory: {len_bytes} bytes in one piece were requested; {} of {} bytes are free, \
                 the largest piece has {}; free buffers, or open with more memory",
                free.clone().sum::<u64>(),
                self.memory.region.len_bytes(),
                free.max().unwrap_or(0),
            )));
        };
        drop(ranges);
        let range = Range { offset_bytes, len_bytes };
        let usage = Arc::new(BufferUsage::default());
        Ok(Buffer { memory: Arc::clone(&self.memory), range, usage })
    }

    /// Bytes that could be allocated now, in however many pieces.
    #[cfg(any(test, feature = "internals"))]
    pub fn free_bytes(&self) -> u64 {
        let mut ranges = self.memory.lock();
        ranges.empty_limbo();
        ranges.free.iter().map(|range| range.len_bytes).sum()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("region", &self.memory.region).finish_non_exhaustive()
    }
}

impl ArenaMemory {
    /// The lists are complete wherever a panic could occur, so a poisoned lock can still be used.
    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range of an arena's region, owned. Keeps the region mapped.
pub struct Buffer {
    memory: Arc<ArenaMemory>,
    range: Range,
    usage: Arc<BufferUsage>,
}

impl Buffer {
    /// The region it lies in.
    pub fn region(&self) -> &Arc<Region> {
        &self.memory.region
    }

    /// Where in the region; block aligned.
    pub fn offset_bytes(&self) -> u64 {
        self.range.offset_bytes
    }

    /// A whole number of blocks, at least one.
    pub fn len_bytes(&self) -> u64 {
        self.range.len_bytes
    }

    /// The count of its users.
    pub fn usage(&self) -> &Arc<BufferUsage> {
        &self.usage
    }

    /// The entry for a [`super::BufferTable`].
    pub fn registration(&self) -> Registration {
        Registration::new(
            Arc::clone(&self.memory.region),
            self.range.offset_bytes,
            self.range.len_bytes,
            Arc::clone(&self.usage),
        )
    }

    /// The first byte. Valid as long as the buffer; a caller that dereferences it argues why that
    /// is sound.
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: the range lies within the region: `Arena::new` started with exactly that.
        unsafe { self.memory.region.base().add(self.range.offset_bytes as usize) }
    }

    /// The bytes.
    ///
    /// Not for regions that another process writes: for those there is [`Buffer::as_ptr`].
    ///
    /// # Errors
    /// [`Error::Usage`] while a request in flight names the buffer.
    pub fn as_slice(&self) -> Result<&[u8], Error> {
        self.require_idle()?;
        // SAFETY: mapped, initialised (a memfd is zeroed), owned by this buffer alone, and no
        // device touches it: code that lets one do so calls `begin` first, and the check showed
        // that none has. A session that submits for its caller borrows the buffer mutably, which
        // ends this borrow.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr(), self.len()) })
    }

    /// The bytes, to change. The same conditions as for [`Buffer::as_slice`].
    ///
    /// # Errors
    /// [`Error::Usage`] while a request in flight names the buffer.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8], Error> {
        self.require_idle()?;
        // SAFETY: as for `as_slice`, and `&mut self` is the only way to these bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len()) })
    }

    fn len(&self) -> usize {
        self.range.len_bytes as usize
    }

    fn require_idle(&self) -> Result<(), Error> {
        if self.usage.is_idle() {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "the buffer at byte {} of its region is in flight; wait for its completions first",
            self.range.offset_bytes
        )))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("range", &self.range).field("usage", &self.usage).finish()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut ranges = self.memory.lock();
        if self.usage.is_unreachable() {
            ranges.give_back(self.range);
        } else {
            ranges.limbo.push((self.range, Arc::clone(&self.usage)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{BufferTable, HugePages};
    use proptest::prelude::*;

    fn arena() -> Arena {
        Arena::new(Arc::new(Region::new(1, HugePages::Off).unwrap()))
    }

    #[test]
    fn buffers_are_cut_and_joined_again() {
        let arena = arena();
        let total = arena.region().len_bytes();
        let buffers: Vec<_> = (0..3).map(|_| arena.alloc(5000).unwrap()).collect();
        assert_eq!(buffers.iter().map(Buffer::offset_bytes).collect::<Vec<_>>(), [0, 8192, 16384]);
        assert_eq!(arena.free_bytes(), total - 3 * 8192);
        let mut buffers = buffers.into_iter();
        let (first, second, third) =
            (buffers.next().unwrap(), buffers.next().unwrap(), buffers.next().unwrap());
        drop(first);
        drop(third);
        assert!(matches!(arena.alloc(total), Err(Error::Environment(_))));
        drop(second);
        assert_eq!(arena.alloc(total).unwrap().len_bytes(), total);
    }

    #[test]
    fn impossible_lengths_are_errors() {
        let arena = arena();
        for len_bytes in [0, u64::MAX] {
            assert!(matches!(arena.alloc(len_bytes), Err(Error::Usage(_))));
        }
        let error = arena.alloc(1 << 40).unwrap_err().to_string();
        assert!(error.contains("2097152 of 2097152 bytes are free"), "{error}");
    }

    #[test]
    fn bytes_are_lent_only_while_idle() {
        let mut buffer = arena().alloc(1).unwrap();
        buffer.as_mut_slice().unwrap().fill(7);
        let usage = Arc::clone(buffer.usage());
        usage.begin();
        assert!(matches!(buffer.as_mut_slice(), Err(Error::Usage(_))));
        assert!(buffer.as_slice().is_err());
        usage.end();
        assert!(buffer.as_slice().unwrap().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_buffer_dropped_in_flight_keeps_its_range() {
        let arena = arena();
        let total = arena.region().len_bytes();
        let mut table = BufferTable::new(1);
        let buffer = arena.alloc(4096).unwrap();
        let key = table.insert(buffer.registration()).unwrap();
        let usage = Arc::clone(buffer.usage());
        usage.begin();
        drop(buffer);
        assert_eq!(arena.free_bytes(), total - 4096);
        usage.end();
        assert_eq!(arena.free_bytes(), total - 4096, "a table still lists it");
        usage.begin();
        assert!(table.remove(key));
        assert_eq!(arena.free_bytes(), total - 4096, "a request still names it");
        assert_ne!(arena.alloc(4096).unwrap().offset_bytes(), 0);
        usage.end();
        assert_eq!(arena.alloc(total).unwrap().len_bytes(), total);
    }

    proptest! {
        /// Buffers never overlap, and what is free and what is held add up to the region.
        #[test]
        fn ranges_are_neither_lost_nor_doubled(
            steps in prop::collection::vec((1..300_000u64, any::<bool>(), any::<usize>()), 1..100),
        ) {
            let arena = arena();
            let total = arena.region().len_bytes();
            let mut held: Vec<Buffer> = Vec::new();
            let mut flying = Vec::new();
            for (len_bytes, fly, pick) in steps {
                match arena.alloc(len_bytes) {
                    Ok(buffer) => held.push(buffer),
                    Err(_) if held.is_empty() => {
                        flying.drain(..).for_each(|usage: Arc<BufferUsage>| usage.end());
                    }
                    Err(_) => {
                        let buffer = held.swap_remove(pick % held.len());
                        if fly {
                            buffer.usage().begin();
                            flying.push(Arc::clone(buffer.usage()));
                        }
                    }
                }
                let mut ranges: Vec<_> = held.iter().map(|buffer| buffer.range).collect();
                arena.free_bytes();
                let shared = arena.memory.lock();
                ranges.extend(shared.free.iter().copied());
                ranges.extend(shared.limbo.iter().map(|(range, _)| *range));
                ranges.sort_by_key(|range| range.offset_bytes);
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end() == pair[1].offset_bytes));
                prop_assert_eq!(ranges.iter().map(|range| range.len_bytes).sum::<u64>(), total);
                prop_assert!(shared.free.windows(2).all(|pair| pair[0].end() < pair[1].offset_bytes));
            }
            held.clear();
            flying.drain(..).for_each(|usage| usage.end());
            prop_assert_eq!(arena.free_bytes(), total);
            prop_assert_eq!(arena.memory.lock().free.len(), 1);
        }
    }
}
