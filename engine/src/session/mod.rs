//! A session: what one trainer thread holds. Memory, a submit ring and a complete ring.
//!
//! - [`Session::submit`] and [`Session::peek`] make no system call and no allocation; only a reactor
//!   that has parked is woken by one.
//! - `alloc`, `begin`, `open` and `close` are the control path: they may block and allocate.
//! - Memory named by an entry must stay unchanged (a write) or untouched (a read) from `submit` to
//!   its completion. A buffer in flight, which is from `submit` to `peek`,
//!   refuses to give slices.

mod buffer;
mod level;
mod outstanding;

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::sync::Parker;

use crate::backoff::{Backoff, Pause};
use crate::commit;
use crate::error::Error;
use crate::format::{SegmentTable, Shard};
use crate::memory::{Arena, HugePages, Region};
use crate::name::CheckpointName;
use crate::pool::keeper::Call;
use crate::pool::shared::Shared;
use crate::pool::{Open, find, new_id, read_segment_table};
use crate::reactor::control::Control;
use crate::reactor::port::{MAX_PORTS, MAX_SEGMENTS};
use crate::reactor::segment::Segment;
use crate::ring::{self, CompleteEntry, Event, RingSizes, RingState, SubmitEntry};
use crate::session::buffer::Port;
use crate::session::level::Level;
use crate::session::outstanding::Outstanding;
use crate::state::CheckpointSpec;
use crate::units::Copies;

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

/// A participant's segment, open for restore.
#[derive(Clone, Debug)]
pub struct OpenedSegment {
    /// What entries name it by.
    pub handle: u64,
    /// The participant that wrote it.
    pub participant: u32,
    /// Its length.
    pub len_bytes: u64,
    /// The unit that reads start and end on, apart from the segment's end.
    pub chunk_bytes: u64,
    /// Its named ranges, ascending.
    pub shards: Vec<Shard>,
}

/// What a handle stands for.
enum Opened {
    Save { checkpoint: u64, participant: u32 },
    Restore { name: CheckpointName },
}

/// A session. Belongs to one thread at a time and may move between threads. It keeps its pool open.
///
/// Dropping it stops the taking of entries, waits for what is under way, and gives up checkpoints
/// that it did not commit.
pub struct Session {
    port: Port,
    client: ring::Client,
    parker: Parker,
    /// Of waits: what the last ones taught.
    backoff: Backoff,
    outstanding: Outstanding,
    level: Option<Level>,
    /// None when no memory was asked for.
    arena: Option<Arena>,
    /// Regions that the drives know for this session.
    regions: Vec<Arc<Region>>,
    handles: Vec<(u64, Opened)>,
    /// Last of all: the pool closes when nobody has it open any more.
    _open: Arc<Open>,
}

