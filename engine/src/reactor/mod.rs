//! The reactor: the polled thread that owns the queue pairs of its drives and serves sessions.
//!
//! One turn of [`Reactor::tick`] follows the bytes: entries are taken from the rings, checked and
//! turned into operations; operations hand out chunks to the drives' reactors and to the checksum
//! helpers; drives are polled; answers finish chunks, then operations, then go back to the rings.
//!
//! - It never blocks, and while operations flow it makes no system call and no allocation of its
//!   own. What a drive's back end does inside `submit` and `poll` is the back end's.
//! - Memory of a transfer belongs to the drive's queue slot until the drive is done with it, and a
//!   buffer counts the operations that use it.
//! - Nothing that came through a ring is used before it was copied and checked.

pub(crate) mod control;
pub(crate) mod drive_queue;
pub(crate) mod operation;
pub(crate) mod port;
pub(crate) mod queues;
pub(crate) mod remote_drive;
pub(crate) mod segment;
mod session_entries;

use std::sync::Arc;
use std::time::Duration;

use crossbeam::sync::{Parker, Unparker};

use crate::backoff::{Backoff, Pause};
use crate::checksum::{ChecksumJob, chunk_is_sound};
use crate::device::Operation as DriveOperation;
use crate::device::status::{self, Action};
use crate::error::IoError;
use crate::reactor::control::Control;
use crate::reactor::drive_queue::{DriveQueue, DriveRequest};
use crate::reactor::operation::{Failure, Kind, OperationTable, Transfer};
use crate::reactor::port::{MAX_PORTS, Port, Waker};
use crate::reactor::queues::{
    CREDITS, Done, KeeperRequest, OPERATIONS, Queues, ReactorEnd, Reply, Verdict,
};
use crate::reactor::segment::Purpose;
use crate::ring::{self, CompleteEntry, codes};
use crate::units::Location;

/// Entries taken from one ring, and answers handled, before the drives are polled again.
const BATCH: usize = 32;
/// Chunks that one operation hands out before it is the next one's turn.
const CHUNKS_PER_TURN: u32 = 4;
/// Answers that a chunk may wait for: two copies are written and a checksum is computed.
const ANSWERS_PER_CHUNK: usize = 3;

/// Names a chunk of an operation under way, and one of its copies.
#[derive(Clone, Copy)]
struct ChunkToken {
    /// The operation's slot.
    slot: u32,
    /// The chunk, counted from the operation's first; below [`MAX_CHUNKS_PER_OPERATION`].
    relative: u32,
    /// The second copy, not the first.
    second: bool,
}

/// Copies that one operation may have moved to other places: a drive that writes nothing is no
/// matter of places.
const MAX_MOVES: u32 = 8;
/// Chunks of one operation: what a token has room for.
const MAX_CHUNKS_PER_OPERATION: u32 = 1 << 31;

impl ChunkToken {
    fn encode(self) -> u64 {
        let low = self.relative | if self.second { MAX_CHUNKS_PER_OPERATION } else { 0 };
        u64::from(self.slot) << 32 | u64::from(low)
    }

    fn decode(token: u64) -> ChunkToken {
        let low = token as u32;
        ChunkToken {
            slot: (token >> 32) as u32,
            relative: low & (MAX_CHUNKS_PER_OPERATION - 1),
            second: low & MAX_CHUNKS_PER_OPERATION != 0,
        }
    }
}

/// How long a reactor sleeps while interrupt-driven drives take long.
const NAP: Duration = Duration::from_micros(50);

/// One reactor. Lives on its own pinned thread.
pub(crate) struct Reactor {
    index: u16,
    queues: Arc<Queues>,
    parker: Parker,
    drives: Vec<DriveQueue<Reply>>,
    /// Every drive sleeps on interrupts, so the reactor may nap while it waits for one.
    may_nap: bool,
    ports: Vec<Option<Port>>,
    operations: OperationTable,
    credits: usize,
    /// A multiple of `MAX_PORTS`; makes the numbers of ports unlike.
    next_tag: u32,
    stopping: bool,
}

