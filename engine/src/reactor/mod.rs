// SPDX-License-Identifier: Apache-2.0
//! The reactor: the polled thread that owns the queue pairs of its drives and serves sessions.
//!
//! One turn, [`Reactor::tick`], follows the bytes, and so does this file. It takes entries from the
//! rings, checks them and accepts them as tasks (`session_entries`). Tasks send chunks to the
//! drives' reactors and to the checksum helpers. The drives are polled. Answers finish chunks
//! (`chunk_answers`), then tasks, and completions go back to the rings. Rare messages come first
//! (`messages`).
//!
//! - It never blocks, and while entries flow it makes no system call and no allocation of its
//!   own. What a drive's back end does inside `submit` and `poll` is the back end's.
//! - The drive queue's slot owns the memory of a transfer until the drive is done with it, and a
//!   buffer counts the tasks that use it.
//! - Nothing from a ring is used before it was copied and checked.
//! - An entry that was taken is in the reactor's hand, in the table of tasks or in its segment's
//!   slot until it is completed, so that a panic at any instant leaves it to be found (`failure`).

pub(crate) mod answer;
mod chunk_answers;
pub(crate) mod control;
pub(crate) mod drive_queue;
mod failure;
pub(crate) mod mailbox;
mod messages;
pub(crate) mod port;
pub(crate) mod queues;
pub(crate) mod remote_drive;
mod schedule;
pub(crate) mod segment;
mod session_entries;
pub(crate) mod task;
pub(crate) mod token;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam::sync::Parker;

use crate::backoff::{Backoff, Pause, REACTOR_NAP};
use crate::checksum::ChecksumJob;
use crate::device::Operation;
use crate::planted::{Victim, may_panic};
use crate::reactor::answer::{Answer, Outcome, Reply};
use crate::reactor::control::{Control, Quiesce};
use crate::reactor::drive_queue::{DriveQueue, DriveRequest};
use crate::reactor::port::Port;
use crate::reactor::queues::{CREDITS, KeeperRequest, Queues, TASKS};
use crate::reactor::schedule::Schedule;
use crate::reactor::task::{Kind, Task, TaskTable, Transfer};
use crate::reactor::token::ChunkToken;
use crate::ring::CompleteEntry;

/// Entries taken from one ring, and answers handled, before the drives are polled again.
const BATCH: usize = 32;
/// Answers that follow one command: the drive's, and a helper's.
const ANSWERS_PER_COMMAND: usize = 2;

/// One reactor. Lives on its own pinned thread.
pub(crate) struct Reactor {
    index: u16,
    queues: Arc<Queues>,
    parker: Parker,
    drives: Vec<DriveQueue<Reply>>,
    /// Every drive works by interrupts, so the reactor may nap while it waits for one.
    may_nap: bool,
    ports: Vec<Option<Port>>,
    tasks: TaskTable,
    schedule: Schedule,
    /// Where the next turn starts, so that no port and no drive is always the first.
    first_port: usize,
    first_drive: usize,
    credits: usize,
    /// The helpers have jobs of this turn, and were not woken for them yet.
    has_jobs: bool,
    /// Port and user data of the entry that is being accepted or completed.
    in_hand: Option<(u32, u64)>,
    /// Messages that have come and are not handled yet.
    messages: VecDeque<Control>,
    /// Requests to the keeper that have not been sent. It has room for one of each segment and each
    /// credit.
    to_keeper: VecDeque<KeeperRequest>,
    /// Reactors that failed and wait until nothing of theirs is in flight here.
    quiescing: Vec<Quiesce>,
    /// A multiple of `MAX_PORTS`; keeps the numbers of ports distinct.
    next_tag: u32,
    stopping: bool,
}

impl Reactor {
    pub(crate) fn new(
        index: u16,
        queues: Arc<Queues>,
        parker: Parker,
        drives: Vec<DriveQueue<Reply>>,
    ) -> Reactor {
        let schedule = Schedule::new(&queues.depths, queues.layout.chunk_bytes());
        let may_nap = drives.iter().all(|drive| drive.info().interrupt_driven);
        Reactor {
            index,
            queues,
            parker,
            drives,
            may_nap,
            ports: Vec::new(),
            tasks: TaskTable::new(TASKS),
            schedule,
            first_port: 0,
            first_drive: 0,
            credits: CREDITS,
            has_jobs: false,
            in_hand: None,
            messages: VecDeque::new(),
            to_keeper: VecDeque::with_capacity(CREDITS),
            quiescing: Vec::new(),
            next_tag: 0,
            stopping: false,
        }
    }