impl Session {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        open: &Arc<Open>,
        options: &SessionOptions,
    ) -> Result<Session, Error> {
        let sizes = RingSizes::new(options.ring_entries)?;
        let arena = match options.memory_bytes {
            0 => None,
            bytes => Some(Arena::new(session_memory(shared, bytes)?)),
        };
        let (client, engine) = ring::pair(sizes)?;
        let parker = Parker::new();
        let reactor = shared.next_reactor();
        let mut port = Port { shared: Arc::clone(shared), reactor, number: 0 };
        let unparker = parker.unparker().clone();
        port.number = port
            .mailbox()
            .ask(|answer| Control::OpenPort { ring: engine, client: unparker, answer })?
            .ok_or(Error::TooMany { what: "sessions", limit: MAX_PORTS.into() })?;
        let mut session = Session {
            port,
            client,
            parker,
            backoff: Backoff::waiter(),
            outstanding: Outstanding::new(sizes.complete_entries()),
            level: None,
            arena: None,
            regions: Vec::new(),
            handles: Vec::new(),
            _open: Arc::clone(open),
        };
        if let Some(arena) = arena {
            session.register_region(arena.region())?;
            session.arena = Some(arena);
        }
        Ok(session)
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
        let buffer = SessionBuffer::new(arena.alloc(len_bytes)?, &self.port)?;
        self.outstanding.add_buffer(buffer.key(), buffer.usage());
        Ok(buffer)
    }

    /// A buffer that is all of a region of the caller's. Until [`Session::unregister`] has returned,
    /// or the session is dropped, the drives know the region; they touch it for entries only.
    ///
    /// # Errors
    /// As [`Session::alloc`]; and when a drive cannot use the memory: SPDK's need huge pages.
    pub fn register(&mut self, region: Arc<Region>) -> Result<SessionBuffer, Error> {
        self.register_region(&region)?;
        let whole = Arena::new(Arc::clone(&region)).alloc(region.len_bytes());
        let buffer = whole.and_then(|buffer| SessionBuffer::new(buffer, &self.port));
        match &buffer {
            Ok(buffer) => self.outstanding.add_buffer(buffer.key(), buffer.usage()),
            Err(_) => self.unregister_region(&region),
        }
        buffer
    }

    /// Takes back what [`Session::register`] gave. When this returns no drive knows the region.
    ///
    /// # Errors
    /// The buffer itself, while an entry in flight names it, or when it is not of that kind.
    pub fn unregister(&mut self, buffer: SessionBuffer) -> Result<(), SessionBuffer> {
        let region = Arc::clone(buffer.region());
        let own = self.arena.as_ref().is_some_and(|arena| arena.region().id() == region.id());
        let known = self.regions.iter().any(|known| known.id() == region.id());
        if own || !known || !buffer.usage().is_idle() {
            return Err(buffer);
        }
        // Its message to the reactor comes before that of the region, so the key goes first.
        drop(buffer);
        self.unregister_region(&region);
        Ok(())
    }

    fn register_region(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        let shared = &self.port.shared;
        shared.add_registration(region.id(), || {
            register_everywhere(shared, region)
                .inspect_err(|_| unregister_everywhere(shared, region))
        })?;
        self.regions.push(Arc::clone(region));
        Ok(())
    }

    fn unregister_region(&mut self, region: &Arc<Region>) {
        let shared = &self.port.shared;
        shared.remove_registration(region.id(), || unregister_everywhere(shared, region));
        // One place for each registration.
        if let Some(place) = self.regions.iter().position(|known| known.id() == region.id()) {
            self.regions.swap_remove(place);
        }
    }

    /// A descriptor that is readable while there are completions to take, for `poll` and its like.
    /// It may be readable for a moment when there are none, so what counts is [`Session::peek`]; it
    /// is not to be read itself. Belongs to the session.
    ///
    /// # Errors
    /// When the process has too many descriptors.
    pub fn event_fd(&mut self) -> Result<BorrowedFd<'_>, Error> {
        if self.level.is_none() {
            let event = Arc::new(Event::new()?);
            let (port, shared) = (self.port.number, Arc::clone(&event));
            self.port.mailbox().ask(|answer| Control::SetEvent { port, event: shared, answer })?;
            let mut level = Level::new(event);
            level.keep(&mut self.client);
            self.level = Some(level);
        }
        match &self.level {
            Some(level) => Ok(level.event().as_fd()),
            None => Err(Error::Closed("the session")),
        }
    }

    /// Begins a checkpoint, or joins one that another participant began: reserves the space of this
    /// participant's segment on the drives, or fails before a byte is written. The result is the
    /// handle for entries.
    ///
    /// # Errors
    /// [`Error::CheckpointExists`], [`Error::NoSpace`], [`Error::Usage`], [`Error::Poisoned`];
    /// [`Error::DriveUnfit`] when a drive has turned out to take no new data.
    pub fn begin(&mut self, spec: &CheckpointSpec) -> Result<u64, Error> {
        let shared = Arc::clone(&self.port.shared);
        shared.require_writable()?;
        shared.check_drives()?;
        let reclaim = || shared.on_keeper(|keeper| keeper.reclaim())?.map(|_| ());
        let checkpoint = commit::begin(&*shared, spec, new_id(), reclaim)?;
        let participant = spec.participant;
        let segment = {
            let state = shared.state();
            let copies = state.copies_of(checkpoint, participant).unwrap_or_default();
            let chunk_bytes = state.label().layout.chunk_bytes();
            Arc::new(Segment::for_save(
                checkpoint,
                participant,
                spec.len_bytes,
                chunk_bytes,
                copies,
            ))
        };
        shared.remember_segment(checkpoint, &segment);
        self.handles.push((0, Opened::Save { checkpoint, participant }));
        let handle = self.add_segment(segment).inspect_err(|_| {
            self.handles.pop();
            give_up(&shared, checkpoint, participant);
        })?;
        if let Some(last) = self.handles.last_mut() {
            last.0 = handle;
        }
        shared.call_keeper(Call::Nudge)?;
        Ok(handle)
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
        let shared = Arc::clone(&self.port.shared);
        // First of all: from here on nobody in this process removes it.
        shared.begin_reading(name);
        let opened = self.open_for_reading(&shared, name, participant);
        match &opened {
            Ok(segment) => {
                self.handles.push((segment.handle, Opened::Restore { name: name.clone() }));
            }
            Err(_) => shared.end_reading(name),
        }
        opened
    }

    fn open_for_reading(
        &self,
        shared: &Shared,
        name: &CheckpointName,
        participant: u32,
    ) -> Result<OpenedSegment, Error> {
        let committed = find(shared, name)?;
        let table = read_segment_table(shared, &committed, participant)?;
        let label = shared.state().label().clone();
        let handle = self.add_table(&table, |copies| label.to_read(copies))?;
        let SegmentTable { len_bytes, chunk_bytes, shards, .. } = table;
        Ok(OpenedSegment { handle, participant, len_bytes, chunk_bytes, shards })
    }

    /// A handle for reading the segment that a table describes, each chunk from where `which` says.
    /// It ends with the session.
    pub(crate) fn add_table(
        &self,
        table: &SegmentTable,
        which: impl Fn(Copies) -> Copies,
    ) -> Result<u64, Error> {
        let chunks = table.chunks.iter().map(|chunk| (which(chunk.copies), chunk.crc64));
        let SegmentTable { participant, len_bytes, chunk_bytes, .. } = *table;
        let segment = Segment::for_restore(participant, len_bytes, chunk_bytes, chunks);
        self.add_segment(Arc::new(segment))
    }

    /// Takes back a handle of [`Session::add_table`], after the transfers under way for it.
    pub(crate) fn remove_table(&self, handle: u64) -> Result<(), Error> {
        let port = self.port.number;
        self.port.mailbox().ask(|answer| Control::RemoveSegment { port, handle, answer })
    }

    fn add_segment(&self, segment: Arc<Segment>) -> Result<u64, Error> {
        let port = self.port.number;
        let handle =
            self.port.mailbox().ask(|answer| Control::AddSegment { port, segment, answer })?;
        handle.ok_or(Error::TooMany {
            what: "segments open in one session",
            limit: MAX_SEGMENTS as u64,
        })
    }

    /// Takes a handle back, after the transfers under way for it. A checkpoint that was not
    /// committed is given up, for every participant. An unknown handle is an error.
    ///
    /// # Errors
    /// [`Error::Usage`] for a handle that this session does not hold.
    pub fn close(&mut self, handle: u64) -> Result<(), Error> {
        let place = self.handles.iter().position(|(known, _)| *known == handle);
        let Some(place) = place else {
            return Err(Error::Usage(format!("handle {handle:#x} is not open in this session")));
        };
        let (_, opened) = self.handles.swap_remove(place);
        let shared = Arc::clone(&self.port.shared);
        if let Opened::Save { checkpoint, .. } = &opened {
            mark_aborted(&shared, *checkpoint);
        }
        let port = self.port.number;
        self.port.mailbox().ask(|answer| Control::RemoveSegment { port, handle, answer })?;
        match opened {
            Opened::Save { checkpoint, participant } => give_up(&shared, checkpoint, participant),
            Opened::Restore { name } => shared.end_reading(&name),
        }
        Ok(())
    }

    /// Puts entries on the ring, as many as there is room for; says how many that were. Fewer than
    /// given is back-pressure: take completions, then submit the rest.
    pub fn submit(&mut self, entries: &[SubmitEntry]) -> usize {
        let outstanding = &mut self.outstanding;
        let outcome = self.client.submit_each(entries, |entry| outstanding.depart(entry));
        if outcome.wake_engine {
            let reactor = usize::from(self.port.reactor);
            self.port.shared.queues.reactors[reactor].unparker.unpark();
        }
        outcome.accepted
    }

    /// Takes completions that are there, and says how many that were. Never waits.
    pub fn peek(&mut self, out: &mut [CompleteEntry]) -> usize {
        let count = self.take(out);
        self.keep_level();
        count
    }

    /// Takes at least `min` completions (at most `out` holds), waiting up to `timeout` for them; says
    /// how many that were: fewer when the time was over, or the ring is no longer served
    /// ([`Session::is_served`]). Spins for a moment, then sleeps.
    pub fn wait(&mut self, out: &mut [CompleteEntry], min: usize, timeout: Duration) -> usize {
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

    /// Whether the engine still serves the ring. If not, entries outstanding get no completions
    /// beyond those that can be taken now; nobody knows how they ended.
    pub fn is_served(&self) -> bool {
        self.client.state() == RingState::Open
    }

    /// Entries submitted whose completions were not taken yet.
    pub fn outstanding(&self) -> u32 {
        self.client.outstanding()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.port.shared);
        // Commits that wait for other participants would otherwise never end.
        for (_, opened) in &self.handles {
            if let Opened::Save { checkpoint, .. } = opened {
                mark_aborted(&shared, *checkpoint);
            }
        }
        let port = self.port.number;
        // If the reactor is gone, so is everything that was under way in it.
        let _ = self.port.mailbox().ask(|answer| Control::ClosePort { port, answer });
        for (_, opened) in self.handles.drain(..) {
            match opened {
                Opened::Save { checkpoint, participant } => {
                    give_up(&shared, checkpoint, participant);
                }
                Opened::Restore { name } => shared.end_reading(&name),
            }
        }
        for region in self.regions.drain(..) {
            shared.remove_registration(region.id(), || unregister_everywhere(&shared, &region));
        }
    }
}