/// Tells whoever still asks, when a reactor ends, that it has: also when it ends by a panic.
struct Ended<'a>(&'a ReactorEnd);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.control.close();
    }
}

impl Reactor {
    pub(crate) fn new(
        index: u16,
        queues: Arc<Queues>,
        parker: Parker,
        drives: Vec<DriveQueue<Reply>>,
    ) -> Reactor {
        let may_nap = drives.iter().all(|drive| drive.info().interrupt_driven);
        Reactor {
            index,
            queues,
            parker,
            drives,
            may_nap,
            ports: Vec::new(),
            operations: OperationTable::new(OPERATIONS),
            credits: CREDITS,
            next_tag: 0,
            stopping: false,
        }
    }

    /// Runs until it is told to stop and nothing is under way.
    pub(crate) fn run(mut self) {
        let queues = Arc::clone(&self.queues);
        let _ended = Ended(&queues.reactors[usize::from(self.index)]);
        crate::backoff::shorten_timer_slack();
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
                // Chunks come in numbers and are in no hurry; somebody waits for each step of a commit.
                Pause::Nap(time) if self.credits < CREDITS => std::thread::sleep(time),
                Pause::Nap(_) => std::thread::sleep(NAP),
                Pause::Park(_) if !self.is_quiet() => self.pause(),
                Pause::Park(time) => self.park(time),
            }
        }
    }

    /// Lets others have the core while something is under way that takes long. Where the kernel moves
    /// the bytes, its own threads may need this very core to finish them, and a thread that yields
    /// gives it to none of a lower priority: that needs sleep.
    fn pause(&self) {
        if self.may_nap { std::thread::sleep(NAP) } else { std::thread::yield_now() }
    }

    /// A chunk is under way, or a drive works for somebody else. A commit that waits is neither.
    fn is_moving(&self) -> bool {
        self.credits < CREDITS || self.drives.iter().any(DriveQueue::is_busy)
    }

    /// Nothing under way: whatever comes next is announced by an unpark.
    fn is_quiet(&self) -> bool {
        self.operations.is_empty() && self.drives.iter().all(|drive| drive.outstanding() == 0)
    }

    fn park(&mut self, time: Duration) {
        // A ring's flag tells its client to wake us. Work that came before the flag was up shows
        // in `prepare_sleep`; what other threads send is announced by a token in the parker.
        let mut work = false;
        for port in self.ports.iter_mut().flatten() {
            work |= port.ring.prepare_sleep() && port.is_open();
        }
        if !work {
            self.parker.park_timeout(time);
        }
        self.ports.iter_mut().flatten().for_each(|port| port.ring.finish_sleep());
    }

    /// One turn. Says whether anything happened.
    pub(crate) fn tick(&mut self) -> bool {
        let mut progress = false;
        if self.queues.reactors[usize::from(self.index)].control.is_waiting() {
            self.handle_control();
            progress = true;
        }
        for index in 0..self.ports.len() {
            progress |= self.take_entries(index);
        }
        progress |= self.hand_out_chunks();
        progress |= self.take_requests();
        for drive in &mut self.drives {
            let queues = &self.queues;
            progress |= drive.tick(|reply, status| {
                queues.answer(reply.to, Done::Io { token: reply.token, status });
            });
        }
        progress |= self.handle_answers();
        for port in self.ports.iter_mut().flatten() {
            if port.ring.publish() {
                port.client.wake();
            }
        }
        progress
    }

    /// Lets operations hand out chunks, in turn, as far as the credits go.
    fn hand_out_chunks(&mut self) -> bool {
        let mut progress = false;
        while self.credits >= ANSWERS_PER_CHUNK {
            let Some(slot) = self.operations.pop_issuing() else { break };
            for _ in 0..CHUNKS_PER_TURN {
                if self.credits < ANSWERS_PER_CHUNK || self.operations.get(slot).remaining() == 0 {
                    break;
                }
                self.issue_chunk(slot);
                progress = true;
            }
            if self.operations.get(slot).remaining() > 0 {
                self.operations.push_issuing(slot);
            } else {
                // A failure may have ended it while no answer was outstanding.
                self.finish_if_done(slot);
            }
        }
        progress
    }

    /// Hands out an operation's next chunk: a read to the first copy's drive, a write to the drives of
    /// all copies and to the checksum helpers.
    fn issue_chunk(&mut self, slot: u32) {
        let operation = self.operations.get(slot);
        let (relative, kind) = (operation.next, operation.kind);
        operation.next += 1;
        let first = ChunkToken { slot, relative, second: false };
        self.expect_answer(slot);
        if kind == Kind::Read {
            self.ask_drive(first, DriveOperation::Read);
            return;
        }
        let transfer = self.transfer(slot);
        let chunk = transfer.first_chunk + u64::from(relative);
        transfer.span(relative).zero_from(transfer.segment.chunk_data_bytes(chunk));
        let mirrored = transfer.segment.copies(chunk).second.is_some();
        self.ask_drive(first, DriveOperation::Write);
        if mirrored {
            self.expect_answer(slot);
            self.ask_drive(ChunkToken { second: true, ..first }, DriveOperation::Write);
        }
        self.expect_answer(slot);
        self.ask_checksum(first);
    }

    /// One more answer is to come, which takes a credit.
    fn expect_answer(&mut self, slot: u32) {
        self.operations.get(slot).outstanding += 1;
        self.credits -= 1;
    }

    /// The memory and place of an operation that moves bytes.
    fn transfer(&mut self, slot: u32) -> &Transfer {
        let transfer = &self.operations.get(slot).transfer;
        transfer.as_ref().expect("only transfers have chunks")
    }

    /// Sends one copy of a chunk to its drive.
    fn ask_drive(&mut self, token: ChunkToken, operation: DriveOperation) {
        let transfer = self.transfer(token.slot);
        let location = transfer.location(token.relative, token.second);
        let span = Some(transfer.span(token.relative));
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
            self.queues.send(location.drive, request);
        }
    }

    /// Sends the bytes of a chunk to the checksum helpers.
    fn ask_checksum(&mut self, token: ChunkToken) {
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let data_bytes = transfer.segment.chunk_data_bytes(chunk);
        let span = transfer.span(token.relative);
        let reply = Arc::clone(&self.queues.done[usize::from(self.index)]);
        self.queues.checksums.push(ChecksumJob { span, data_bytes, reply, token: token.encode() });
    }

    /// Takes what others ask of this reactor's drives.
    fn take_requests(&mut self) -> bool {
        let inbox = &self.queues.reactors[usize::from(self.index)].inbox;
        let mut progress = false;
        while let Some(io) = inbox.pop() {
            self.drives[usize::from(io.local)].push(io.request);
            progress = true;
        }
        progress
    }

    fn handle_answers(&mut self) -> bool {
        let mut progress = false;
        for _ in 0..4 * BATCH {
            let Some(done) = self.queues.done[usize::from(self.index)].pop() else { break };
            progress = true;
            match done {
                Done::Io { token, status } => self.handle_io(token, status),
                Done::Checksum { token, crc64, padding_is_zero } => {
                    self.handle_checksum(token, crc64, padding_is_zero);
                }
                Done::Moved { token, to } => self.handle_moved(token, to),
                Done::Keeper { token, result, detail, aux } => {
                    self.handle_keeper(token, result, detail, aux);
                }
            }
        }
        progress
    }

    fn handle_io(&mut self, token: u64, status: Result<(), IoError>) {
        let token = ChunkToken::decode(token);
        let kind = self.operations.get(token.slot).kind;
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let at = chunk * transfer.segment.chunk_bytes;
        match (kind, status) {
            // The credit and the outstanding answer pass from the drive to the helper.
            (Kind::Read, Ok(())) => return self.ask_checksum(token),
            (_, Ok(())) => transfer.segment.copy_written(chunk),
            (Kind::Read, Err(error)) => {
                let (result, detail) = codes::of_io_error(error);
                if self.read_second_copy(token, codes::describe(result)) {
                    return;
                }
                self.operations.get(token.slot).fail(Failure { result, detail, aux: at });
            }
            (_, Err(error)) => {
                if self.ask_for_another_place(token, error) {
                    return;
                }
                self.fail_chunk(token, error);
            }
        }
        self.answered(token.slot);
    }

    fn fail_chunk(&mut self, token: ChunkToken, error: IoError) {
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let aux = chunk * transfer.segment.chunk_bytes;
        let (result, detail) = codes::of_io_error(error);
        self.operations.get(token.slot).fail(Failure { result, detail, aux });
    }

    /// A chunk could not be written. If the drive is not to blame but the place is, the keeper is
    /// asked for another one; the credit and the outstanding answer pass to it. The drive's queue has
    /// tried again before that what may be tried again.
    fn ask_for_another_place(&mut self, token: ChunkToken, error: IoError) -> bool {
        let action =
            status::action(DriveOperation::Write, error).when_retries_end(DriveOperation::Write);
        let operation = self.operations.get(token.slot);
        let failed = operation.failure.is_some() || operation.moves == MAX_MOVES;
        if action != Action::Move || failed {
            return false;
        }
        operation.moves += 1;
        let transfer = self.transfer(token.slot);
        let Purpose::Save { checkpoint } = transfer.segment.purpose else { return false };
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let request = KeeperRequest {
            checkpoint,
            participant: transfer.segment.participant,
            verdict: Verdict::Move { chunk, second: token.second, error },
            reply: Reply { to: self.index, token: token.encode() },
        };
        self.queues.tell_keeper(request);
        true
    }

    /// The keeper's answer: the chunk is written again, to its new place.
    fn handle_moved(&mut self, token: u64, to: Result<Location, IoError>) {
        let token = ChunkToken::decode(token);
        match to {
            Ok(to) => {
                let transfer = self.transfer(token.slot);
                let from = transfer.location(token.relative, token.second);
                let chunk = transfer.first_chunk + u64::from(token.relative);
                tracing::warn!(
                    drive = from.drive.0,
                    slot = from.slot,
                    "a place on a drive cannot be written and is left alone; its chunk goes to drive \
                     {}, slot {}",
                    to.drive,
                    to.slot
                );
                transfer.segment.move_copy(chunk, token.second, to);
                self.ask_drive(token, DriveOperation::Write);
            }
            Err(error) => {
                self.fail_chunk(token, error);
                self.answered(token.slot);
            }
        }
    }

    fn handle_checksum(&mut self, token: u64, crc64: u64, padding_is_zero: bool) {
        let token = ChunkToken::decode(token);
        let kind = self.operations.get(token.slot).kind;
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let aux = chunk * transfer.segment.chunk_bytes;
        if kind == Kind::Write {
            transfer.segment.set_crc64(chunk, crc64);
        } else if !chunk_is_sound(transfer.segment.crc64(chunk), crc64, padding_is_zero) {
            if self.read_second_copy(token, codes::describe(codes::CHECKSUM)) {
                return;
            }
            let failure = Failure { result: codes::CHECKSUM, detail: 0, aux };
            self.operations.get(token.slot).fail(failure);
        }
        self.answered(token.slot);
    }

    /// The first copy of a chunk cannot be had: reads the second one, if there is one, for the same
    /// credit and outstanding answer.
    fn read_second_copy(&mut self, token: ChunkToken, why: &str) -> bool {
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let copies = transfer.segment.copies(chunk);
        if token.second || copies.second.is_none() {
            return false;
        }
        tracing::warn!(
            drive = copies.first.drive.0,
            slot = copies.first.slot,
            "a chunk's first copy cannot be had ({why}); its second copy is read, and `stanchion \
             verify --repair` mends the first"
        );
        self.ask_drive(ChunkToken { second: true, ..token }, DriveOperation::Read);
        true
    }

    /// One answer came: the credit is free again, and the operation may be done.
    fn answered(&mut self, slot: u32) {
        self.credits += 1;
        self.operations.get(slot).outstanding -= 1;
        // While it waits for its turn to hand out chunks, that turn finishes it.
        if !self.operations.get(slot).queued {
            self.finish_if_done(slot);
        }
    }

    fn finish_if_done(&mut self, slot: u32) {
        let operation = self.operations.get(slot);
        if operation.outstanding > 0 || operation.remaining() > 0 {
            return;
        }
        let operation = self.operations.remove(slot);
        if let Some(transfer) = &operation.transfer {
            if operation.kind == Kind::Write && operation.failure.is_some() {
                transfer.segment.unclaim(transfer.first_chunk, transfer.chunk_count.into());
            }
            transfer.usage.end();
        }
        let (result, detail, aux) = match operation.failure {
            Some(failure) => (failure.result, failure.detail, failure.aux),
            None => (operation.len_bytes as i64, 0, 0),
        };
        let user_data = operation.user_data;
        let entry = CompleteEntry { user_data, result, detail, aux, ..Default::default() };
        self.complete(operation.port, entry);
        self.transfer_ended(operation.port, operation.handle);
    }

    /// Puts a completion on the session's ring. The slot was reserved when the entry was taken.
    fn complete(&mut self, port: u32, entry: CompleteEntry) {
        if let Some(open) = self.port(port) {
            open.operations -= 1;
            open.ring.complete(entry);
        }
        self.close_if_done(port);
    }

    fn handle_control(&mut self) {
        let messages = self.queues.reactors[usize::from(self.index)].control.take();
        for message in messages {
            // An answer that nobody waits for any more is no error of ours.
            match message {
                Control::Register { region, answer } => {
                    let result = self.drives.iter_mut().try_for_each(|d| d.register(&region));
                    let _ = answer.send(result);
                }
                Control::Unregister { region, answer } => {
                    self.drives.iter_mut().for_each(|drive| drive.unregister(&region));
                    let _ = answer.send(());
                }
                Control::OpenPort { ring, client, answer } => {
                    let _ = answer.send(self.open_port(ring, client));
                }
                Control::ClosePort { port, answer } => match self.port(port) {
                    Some(open) => {
                        open.closing = Some(answer);
                        self.close_if_done(port);
                    }
                    None => drop(answer),
                },
                Control::SetEvent { port, event, answer } => {
                    if let Some(port) = self.port(port) {
                        port.client.event = Some(event);
                    }
                    let _ = answer.send(());
                }
                Control::AddBuffer { port, registration, answer } => {
                    let key = self.port(port).and_then(|p| p.buffers.insert(registration).ok());
                    let _ = answer.send(key);
                }
                Control::RemoveBuffer { port, key } => {
                    if let Some(port) = self.port(port) {
                        port.buffers.remove(key);
                    }
                }
                Control::AddSegment { port, segment, answer } => {
                    let handle = self.port(port).and_then(|port| port.add_segment(segment));
                    let _ = answer.send(handle);
                }
                Control::RemoveSegment { port, handle, answer } => {
                    if let Some(open) = self.port(port)
                        && let Some(slot) = open.segment(handle)
                    {
                        slot.removal = Some(answer);
                        open.finish_removal(handle);
                    }
                }
                Control::Stop => self.stopping = true,
            }
        }
    }

    /// Gives a session a port; `None` when there are too many.
    fn open_port(&mut self, ring: ring::Engine, client: Unparker) -> Option<u32> {
        let free = self.ports.iter().position(Option::is_none);
        let index = free.unwrap_or(self.ports.len());
        if index >= MAX_PORTS as usize {
            return None;
        }
        if free.is_none() {
            self.ports.push(None);
        }
        self.next_tag = self.next_tag.wrapping_add(MAX_PORTS);
        let number = self.next_tag + index as u32;
        let reactors = self.queues.reactors.len() as u32;
        let serial = self.next_tag / MAX_PORTS * reactors + u32::from(self.index);
        self.ports[index] = Some(Port::new(number, serial, ring, Waker::new(client)));
        Some(number)
    }

    /// The session that a number names, if it still names one.
    fn port(&mut self, number: u32) -> Option<&mut Port> {
        let port = self.ports.get_mut(Port::index(number))?.as_mut()?;
        (port.number == number).then_some(port)
    }

    fn close_if_done(&mut self, number: u32) {
        let Some(port) = self.port(number) else { return };
        if port.operations > 0 {
            return;
        }
        if let Some(answer) = port.closing.take() {
            self.ports[Port::index(number)] = None;
            let _ = answer.send(());
        }
    }
}
