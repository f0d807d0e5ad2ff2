//! The queues between the threads of one open pool.
//!
//! Every queue has a fixed size and a producer that never has more outstanding than fits: a push
//! that fails is a broken invariant, not a condition to handle. The sizes follow from [`CREDITS`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam::queue::ArrayQueue;
use crossbeam::sync::{Parker, Unparker};

use crate::checksum::ChecksumQueue;
use crate::device::condition::Conditions;
use crate::error::IoError;
use crate::format::Layout;
use crate::reactor::control::Control;
use crate::reactor::drive_queue::DriveRequest;
use crate::units::{DriveIndex, Location};

/// Answers that one reactor may have outstanding for its sessions' chunks, over all drives. A chunk
/// to write waits for one of each copy's drive and the checksum's, a chunk to read for one at a time.
pub(crate) const CREDITS: usize = 1024;
/// Operations that one reactor may have under way for its sessions.
pub(crate) const OPERATIONS: usize = 1024;
/// Metadata commands that the keeper may have under way, over all drives.
pub(crate) const KEEPER_CREDITS: usize = 64;

/// Who gets the answer to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// Index into `Queues::done`: a reactor's number, or beyond those one for each remote drive.
    pub(crate) to: u16,
    /// The asker's own.
    pub(crate) token: u64,
}

/// A request to a reactor for one of its drives.
#[derive(Debug)]
pub(crate) struct Io {
    /// The drive's place among the reactor's drives.
    pub(crate) local: u16,
    pub(crate) request: DriveRequest<Reply>,
}

/// An answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Done {
    /// A drive finished a request.
    Io { token: u64, status: Result<(), IoError> },
    /// A helper finished a checksum.
    Checksum { token: u64, crc64: u64, padding_is_zero: bool },
    /// The keeper has another place for a chunk, or the error stays.
    Moved { token: u64, to: Result<Location, IoError> },
    /// The keeper finished a commit or an abort: what the completion says.
    Keeper { token: u64, result: i64, detail: u32, aux: u64 },
}

/// A participant's word to the keeper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeeperRequest {
    /// The open checkpoint, as the pool's state numbers it.
    pub(crate) checkpoint: u64,
    pub(crate) participant: u32,
    pub(crate) verdict: Verdict,
    pub(crate) reply: Reply,
}

/// What a participant says of its segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Every byte was written: commit when all participants say so.
    Whole,
    /// Give it up.
    Abort,
    /// A copy of a chunk cannot be written where it should lie, which failed like this.
    Move { chunk: u64, second: bool, error: IoError },
}

/// One reactor as others see it.
pub(crate) struct ReactorEnd {
    pub(crate) inbox: ArrayQueue<Io>,
    pub(crate) control: ControlQueue,
    pub(crate) unparker: Unparker,
}

/// Where a drive is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) reactor: u16,
    pub(crate) local: u16,
}

/// All queues.
pub(crate) struct Queues {
    pub(crate) reactors: Vec<ReactorEnd>,
    /// By `Reply::to`.
    pub(crate) done: Vec<Arc<ArrayQueue<Done>>>,
    pub(crate) keeper: ArrayQueue<KeeperRequest>,
    /// Wakes the keeper: work has come for it, or an answer.
    pub(crate) keeper_unparker: Unparker,
    pub(crate) checksums: ChecksumQueue,
    /// By drive.
    pub(crate) routes: Vec<Route>,
    pub(crate) layout: Layout,
    /// What the drives have turned out to be.
    pub(crate) conditions: Arc<Conditions>,
}

impl Queues {
    /// The queues between a keeper and reactors that sleep on these parkers. `routes` has one for
    /// each drive.
    pub(crate) fn new(
        reactors: &[Parker],
        keeper: &Parker,
        checksums: ChecksumQueue,
        routes: Vec<Route>,
        layout: Layout,
        conditions: Arc<Conditions>,
    ) -> Queues {
        let count = reactors.len();
        let ends = reactors.iter().map(|parker| ReactorEnd {
            inbox: ArrayQueue::new(Queues::inbox_capacity(count)),
            control: ControlQueue::default(),
            unparker: parker.unparker().clone(),
        });
        // Answers that may wait for one reactor: its credits, and the keeper's for each operation.
        let reactor_done = reactors.iter().map(|_| CREDITS + OPERATIONS);
        let drive_done = routes.iter().map(|_| KEEPER_CREDITS);
        let done = reactor_done.chain(drive_done);
        Queues {
            reactors: ends.collect(),
            done: done.map(|capacity| Arc::new(ArrayQueue::new(capacity))).collect(),
            keeper: ArrayQueue::new(count * (OPERATIONS + CREDITS)),
            keeper_unparker: keeper.unparker().clone(),
            checksums,
            routes,
            layout,
            conditions,
        }
    }

    /// Sends a request to the reactor that serves `drive`.
    pub(crate) fn send(&self, drive: DriveIndex, request: DriveRequest<Reply>) {
        let route = self.routes[drive.as_usize()];
        let end = &self.reactors[usize::from(route.reactor)];
        let pushed = end.inbox.push(Io { local: route.local, request });
        assert!(pushed.is_ok(), "more requests than credits");
        end.unparker.unpark();
    }

    /// Sends an answer. Who asked never has more outstanding than its queue holds.
    pub(crate) fn answer(&self, to: u16, done: Done) {
        let pushed = self.done[usize::from(to)].push(done);
        assert!(pushed.is_ok(), "more answers than requests");
        match self.reactors.get(usize::from(to)) {
            Some(end) => end.unparker.unpark(),
            // The others are the keeper's drives.
            None => self.keeper_unparker.unpark(),
        }
    }

    /// Brings a participant's word to the keeper. The queue holds one for each operation and credit.
    pub(crate) fn tell_keeper(&self, request: KeeperRequest) {
        let pushed = self.keeper.push(request);
        assert!(pushed.is_ok(), "more requests to the keeper than operations");
        self.keeper_unparker.unpark();
    }

    /// Requests that all askers together may have at one reactor.
    pub(crate) fn inbox_capacity(reactors: usize) -> usize {
        reactors * CREDITS + KEEPER_CREDITS
    }
}

/// Rare messages to a reactor that may carry anything; the flag spares the lock on each tick.
pub(crate) struct ControlQueue {
    waiting: AtomicBool,
    /// None once the reactor has ended: messages are dropped, which their senders' channels tell.
    messages: Mutex<Option<Vec<Control>>>,
}

impl Default for ControlQueue {
    fn default() -> ControlQueue {
        ControlQueue { waiting: AtomicBool::new(false), messages: Mutex::new(Some(Vec::new())) }
    }
}

impl ControlQueue {
    pub(crate) fn push(&self, message: Control) {
        if let Some(messages) = self.lock().as_mut() {
            messages.push(message);
            self.waiting.store(true, Ordering::Release);
        }
    }

    /// The reactor has ended, however it did.
    pub(crate) fn close(&self) {
        *self.lock() = None;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Control>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a message waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Vec<Control> {
        self.waiting.store(false, Ordering::Release);
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }
}
