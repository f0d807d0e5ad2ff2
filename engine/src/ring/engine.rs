// SPDX-License-Identifier: Apache-2.0
//! The reactor's end of a ring. Every value that the client writes is checked before it is used.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::atomic::{Ordering, fence};
use super::entry::{CompleteEntry, SubmitEntry};
use super::layout::{Mapping, RingSizes, RingState};
use crate::error::Error;

/// The client moved an index to an impossible value. The session ends; the ring stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the client's {index} is {found}, not within {room} after {expected}: its ring is corrupt and its session ends"
)]
pub struct Poisoned {
    /// "submit tail" or "complete head".
    pub index: &'static str,
    /// The value found.
    pub found: u32,
    /// The lowest possible value.
    pub expected: u32,
    /// How far above that it may be.
    pub room: u32,
}

/// The end that takes requests and gives completions. It may move between threads, and belongs to
/// one at a time. Dropping it closes the ring. The client sees that only when it looks: signal it
/// after the drop, and when the ring is poisoned.
pub struct Engine {
    mapping: Arc<Mapping>,
    submit_head: u32,
    submit_tail_seen: u32,
    /// The next completion's place; those from `complete_published` on are not yet shown.
    complete_tail: u32,
    complete_published: u32,
    complete_head_seen: u32,
    /// Taken and not completed: each has one completion slot reserved.
    in_flight: u32,
    poisoned: Option<Poisoned>,
}

impl Engine {
    pub(super) fn new(mapping: Arc<Mapping>, start: u32) -> Engine {
        Engine {
            mapping,
            submit_head: start,
            submit_tail_seen: start,
            complete_tail: start,
            complete_published: start,
            complete_head_seen: start,
            in_flight: 0,
            poisoned: None,
        }
    }

