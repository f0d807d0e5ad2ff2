// SPDX-License-Identifier: Apache-2.0
//! The traffic of a session: entries out, completions in, and the wait for them.
//!
//! - [`Traffic::submit`] and [`Traffic::peek`] make no system call and no allocation, except for
//!   the event of a session that has one.
//! - They look only at the ring: its state shows whether the engine still serves it.
//! - A wait spins for a moment, as long as that helped before, and then sleeps until it is woken.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::sync::{Parker, Unparker};

use crate::backoff::{Backoff, Pause};
use crate::error::Error;
use crate::memory::BufferUsage;
use crate::ring::{self, CompleteEntry, Event, RingSizes, RingState, SubmitEntry, SubmitOutcome};
use crate::session::front::level::Level;
use crate::session::front::outstanding::Outstanding;

/// The client's end of a ring, and its entries in flight.
pub(super) struct Traffic {
    client: ring::Client,
    parker: Parker,
    /// For waits: adapts to the recent ones.
    backoff: Backoff,
    outstanding: Outstanding,
    level: Option<Level>,
}

impl Traffic {
    /// A new ring. The other result is its engine's end.
    pub(super) fn new(sizes: RingSizes) -> Result<(Traffic, ring::Engine), Error> {
        let (client, engine) = ring::pair(sizes)?;
        let traffic = Traffic {
            client,
            parker: Parker::new(),
            backoff: Backoff::waiter(),
            outstanding: Outstanding::new(sizes.complete_entries()),
            level: None,
        };
        Ok((traffic, engine))
    }

    /// What wakes the client.
    pub(super) fn unparker(&self) -> Unparker {
        self.parker.unparker().clone()
    }

    /// Entries may name this buffer from now on.
    pub(super) fn add_buffer(&mut self, key: u32, usage: &Arc<BufferUsage>) {
        self.outstanding.add_buffer(key, usage);
    }

    /// The descriptor of the session's event. The first call makes it and gives it to the engine by
    /// `attach`.
    pub(super) fn event_fd(
        &mut self,
        attach: impl FnOnce(Arc<Event>) -> Result<(), Error>,
    ) -> Result<BorrowedFd<'_>, Error> {
        if self.level.is_none() {
            let event = Arc::new(Event::new()?);
            attach(Arc::clone(&event))?;
            let mut level = Level::new(event);
            level.keep(&mut self.client);
            self.level = Some(level);
        }
        match &self.level {
            Some(level) => Ok(level.event().as_fd()),
            None => Err(Error::Closed("the session")),
        }
    }

    /// Puts entries on the ring, as many as there is room for.
    pub(super) fn submit(&mut self, entries: &[SubmitEntry]) -> SubmitOutcome {
        let outstanding = &mut self.outstanding;
        self.client.submit_each(entries, |entry| outstanding.depart(entry))
    }

    /// Takes the completions that are there; returns how many.
    pub(super) fn peek(&mut self, out: &mut [CompleteEntry]) -> usize {
        let count = self.take(out);
        self.keep_level();
        count
    }

    /// Takes at least `min` completions, waiting up to `timeout` for them; returns how many.
    pub(super) fn wait(
        &mut self,
        out: &mut [CompleteEntry],
        min: usize,
        timeout: Duration,
    ) -> usize {
        let min = min.min(out.len());
        let deadline = Instant::now().checked_add(timeout);
        let mut count = self.take(out);
        while count < min {
            let left =
                deadline.map_or(Duration::MAX, |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() || (!self.is_served() && !self.client.has_completions()) {
                break;
            }
            if self.backoff.next(false) == Pause::Spin {
                std::hint::spin_loop();
            } else {
                self.sleep(left.min(Duration::from_secs(1)));
            }
            let taken = self.take(&mut out[count..]);
            if taken > 0 {
                self.backoff.reset();
            }
            count += taken;
        }
        self.backoff.reset();
        self.keep_level();
        count
    }

    /// Sleeps until the reactor's signal, unless there are completions.
    fn sleep(&mut self, time: Duration) {
        if let Some(level) = &mut self.level {
            level.end_wait(&mut self.client);
            level.wait_began();
        }
        if !self.client.begin_wait() {
            self.parker.park_timeout(time);
        }
        match &mut self.level {
            Some(level) => level.end_wait(&mut self.client),
            None => _ = self.client.finish_wait(),
        }
    }

    fn take(&mut self, out: &mut [CompleteEntry]) -> usize {
        let count = self.client.peek(out);
        out[..count].iter_mut().for_each(|completion| self.outstanding.arrive(completion));
        count
    }

    fn keep_level(&mut self) {
        if let Some(level) = &mut self.level {
            level.keep(&mut self.client);
        }
    }

    /// Whether the engine still serves the ring.
    pub(super) fn is_served(&self) -> bool {
        self.client.state() == RingState::Open
    }

    /// Entries submitted whose completions were not taken yet.
    pub(super) fn outstanding(&self) -> u32 {
        self.client.outstanding()
    }
}
