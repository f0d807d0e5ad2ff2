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
pub(crate) mod fabric;
pub(crate) mod operation;
pub(crate) mod port;
pub(crate) mod segment;
mod session_entries;

use std::sync::Arc;
use std::time::Duration;

use crossbeam::sync::{Parker, Unparker};

use crate::checksum::{ChecksumJob, chunk_is_sound};
use crate::device::Operation as DriveOperation;
use crate::device::queue::{DriveQueue, DriveRequest};
use crate::error::IoError;
use crate::idle::{Idle, Pause};
use crate::limits::BLOCK_BYTES;
use crate::memory::Span;
use crate::reactor::control::Control;
use crate::reactor::fabric::{CREDITS, Done, Fabric, OPERATIONS, ReactorEnd, Reply};
use crate::reactor::operation::{Failure, Kind, OperationTable};
use crate::reactor::port::{MAX_PORTS, Port, Waker};
use crate::ring::{self, CompleteEntry, codes};
use crate::units::round_up;

/// Entries taken from one ring, and answers handled, before the drives are polled again.
const BATCH: usize = 32;
/// Chunks that one operation hands out before it is the next one's turn.
const CHUNKS_PER_TURN: u32 = 4;

/// How long a reactor sleeps while interrupt-driven drives take long.
const NAP: Duration = Duration::from_micros(50);

