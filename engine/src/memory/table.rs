// SPDX-License-Identifier: Apache-2.0
//! The buffers that a session may name in requests, by key. Owned by the session's one reactor,
//! which changes it on control messages: no locks.
//!
//! - A key consists of a slot and the number of times that the slot was used, so a stale key finds
//!   nothing, not the next buffer. No key is 0. The number has 16 bits, and slots are reused oldest
//!   first: a stale key can match again only after 65 535 registrations in its slot, and then only
//!   a buffer of the same session.
//! - Capacity is fixed and allocated at the start. A lookup never allocates, blocks or panics.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{BufferUsage, Region};

/// A buffer's entry in a table.
pub struct Registration {
    region: Arc<Region>,
    offset_bytes: u64,
    len_bytes: u64,
    usage: Arc<BufferUsage>,
}

impl Registration {
    /// `len_bytes` from `offset_bytes` lie within the region.
    pub(super) fn new(
        region: Arc<Region>,
        offset_bytes: u64,
        len_bytes: u64,
        usage: Arc<BufferUsage>,
    ) -> Registration {
        debug_assert!(region.at(offset_bytes, len_bytes).is_some());
        usage.register();
        Registration { region, offset_bytes, len_bytes, usage }
    }

    /// The region that the buffer lies in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where in the region it starts; block aligned.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Length of the buffer.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// To call `begin` when a request is accepted; a clone to call `end` later.
    pub fn usage(&self) -> &Arc<BufferUsage> {
        &self.usage
    }

    /// The address of `len_bytes` from `offset_bytes` of the buffer, if they lie within it.
    pub fn at(&self, offset_bytes: u64, len_bytes: u64) -> Option<NonNull<u8>> {
        if offset_bytes.checked_add(len_bytes)? > self.len_bytes {
            return None;
        }
        self.region.at(self.offset_bytes.checked_add(offset_bytes)?, len_bytes)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.usage.unregister();
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("offset_bytes", &self.offset_bytes)
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Slot {
    /// The tag of the key that names, or will next name, the slot; never 0.
    tag: u16,
    registration: Option<Registration>,
}

/// Buffers by key.
#[derive(Debug)]
pub struct BufferTable {
    slots: Box<[Slot]>,
    unused: VecDeque<u16>,
}

impl BufferTable {
    /// Room for `capacity` buffers, at least 1.
    #[cfg(any(test, feature = "internals"))]
    pub fn new(capacity: u16) -> BufferTable {
        BufferTable::with_first_tag(capacity, 1)
    }

    /// The same, with keys that differ from those of a table with another first tag.
    pub fn with_first_tag(capacity: u16, tag: u16) -> BufferTable {
        let (capacity, tag) = (capacity.max(1), tag.max(1));
        BufferTable {
            slots: (0..capacity).map(|_| Slot { tag, registration: None }).collect(),
            unused: (0..capacity).collect(),
        }
    }

    /// Adds a buffer; returns its key.
    ///
    /// # Errors
    /// Gives the registration back when the table is full.
    pub fn insert(&mut self, registration: Registration) -> Result<u32, Registration> {
        let Some(index) = self.unused.pop_front() else {
            return Err(registration);
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.registration = Some(registration);
        Ok(u32::from(slot.tag) << 16 | u32::from(index))
    }

    /// The buffer of a key that came from outside.
    pub fn lookup(&self, key: u32) -> Option<&Registration> {
        let (index, tag) = split(key);
        let slot = self.slots.get(usize::from(index))?;
        slot.registration.as_ref().filter(|_| slot.tag == tag)
    }

    /// Removes a buffer: no new request can name it; those in flight continue. False when the key
    /// names none.
    pub fn remove(&mut self, key: u32) -> bool {
        if self.lookup(key).is_none() {
            return false;
        }
        let index = slot_of(key);
        let slot = &mut self.slots[usize::from(index)];
        slot.registration = None;
        slot.tag = slot.tag.checked_add(1).unwrap_or(1);
        self.unused.push_back(index);
        true
    }
}

/// Which slot a key names, whatever its tag says.
pub(crate) fn slot_of(key: u32) -> u16 {
    split(key).0
}

/// Slot and tag.
fn split(key: u32) -> (u16, u16) {
    ((key & 0xffff) as u16, (key >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Arena, Buffer, HugePages};

    fn buffers(count: usize) -> Vec<Buffer> {
        let arena = Arena::new(Arc::new(Region::new(1, HugePages::Off).unwrap()));
        (0..count).map(|_| arena.alloc(8192).unwrap()).collect()
    }

    #[test]
    fn keys_find_their_buffer_and_no_other() {
        let buffers = buffers(3);
        let mut table = BufferTable::new(2);
        let keys: Vec<_> =
            buffers[..2].iter().map(|b| table.insert(b.registration()).unwrap()).collect();
        assert!(table.insert(buffers[2].registration()).is_err(), "full is a value");
        for (buffer, key) in buffers.iter().zip(&keys) {
            let found = table.lookup(*key).unwrap();
            assert_eq!(found.at(0, 8192), Some(buffer.as_ptr()));
            assert!(found.at(1, 8192).is_none());
            assert!(found.at(u64::MAX, 2).is_none());
            assert!(found.at(8192, 0).is_some());
        }
        assert!(table.remove(keys[0]));
        assert!(!table.remove(keys[0]));
        let new = table.insert(buffers[2].registration()).unwrap();
        assert_eq!(new & 0xffff, keys[0] & 0xffff, "the same slot");
        assert!(table.lookup(keys[0]).is_none(), "another key");
        for stranger in [0, 1, 7, u32::MAX, 0xffff_0000] {
            assert!(table.lookup(stranger).is_none());
            assert!(!table.remove(stranger));
        }
    }

    #[test]
    fn tags_wrap_past_zero() {
        let buffers = buffers(1);
        let mut table = BufferTable::new(1);
        for _ in 0..70_000 {
            let key = table.insert(buffers[0].registration()).unwrap();
            assert_ne!(key >> 16, 0);
            assert!(table.remove(key));
        }
    }
}
