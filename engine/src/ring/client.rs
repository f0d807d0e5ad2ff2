// SPDX-License-Identifier: Apache-2.0
//! The trainer's end of a ring.

use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::atomic::{Ordering, fence};
use super::entry::{CompleteEntry, SubmitEntry};
use super::layout::{Mapping, RingSizes, RingState};
use crate::error::Error;

/// The result of a `Client::submit`.
#[must_use = "the engine may sleep, and the entries beyond `accepted` were not taken"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubmitOutcome {
    /// How many entries, from the first, are on the ring now. Fewer than given: it is full.
    pub accepted: usize,
    /// The engine sleeps: the caller must wake it.
    pub wake_engine: bool,
}

/// The end that submits requests and reads completions. It may move between threads, and belongs to
/// one at a time.
///
/// The engine is trusted to do its work, but not with this process's memory: an impossible index
/// ends the ring ([`RingState::Poisoned`]) and is never used.
pub struct Client {
    mapping: Arc<Mapping>,
    submit_tail: u32,
    submit_head_seen: u32,
    complete_head: u32,
    complete_tail_seen: u32,
    /// Submitted and not yet peeked; never more than the complete entries (see the module's top).
    outstanding: u32,
    broken: bool,
    not_sync: PhantomData<Cell<()>>,
}

impl Client {
    pub(super) fn new(mapping: Arc<Mapping>, start: u32) -> Client {
        Client {
            mapping,
            submit_tail: start,
            submit_head_seen: start,
            complete_head: start,
            complete_tail_seen: start,
            outstanding: 0,
            broken: false,
            not_sync: PhantomData,
        }
    }

