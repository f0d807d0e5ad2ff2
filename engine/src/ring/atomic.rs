// SPDX-License-Identifier: Apache-2.0
//! The atomics of the ring protocol: the real ones, or loom's while it checks the protocol.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(super) use ::loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The place of one entry. Its words are atomic because a peer that breaks the rules may write them
/// at any time. Between peers that keep the rules the indices alone prevent that: loom checks this
/// with a cell that every access touches and that allows no race.
#[cfg_attr(not(loom), repr(transparent))]
pub(super) struct Slot<const WORDS: usize> {
    words: [AtomicU64; WORDS],
    #[cfg(loom)]
    unraced: ::loom::cell::UnsafeCell<()>,
}

impl<const WORDS: usize> Slot<WORDS> {
    /// One read per word: the copy consists of whole words, whatever they were, and only the copy
    /// is used afterwards.
    pub(super) fn load(&self) -> [u64; WORDS] {
        #[cfg(loom)]
        self.unraced.with(|_| ());
        std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed))
    }

    pub(super) fn store(&self, words: [u64; WORDS]) {
        #[cfg(loom)]
        self.unraced.with_mut(|_| ());
        self.words.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
    }

    #[cfg(loom)]
    pub(super) fn new() -> Self {
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        Slot { words, unraced: ::loom::cell::UnsafeCell::new(()) }
    }
}
