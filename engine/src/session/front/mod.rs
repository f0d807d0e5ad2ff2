// SPDX-License-Identifier: Apache-2.0
//! The client's half of a session, and what callers see of it.
//!
//! - [`Session::submit`] and [`Session::peek`] make no system call and no allocation, except to
//!   wake a reactor that has parked.
//! - `alloc`, `begin`, `open` and `close` are the control path: they may block and allocate.
//! - Memory named by an entry must stay unchanged (a write) or untouched (a read) from `submit` to
//!   its completion. A buffer is in flight from `submit` to `peek`;
//!   meanwhile it gives no slices.

mod buffer;
mod level;
mod outstanding;
mod traffic;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::memory::{Arena, Buffer, Region};
use crate::name::CheckpointName;
use crate::pool::open_pool::OpenPool;
use crate::reactor::segment::Segment;
use crate::ring::{CompleteEntry, RingSizes, SubmitEntry};
use crate::session::back::{Back, OpenedSegment};
use crate::session::front::traffic::Traffic;
use crate::state::CheckpointSpec;

pub use buffer::SessionBuffer;

/// Options of [`crate::Pool::session`].
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Memory that buffers are cut from, taken now. 0: none, for a session that registers its own.
    pub memory_bytes: u64,
    /// Entries of the submit ring, a power of two. Twice as many may be outstanding.
    pub ring_entries: u32,
}

impl Default for SessionOptions {
    /// 64 MiB and 256 entries.
    fn default() -> SessionOptions {
        SessionOptions { memory_bytes: 64 << 20, ring_entries: 256 }
    }
}

/// A session. Belongs to one thread at a time and may move between threads. It keeps its pool open.
///
/// Dropping it stops taking entries, waits for those in flight, and aborts checkpoints that it did
/// not commit.
pub struct Session {
    /// Dropped first: while it waits for entries in flight, the ring and the memory still exist.
    back: Back,
    traffic: Traffic,
    /// None when no memory was asked for.
    arena: Option<Arena>,
}

impl Session {
    pub(crate) fn new(pool: &Arc<OpenPool>, options: &SessionOptions) -> Result<Session, Error> {
        let (traffic, engine) = Traffic::new(RingSizes::new(options.ring_entries)?)?;
        let mut back = Back::connect(pool, engine, traffic.unparker())?;
        let arena = match options.memory_bytes {
            0 => None,
            bytes => Some(Arena::new(back.make_region(bytes)?)),
        };
        Ok(Session { back, traffic, arena })
    }

