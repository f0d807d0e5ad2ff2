// SPDX-License-Identifier: Apache-2.0
//! Bugs that can be planted, to show that the crash explorer finds them.
//!
//! Without the cargo feature `planted-bugs`, `planted` is a constant `false` and its calls cost
//! nothing. The feature is for `scripts/crash-test --planted`, never for a release.

/// A bug, planted at one place in the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Bug {
    /// The commit does not flush the drives before it writes the root.
    SkipFlush = 1,
    /// The root is written before the metadata that it names.
    RootFirst,
    /// The space that a generation freed is used again at once, not one generation later.
    ExtentFreedEarly,
    /// Every generation's catalogue goes to the same slot.
    SlotReused,
    /// Neither metadata hashes nor data checksums are compared.
    ChecksumNotCompared,
    /// The state adopts a generation before it is durable.
    AdoptedEarly,
    /// An older generation is chosen by its number, not as the parent of the newest root.
    ParentNotChecked,
    /// A repair blanks a place for a root that it could not read.
    UnreadRootZeroed,
    /// A drive is admitted in place of one that is sound and was only not named.
    HealthyReplaced,
}

impl Bug {
    /// All of them.
    #[cfg(any(test, feature = "internals"))]
    pub const ALL: [Bug; 9] = [
        Bug::SkipFlush,
        Bug::RootFirst,
        Bug::ExtentFreedEarly,
        Bug::SlotReused,
        Bug::ChecksumNotCompared,
        Bug::AdoptedEarly,
        Bug::ParentNotChecked,
        Bug::UnreadRootZeroed,
        Bug::HealthyReplaced,
    ];

    /// Its name on the command line.
    #[cfg(any(test, feature = "internals"))]
    pub fn name(self) -> &'static str {
        match self {
            Bug::SkipFlush => "skip-flush",
            Bug::RootFirst => "root-first",
            Bug::ExtentFreedEarly => "extent-freed-early",
            Bug::SlotReused => "slot-reused",
            Bug::ChecksumNotCompared => "checksum-not-compared",
            Bug::AdoptedEarly => "adopted-early",
            Bug::ParentNotChecked => "parent-not-checked",
            Bug::UnreadRootZeroed => "unread-root-zeroed",
            Bug::HealthyReplaced => "healthy-replaced",
        }
    }
}

/// A thread of the engine that can be made to panic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Victim {
    /// One that polls drives and serves sessions.
    Reactor = 1,
    /// The one that commits.
    Keeper,
    /// One that computes checksums.
    Helper,
}

/// A place where a thread panics if that is planted: the places are where something is half done.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn may_panic(_: Victim) {}

/// Whether this bug is planted.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub(crate) use with_bugs::{may_panic, planted};
#[cfg(feature = "planted-bugs")]
#[allow(unused_imports, reason = "tests use them")]
pub use with_bugs::{panics_left, plant, plant_panic};

#[cfg(feature = "planted-bugs")]
#[cfg_attr(not(feature = "internals"), allow(dead_code, reason = "only tests plant them"))]
mod with_bugs {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    use super::{Bug, Victim};

    static PLANTED: AtomicU8 = AtomicU8::new(0);

    /// Plants a bug in this process, in place of the one before.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.store(bug.map_or(0, |bug| bug as u8), Ordering::SeqCst);
    }

    static VICTIM: AtomicU8 = AtomicU8::new(0);
    static PLACES_LEFT: AtomicU64 = AtomicU64::new(0);

    /// Lets a thread of this kind panic at the place that it, or another of its kind, reaches as
    /// number `place`, counted from 1.
    pub fn plant_panic(victim: Victim, place: u64) {
        PLACES_LEFT.store(place, Ordering::SeqCst);
        VICTIM.store(victim as u8, Ordering::SeqCst);
    }

    /// Whether the planted panic has not happened yet.
    pub fn panics_left() -> bool {
        VICTIM.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn may_panic(victim: Victim) {
        if VICTIM.load(Ordering::Relaxed) == victim as u8
            && PLACES_LEFT.fetch_sub(1, Ordering::SeqCst) == 1
        {
            VICTIM.store(0, Ordering::SeqCst);
            panic!("planted");
        }
    }

    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.load(Ordering::Relaxed) == bug as u8
    }
}
