// SPDX-License-Identifier: Apache-2.0
//! The engine's half of a session, and the calls by which the front uses it. All are listed here.
//!
//! | call | from the front | to the front |
//! |---|---|---|
//! | [`Back::connect`] | the engine's end of a ring, how to wake its client | the half itself |
//! | [`Back::wake`] | | nothing: entries are on the ring |
//! | [`Back::set_event`] | an event to signal as well | |
//! | [`Back::make_region`] | a length | memory that the drives know |
//! | [`Back::register_region`], [`Back::unregister_region`] | memory of the caller's | |
//! | [`Back::is_registered`] | memory | whether this session has registered it |
//! | [`Back::add_buffer`] | a range of such memory | its key, which is taken back when it is dropped |
//! | [`Back::gave`] | a key | whether it is one of this session's |
//! | [`Back::begin`] | what is to be saved | a handle |
//! | [`Back::open`] | a name and a participant | a handle and the segment's shape |
//! | [`Back::close`] | a handle | |
//! | drop | | nothing: the session ends |
//!
//! [`Back::add_segment`] and [`Back::remove_segment`] are for the pool's own verification, in this
//! process.
//!
//! - Except `wake`, a call may block and allocate. None of them is needed while entries flow.
//! - This half counts what a call gives out, and takes it back when it is dropped, whatever the
//!   front still holds.
//! - In one process memory, rings, events and the client's unparker are passed as they are; between
//!   two they would be descriptors. A buffer's count of entries in flight is one object that both
//!   halves hold; between two processes each half would keep its own count. Nothing else in the
//!   list is tied to one process.

mod handles;
mod regions;
mod remote_port;

use std::sync::Arc;

use crossbeam::sync::Unparker;

use crate::commit;
use crate::error::Error;
use crate::format::{SegmentTable, Shard};
use crate::memory::{Region, Registration};
use crate::name::CheckpointName;
use crate::pool::context::new_identity;
use crate::pool::keeper::{Call, Keeper};
use crate::pool::open_pool::OpenPool;
use crate::reactor::segment::Segment;
use crate::ring::{self, Event};
use crate::session::back::handles::{Handles, Opened};
use crate::session::back::regions::KnownRegions;
use crate::session::back::remote_port::RemotePort;
use crate::state::{CheckpointSpec, Use};
use crate::units::Copies;

pub(super) use remote_port::BufferKey;

/// A participant's segment, open for restore.
#[derive(Clone, Debug)]
pub struct OpenedSegment {
    /// What entries name it by.
    pub handle: u64,
    /// The participant that wrote it.
    pub participant: u32,
    /// Its length.
    pub len_bytes: u64,
    /// Reads start and end at multiples of this, except at the segment's end.
    pub chunk_bytes: u64,
    /// Its named ranges, ascending.
    pub shards: Vec<Shard>,
}

/// The engine's half of a session.
pub(super) struct Back {
    port: RemotePort,
    regions: KnownRegions,
    handles: Handles,
    /// Last: the pool closes when nothing has it open any more.
    pool: Arc<OpenPool>,
}

impl Back {
    /// Lets one of the pool's reactors serve a ring.
    pub(super) fn connect(
        pool: &Arc<OpenPool>,
        ring: ring::Engine,
        client: Unparker,
    ) -> Result<Back, Error> {
        let context = &pool.context;
        Ok(Back {
            port: RemotePort::open(&context.queues, context.next_reactor(), ring, client)?,
            regions: KnownRegions::new(context),
            handles: Handles::default(),
            pool: Arc::clone(pool),
        })
    }

    /// Wakes the reactor, which sleeps although there are entries on the ring.
    pub(super) fn wake(&self) {
        self.port.wake();
    }

    /// Also signals this event when the client is to be woken.
    pub(super) fn set_event(&self, event: Arc<Event>) -> Result<(), Error> {
        self.port.set_event(event)
    }

    /// Memory that every drive has registered, of the pages that the pool was opened with.
    pub(super) fn make_region(&mut self, len_bytes: u64) -> Result<Arc<Region>, Error> {
        let region = self.regions.make(len_bytes)?;
        self.regions.register(&region)?;
        Ok(region)
    }

    /// Makes a region of the caller's usable on every drive.
    pub(super) fn register_region(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        self.regions.register(region)
    }

    /// Takes one registration of a region back; after the last one no drive has it registered.
    pub(super) fn unregister_region(&mut self, region: &Region) {
        self.regions.unregister(region);
    }

