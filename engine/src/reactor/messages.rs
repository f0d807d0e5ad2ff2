// SPDX-License-Identifier: Apache-2.0
//! How a reactor handles its mailbox: it adds and removes regions, sessions and what belongs to a
//! session.
//!
//! - Messages are taken in the order in which they were sent, before the entries of the same turn.
//! - Those that a panic leaves are answered when the drives are fenced: an asker that gets an error
//!   may free its memory.
//! - A message that names a port, a key or a handle of a session that is gone changes nothing.
//! - Each message that has an answer is answered, at the latest when nothing that it names is in
//!   flight any more. An asker that no longer waits is not an error.

use std::sync::Arc;

use crossbeam::sync::Unparker;

use crate::planted::{Victim, may_panic};
use crate::reactor::Reactor;
use crate::reactor::control::Control;
use crate::reactor::port::{Port, Waker};
use crate::reactor::queues::{CREDITS, MAX_PORTS};
use crate::reactor::segment::Segment;
use crate::ring;

impl Reactor {
    /// Handles the messages that have arrived.
    pub(super) fn handle_messages(&mut self) {
        self.messages.extend(self.queues.reactors[usize::from(self.index)].mailbox.take());
        while !self.messages.is_empty() {
            may_panic(Victim::Reactor);
            let Some(message) = self.messages.pop_front() else { break };
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
                    let handle = self.add_segment(port, segment);
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
                Control::Quiesce(quiesce) => self.quiescing.push(quiesce),
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
            self.schedule.reserve(self.ports.len());
        }
        self.next_tag = self.next_tag.wrapping_add(MAX_PORTS);
        let number = self.next_tag + index as u32;
        let reactors = self.queues.reactors.len() as u32;
        let serial = self.next_tag / MAX_PORTS * reactors + u32::from(self.index);
        self.ports[index] = Some(Port::new(number, serial, ring, Waker::new(client)));
        Some(number)
    }

    /// Gives a segment a handle, and makes room for its request to the keeper.
    fn add_segment(&mut self, port: u32, segment: Arc<Segment>) -> Option<u64> {
        let handle = self.port(port)?.add_segment(segment)?;
        let segments: usize = self.ports.iter().flatten().map(Port::segment_places).sum();
        let additional = (CREDITS + segments).saturating_sub(self.to_keeper.len());
        self.to_keeper.reserve(additional);
        Some(handle)
    }

    /// The port that a number names, if it still names one.
    pub(super) fn port(&mut self, number: u32) -> Option<&mut Port> {
        let port = self.ports.get_mut(Port::index(number))?.as_mut()?;
        (port.number == number).then_some(port)
    }

    pub(super) fn close_if_done(&mut self, number: u32) {
        let Some(port) = self.port(number) else { return };
        if port.entries > 0 {
            return;
        }
        if let Some(answer) = port.closing.take() {
            self.ports[Port::index(number)] = None;
            let _ = answer.send(());
        }
    }
}
