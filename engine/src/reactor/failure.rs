// SPDX-License-Identifier: Apache-2.0
//! A reactor after a panic: every entry and request is answered with an error, none with silence.
//!
//! 1. Its drives are closed, which fences them. Until then nothing is answered: a drive may still
//!    touch the memory of a request.
//! 2. What others have asked of its drives, and ask later, ends with *removed*.
//! 3. Its own entries end so too, but not before the other reactors' drives and the checksum
//!    helpers have done with them. An entry whose memory a drive may touch for good, because it
//!    could not be fenced, is never completed: its ring is closed, its memory never used again.
//! 4. Then its sessions get *removed* for each new entry, and can be closed, until the pool is.
//!
//! Nothing is trusted that the panic may have left half done: not the counts of answers, of
//! credits or of entries.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam::channel::{Receiver, TryRecvError, bounded};

use crate::backoff::{MAX_PARK, REACTOR_NAP};
use crate::error::IoError;
use crate::reactor::Reactor;
use crate::reactor::answer::{Answer, Outcome, Reply};
use crate::reactor::control::{Control, Quiesce};
use crate::reactor::drive_queue::Unfenced;
use crate::reactor::port::Port;
use crate::reactor::queues::Queues;
use crate::ring::CompleteEntry;

/// What is known of the drives and helpers that have requests of the failed reactor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InFlight {
    /// Something may be in flight.
    Yes,
    /// Nothing is.
    No,
    /// A drive may carry out a request at any time from now on.
    Unfenced,
}

impl Reactor {
    /// Serves as a failed reactor until it must stop.
    pub(super) fn serve_failed(&mut self) {
        tracing::error!(
            reactor = self.index,
            "a reactor failed: its drives are closed, and what needs them fails; open the pool again"
        );
        self.queues.set_failed(self.index);
        // For the jobs of the turn that failed.
        self.queues.checksums.wake();
        let mut in_flight = self.fence_drives();
        let mut waiting = self.ask_others();
        let mut held = Vec::new();
        let mut ended = false;
        while !self.stopping || !ended {
            self.refuse_requests();
            self.take_messages(&mut held, in_flight);
            while self.queues.answers[usize::from(self.index)].pop().is_some() {}
            while self.queues.reactors[usize::from(self.index)].finished.pop().is_some() {}
            if !ended {
                self.check_others(&mut waiting, &mut in_flight);
                ended = in_flight == InFlight::Unfenced
                    || (waiting.is_empty() && self.helpers_are_done());
                if !ended {
                    self.parker.park_timeout(REACTOR_NAP);
                    continue;
                }
                self.on_ports(|reactor| reactor.end_entries(in_flight));
            }
            let held = std::mem::take(&mut held);
            self.on_ports(|reactor| held.into_iter().for_each(|message| reactor.answer(message)));
            self.on_ports(Reactor::refuse_entries);
            if !self.stopping {
                // A port that is not sound any more closes here, too.
                self.on_ports(|reactor| reactor.park(MAX_PARK));
            }
        }
    }

    /// Closes the drives. Their requests are answered; those of this reactor are not, because its
    /// entries end later.
    fn fence_drives(&mut self) -> InFlight {
        self.drives.iter().for_each(|drive| drive.stop());
        let (queues, index) = (Arc::clone(&self.queues), self.index);
        let mut in_flight = InFlight::Yes;
        for drive in self.drives.drain(..) {
            drive.fence(|reply, unfenced| {
                if reply.to == index {
                    if unfenced == Unfenced(true) {
                        in_flight = InFlight::Unfenced;
                    }
                } else {
                    refuse(&queues, reply, unfenced);
                }
            });
        }
        in_flight
    }

    /// Asks the other reactors to say when nothing of this one is in flight there.
    fn ask_others(&self) -> Vec<Receiver<()>> {
        let others = self.queues.reactors.iter().enumerate();
        let others = others.filter(|(number, _)| *number != usize::from(self.index));
        let asked = others.filter_map(|(_, end)| {
            let (answer, answered) = bounded(1);
            let quiesce = Quiesce { asker: self.index, answer };
            // One that has ended has no drives any more.
            end.mailbox.send(Control::Quiesce(quiesce)).is_ok().then_some(answered)
        });
        asked.collect()
    }

