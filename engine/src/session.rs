//! A session: what one trainer thread holds. Memory, a submit ring and a complete ring.
//!
//! - [`Session::submit`] and [`Session::peek`] make no system call and no allocation; only a reactor
//!   that has parked is woken by one.
//! - `alloc`, `begin`, `open` and `close` are the control path: they may block and allocate.
//! - Memory named by an entry must stay unchanged (a write) or untouched (a read) from `submit` to
//!   its completion. A [`Buffer`] in flight refuses to give slices.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::sync::Parker;

use crate::error::Error;
use crate::format::Shard;
use crate::idle::{Idle, Pause};
use crate::memory::{Arena, Buffer, HugePages, Region};
use crate::name::CheckpointName;
use crate::pool::keeper::Call;
use crate::pool::shared::Shared;
use crate::pool::{find, new_id, read_segment_table};
use crate::reactor::control::Control;
use crate::reactor::segment::Segment;
use crate::ring::{self, CompleteEntry, RingSizes, SubmitEntry};
use crate::state::{BeginError, CheckpointSpec};

/// Options of [`crate::Pool::session`].
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Memory that buffers are cut from, taken now.
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

/// A buffer that entries of its session can name. Dropping it takes the key back; its memory is
/// used again when nothing in flight names it any more.
#[derive(Debug)]
pub struct SessionBuffer {
    buffer: Buffer,
    key: u32,
    port: Port,
}

impl SessionBuffer {
    /// What entries name it by.
    pub fn key(&self) -> u32 {
        self.key
    }
}

impl std::ops::Deref for SessionBuffer {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl std::ops::DerefMut for SessionBuffer {
    fn deref_mut(&mut self) -> &mut Buffer {
        &mut self.buffer
    }
}

impl Drop for SessionBuffer {
    fn drop(&mut self) {
        self.port.tell(Control::RemoveBuffer { port: self.port.number, key: self.key });
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
    pub length_bytes: u64,
    /// The unit that reads start and end on, apart from the segment's end.
    pub chunk_bytes: u64,
    /// Its named ranges, ascending.
    pub shards: Vec<Shard>,
}

/// The session's place in its reactor.
#[derive(Clone)]
struct Port {
    shared: Arc<Shared>,
    reactor: u16,
    number: u32,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port")
            .field("reactor", &self.reactor)
            .field("number", &self.number)
            .finish()
    }
}

impl Port {
    fn tell(&self, message: Control) {
        let end = &self.shared.fabric.reactors[usize::from(self.reactor)];
        end.control.push(message);
        end.unparker.unpark();
    }

    fn ask<T>(
        &self,
        message: impl FnOnce(crossbeam::channel::Sender<T>) -> Control,
    ) -> Result<T, Error> {
        let (answer, result) = crossbeam::channel::bounded(1);
        self.tell(message(answer));
        result.recv().map_err(|_| Error::Closed("the pool"))
    }
}

/// What a handle stands for.
enum Opened {
    Save { checkpoint: u64, participant: u32 },
    Restore { name: CheckpointName },
}

/// A session. Belongs to one thread at a time and may move between threads.
///
/// Dropping it stops the taking of entries, waits for what is under way, and gives up checkpoints
/// that it did not commit.
pub struct Session<'pool> {
    port: Port,
    client: ring::Client,
    parker: Parker,
    arena: Arena,
    handles: Vec<(u64, Opened)>,
    pool: PhantomData<&'pool ()>,
}

