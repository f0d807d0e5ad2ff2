//! The operations under way in one reactor: a fixed table, taken at start.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::limits::BLOCK_BYTES;
use crate::memory::{BufferUsage, Region, Span};
use crate::reactor::segment::Segment;
use crate::units::Location;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Write,
    Read,
    /// Waits for the keeper.
    Finish,
}

/// Memory and place of a write or a read.
pub(crate) struct Transfer {
    pub(crate) segment: Arc<Segment>,
    pub(crate) region: Arc<Region>,
    /// Where in the region the first chunk's bytes lie.
    pub(crate) region_offset_bytes: u64,
    pub(crate) first_chunk: u64,
    pub(crate) chunk_count: u32,
    /// Told while the operation is under way, so that nobody takes the buffer for idle.
    pub(crate) usage: Arc<BufferUsage>,
}

impl Transfer {
    /// Where a copy of a chunk lies, or is to lie.
    pub(crate) fn location(&self, relative: u32, second: bool) -> Location {
        let copies = self.segment.copies(self.first_chunk + u64::from(relative));
        copies.second.filter(|_| second).unwrap_or(copies.first)
    }

    /// The memory of one of its chunks, in whole blocks.
    pub(crate) fn span(&self, relative: u32) -> Span {
        let data_bytes = self.segment.chunk_data_bytes(self.first_chunk + u64::from(relative));
        let padded_bytes = u64::from(data_bytes).next_multiple_of(BLOCK_BYTES) as u32;
        let offset = self.region_offset_bytes + u64::from(relative) * self.segment.chunk_bytes;
        Span::new(&self.region, offset, padded_bytes)
            .expect("the whole transfer was checked against its buffer")
    }
}

/// How an operation failed; becomes its completion entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) result: i64,
    pub(crate) detail: u32,
    pub(crate) aux: u64,
}

/// One operation.
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) port: u32,
    pub(crate) handle: u64,
    pub(crate) user_data: u64,
    pub(crate) len_bytes: u64,
    /// None for `Finish`.
    pub(crate) transfer: Option<Transfer>,
    /// Chunks handed out so far.
    pub(crate) next: u32,
    /// Answers that are still to come.
    pub(crate) outstanding: u32,
    /// Copies of chunks that were given another place.
    pub(crate) moves: u32,
    /// The first failure.
    pub(crate) failure: Option<Failure>,
    /// Waits for its turn to hand out chunks; kept by the table.
    pub(crate) queued: bool,
}

impl Operation {
    /// Chunks still to hand out. A failed operation hands out no more.
    pub(crate) fn remaining(&self) -> u32 {
        match &self.transfer {
            Some(transfer) if self.failure.is_none() => transfer.chunk_count - self.next,
            _ => 0,
        }
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }
}

/// The table, and the order in which operations hand out chunks.
pub(crate) struct OperationTable {
    slots: Vec<Option<Operation>>,
    free: Vec<u32>,
    /// Operations with chunks to hand out, served in turn.
    issuing: VecDeque<u32>,
}

impl OperationTable {
    pub(crate) fn new(capacity: usize) -> OperationTable {
        OperationTable {
            slots: (0..capacity).map(|_| None).collect(),
            free: (0..capacity as u32).rev().collect(),
            issuing: VecDeque::with_capacity(capacity),
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Takes an operation in; the caller asked [`OperationTable::has_room`].
    pub(crate) fn insert(&mut self, mut operation: Operation) -> u32 {
        let slot = self.free.pop().expect("the caller checked for room");
        if let Some(transfer) = &operation.transfer {
            transfer.usage.begin();
            operation.queued = true;
            self.issuing.push_back(slot);
        }
        self.slots[slot as usize] = Some(operation);
        slot
    }

    /// The operation in a slot that an answer names.
    pub(crate) fn get(&mut self, slot: u32) -> &mut Operation {
        self.slots[slot as usize].as_mut().expect("answers come only for operations under way")
    }

    /// The operation whose turn it is to hand out chunks.
    pub(crate) fn pop_issuing(&mut self) -> Option<u32> {
        let slot = self.issuing.pop_front()?;
        self.get(slot).queued = false;
        Some(slot)
    }

    /// Puts an operation that has more chunks at the end of the turn.
    pub(crate) fn push_issuing(&mut self, slot: u32) {
        self.get(slot).queued = true;
        self.issuing.push_back(slot);
    }

    /// Takes an operation out. Its buffer may be used again once this returned.
    pub(crate) fn remove(&mut self, slot: u32) -> Operation {
        let operation = self.slots[slot as usize].take().expect("removed once");
        assert!(!operation.queued, "an operation that waits for its turn is not done");
        self.free.push(slot);
        operation
    }
}