/// One reactor. Lives on its own pinned thread.
pub(crate) struct Reactor {
    index: u16,
    fabric: Arc<Fabric>,
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
        fabric: Arc<Fabric>,
        parker: Parker,
        drives: Vec<DriveQueue<Reply>>,
    ) -> Reactor {
        let may_nap = drives.iter().all(|drive| drive.facts().interrupt_driven);
        Reactor {
            index,
            fabric,
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
        let fabric = Arc::clone(&self.fabric);
        let _ended = Ended(&fabric.reactors[usize::from(self.index)]);
        crate::idle::shorten_timer_slack();
        let mut idle = Idle::reactor(self.may_nap);
        loop {
            if self.tick() {
                idle.reset();
                continue;
            }
            if self.stopping && self.is_quiet() {
                return;
            }
            let keep_spinning = !self.may_nap && self.is_moving();
            match idle.next(keep_spinning) {
                Pause::Spin => std::hint::spin_loop(),
                Pause::Nap(time) => std::thread::sleep(time),
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
    fn tick(&mut self) -> bool {
        let mut progress = false;
        if self.fabric.reactors[usize::from(self.index)].control.is_waiting() {
            self.handle_control();
            progress = true;
        }
        for index in 0..self.ports.len() {
            progress |= self.take_entries(index);
        }
        progress |= self.hand_out_chunks();
        progress |= self.take_requests();
        for drive in &mut self.drives {
            let fabric = &self.fabric;
            progress |= drive.tick(|reply, status| {
                fabric.answer(reply.to, Done::Io { token: reply.token, status });
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
        while self.credits >= 2 {
            let Some(slot) = self.operations.pop_issuing() else { break };
            for _ in 0..CHUNKS_PER_TURN {
                if self.credits < 2 || self.operations.get(slot).remaining() == 0 {
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

    /// Sends one chunk to its drive, and to the checksum helpers if it is being written.
    fn issue_chunk(&mut self, slot: u32) {
        let operation = self.operations.get(slot);
        let relative = operation.next;
        let Some(transfer) = &operation.transfer else { unreachable!("only transfers hand out") };
        let segment = &transfer.segment;
        let chunk = transfer.first_chunk + u64::from(relative);
        let data_bytes = segment.chunk_data_bytes(chunk);
        let padded = round_up(u64::from(data_bytes), BLOCK_BYTES).map_or(0, |bytes| bytes as u32);
        let offset = transfer.region_offset_bytes + u64::from(relative) * segment.chunk_bytes;
        let span = Span::new(&transfer.region, offset, padded)
            .expect("the whole transfer was checked against its buffer");
        let location = segment.location(chunk);
        let token = u64::from(slot) << 32 | u64::from(relative);
        let drive_operation = match operation.kind {
            Kind::Read => DriveOperation::Read,
            _ => DriveOperation::Write,
        };
        operation.next += 1;
        operation.outstanding += 1;
        self.credits -= 1;
        if drive_operation == DriveOperation::Write {
            operation.outstanding += 1;
            self.credits -= 1;
            span.zero_from(data_bytes);
            self.fabric.checksums.push(ChecksumJob {
                span: span.clone(),
                data_bytes,
                reply: Arc::clone(&self.fabric.done[usize::from(self.index)]),
                token,
            });
        }
        let request = DriveRequest {
            operation: drive_operation,
            offset_bytes: self.fabric.layout.slot_offset(location.slot),
            span: Some(span),
            reply: Reply { to: self.index, token },
        };
        let route = self.fabric.routes[location.drive.as_usize()];
        if route.reactor == self.index {
            self.drives[usize::from(route.local)].push(request);
        } else {
            self.fabric.send(location.drive, request);
        }
    }

    /// Takes what others ask of this reactor's drives.
    fn take_requests(&mut self) -> bool {
        let inbox = &self.fabric.reactors[usize::from(self.index)].inbox;
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
            let Some(done) = self.fabric.done[usize::from(self.index)].pop() else { break };
            progress = true;
            match done {
                Done::Io { token, status } => self.handle_io(token, status),
                Done::Checksum { token, crc64, padding_is_zero } => {
                    self.handle_checksum(token, crc64, padding_is_zero);
                }
                Done::Keeper { token, result, detail, aux } => {
                    self.handle_keeper(token, result, detail, aux);
                }
            }
        }
        progress
    }

    fn handle_io(&mut self, token: u64, status: Result<(), IoError>) {
        let (slot, relative) = ((token >> 32) as u32, token as u32);
        let operation = self.operations.get(slot);
        let Some(transfer) = &operation.transfer else { unreachable!("only transfers use drives") };
        let chunk = transfer.first_chunk + u64::from(relative);
        let segment = &transfer.segment;
        let at = chunk * segment.chunk_bytes;
        match (operation.kind, status) {
            (Kind::Read, Ok(())) => {
                // The credit and the outstanding answer pass from the drive to the helper.
                let data_bytes = segment.chunk_data_bytes(chunk);
                let padded = u64::from(data_bytes).next_multiple_of(BLOCK_BYTES) as u32;
                let offset =
                    transfer.region_offset_bytes + u64::from(relative) * segment.chunk_bytes;
                let span = Span::new(&transfer.region, offset, padded)
                    .expect("the whole transfer was checked against its buffer");
                self.fabric.checksums.push(ChecksumJob {
                    span,
                    data_bytes,
                    reply: Arc::clone(&self.fabric.done[usize::from(self.index)]),
                    token,
                });
                return;
            }
            (_, Ok(())) => segment.set_written(chunk),
            (kind, Err(error)) => {
                if kind == Kind::Write {
                    segment.set_empty(chunk);
                }
                let (result, detail) = codes::of_io_error(error);
                operation.fail(Failure { result, detail, aux: at });
            }
        }
        self.answered(slot);
    }

    fn handle_checksum(&mut self, token: u64, crc64: u64, padding_is_zero: bool) {
        let (slot, relative) = ((token >> 32) as u32, token as u32);
        let operation = self.operations.get(slot);
        let Some(transfer) = &operation.transfer else { unreachable!("only transfers are summed") };
        let chunk = transfer.first_chunk + u64::from(relative);
        if operation.kind == Kind::Write {
            transfer.segment.set_crc64(chunk, crc64);
        } else if !chunk_is_sound(transfer.segment.crc64(chunk), crc64, padding_is_zero) {
            let aux = chunk * transfer.segment.chunk_bytes;
            operation.fail(Failure { result: codes::CHECKSUM, detail: 0, aux });
        }
        self.answered(slot);
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
                // Chunks that were never handed out are nobody's claim any more.
                for relative in operation.next..transfer.chunk_count {
                    transfer.segment.set_empty(transfer.first_chunk + u64::from(relative));
                }
            }
            transfer.usage.end();
        }
        let (result, detail, aux) = match operation.failure {
            Some(failure) => (failure.result, failure.detail, failure.aux),
            None => (operation.length_bytes as i64, 0, 0),
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
        let messages = self.fabric.reactors[usize::from(self.index)].control.take();
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
        let reactors = self.fabric.reactors.len() as u32;
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