    /// Whether this session has registered the region.
    pub(super) fn is_registered(&self, region: &Region) -> bool {
        self.regions.is_registered(region)
    }

    /// Lets entries name a buffer.
    pub(super) fn add_buffer(&self, registration: Registration) -> Result<BufferKey, Error> {
        self.port.add_buffer(registration)
    }

    /// Whether a key is one of this session's.
    pub(super) fn gave(&self, key: &BufferKey) -> bool {
        self.port.gave(key)
    }

    /// Begins or joins a checkpoint; returns the handle of this participant's segment.
    pub(super) fn begin(&mut self, spec: &CheckpointSpec) -> Result<u64, Error> {
        let (pool, context) = (&self.pool, &self.pool.context);
        context.require_writable()?;
        context.check_drives()?;
        if !context.is_reserved() {
            // Before anything lands in space that may be another owner's.
            pool.on_keeper(Keeper::look)??;
        }
        let reclaim = || pool.on_keeper(|keeper| keeper.reclaim())?.map(|_| ());
        let checkpoint = commit::begin(&**context, spec, new_identity(), reclaim)?;
        let participant = spec.participant;
        let segment = {
            let state = context.state();
            let copies = state.copies_of(checkpoint, participant).unwrap_or_default();
            let chunk_bytes = state.label().layout.chunk_bytes();
            Segment::for_save(checkpoint, participant, spec.len_bytes, chunk_bytes, copies)
        };
        let segment = Arc::new(segment);
        context.remember_segment(checkpoint, &segment);
        let opened = Opened::Save { checkpoint, participant };
        let handle = self.add_handle(segment, opened)?;
        self.pool.send_to_keeper(Call::Nudge)?;
        Ok(handle)
    }

    /// Opens one participant's segment of a committed checkpoint.
    pub(super) fn open(
        &mut self,
        name: &CheckpointName,
        participant: u32,
    ) -> Result<OpenedSegment, Error> {
        // First of all, so that what is read is this checkpoint's until the handle is released.
        let hold = self.pool.hold(name, Use::Restore)?;
        let (table, shards) = self.pool.read_segment_and_shards(&hold, participant)?;
        let opened = Opened::Restore { hold };
        let label = self.pool.context.state().label().clone();
        let segment = segment_of(&table, |copies| label.to_read(copies));
        let handle = self.add_handle(segment, opened)?;
        let SegmentTable { len_bytes, chunk_bytes, .. } = table;
        Ok(OpenedSegment { handle, participant, len_bytes, chunk_bytes, shards })
    }

    /// Gives a segment a handle; when there is none left, releases what was opened.
    fn add_handle(&mut self, segment: Arc<Segment>, opened: Opened) -> Result<u64, Error> {
        match self.port.add_segment(segment) {
            Ok(handle) => {
                self.handles.add(handle, opened);
                Ok(handle)
            }
            Err(error) => {
                opened.release(&self.pool);
                Err(error)
            }
        }
    }

    /// A handle for a segment that the caller describes and holds. It ends with the session.
    pub(super) fn add_segment(&self, segment: Segment) -> Result<u64, Error> {
        self.port.add_segment(Arc::new(segment))
    }

    /// Takes back a handle of [`Back::add_segment`], after its transfers in flight.
    pub(super) fn remove_segment(&self, handle: u64) -> Result<(), Error> {
        self.port.remove_segment(handle)
    }

    /// Takes a handle back, after its transfers in flight. In a pool that is open for reading it
    /// fails with [`Error::Stale`] when what was read may be something else's.
    pub(super) fn close(&mut self, handle: u64) -> Result<(), Error> {
        let opened = self.handles.take(handle)?;
        opened.abandon(&self.pool);
        self.port.remove_segment(handle)?;
        let checked = opened.check(&self.pool);
        opened.release(&self.pool);
        checked
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        self.handles.iter().for_each(|opened| opened.abandon(&self.pool));
        self.port.close();
        self.handles.drain().for_each(|opened| opened.release(&self.pool));
        self.regions.unregister_all();
    }
}

/// The segment that a table describes; `which` selects the copy to read of each chunk.
fn segment_of(table: &SegmentTable, which: impl Fn(Copies) -> Copies) -> Arc<Segment> {
    let chunks = table.chunks.iter().map(|chunk| (which(chunk.copies), chunk.crc64));
    let SegmentTable { participant, len_bytes, chunk_bytes, .. } = *table;
    Arc::new(Segment::for_restore(participant, len_bytes, chunk_bytes, chunks))
}
