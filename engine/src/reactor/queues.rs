// SPDX-License-Identifier: Apache-2.0
//! The queues between the threads of one open pool.
//!
//! Every queue has a fixed size, and its producers never have more outstanding than fits: a push
//! that fails is a broken invariant, not an error to handle. The sizes follow from [`CREDITS`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::queue::ArrayQueue;
use crossbeam::sync::{Parker, Unparker};

use crate::backoff::REACTOR_NAP;
use crate::checksum::ChecksumQueue;
use crate::device::condition::Conditions;
use crate::error::IoError;
use crate::format::Layout;
use crate::reactor::answer::{Answer, Finished, Reply};
use crate::reactor::control::Control;
use crate::reactor::drive_queue::DriveRequest;
use crate::reactor::mailbox::Mailbox;
use crate::units::DriveIndex;

/// Answers that one reactor may have outstanding for its sessions' chunks, over all drives. A write
/// of a chunk needs one for each copy and one for the checksum, a read one at a time.
pub(crate) const CREDITS: usize = 1024;
/// Sessions that one reactor may serve at once.
pub(crate) const MAX_PORTS: u32 = 4096;
/// Writes and reads of its sessions that one reactor may have in flight: each session finds room
/// for one, also when all others have as many as they may ([`TaskTable::has_room`]).
///
/// [`TaskTable::has_room`]: crate::reactor::task::TaskTable::has_room
pub(crate) const TASKS: usize = 2 * (MAX_PORTS as usize + 1);
/// Commits and aborts on their way between a reactor and the keeper, in each direction. More of
/// them wait at the sender.
pub(crate) const FINISHES: usize = 256;
/// Metadata commands that the keeper may have in flight, over all drives.
pub(crate) const KEEPER_CREDITS: usize = 64;

/// A request to a reactor for one of its drives.
#[derive(Debug)]
pub(crate) struct Io {
    /// The drive's place among the reactor's drives.
    pub(crate) local: u16,
    pub(crate) request: DriveRequest<Reply>,
}

/// A participant's request to the keeper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeeperRequest {
    /// The open checkpoint, as the pool's state numbers it.
    pub(crate) checkpoint: u64,
    pub(crate) participant: u32,
    pub(crate) verdict: Verdict,
    pub(crate) reply: Reply,
}

/// What a participant requests for its segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Every byte was written: commit when all participants say so.
    Whole,
    /// Give it up.
    Abort,
    /// A copy of a chunk cannot be written at its place; the write failed with `error`.
    Move { chunk: u64, second: bool, error: IoError },
}

/// A reactor as other threads see it.
pub(crate) struct ReactorEnd {
    pub(crate) inbox: ArrayQueue<Io>,
    pub(crate) mailbox: Mailbox<Control>,
    pub(crate) unparker: Unparker,
    /// Commits and aborts that the keeper has finished.
    pub(crate) finished: ArrayQueue<Finished>,
    /// It ended by a panic. Its drives are closed, and it answers everything with an error.
    failed: AtomicBool,
}

impl ReactorEnd {
    /// Whether it ended by a panic.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

/// The reactor of a drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) reactor: u16,
    pub(crate) local: u16,
}

/// All queues.
pub(crate) struct Queues {
    pub(crate) reactors: Vec<ReactorEnd>,
    /// By `Reply::to`.
    pub(crate) answers: Vec<Arc<ArrayQueue<Answer>>>,
    pub(crate) keeper: ArrayQueue<KeeperRequest>,
    /// Wakes the keeper: work has come for it, or an answer.
    pub(crate) keeper_unparker: Unparker,
    pub(crate) checksums: ChecksumQueue,
    /// By drive.
    pub(crate) routes: Vec<Route>,
    /// By drive: commands that it takes at once.
    pub(crate) depths: Vec<u32>,
    pub(crate) layout: Layout,
    /// The condition of each drive.
    pub(crate) conditions: Arc<Conditions>,
}

impl Queues {
    /// The queues between a keeper and the reactors that sleep on these parkers. `routes` has one
    /// entry for each drive, and so has `depths`.
    pub(crate) fn new(
        reactors: &[Parker],
        keeper: &Parker,
        checksums: ChecksumQueue,
        routes: Vec<Route>,
        depths: Vec<u32>,
        layout: Layout,
        conditions: Arc<Conditions>,
    ) -> Queues {
        let count = reactors.len();
        let ends = reactors.iter().map(|parker| ReactorEnd {
            inbox: ArrayQueue::new(Queues::inbox_capacity(count)),
            mailbox: Mailbox::new(parker.unparker().clone()),
            unparker: parker.unparker().clone(),
            finished: ArrayQueue::new(FINISHES),
            failed: AtomicBool::new(false),
        });
        let to_reactors = reactors.iter().map(|_| CREDITS);
        let to_drives = routes.iter().map(|_| KEEPER_CREDITS);
        let answers = to_reactors.chain(to_drives);
        Queues {
            reactors: ends.collect(),
            answers: answers.map(|capacity| Arc::new(ArrayQueue::new(capacity))).collect(),
            keeper: ArrayQueue::new(count * FINISHES),
            keeper_unparker: keeper.unparker().clone(),
            checksums,
            routes,
            depths,
            layout,
            conditions,
        }
    }

    /// Sends a request to the reactor that serves `drive`.
    pub(crate) fn send_to_drive(&self, drive: DriveIndex, request: DriveRequest<Reply>) {
        let route = self.routes[drive.as_usize()];
        let end = &self.reactors[usize::from(route.reactor)];
        let pushed = end.inbox.push(Io { local: route.local, request });
        assert!(pushed.is_ok(), "more requests than credits");
        end.unparker.unpark();
    }

    /// Sends an answer. The asker never has more outstanding than its queue holds.
    pub(crate) fn answer(&self, to: u16, answer: Answer) {
        let pushed = self.answers[usize::from(to)].push(answer);
        assert!(pushed.is_ok(), "more answers than requests");
        match self.reactors.get(usize::from(to)) {
            Some(end) => end.unparker.unpark(),
            // The higher numbers are the keeper's drives.
            None => self.keeper_unparker.unpark(),
        }
    }

    /// Sends a participant's request to the keeper. False: the queue is full, send it later.
    pub(crate) fn send_to_keeper(&self, request: KeeperRequest) -> bool {
        let sent = self.keeper.push(request).is_ok();
        self.keeper_unparker.unpark();
        sent
    }

    /// The keeper's answer to a commit or an abort. A reactor never waits for the keeper, so the
    /// keeper may wait for room.
    pub(crate) fn finish(&self, to: u16, finished: Finished) {
        let end = &self.reactors[usize::from(to)];
        while end.finished.push(finished).is_err() && !end.mailbox.is_closed() {
            end.unparker.unpark();
            std::thread::sleep(REACTOR_NAP);
        }
        end.unparker.unpark();
    }

    /// A reactor failed: nothing can be committed any more, since each commit needs all drives.
    pub(crate) fn set_failed(&self, reactor: u16) {
        self.reactors[usize::from(reactor)].failed.store(true, Ordering::Release);
        self.keeper_unparker.unpark();
    }

    /// Whether a reactor has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.reactors.iter().any(ReactorEnd::has_failed)
    }

    /// Requests that all askers together may have at one reactor.
    pub(crate) fn inbox_capacity(reactors: usize) -> usize {
        reactors * CREDITS + KEEPER_CREDITS
    }
}
