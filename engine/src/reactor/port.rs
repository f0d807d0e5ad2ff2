// SPDX-License-Identifier: Apache-2.0
//! One session inside its reactor: the engine end of its ring and what its entries may name.
//!
//! - Numbers of ports, buffer keys and handles carry a tag that changes with each use of a place,
//!   so that a late or a guessed one names nothing.
//! - What an entry names stays until the tasks in flight that use it have ended.

use std::sync::Arc;

use crossbeam::channel::Sender;
use crossbeam::sync::Unparker;

use crate::memory::BufferTable;
use crate::reactor::queues::MAX_PORTS;
use crate::reactor::segment::Segment;
use crate::ring::{self, Event};

/// Segments that one session may have open at once.
pub(crate) const MAX_SEGMENTS: usize = 1024;
/// Buffers that one session may have at once.
pub(crate) const MAX_BUFFERS: u16 = 1024;

/// The requested end of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finish {
    Commit,
    Abort,
}

/// A segment as a session's entries see it.
pub(crate) struct SegmentSlot {
    pub(crate) segment: Arc<Segment>,
    /// Tasks in flight that move bytes of it.
    pub(crate) transfers: u32,
    /// The commit or abort that waits for those to end, or for the keeper, and its user data.
    pub(crate) finish: Option<(Finish, u64)>,
    /// Committed or aborted: no more requests for it are accepted.
    pub(crate) finished: bool,
    /// Waits for the handle to be taken back.
    pub(crate) removal: Option<Sender<()>>,
}

/// Wakes a client that waits for completions. Dropping it does so too: the client then sees that
/// its ring is closed.
pub(crate) struct Waker {
    unparker: Unparker,
    /// For a client that watches a descriptor.
    pub(crate) event: Option<Arc<Event>>,
}

impl Waker {
    pub(crate) fn new(unparker: Unparker) -> Waker {
        Waker { unparker, event: None }
    }

    pub(crate) fn wake(&self) {
        self.unparker.unpark();
        if let Some(event) = &self.event {
            event.signal();
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.wake();
    }
}

/// One session. The fields drop in this order: the client is woken when its ring is closed.
pub(crate) struct Port {
    /// Place and tag: see [`Port::index`].
    pub(crate) number: u32,
    pub(crate) ring: ring::Engine,
    pub(crate) client: Waker,
    pub(crate) buffers: BufferTable,
    segments: Vec<(u32, Option<SegmentSlot>)>,
    /// Where the tags of segments start.
    first_tag: u32,
    /// Entries taken and not completed.
    pub(crate) entries: u32,
    /// Those of them that are tasks.
    pub(crate) tasks: u32,
    /// The client broke the ring's rules: its entries are no longer read.
    pub(crate) poisoned: bool,
    /// Waits for the port to close.
    pub(crate) closing: Option<Sender<()>>,
}

impl Port {
    /// `serial` differs for each session of the pool. Tags of keys and handles start from it, so
    /// that those of one session name nothing in another: the factors are odd, so two serials have
    /// the same start only after the tags' bits are used up.
    pub(crate) fn new(number: u32, serial: u32, ring: ring::Engine, client: Waker) -> Port {
        Port {
            number,
            ring,
            client,
            buffers: BufferTable::with_first_tag(MAX_BUFFERS, (serial as u16).wrapping_mul(0x9e37)),
            segments: Vec::new(),
            first_tag: serial.wrapping_mul(0x9e37_79b1),
            entries: 0,
            tasks: 0,
            poisoned: false,
            closing: None,
        }
    }

    /// The place of a port in its reactor's table. The rest of the number changes with each
    /// session, so that a late message cannot reach the place's next session.
    pub(crate) fn index(number: u32) -> usize {
        (number % MAX_PORTS) as usize
    }

    /// Whether entries are taken from the ring.
    pub(crate) fn is_open(&self) -> bool {
        !self.poisoned && self.closing.is_none()
    }

    /// Gives a segment a handle: its place, and a tag that changes each time the place is used, so
    /// that a stale handle names nothing.
    pub(crate) fn add_segment(&mut self, segment: Arc<Segment>) -> Option<u64> {
        let free = self.segments.iter().position(|(_, slot)| slot.is_none());
        let index = match free {
            Some(index) => index,
            None if self.segments.len() < MAX_SEGMENTS => {
                self.segments.push((self.first_tag, None));
                self.segments.len() - 1
            }
            None => return None,
        };
        let (tag, slot) = &mut self.segments[index];
        *tag = tag.wrapping_add(1);
        *slot = Some(SegmentSlot {
            segment,
            transfers: 0,
            finish: None,
            finished: false,
            removal: None,
        });
        Some(u64::from(*tag) << 32 | index as u64)
    }

    /// No more entries are taken, and the client sees that.
    pub(crate) fn close_ring(&mut self) {
        self.poisoned = true;
        self.ring.close();
        self.client.wake();
    }

    /// Takes back the handles that are to be taken back and have nothing in flight.
    pub(crate) fn answer_removals(&mut self) {
        for place in 0..self.segments.len() as u32 {
            if let Some((handle, _)) = self.segment_at(place) {
                self.finish_removal(handle);
            }
        }
    }

    /// The place of the segment that a handle names.
    pub(crate) fn segment_place(handle: u64) -> u32 {
        (handle & 0xffff_ffff) as u32
    }

    /// The segment at a place and its handle, if there is one.
    pub(crate) fn segment_at(&mut self, place: u32) -> Option<(u64, &mut SegmentSlot)> {
        let (tag, slot) = self.segments.get_mut(place as usize)?;
        let handle = u64::from(*tag) << 32 | u64::from(place);
        Some((handle, slot.as_mut()?))
    }

    /// Places for segments that it has made.
    pub(crate) fn segment_places(&self) -> usize {
        self.segments.len()
    }

    /// All segments.
    pub(crate) fn segments(&mut self) -> impl Iterator<Item = &mut SegmentSlot> {
        self.segments.iter_mut().filter_map(|(_, slot)| slot.as_mut())
    }

    /// The segment that a handle names, if it still names one.
    pub(crate) fn segment(&mut self, handle: u64) -> Option<&mut SegmentSlot> {
        let (tag, slot) = self.segments.get_mut(Port::segment_place(handle) as usize)?;
        if u64::from(*tag) == handle >> 32 { slot.as_mut() } else { None }
    }

    /// Takes the handle back if that was requested and nothing is in flight.
    pub(crate) fn finish_removal(&mut self, handle: u64) {
        let Some(slot) = self.segment(handle) else { return };
        if slot.transfers > 0 || slot.finish.is_some() {
            return;
        }
        let Some(answer) = slot.removal.take() else { return };
        self.segments[Port::segment_place(handle) as usize].1 = None;
        // The asker may have given up waiting.
        let _ = answer.send(());
    }
}
