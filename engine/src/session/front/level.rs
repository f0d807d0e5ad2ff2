// SPDX-License-Identifier: Apache-2.0
//! Keeps a session's event readable for as long as there are completions, and no longer.
//!
//! The reactor signals only a client that waits, once for each wait. So a session with an event is
//! always in a wait, except while there are completions to take: then the event stays readable.
//! When a wait turns out to have been ended by the reactor, one signal is counted as due, because
//! it may arrive a moment later. The event is read only while signals are due.

use std::sync::Arc;

use crate::ring::{Client, Event};

/// The event of a session.
pub(super) struct Level {
    event: Arc<Event>,
    /// A wait was prepared, and its end was not noticed yet.
    waiting: bool,
    /// Signals that came or will come and were not read.
    due: u64,
}

impl Level {
    /// For an event that the reactor signals from now on.
    pub(super) fn new(event: Arc<Event>) -> Level {
        Level { event, waiting: false, due: 0 }
    }

    pub(super) fn event(&self) -> &Event {
        &self.event
    }

    /// Another wait has begun: the client ends it by [`Level::end_wait`].
    pub(super) fn wait_began(&mut self) {
        self.waiting = true;
    }

    /// Ends the wait, if there is one.
    pub(super) fn end_wait(&mut self, client: &mut Client) {
        if self.waiting {
            self.waiting = false;
            let by_itself = client.finish_wait();
            self.due += u64::from(!by_itself);
        }
    }

    /// Called after each look for completions, whether or not there were any.
    pub(super) fn keep(&mut self, client: &mut Client) {
        if self.waiting && !client.is_waiting() {
            self.end_wait(client);
        }
        if client.has_completions() {
            self.raise();
            return;
        }
        if self.due > 0 {
            self.due = self.due.saturating_sub(self.event.take_signals());
        }
        if !self.waiting {
            self.waiting = true;
            // There is a completion by now, or the ring is closed.
            if client.begin_wait() {
                self.end_wait(client);
                self.raise();
            }
        }
    }

    /// There is a completion to take now: signals the event ourselves unless the reactor does.
    fn raise(&mut self) {
        if !self.waiting && self.due == 0 {
            self.event.signal();
            self.due = 1;
        }
    }
}
