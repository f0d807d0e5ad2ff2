// SPDX-License-Identifier: Apache-2.0
//! A port that a reactor owns, as its session reaches it: by messages to the reactor.
//!
//! A reactor that has ended holds nothing of the session any more. So a call that takes something
//! back needs no answer, and a call that asks for something fails with [`Error::Closed`].

use std::fmt;
use std::sync::Arc;

use crossbeam::sync::Unparker;

use crate::error::Error;
use crate::memory::Registration;
use crate::reactor::control::Control;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::port::{MAX_BUFFERS, MAX_SEGMENTS};
use crate::reactor::queues::{MAX_PORTS, Queues, ReactorEnd};
use crate::reactor::segment::Segment;
use crate::ring::{self, Event};

/// The number of a session's port, and the reactor that has it.
#[derive(Clone)]
pub(super) struct RemotePort {
    queues: Arc<Queues>,
    reactor: u16,
    number: u32,
}

impl RemotePort {
    /// Lets a reactor serve a ring, whose client it wakes by `client`.
    pub(super) fn open(
        queues: &Arc<Queues>,
        reactor: u16,
        ring: ring::Engine,
        client: Unparker,
    ) -> Result<RemotePort, Error> {
        let mut port = RemotePort { queues: Arc::clone(queues), reactor, number: 0 };
        let number = port.mailbox().ask(|answer| Control::OpenPort { ring, client, answer })?;
        port.number = number.ok_or(Error::TooMany { what: "sessions", limit: MAX_PORTS.into() })?;
        Ok(port)
    }

    fn end(&self) -> &ReactorEnd {
        &self.queues.reactors[usize::from(self.reactor)]
    }

    fn mailbox(&self) -> &Mailbox<Control> {
        &self.end().mailbox
    }

    /// Wakes the reactor: there are entries on the ring.
    pub(super) fn wake(&self) {
        self.end().unparker.unpark();
    }

    /// Also signals this event when the client is to be woken.
    pub(super) fn set_event(&self, event: Arc<Event>) -> Result<(), Error> {
        self.mailbox().ask(|answer| Control::SetEvent { port: self.number, event, answer })
    }

    /// Lets entries name a buffer.
    pub(super) fn add_buffer(&self, registration: Registration) -> Result<BufferKey, Error> {
        let add = |answer| Control::AddBuffer { port: self.number, registration, answer };
        let too_many = Error::TooMany { what: "buffers of one session", limit: MAX_BUFFERS.into() };
        let key = self.mailbox().ask(add)?.ok_or(too_many)?;
        Ok(BufferKey { port: self.clone(), key })
    }

    /// Whether a key is one of this port's.
    pub(super) fn gave(&self, key: &BufferKey) -> bool {
        let theirs = &key.port;
        Arc::ptr_eq(&self.queues, &theirs.queues)
            && (self.reactor, self.number) == (theirs.reactor, theirs.number)
    }

    /// Lets entries name a segment, by the handle that is the result.
    pub(super) fn add_segment(&self, segment: Arc<Segment>) -> Result<u64, Error> {
        let add = |answer| Control::AddSegment { port: self.number, segment, answer };
        self.mailbox().ask(add)?.ok_or(Error::TooMany {
            what: "segments open in one session",
            limit: MAX_SEGMENTS as u64,
        })
    }

    /// Takes a handle back, after its transfers in flight.
    pub(super) fn remove_segment(&self, handle: u64) -> Result<(), Error> {
        self.mailbox().ask(|answer| Control::RemoveSegment { port: self.number, handle, answer })
    }

    /// Stops taking entries and waits for those in flight.
    pub(super) fn close(&self) {
        let _ = self.mailbox().ask(|answer| Control::ClosePort { port: self.number, answer });
    }
}

impl fmt::Debug for RemotePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePort")
            .field("reactor", &self.reactor)
            .field("number", &self.number)
            .finish()
    }
}

/// The key of a buffer that entries may name, until this is dropped.
#[derive(Debug)]
pub(crate) struct BufferKey {
    port: RemotePort,
    key: u32,
}

impl BufferKey {
    /// What entries name the buffer by.
    pub(crate) fn number(&self) -> u32 {
        self.key
    }
}

impl Drop for BufferKey {
    fn drop(&mut self) {
        let remove = Control::RemoveBuffer { port: self.port.number, key: self.key };
        let _ = self.port.mailbox().send(remove);
    }
}