    /// The client end of a ring that an engine created, from the descriptor that it sent.
    ///
    /// # Errors
    /// When the descriptor holds no ring of this version, or one that has a client.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "only tests have the ends of a ring in two processes today")
    )]
    pub fn attach(memfd: OwnedFd) -> Result<Client, Error> {
        Ok(Client::new(Arc::new(Mapping::attach(memfd)?), 0))
    }

    /// The ring's sizes.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "only tests have the ends of a ring in two processes today")
    )]
    pub fn sizes(&self) -> RingSizes {
        self.mapping.sizes()
    }

    /// Requests submitted whose completions were not peeked yet.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Whether the engine still serves the ring. If not, outstanding requests get no completions
    /// beyond those that can be peeked.
    pub fn state(&self) -> RingState {
        if self.broken {
            return RingState::Poisoned;
        }
        RingState::from_word(self.mapping.control().state.0.load(Ordering::Acquire))
    }

    /// How many entries [`Client::submit`] would accept now.
    #[cfg(any(test, feature = "internals"))]
    pub fn free_slots(&mut self) -> u32 {
        self.see_submit_head();
        self.free_slots_seen()
    }

    /// Puts entries on the ring, in order, as many as fit; the engine sees all of them at once.
    /// A full ring is a value: peek completions, then submit the rest.
    #[cfg(any(test, feature = "internals"))]
    pub fn submit(&mut self, entries: &[SubmitEntry]) -> SubmitOutcome {
        self.submit_each(entries, |entry| entry)
    }

    /// The same; changes each entry that has room before it is sent.
    pub fn submit_each(
        &mut self,
        entries: &[SubmitEntry],
        mut change: impl FnMut(SubmitEntry) -> SubmitEntry,
    ) -> SubmitOutcome {
        if (self.free_slots_seen() as usize) < entries.len() {
            self.see_submit_head();
        }
        let room = self.free_slots_seen();
        let accepted = u32::try_from(entries.len()).map_or(room, |count| count.min(room));
        if accepted == 0 {
            return SubmitOutcome { accepted: 0, wake_engine: false };
        }
        for entry in &entries[..accepted as usize] {
            self.mapping.store_submit(self.submit_tail, change(*entry));
            self.submit_tail = self.submit_tail.wrapping_add(1);
        }
        self.outstanding += accepted;
        let control = self.mapping.control();
        // Release: the engine that sees this tail sees the entries, and our complete head.
        control.submit_tail.0.store(self.submit_tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let wake_engine = control.engine_sleeping.clear();
        SubmitOutcome { accepted: accepted as usize, wake_engine }
    }

    /// Takes completions off the ring, oldest first, as many as are there and fit in `out`.
    pub fn peek(&mut self, out: &mut [CompleteEntry]) -> usize {
        if (self.ready_seen() as usize) < out.len() {
            self.see_complete_tail();
        }
        let ready = self.ready_seen();
        let count = u32::try_from(out.len()).map_or(ready, |room| room.min(ready));
        if count == 0 {
            return 0;
        }
        for place in &mut out[..count as usize] {
            *place = self.mapping.load_complete(self.complete_head);
            self.complete_head = self.complete_head.wrapping_add(1);
        }
        self.outstanding -= count;
        // Release: the engine that sees this head knows that we are done with the slots. (The
        // submit tail says so too, for no request is submitted before there is a slot for its
        // completion.)
        self.mapping.control().complete_head.0.store(self.complete_head, Ordering::Release);
        count as usize
    }

    /// Announces that the caller will wait for completions. True: do not wait, there are some, or
    /// the ring is no longer open. False: wait until the engine's signal, then call
    /// [`Client::finish_wait`].
    #[cfg(any(test, feature = "internals"))]
    #[must_use = "waiting although completions are there may last forever"]
    pub fn prepare_wait(&mut self) -> bool {
        let look_again = self.begin_wait();
        if look_again {
            self.finish_wait();
        }
        look_again
    }

    /// The same, but [`Client::finish_wait`] must be called also when the result is not to wait.
    #[must_use = "waiting although completions are there may last forever"]
    pub fn begin_wait(&mut self) -> bool {
        self.mapping.control().client_sleeping.set();
        fence(Ordering::SeqCst);
        self.see_complete_tail();
        self.ready_seen() != 0 || self.state() != RingState::Open
    }

    /// Ends what [`Client::begin_wait`] began. False: the engine ended it before, and its signal
    /// has come or will come.
    pub fn finish_wait(&mut self) -> bool {
        self.mapping.control().client_sleeping.clear()
    }

    /// Whether a wait goes on: it was prepared, and neither end has ended it.
    pub fn is_waiting(&self) -> bool {
        self.mapping.control().client_sleeping.is_set()
    }

    /// Whether [`Client::peek`] would find a completion.
    pub fn has_completions(&mut self) -> bool {
        if self.ready_seen() == 0 {
            self.see_complete_tail();
        }
        self.ready_seen() != 0
    }

    fn free_slots_seen(&self) -> u32 {
        if self.broken {
            return 0;
        }
        let sizes = self.mapping.sizes();
        let on_ring = self.submit_tail.wrapping_sub(self.submit_head_seen);
        (sizes.submit_entries() - on_ring).min(sizes.complete_entries() - self.outstanding)
    }

    fn ready_seen(&self) -> u32 {
        self.complete_tail_seen.wrapping_sub(self.complete_head)
    }

    /// Reads the engine's submit head: it may have moved forward, at most to our tail.
    fn see_submit_head(&mut self) {
        // Acquire: the engine has copied the entries before this head.
        let head = self.mapping.control().submit_head.0.load(Ordering::Acquire);
        let on_ring = self.submit_tail.wrapping_sub(self.submit_head_seen);
        if head.wrapping_sub(self.submit_head_seen) > on_ring {
            self.broken = true;
        } else {
            self.submit_head_seen = head;
        }
    }

    /// Reads the engine's complete tail: it may have moved forward, at most by the outstanding
    /// requests.
    fn see_complete_tail(&mut self) {
        // Acquire: the completions before this tail are written.
        let tail = self.mapping.control().complete_tail.0.load(Ordering::Acquire);
        let ready = tail.wrapping_sub(self.complete_head);
        if ready > self.outstanding || ready < self.ready_seen() {
            self.broken = true;
        } else {
            self.complete_tail_seen = tail;
        }
    }
}
