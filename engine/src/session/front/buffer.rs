// SPDX-License-Identifier: Apache-2.0
//! A buffer of a session: memory, and the key by which entries name it.
//!
//! The key is taken back before the memory is freed, so that no new entry can name free memory. The
//! bytes are used again only when nothing in flight names them.

use crate::memory::Buffer;
use crate::session::back::BufferKey;

/// A buffer that entries of its session can name. Dropping it takes the key back; its memory is
/// used again when nothing in flight names it.
#[derive(Debug)]
pub struct SessionBuffer {
    // Dropped in this order.
    key: BufferKey,
    buffer: Buffer,
}

impl SessionBuffer {
    pub(super) fn new(key: BufferKey, buffer: Buffer) -> SessionBuffer {
        SessionBuffer { key, buffer }
    }

    /// The key with the session that gave it.
    pub(super) fn registered_key(&self) -> &BufferKey {
        &self.key
    }

    /// What entries name it by.
    pub fn key(&self) -> u32 {
        self.key.number()
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
