//! Buffers of a session, and the session's place in its reactor, through which they are made known.

use std::sync::Arc;

use crate::error::Error;
use crate::memory::Buffer;
use crate::pool::shared::Shared;
use crate::reactor::control::Control;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::port::MAX_BUFFERS;

/// A buffer that entries of its session can name. Dropping it takes the key back; its memory is
/// used again when nothing in flight names it any more.
#[derive(Debug)]
pub struct SessionBuffer {
    buffer: Buffer,
    key: u32,
    port: Port,
}

impl SessionBuffer {
    /// Makes a buffer known to the session's reactor.
    pub(super) fn new(buffer: Buffer, port: &Port) -> Result<SessionBuffer, Error> {
        let (number, registration) = (port.number, buffer.registration());
        let key = port.mailbox().ask(|answer| Control::AddBuffer {
            port: number,
            registration,
            answer,
        })?;
        let key = key.ok_or_else(|| Error::TooMany {
            what: "buffers of one session",
            limit: MAX_BUFFERS.into(),
        })?;
        Ok(SessionBuffer { buffer, key, port: port.clone() })
    }

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
        let remove = Control::RemoveBuffer { port: self.port.number, key: self.key };
        let _ = self.port.mailbox().send(remove);
    }
}

/// The session's place in its reactor.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) shared: Arc<Shared>,
    pub(super) reactor: u16,
    pub(super) number: u32,
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
    pub(super) fn mailbox(&self) -> &Mailbox<Control> {
        &self.shared.queues.reactors[usize::from(self.reactor)].control
    }
}
