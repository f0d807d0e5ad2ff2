// SPDX-License-Identifier: Apache-2.0
//! What a polling thread does when it has no work: spin, then nap, then park.
//!
//! Spinning keeps latency low while operations flow and makes no system call. Napping limits the
//! cost of a short pause. Parking frees the core until another thread wakes it.
//!
//! All except polling reactors learn whether spinning pays: if the last pause was longer than the
//! spin, the next one starts with a nap. A nap hides how short a pause was, so one pause in
//! [`PROBE_EVERY`] spins again. On a machine with few cores, spinning would take the core from the
//! reactor.

use std::time::{Duration, Instant};

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// Check again at once.
    Spin,
    /// Sleep for this time, then check again.
    Nap(Duration),
    /// Wait to be woken, at most for this time.
    Park(Duration),
}

/// The longest park: drives need their upkeep even when idle (keep-alive, timeouts).
pub(crate) const MAX_PARK: Duration = Duration::from_millis(50);

/// How long a reactor naps: the first time that it has no work, and always while a caller waits for
/// a slow drive.
pub(crate) const REACTOR_NAP: Duration = Duration::from_micros(50);

/// Counts how long there was no work.
pub(crate) struct Backoff {
    since: Option<Instant>,
    spins: u32,
    spin_time: Duration,
    park_after: Duration,
    shortest_nap: Duration,
    longest_nap: Duration,
    nap: Duration,
    /// Learns whether spinning pays; a polling reactor does not, because its spinning serves
    /// others.
    learns: bool,
    spinning_pays: bool,
    /// Pauses so far, if it learns.
    pauses: u32,
}

/// One pause in this many spins, to check whether that pays again.
const PROBE_EVERY: u32 = 32;

impl Backoff {
    /// For a reactor. It spins after the last work for long enough that a trainer which is
    /// preempted for a time slice finds it awake. With interrupt-driven drives the kernel's own
    /// work may need the core: then it naps instead, and longer while a drive is slow.
    pub(crate) fn reactor(interrupt_driven: bool) -> Backoff {
        let (park_after, nap) = (Duration::from_millis(20), REACTOR_NAP);
        if !interrupt_driven {
            return Backoff::new(Duration::from_millis(10), park_after, nap);
        }
        let longest_nap = Duration::from_micros(200);
        let backoff = Backoff::new(Duration::from_micros(50), park_after, nap);
        Backoff { longest_nap, learns: true, ..backoff }
    }

    /// For a checksum helper. Chunks come every few hundred microseconds, so it naps early. Its
    /// naps grow, since each costs its core two context switches and a timer: with a chunk every
    /// millisecond, steady naps of 50 microseconds cost several times what the checksums do. A nap
    /// is never longer than the wait before it, so that a checksum is late by at most the time
    /// without work.
    pub(crate) fn helper() -> Backoff {
        let longest_nap = Duration::from_micros(400);
        let nap = Duration::from_micros(50);
        let backoff = Backoff::new(Duration::from_micros(20), Duration::from_millis(20), nap);
        Backoff { longest_nap, learns: true, ..backoff }
    }

    /// For a trainer that waits for completions.
    pub(crate) fn waiter() -> Backoff {
        let backoff =
            Backoff::new(Duration::from_micros(50), Duration::from_micros(50), Duration::ZERO);
        Backoff { learns: true, ..backoff }
    }

    fn new(spin_time: Duration, park_after: Duration, nap: Duration) -> Backoff {
        let (shortest_nap, longest_nap) = (nap, nap);
        Backoff {
            since: None,
            spins: 0,
            spin_time,
            park_after,
            shortest_nap,
            longest_nap,
            nap,
            learns: false,
            spinning_pays: true,
            pauses: 0,
        }
    }

    /// There was work.
    pub(crate) fn reset(&mut self) {
        if let Some(since) = self.since.take()
            && self.learns
        {
            self.pauses = self.pauses.wrapping_add(1);
            self.spinning_pays =
                since.elapsed() <= self.spin_time || self.pauses.is_multiple_of(PROBE_EVERY);
        }
        self.spins = 0;
        self.nap = self.shortest_nap;
    }

    /// There was none. `keep_spinning`: a device works for us, and only polling shows when it is
    /// done.
    pub(crate) fn next(&mut self, keep_spinning: bool) -> Pause {
        // Reading the clock costs more than checking the queues: once in a while is enough.
        self.spins = self.spins.wrapping_add(1);
        if keep_spinning || (self.since.is_some() && !self.spins.is_multiple_of(32)) {
            return Pause::Spin;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let idle = since.elapsed();
        if self.spinning_pays && idle < self.spin_time {
            return Pause::Spin;
        }
        // From here on each check is followed by a pause, so the clock is read each time.
        self.spins = u32::MAX;
        if idle >= self.park_after {
            return Pause::Park(MAX_PARK);
        }
        let nap = self.nap;
        self.nap = (nap * 2).min(self.longest_nap);
        Pause::Nap(nap)
    }
}

/// Makes the kernel end this thread's short sleeps on time instead of 50 microseconds late.
pub(crate) fn shorten_timer_slack() {
    crate::memory::set_timer_slack_ns(1_000);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(backoff: &mut Backoff) -> Pause {
        (0..64).map(|_| backoff.next(false)).find(|p| *p != Pause::Spin).unwrap_or(Pause::Spin)
    }

    #[test]
    fn spin_then_nap_then_park() {
        let mut backoff = Backoff::helper();
        assert_eq!(backoff.next(false), Pause::Spin);
        std::thread::sleep(Duration::from_millis(1));
        assert!(matches!(later(&mut backoff), Pause::Nap(_)));
        assert_eq!(backoff.next(true), Pause::Spin);
        std::thread::sleep(Duration::from_millis(25));
        assert!(matches!(later(&mut backoff), Pause::Park(_)));
        backoff.reset();
        assert!(matches!(backoff.next(false), Pause::Nap(_)));
    }

    #[test]
    fn after_a_useless_spin_it_naps_at_once_and_spins_again_later() {
        let mut backoff = Backoff::waiter();
        assert_eq!(backoff.next(false), Pause::Spin);
        std::thread::sleep(Duration::from_millis(1));
        backoff.reset();
        for _ in 1..PROBE_EVERY {
            assert_ne!(backoff.next(false), Pause::Spin);
            std::thread::sleep(Duration::from_millis(1));
            backoff.reset();
        }
        assert_eq!(backoff.next(false), Pause::Spin);
    }

    #[test]
    fn naps_grow_until_there_is_work() {
        let mut backoff = Backoff::helper();
        let mut naps = || {
            backoff.spinning_pays = true;
            assert_eq!(backoff.next(false), Pause::Spin);
            std::thread::sleep(Duration::from_millis(1));
            let naps: Vec<_> = (0..6).map(|_| later(&mut backoff)).collect();
            backoff.reset();
            naps
        };
        let expected =
            [50, 100, 200, 400, 400, 400].map(|us| Pause::Nap(Duration::from_micros(us)));
        // A machine that stops for 20 milliseconds meanwhile turns them into parks.
        assert!((0..10).any(|_| naps() == expected));
    }
}