    /// The engine end of a new ring, whose client end another process makes from
    /// [`Engine::memfd`].
    ///
    /// # Errors
    /// When the memory is not available.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "only tests have the ends of a ring in two processes today")
    )]
    pub fn create(sizes: RingSizes) -> Result<Engine, Error> {
        Ok(Engine::new(Arc::new(Mapping::create(sizes, 0)?), 0))
    }

    /// The descriptor to send to the client; its size is sealed.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "only tests have the ends of a ring in two processes today")
    )]
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.mapping.memfd()
    }

    /// The ring's sizes.
    pub fn sizes(&self) -> RingSizes {
        self.mapping.sizes()
    }

    /// Requests taken and not yet completed.
    #[cfg(any(test, feature = "internals"))]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Takes the next request: a private copy, made once. `None`: there is none, or the client has
    /// left too many completions unread to have room for this one's.
    ///
    /// # Errors
    /// [`Poisoned`], now and at every later call, when an index of the client jumped. Requests in
    /// flight may still be completed.
    pub fn take(&mut self) -> Result<Option<SubmitEntry>, Poisoned> {
        if let Some(poisoned) = self.poisoned {
            return Err(poisoned);
        }
        if self.submit_tail_seen == self.submit_head {
            self.see_submit_tail()?;
            if self.submit_tail_seen == self.submit_head {
                return Ok(None);
            }
        }
        if self.slots_taken() == self.sizes().complete_entries() {
            self.see_complete_head()?;
            if self.slots_taken() == self.sizes().complete_entries() {
                return Ok(None);
            }
        }
        let entry = self.mapping.load_submit(self.submit_head);
        self.submit_head = self.submit_head.wrapping_add(1);
        self.in_flight += 1;
        // Release: the client that sees this head may overwrite the entry; we have copied it.
        self.mapping.control().submit_head.0.store(self.submit_head, Ordering::Release);
        Ok(Some(entry))
    }

    /// Whether [`Engine::take`] would return something. A cheap check, for a polling loop.
    pub fn has_work(&self) -> bool {
        if self.poisoned.is_some() {
            return false;
        }
        let control = self.mapping.control();
        let waiting = self.submit_tail_seen != self.submit_head
            || control.submit_tail.0.load(Ordering::Relaxed) != self.submit_head;
        waiting
            && (self.slots_taken() < self.sizes().complete_entries()
                || control.complete_head.0.load(Ordering::Relaxed) != self.complete_head_seen)
    }

    /// Writes the completion of a request that was taken, into the slot reserved for it. The client
    /// sees it after [`Engine::publish`].
    ///
    /// # Panics
    /// When there are more completions than requests taken: a bug of the reactor.
    pub fn complete(&mut self, entry: CompleteEntry) {
        assert!(self.in_flight > 0, "a completion without a request");
        self.in_flight -= 1;
        self.mapping.store_complete(self.complete_tail, entry);
        self.complete_tail = self.complete_tail.wrapping_add(1);
        debug_assert!(self.slots_taken() <= self.sizes().complete_entries());
    }

    /// Makes all completions since the last call visible to the client. True: the client waits, and
    /// the caller must signal it.
    #[must_use = "a client that waits must be signalled"]
    pub fn publish(&mut self) -> bool {
        if self.complete_published == self.complete_tail {
            return false;
        }
        self.complete_published = self.complete_tail;
        let control = self.mapping.control();
        // Release: the client that sees this tail sees the completions.
        control.complete_tail.0.store(self.complete_tail, Ordering::Release);
        fence(Ordering::SeqCst);
        control.client_sleeping.clear()
    }

    /// Announces that the reactor will sleep. True: do not sleep, there is work. False: sleep, and
    /// call [`Engine::finish_sleep`] after waking. A reactor with several rings prepares all of
    /// them, sleeps only if none has work, and finishes all of them.
    #[must_use = "sleeping although there is work may last forever"]
    pub fn prepare_sleep(&mut self) -> bool {
        debug_assert!(self.complete_published == self.complete_tail, "publish before sleeping");
        self.mapping.control().engine_sleeping.set();
        fence(Ordering::SeqCst);
        let work = self.has_work();
        if work {
            self.finish_sleep();
        }
        work
    }

    /// Ends what [`Engine::prepare_sleep`] began.
    pub fn finish_sleep(&mut self) {
        self.mapping.control().engine_sleeping.clear();
    }

    /// Closes the ring while it still exists: its client sees that nothing is served any more.
    pub fn close(&mut self) {
        self.mapping.control().state.0.store(RingState::Closed.to_word(), Ordering::Release);
    }

    /// Completion slots that are reserved, unpublished or unread: never more than there are.
    fn slots_taken(&self) -> u32 {
        self.in_flight + self.complete_tail.wrapping_sub(self.complete_head_seen)
    }

    /// Reads the client's submit tail: at most all entries ahead of our head.
    fn see_submit_tail(&mut self) -> Result<(), Poisoned> {
        // Acquire: the entries before this tail are written.
        let tail = self.mapping.control().submit_tail.0.load(Ordering::Acquire);
        let entries = self.sizes().submit_entries();
        self.check("submit tail", tail, self.submit_head, entries)?;
        self.submit_tail_seen = tail;
        Ok(())
    }

    /// Reads the client's complete head: it may have moved forward, at most to what was published.
    fn see_complete_head(&mut self) -> Result<(), Poisoned> {
        // Acquire: the client has read the completions before this head.
        let head = self.mapping.control().complete_head.0.load(Ordering::Acquire);
        let unread = self.complete_published.wrapping_sub(self.complete_head_seen);
        self.check("complete head", head, self.complete_head_seen, unread)?;
        self.complete_head_seen = head;
        Ok(())
    }

    fn check(
        &mut self,
        index: &'static str,
        found: u32,
        expected: u32,
        room: u32,
    ) -> Result<(), Poisoned> {
        if found.wrapping_sub(expected) <= room {
            return Ok(());
        }
        let poisoned = Poisoned { index, found, expected, room };
        self.poisoned = Some(poisoned);
        self.mapping.control().state.0.store(RingState::Poisoned.to_word(), Ordering::Release);
        Err(poisoned)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.poisoned.is_none() {
            self.close();
        }
    }
}
