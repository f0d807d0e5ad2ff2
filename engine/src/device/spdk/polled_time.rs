// SPDX-License-Identifier: Apache-2.0
//! The time during which a device was polled, by which its commands are judged to be late.
//!
//! A reactor that was stopped, or had no core, has sent nothing and seen no completion meanwhile:
//! that time says nothing about the drive. So a gap between two polls counts as one short step.

use std::time::{Duration, Instant};

/// What counts of a gap between two polls. A polling thread rests for less.
const MAX_GAP: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(super) struct PolledTime {
    last_poll: Instant,
    /// Runs as the clock does while the device is polled, and stands still otherwise.
    now: Instant,
}

impl PolledTime {
    pub(super) fn new(now: Instant) -> PolledTime {
        PolledTime { last_poll: now, now }
    }

    /// A poll takes place. Returns [`Self::now`] of it.
    pub(super) fn advance(&mut self, now: Instant) -> Instant {
        let gap = now.saturating_duration_since(self.last_poll);
        self.last_poll = now;
        self.now += gap.min(MAX_GAP);
        self.now
    }

    /// Where commands that are submitted now begin.
    pub(super) fn now(&self) -> Instant {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_one_short_step() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut time = PolledTime::new(start);
        for ms in [10, 20, 100] {
            assert_eq!(time.advance(at(ms)), at(ms));
        }
        // An hour without a poll.
        assert_eq!(time.advance(at(3_600_100)), at(200));
        assert_eq!(time.advance(at(3_600_150)), at(250));
        // A clock that does not move, or seems to go back.
        assert_eq!(time.advance(at(3_600_150)), at(250));
        assert_eq!(time.advance(at(10)), at(250));
        assert_eq!(time.now(), at(250));
    }

    #[test]
    fn a_drive_that_is_polled_and_silent_is_late_in_time() {
        let start = Instant::now();
        let mut time = PolledTime::new(start);
        let begun = time.now();
        for step in 1..=300 {
            time.advance(start + step * MAX_GAP);
        }
        assert_eq!(time.now() - begun, Duration::from_secs(30));
    }
}