/// An open checkpoint will not be committed; one that was committed stays so.
fn mark_aborted(shared: &Shared, checkpoint: u64) {
    // If the keeper is gone, no commit can happen any more.
    let _ = shared.on_keeper(move |keeper| keeper.give_up(checkpoint, None));
}

fn give_up(shared: &Shared, checkpoint: u64, participant: u32) {
    let _ = shared.on_keeper(move |keeper| keeper.give_up(checkpoint, Some(participant)));
}

/// Memory for buffers, of the pages that the pool was opened with.
fn session_memory(shared: &Shared, bytes: u64) -> Result<Arc<Region>, Error> {
    let region = Region::new(bytes, shared.huge_pages)?;
    if shared.huge_pages == HugePages::Preferred && !region.is_huge() {
        tracing::warn!(
            "no huge pages for {} bytes of buffers: ordinary pages are used",
            region.len_bytes()
        );
    }
    Ok(Arc::new(region))
}

fn register_everywhere(shared: &Shared, region: &Arc<Region>) -> Result<(), Error> {
    for end in &shared.queues.reactors {
        end.control.ask(|answer| Control::Register { region: Arc::clone(region), answer })??;
    }
    Ok(())
}

fn unregister_everywhere(shared: &Shared, region: &Arc<Region>) {
    for end in &shared.queues.reactors {
        // A reactor that has ended knows the region no more.
        let _ =
            end.control.ask(|answer| Control::Unregister { region: Arc::clone(region), answer });
    }
}