    /// Whether the session's memory consists of huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.arena.as_ref().is_some_and(|arena| arena.region().is_huge())
    }

    /// A buffer of `len_bytes`, rounded up to whole blocks.
    ///
    /// # Errors
    /// [`Error::Environment`] when the session's memory has no such piece left;
    /// [`Error::TooMany`] when the session has too many buffers; [`Error::Usage`] for no bytes, or
    /// when the session was made without memory.
    pub fn alloc(&mut self, len_bytes: u64) -> Result<SessionBuffer, Error> {
        let Some(arena) = &self.arena else {
            return Err(Error::Usage("the session has no memory of its own".into()));
        };
        let buffer = arena.alloc(len_bytes)?;
        self.add_buffer(buffer)
    }

    /// A buffer that is all of a region of the caller's. The drives have the region registered
    /// until [`Session::unregister`] has returned or the session is dropped; they touch it for
    /// entries only.
    ///
    /// # Errors
    /// As [`Session::alloc`]; and when a drive cannot use the memory: SPDK's need huge pages.
    pub fn register(&mut self, region: Arc<Region>) -> Result<SessionBuffer, Error> {
        self.back.register_region(&region)?;
        let whole = Arena::new(Arc::clone(&region)).alloc(region.len_bytes());
        let buffer = whole.and_then(|buffer| self.add_buffer(buffer));
        if buffer.is_err() {
            self.back.unregister_region(&region);
        }
        buffer
    }

    /// Lets entries name a buffer.
    fn add_buffer(&mut self, buffer: Buffer) -> Result<SessionBuffer, Error> {
        let key = self.back.add_buffer(buffer.registration())?;
        self.traffic.add_buffer(key.number(), buffer.usage());
        Ok(SessionBuffer::new(key, buffer))
    }

    /// Takes back what [`Session::register`] gave. When this returns, no drive has the region
    /// registered.
    ///
    /// # Errors
    /// The buffer itself, while an entry in flight names it, or when it is not of that kind or
    /// another session's.
    pub fn unregister(&mut self, buffer: SessionBuffer) -> Result<(), SessionBuffer> {
        let region = Arc::clone(buffer.region());
        let own = self.arena.as_ref().is_some_and(|arena| arena.region().id() == region.id());
        let removable = !own && self.back.gave(buffer.registered_key());
        if !removable || !self.back.is_registered(&region) || !buffer.usage().is_idle() {
            return Err(buffer);
        }
        // Its message to the reactor comes before that of the region, so the key goes first.
        drop(buffer);
        self.back.unregister_region(&region);
        Ok(())
    }

    /// A descriptor that is readable while there are completions to take, for `poll` and similar
    /// calls. It may be readable for a moment when there are none, so [`Session::peek`] decides. Do
    /// not read from it. It belongs to the session.
    ///
    /// # Errors
    /// When the process has too many descriptors.
    pub fn event_fd(&mut self) -> Result<BorrowedFd<'_>, Error> {
        let back = &self.back;
        self.traffic.event_fd(|event| back.set_event(event))
    }

    /// Begins a checkpoint, or joins one that another participant began: reserves the space of this
    /// participant's segment on the drives, or fails before a byte is written. Returns the handle
    /// for entries.
    ///
    /// # Errors
    /// [`Error::CheckpointExists`], [`Error::NoSpace`], [`Error::Usage`], [`Error::Poisoned`];
    /// [`Error::DriveUnfit`] when a drive takes no new data any more.
    pub fn begin(&mut self, spec: &CheckpointSpec) -> Result<u64, Error> {
        self.back.begin(spec)
    }

    /// Opens one participant's segment of a committed checkpoint for restore.
    ///
    /// # Errors
    /// [`Error::NoSuchCheckpoint`]; [`Error::Damaged`] when no drive has sound metadata of it.
    pub fn open(
        &mut self,
        name: &CheckpointName,
        participant: u32,
    ) -> Result<OpenedSegment, Error> {
        self.back.open(name, participant)
    }

    /// A handle for a segment that the caller describes and holds. It ends with the session.
    pub(crate) fn add_segment(&self, segment: Segment) -> Result<u64, Error> {
        self.back.add_segment(segment)
    }

    /// Takes back a handle of [`Session::add_segment`], after its transfers in flight.
    pub(crate) fn remove_segment(&self, handle: u64) -> Result<(), Error> {
        self.back.remove_segment(handle)
    }

    /// Takes a handle back, after its transfers in flight. A checkpoint that was not committed is
    /// aborted, for every participant. An unknown handle is an error.
    ///
    /// # Errors
    /// [`Error::Usage`] for a handle that this session does not hold.
    pub fn close(&mut self, handle: u64) -> Result<(), Error> {
        self.back.close(handle)
    }

    /// Puts entries on the ring, as many as there is room for; returns how many. Fewer than given
    /// is back-pressure: take completions, then submit the rest.
    pub fn submit(&mut self, entries: &[SubmitEntry]) -> usize {
        let outcome = self.traffic.submit(entries);
        if outcome.wake_engine {
            self.back.wake();
        }
        outcome.accepted
    }

    /// Takes the completions that are there; returns how many. Never waits.
    pub fn peek(&mut self, out: &mut [CompleteEntry]) -> usize {
        self.traffic.peek(out)
    }

    /// Takes at least `min` completions (at most `out` holds), waiting up to `timeout` for them.
    /// Returns how many: fewer when the time was over, or the ring is no longer served
    /// ([`Session::is_served`]). Spins for a moment, then sleeps.
    pub fn wait(&mut self, out: &mut [CompleteEntry], min: usize, timeout: Duration) -> usize {
        self.traffic.wait(out, min, timeout)
    }

    /// Whether the engine still serves the ring. If not, outstanding entries get no completions
    /// beyond those that can be taken now, and their results are unknown.
    pub fn is_served(&self) -> bool {
        self.traffic.is_served()
    }

    /// Entries submitted whose completions were not taken yet.
    pub fn outstanding(&self) -> u32 {
        self.traffic.outstanding()
    }
}