impl<'pool> Session<'pool> {
    pub(crate) fn new(
        shared: &'pool Arc<Shared>,
        options: &SessionOptions,
    ) -> Result<Session<'pool>, Error> {
        let region = Arc::new(Region::new(options.memory_bytes, shared.huge_pages)?);
        if shared.huge_pages == HugePages::Preferred && !region.is_huge() {
            tracing::warn!(
                "no huge pages for {} bytes of buffers: ordinary pages are used",
                region.len_bytes()
            );
        }
        register_everywhere(shared, &region)?;
        let (client, engine) = ring::pair(RingSizes::new(options.ring_entries)?)?;
        let parker = Parker::new();
        let reactor = shared.next_reactor();
        let mut port = Port { shared: Arc::clone(shared), reactor, number: 0 };
        let unparker = parker.unparker().clone();
        port.number = port
            .ask(|answer| Control::OpenPort { ring: engine, client: unparker, answer })?
            .ok_or_else(|| Error::Usage("the pool has too many sessions".into()))?;
        let arena = Arena::new(region);
        Ok(Session { port, client, parker, arena, handles: Vec::new(), pool: PhantomData })
    }

    /// Whether the session's memory consists of huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.arena.region().is_huge()
    }

    /// A buffer of `len_bytes`, rounded up to whole blocks.
    ///
    /// # Errors
    /// [`Error::Environment`] when the session's memory has no such piece left; [`Error::Usage`]
    /// when the session has too many buffers.
    pub fn alloc(&self, len_bytes: u64) -> Result<SessionBuffer, Error> {
        let buffer = self.arena.alloc(len_bytes)?;
        let (port, registration) = (self.port.number, buffer.registration());
        let key = self.port.ask(|answer| Control::AddBuffer { port, registration, answer })?;
        let key = key.ok_or_else(|| Error::Usage("the session has too many buffers".into()))?;
        Ok(SessionBuffer { buffer, key, port: self.port.clone() })
    }

    /// Begins a checkpoint, or joins one that another participant began: reserves the space of this
    /// participant's segment on the drives, or fails before a byte is written. The result is the
    /// handle for entries.
    ///
    /// # Errors
    /// [`Error::CheckpointExists`], [`Error::NoSpace`], [`Error::Usage`], [`Error::Poisoned`].
    pub fn begin(&mut self, spec: &CheckpointSpec) -> Result<u64, Error> {
        let shared = Arc::clone(&self.port.shared);
        shared.require_writable()?;
        let mut reclaimed = false;
        let checkpoint = loop {
            let begun = shared.state().begin(spec, new_id());
            match begun {
                Ok(checkpoint) => break checkpoint,
                Err(BeginError::Failed(error)) => return Err(error),
                Err(BeginError::Reclaim { no_space }) if reclaimed => return Err(no_space),
                Err(BeginError::Reclaim { .. }) => {
                    shared.on_keeper(|keeper| keeper.reclaim())??;
                    reclaimed = true;
                }
            }
        };
        let participant = spec.participant;
        let segment = {
            let state = shared.state();
            let locations = state.locations(checkpoint, participant).unwrap_or_default();
            let chunk_bytes = state.label().layout.chunk_bytes();
            Arc::new(Segment::for_save(
                checkpoint,
                participant,
                spec.length_bytes,
                chunk_bytes,
                locations,
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
        // The keeper looks for commits only while a checkpoint is open.
        shared.calls.send(Call::Nudge).map_err(|_| Error::Closed("the pool"))?;
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
        let (length_bytes, chunk_bytes) = (table.length_bytes, table.chunk_bytes);
        let chunks = table.chunks.iter().map(|chunk| (chunk.location, chunk.crc64));
        let segment = Segment::for_restore(participant, length_bytes, chunk_bytes, chunks);
        let handle = self.add_segment(Arc::new(segment))?;
        Ok(OpenedSegment { handle, participant, length_bytes, chunk_bytes, shards: table.shards })
    }

    fn add_segment(&self, segment: Arc<Segment>) -> Result<u64, Error> {
        let port = self.port.number;
        let handle = self.port.ask(|answer| Control::AddSegment { port, segment, answer })?;
        handle.ok_or_else(|| Error::Usage("the session has too many segments open".into()))
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
            doom(&shared, *checkpoint);
        }
        let port = self.port.number;
        self.port.ask(|answer| Control::RemoveSegment { port, handle, answer })?;
        match opened {
            Opened::Save { checkpoint, participant } => give_up(&shared, checkpoint, participant),
            Opened::Restore { name } => shared.end_reading(&name),
        }
        Ok(())
    }

    /// Puts entries on the ring, as many as there is room for; says how many that were. Fewer than
    /// given is back-pressure: take completions, then submit the rest.
    pub fn submit(&mut self, entries: &[SubmitEntry]) -> usize {
        let outcome = self.client.submit(entries);
        if outcome.wake_engine {
            let reactor = usize::from(self.port.reactor);
            self.port.shared.fabric.reactors[reactor].unparker.unpark();
        }
        outcome.accepted
    }

    /// Takes completions that are there, and says how many that were. Never waits.
    pub fn peek(&mut self, out: &mut [CompleteEntry]) -> usize {
        self.client.peek(out)
    }

    /// Takes at least `min` completions (at most `out` holds), waiting up to `timeout` for them; says
    /// how many that were. Spins for a moment, then sleeps.
    pub fn wait(&mut self, out: &mut [CompleteEntry], min: usize, timeout: Duration) -> usize {
        let min = min.min(out.len());
        let deadline = Instant::now().checked_add(timeout);
        let mut idle = Idle::waiter();
        let mut count = self.client.peek(out);
        while count < min {
            let left =
                deadline.map_or(Duration::MAX, |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            if idle.next(false) == Pause::Spin {
                std::hint::spin_loop();
            } else if !self.client.prepare_wait() {
                self.parker.park_timeout(left.min(Duration::from_secs(1)));
                self.client.finish_wait();
            } else {
                self.client.finish_wait();
            }
            let taken = self.client.peek(&mut out[count..]);
            if taken > 0 {
                idle.reset();
            }
            count += taken;
        }
        count
    }

    /// Entries submitted whose completions were not taken yet.
    pub fn outstanding(&self) -> u32 {
        self.client.outstanding()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.port.shared);
        // Commits that wait for other participants would otherwise never end.
        for (_, opened) in &self.handles {
            if let Opened::Save { checkpoint, .. } = opened {
                doom(&shared, *checkpoint);
            }
        }
        let port = self.port.number;
        // If the reactor is gone, so is everything that was under way in it.
        let _ = self.port.ask(|answer| Control::ClosePort { port, answer });
        for (_, opened) in self.handles.drain(..) {
            match opened {
                Opened::Save { checkpoint, participant } => {
                    give_up(&shared, checkpoint, participant);
                }
                Opened::Restore { name } => shared.end_reading(&name),
            }
        }
        unregister_everywhere(&shared, self.arena.region());
    }
}

/// An open checkpoint will not be committed; one that was committed stays so.
fn doom(shared: &Shared, checkpoint: u64) {
    // If the keeper is gone, no commit can happen any more.
    let _ = shared.on_keeper(move |keeper| keeper.give_up(checkpoint, None));
}

fn give_up(shared: &Shared, checkpoint: u64, participant: u32) {
    let _ = shared.on_keeper(move |keeper| keeper.give_up(checkpoint, Some(participant)));
}

fn register_everywhere(shared: &Shared, region: &Arc<Region>) -> Result<(), Error> {
    for end in &shared.fabric.reactors {
        let (answer, result) = crossbeam::channel::bounded(1);
        end.control.push(Control::Register { region: Arc::clone(region), answer });
        end.unparker.unpark();
        result.recv().map_err(|_| Error::Closed("the pool"))??;
    }
    Ok(())
}

fn unregister_everywhere(shared: &Shared, region: &Arc<Region>) {
    for end in &shared.fabric.reactors {
        let (answer, result) = crossbeam::channel::bounded(1);
        end.control.push(Control::Unregister { region: Arc::clone(region), answer });
        end.unparker.unpark();
        // A reactor that is gone has forgotten the region.
        let _ = result.recv();
    }
}