    /// Runs until it must stop and nothing is in flight. After a panic it closes its drives and
    /// answers everything with an error until it must stop.
    pub(crate) fn run(mut self) {
        let queues = Arc::clone(&self.queues);
        let open = queues.reactors[usize::from(self.index)].mailbox.open_while_held();
        crate::backoff::shorten_timer_slack();
        if catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            self.serve_failed();
        }
        // In this order: a caller that finds the mailbox closed may free its memory, so no device
        // may touch it any more.
        self.drives.clear();
        self.ports.clear();
        drop(open);
    }

    /// Takes turns until it must stop and nothing is in flight.
    fn serve(&mut self) {
        let mut backoff = Backoff::reactor(self.may_nap);
        loop {
            if self.tick() {
                backoff.reset();
                continue;
            }
            if self.stopping && self.is_quiet() {
                return;
            }
            let keep_spinning = !self.may_nap && self.is_moving();
            match backoff.next(keep_spinning) {
                Pause::Spin => std::hint::spin_loop(),
                // Chunks come in numbers and are not urgent; a caller waits for each step of a
                // commit.
                Pause::Nap(time) if self.credits < CREDITS => std::thread::sleep(time),
                Pause::Nap(_) => std::thread::sleep(REACTOR_NAP),
                Pause::Park(_) if !self.is_quiet() => self.pause(),
                Pause::Park(time) => self.park(time),
            }
        }
    }

    /// Gives the core to others during long work. Where the kernel moves the bytes, its own threads
    /// may need this core to finish them. A yield does not give it to a thread of lower priority; a
    /// sleep does.
    fn pause(&self) {
        if self.may_nap { std::thread::sleep(REACTOR_NAP) } else { std::thread::yield_now() }
    }

    /// A chunk is in flight, or a drive works for another thread. A commit that waits is neither.
    fn is_moving(&self) -> bool {
        self.credits < CREDITS || self.drives.iter().any(DriveQueue::is_busy)
    }

    /// Nothing is in flight: the next work comes with an unpark.
    fn is_quiet(&self) -> bool {
        self.tasks.is_empty()
            && self.to_keeper.is_empty()
            && self.quiescing.is_empty()
            && self.drives.iter().all(|drive| drive.outstanding() == 0)
    }

    fn park(&mut self, time: Duration) {
        // A ring's flag makes its client wake us. `prepare_sleep` sees work that came before the
        // flag was set; messages of other threads leave a token in the parker.
        let mut work = false;
        for port in self.ports.iter_mut().flatten() {
            work |= port.ring.prepare_sleep() && port.is_open();
        }
        if !work {
            self.parker.park_timeout(time);
        }
        self.ports.iter_mut().flatten().for_each(|port| port.ring.finish_sleep());
    }

    /// One turn. Returns whether anything happened.
    pub(crate) fn tick(&mut self) -> bool {
        let mut progress = false;
        if self.queues.reactors[usize::from(self.index)].mailbox.is_waiting() {
            self.handle_messages();
            progress = true;
        }
        let count = self.ports.len();
        self.first_port = if self.first_port + 1 < count { self.first_port + 1 } else { 0 };
        for index in (self.first_port..count).chain(0..self.first_port) {
            progress |= self.take_entries(index);
        }
        progress |= self.hand_out_chunks();
        progress |= self.take_requests();
        progress |= self.poll_drives();
        progress |= self.handle_answers();
        progress |= self.handle_finished();
        progress |= self.send_to_keeper();
        self.answer_quiescing();
        if std::mem::take(&mut self.has_jobs) {
            self.queues.checksums.wake();
        }
        self.publish_completions();
        progress
    }

    /// Lets sessions send chunks, in turn at each drive, as far as the credits go.
    fn hand_out_chunks(&mut self) -> bool {
        if self.schedule.is_empty() {
            return false;
        }
        let mut progress = false;
        let count = self.schedule.drive_count();
        self.first_drive = (self.first_drive + 1) % count;
        for drive in (self.first_drive..count).chain(0..self.first_drive) {
            while self.credits >= ANSWERS_PER_COMMAND {
                let chunk_bytes = self.queues.layout.chunk_bytes();
                let next = self.schedule.next(&mut self.tasks, drive, chunk_bytes);
                let Some(slot) = next else { break };
                self.issue(slot);
                progress = true;
            }
        }
        progress
    }

    /// Lets a task wait for its turn at the drive of the command that it sends next.
    fn await_turn(&mut self, slot: u32) {
        let task = self.tasks.get(slot);
        let drive = task.transfer.location(task.next, task.is_half_sent).drive.as_usize();
        let port = Port::index(task.port);
        self.schedule.add(&mut self.tasks, port, drive, slot);
    }

    /// Sends a task's next command: a read of a chunk's first copy, or a write of one copy. With
    /// the first copy that is written the chunk goes to the checksum helpers, too.
    fn issue(&mut self, slot: u32) {
        let task = self.tasks.get(slot);
        let (relative, kind, second) = (task.next, task.kind, task.is_half_sent);
        let token = ChunkToken { slot, relative, second };
        if kind == Kind::Read {
            task.next += 1;
            self.expect_answer(slot);
            self.send_to_drive(token, Operation::Read);
        } else {
            let transfer = &task.transfer;
            let chunk = transfer.first_chunk + u64::from(relative);
            let mirrored = transfer.segment.copies(chunk).second.is_some();
            if !second {
                transfer.span(relative).zero_from(transfer.segment.chunk_data_bytes(chunk));
            }
            task.is_half_sent = mirrored && !second;
            task.next += u32::from(!task.is_half_sent);
            self.expect_answer(slot);
            may_panic(Victim::Reactor);
            self.send_to_drive(token, Operation::Write);
            if !second {
                self.expect_answer(slot);
                self.send_to_helpers(token);
            }
        }
        if self.tasks.get(slot).remaining() > 0 {
            self.await_turn(slot);
        }
    }

    /// Adds one answer to those outstanding, which takes a credit.
    fn expect_answer(&mut self, slot: u32) {
        self.tasks.get(slot).outstanding += 1;
        self.credits -= 1;
    }

    /// The memory and place of a task that moves bytes.
    fn transfer(&mut self, slot: u32) -> &Transfer {
        &self.tasks.get(slot).transfer
    }

    /// Sends one copy of a chunk to its drive.
    fn send_to_drive(&mut self, token: ChunkToken, operation: Operation) {
        let transfer = self.transfer(token.slot);
        let location = transfer.location(token.relative, token.second);
        let span = Some(transfer.span(token.relative));
        self.schedule.take_credit(location.drive.as_usize());
        let request = DriveRequest {
            operation,
            offset_bytes: self.queues.layout.slot_offset(location.slot),
            span,
            reply: Reply { to: self.index, token: token.encode() },
        };
        let route = self.queues.routes[location.drive.as_usize()];
        if route.reactor == self.index {
            self.drives[usize::from(route.local)].push(request);
        } else {
            self.queues.send_to_drive(location.drive, request);
        }
    }

    /// Sends the bytes of a chunk to the checksum helpers.
    fn send_to_helpers(&mut self, token: ChunkToken) {
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let data_bytes = transfer.segment.chunk_data_bytes(chunk);
        let span = transfer.span(token.relative);
        let reply = Arc::clone(&self.queues.answers[usize::from(self.index)]);
        self.queues.checksums.push(ChecksumJob::new(span, data_bytes, reply, token.encode()));
        self.has_jobs = true;
    }

    /// Takes the requests of others to this reactor's drives.
    fn take_requests(&mut self) -> bool {
        let inbox = &self.queues.reactors[usize::from(self.index)].inbox;
        let mut progress = false;
        while let Some(io) = inbox.pop() {
            let drive = &mut self.drives[usize::from(io.local)];
            if usize::from(io.request.reply.to) < self.queues.reactors.len() {
                drive.push(io.request);
            } else {
                drive.push_first(io.request);
            }
            progress = true;
        }
        progress
    }

    /// Polls the drives, and sends their answers to the askers.
    fn poll_drives(&mut self) -> bool {
        let mut progress = false;
        for drive in &mut self.drives {
            let queues = &self.queues;
            progress |= drive.tick(|reply, status| {
                may_panic(Victim::Reactor);
                queues.answer(reply.to, Answer::Io { token: reply.token, status });
            });
        }
        progress
    }

    /// Ends a task that has issued all its chunks and has all answers.
    fn finish_if_done(&mut self, slot: u32) {
        let task = self.tasks.get(slot);
        if task.outstanding > 0 || task.remaining() > 0 {
            return;
        }
        if task.unfenced {
            return self.abandon_task(slot);
        }
        self.in_hand = Some((task.port, task.user_data));
        let task = self.remove_task(slot);
        let transfer = &task.transfer;
        if task.kind == Kind::Write && task.failure.is_some() {
            transfer.segment.unclaim(transfer.first_chunk, transfer.chunk_count.into());
        }
        transfer.usage.end();
        let outcome = task.failure.unwrap_or(Outcome::success(task.len_bytes as i64, 0));
        self.complete(task.port, outcome.completion(task.user_data));
        self.transfer_ended(task.port, task.handle);
    }

    fn remove_task(&mut self, slot: u32) -> Task {
        let task = self.tasks.remove(slot);
        if let Some(port) = self.port(task.port) {
            port.tasks -= 1;
        }
        task
    }

    /// Puts a completion on the session's ring. The slot was reserved when the entry was taken.
    fn complete(&mut self, port: u32, entry: CompleteEntry) {
        may_panic(Victim::Reactor);
        if let Some(open) = self.port(port) {
            open.entries -= 1;
            open.ring.complete(entry);
        }
        self.in_hand = None;
        self.close_if_done(port);
    }

    /// Sends the requests that wait for room in the keeper's queue. It makes room without waiting
    /// for a reactor, so nothing here waits for good.
    fn send_to_keeper(&mut self) -> bool {
        let mut progress = false;
        while let Some(request) = self.to_keeper.front() {
            if !self.queues.send_to_keeper(*request) {
                break;
            }
            self.to_keeper.pop_front();
            progress = true;
        }
        progress
    }

    /// Makes completions visible to clients, and wakes those that wait for them.
    fn publish_completions(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            if port.ring.publish() {
                port.client.wake();
            }
        }
    }
}