    fn check_others(&self, waiting: &mut Vec<Receiver<()>>, in_flight: &mut InFlight) {
        waiting.retain(|answered| match answered.try_recv() {
            Ok(()) => false,
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Disconnected) => {
                *in_flight = InFlight::Unfenced;
                false
            }
        });
        if waiting.is_empty() && *in_flight == InFlight::Yes {
            *in_flight = InFlight::No;
        }
    }

    /// Each job of a helper holds the queue that its answer goes to, and drops its memory first.
    fn helpers_are_done(&self) -> bool {
        Arc::strong_count(&self.queues.answers[usize::from(self.index)]) == 1
    }

    /// Ends the requests of others to the drives that are closed.
    fn refuse_requests(&self) {
        while let Some(io) = self.queues.reactors[usize::from(self.index)].inbox.pop() {
            let reply = io.request.reply;
            drop(io);
            if reply.to != self.index {
                refuse(&self.queues, reply, Unfenced(false));
            }
        }
    }

    /// Answers the messages that concern drives. Those that concern sessions wait until their
    /// entries have ended.
    fn take_messages(&mut self, held: &mut Vec<Control>, in_flight: InFlight) {
        self.messages.extend(self.queues.reactors[usize::from(self.index)].mailbox.take());
        while let Some(message) = self.messages.pop_front() {
            match message {
                // There is no drive that would have to know it.
                Control::Register { answer, .. } => _ = answer.send(Ok(())),
                Control::Unregister { answer, .. } => _ = answer.send(()),
                Control::Quiesce(Quiesce { answer, .. }) => {
                    // Its requests came before its message.
                    self.refuse_requests();
                    if in_flight != InFlight::Unfenced {
                        let _ = answer.send(());
                    }
                }
                Control::Stop => self.stopping = true,
                other => held.push(other),
            }
        }
    }

    /// Answers a message that concerns a session. What asks for something new gets no answer, which
    /// is an error for its asker.
    fn answer(&mut self, message: Control) {
        match message {
            Control::ClosePort { port, answer } => {
                if self.port(port).is_some() {
                    self.ports[Port::index(port)] = None;
                }
                let _ = answer.send(());
            }
            Control::SetEvent { port, event, answer } => {
                if let Some(port) = self.port(port) {
                    port.client.event = Some(event);
                }
                let _ = answer.send(());
            }
            Control::RemoveBuffer { port, key } => {
                if let Some(port) = self.port(port) {
                    port.buffers.remove(key);
                }
            }
            Control::RemoveSegment { port, handle, answer } => {
                if let Some(open) = self.port(port)
                    && let Some(slot) = open.segment(handle)
                {
                    slot.removal = Some(answer);
                    open.finish_removal(handle);
                }
            }
            Control::OpenPort { .. }
            | Control::AddBuffer { .. }
            | Control::AddSegment { .. }
            | Control::Register { .. }
            | Control::Unregister { .. }
            | Control::Quiesce(_)
            | Control::Stop => {}
        }
    }

    /// Ends every entry that was taken.
    fn end_entries(&mut self, in_flight: InFlight) {
        self.to_keeper.clear();
        let tasks = self.tasks.take_all();
        if in_flight == InFlight::Unfenced {
            for task in tasks {
                if let Some(port) = self.port(task.port) {
                    port.close_ring();
                }
                std::mem::forget(task.transfer);
            }
        } else {
            for task in tasks {
                task.transfer.usage.end();
                self.refuse_entry(task.port, task.user_data);
            }
        }
        if let Some((port, user_data)) = self.in_hand.take() {
            self.refuse_entry(port, user_data);
        }
        for port in self.ports.iter_mut().flatten() {
            let mut finishes = Vec::new();
            for slot in port.segments() {
                slot.finished = true;
                slot.transfers = 0;
                finishes.extend(slot.finish.take().map(|(_, user_data)| user_data));
            }
            for user_data in finishes {
                port.ring.complete(Outcome::REMOVED.completion(user_data));
            }
            port.answer_removals();
        }
        self.publish_completions();
        for place in &mut self.ports {
            if let Some(answer) = place.as_mut().and_then(|port| port.closing.take()) {
                *place = None;
                let _ = answer.send(());
            }
        }
    }

    /// Completes an entry that cannot be carried out.
    fn refuse_entry(&mut self, port: u32, user_data: u64) {
        if let Some(port) = self.port(port) {
            port.ring.complete(Outcome::REMOVED.completion(user_data));
        }
    }

    /// Takes the entries that have come and completes them with the error.
    fn refuse_entries(&mut self) {
        for port in self.ports.iter_mut().flatten().filter(|port| port.is_open()) {
            while let Ok(Some(entry)) = port.ring.take() {
                let user_data = entry.user_data;
                let removed = Outcome::REMOVED;
                port.ring.complete(CompleteEntry::failure(user_data, removed.result, removed.aux));
            }
        }
        self.publish_completions();
    }

    /// Does something with the sessions. If they are not sound, their rings are closed.
    fn on_ports(&mut self, work: impl FnOnce(&mut Reactor)) {
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            let ports = std::mem::take(&mut self.ports);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(ports)));
        }
    }

    /// Answers the failed reactors of which nothing is in flight any more. The inbox was emptied
    /// since their question came.
    pub(super) fn answer_quiescing(&mut self) {
        if self.quiescing.is_empty() {
            return;
        }
        let drives = &self.drives;
        self.quiescing.retain(|quiesce| {
            let busy = drives.iter().any(|d| d.has(|reply: &Reply| reply.to == quiesce.asker));
            if !busy {
                let _ = quiesce.answer.send(());
            }
            busy
        });
    }

    /// Gives up an entry whose memory a drive may touch for good: it is never completed, and its
    /// ring is closed.
    pub(super) fn abandon_task(&mut self, slot: u32) {
        let task = self.remove_task(slot);
        std::mem::forget(task.transfer);
        if let Some(port) = self.port(task.port) {
            port.entries -= 1;
            port.close_ring();
        }
        self.transfer_ended(task.port, task.handle);
        self.close_if_done(task.port);
    }
}

fn refuse(queues: &Queues, reply: Reply, unfenced: Unfenced) {
    let token = reply.token;
    let answer = match unfenced {
        Unfenced(true) => Answer::Unfenced { token },
        Unfenced(false) => Answer::Io { token, status: Err(IoError::Removed) },
    };
    queues.answer(reply.to, answer);
}
