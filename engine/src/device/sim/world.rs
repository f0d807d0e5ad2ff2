// SPDX-License-Identifier: Apache-2.0
//! What simulated drives have in common: one power supply and one count of commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The power and the clock of a set of simulated drives. Cloning gives another handle on the same.
///
/// The order of events is only as deterministic as the threads that cause them: with one thread it
/// depends on the seeds alone.
#[derive(Clone, Debug, Default)]
pub struct SimWorld(Arc<World>);

#[derive(Debug)]
struct World {
    /// Commands offered to all drives, except those that found a full queue or were malformed.
    submitted: AtomicU64,
    /// The first command, counted as in `submitted`, that is not accepted any more.
    crash_at: AtomicU64,
    off: AtomicBool,
    ticks: AtomicU64,
}

impl Default for World {
    fn default() -> Self {
        World {
            submitted: AtomicU64::new(0),
            crash_at: AtomicU64::new(u64::MAX),
            off: AtomicBool::new(false),
            ticks: AtomicU64::new(0),
        }
    }
}

impl SimWorld {
    /// A world with power and no crash planned.
    pub fn new() -> SimWorld {
        SimWorld::default()
    }

    /// Commands offered to the drives of this world so far.
    pub fn submitted(&self) -> u64 {
        self.0.submitted.load(Ordering::SeqCst)
    }

    /// Plans a power cut, counted from now over all drives: `commands` more commands are accepted;
    /// the one after them, and everything later, never executes and fails with
    /// [`crate::IoError::Removed`]. Commands in flight at that moment never complete successfully.
    pub fn crash_after(&self, commands: u64) {
        self.0.crash_at.store(self.submitted().saturating_add(commands), Ordering::SeqCst);
    }

    /// Cuts the power now.
    pub fn power_off(&self) {
        self.0.off.store(true, Ordering::SeqCst);
    }

    /// Restores power and cancels a planned crash. [`super::SimDrive::crash`], called before,
    /// decides what the cut did to each drive's cache; without it the caches survived.
    pub fn power_on(&self) {
        self.0.crash_at.store(u64::MAX, Ordering::SeqCst);
        self.0.off.store(false, Ordering::SeqCst);
    }

    /// Whether the power is on.
    pub fn has_power(&self) -> bool {
        !self.0.off.load(Ordering::SeqCst)
    }

    /// Counts one command; returns whether it is still executed.
    pub(super) fn admit(&self) -> bool {
        let number = self.0.submitted.fetch_add(1, Ordering::SeqCst);
        if number >= self.0.crash_at.load(Ordering::SeqCst) {
            self.power_off();
        }
        self.has_power()
    }

    /// The next number in the order of traced events.
    pub(super) fn tick(&self) -> u64 {
        self.0.ticks.fetch_add(1, Ordering::SeqCst)
    }
}
