// SPDX-License-Identifier: Apache-2.0
//! Tasks: the writes and reads that one reactor has accepted and not completed, in a fixed table.
//! A commit or an abort is no task: it waits in its segment's slot, however long, and takes nothing
//! from others.
//!
//! - The table is allocated at the start; adding or removing a task allocates nothing.
//! - A task's buffer is in use from the insertion of the task to its removal.

use std::sync::Arc;

use crate::limits::BLOCK_BYTES;
use crate::memory::{BufferUsage, Region, Span};
use crate::reactor::answer::Outcome;
use crate::reactor::segment::Segment;
use crate::units::Location;

/// What a task does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Write,
    Read,
}

/// Memory and place of a write or a read.
pub(crate) struct Transfer {
    pub(crate) segment: Arc<Segment>,
    pub(crate) region: Arc<Region>,
    /// Where in the region the first chunk's bytes lie.
    pub(crate) region_offset_bytes: u64,
    pub(crate) first_chunk: u64,
    pub(crate) chunk_count: u32,
    /// Counts the task while it is in flight, so that its buffer does not count as idle.
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

/// One entry in flight.
pub(crate) struct Task {
    pub(crate) kind: Kind,
    pub(crate) port: u32,
    pub(crate) handle: u64,
    pub(crate) user_data: u64,
    pub(crate) len_bytes: u64,
    pub(crate) transfer: Transfer,
    /// Chunks issued so far.
    pub(crate) next: u32,
    /// Answers that are outstanding.
    pub(crate) outstanding: u32,
    /// Copies of chunks that were moved to another place.
    pub(crate) moves: u32,
    /// The first failure.
    pub(crate) failure: Option<Outcome>,
    /// A drive that could not be fenced may still touch the memory.
    pub(crate) unfenced: bool,
    /// The first copy of the next chunk was sent, the second was not.
    pub(crate) is_half_sent: bool,
    /// The drive at which it waits for its turn; kept by the schedule, as are its neighbours there.
    pub(crate) waits_at: Option<u16>,
    pub(crate) before: u32,
    pub(crate) after: u32,
}

impl Task {
    /// A task that has not begun. Whose it is, the caller fills in.
    pub(crate) fn new(kind: Kind, transfer: Transfer) -> Task {
        Task {
            kind,
            port: 0,
            handle: 0,
            user_data: 0,
            len_bytes: 0,
            transfer,
            next: 0,
            outstanding: 0,
            moves: 0,
            failure: None,
            unfenced: false,
            is_half_sent: false,
            waits_at: None,
            before: NO_TASK,
            after: NO_TASK,
        }
    }

    /// Chunks still to issue. A failed task issues no more.
    pub(crate) fn remaining(&self) -> u32 {
        if self.failure.is_some() { 0 } else { self.transfer.chunk_count - self.next }
    }

    pub(crate) fn fail(&mut self, failure: Outcome) {
        self.failure.get_or_insert(failure);
    }
}

/// No slot of the table.
pub(crate) const NO_TASK: u32 = u32::MAX;

/// The table.
pub(crate) struct TaskTable {
    slots: Vec<Option<Task>>,
    free: Vec<u32>,
}

impl TaskTable {
    pub(crate) fn new(capacity: usize) -> TaskTable {
        TaskTable {
            slots: (0..capacity).map(|_| None).collect(),
            free: (0..capacity as u32).rev().collect(),
        }
    }

    /// Whether a session that has `tasks` may have one more: while it has fewer than are free. So
    /// one session may take half of the table, and each that comes after it finds room.
    pub(crate) fn has_room(&self, tasks: u32) -> bool {
        self.free.len() > tasks as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Adds a task; the caller has checked [`TaskTable::has_room`].
    pub(crate) fn insert(&mut self, task: Task) -> u32 {
        let slot = self.free.pop().expect("the caller checked for room");
        task.transfer.usage.begin();
        self.slots[slot as usize] = Some(task);
        slot
    }

    /// The task in a slot that an answer names.
    pub(crate) fn get(&mut self, slot: u32) -> &mut Task {
        self.slots[slot as usize].as_mut().expect("answers come only for tasks in flight")
    }

    /// Removes every task, whatever state it is in.
    pub(crate) fn take_all(&mut self) -> Vec<Task> {
        let capacity = self.slots.len() as u32;
        self.free = (0..capacity).rev().collect();
        self.slots.iter_mut().filter_map(Option::take).collect()
    }

    /// Removes a task. Its buffer may be used again once this has returned.
    pub(crate) fn remove(&mut self, slot: u32) -> Task {
        let task = self.slots[slot as usize].take().expect("removed once");
        assert!(task.waits_at.is_none(), "a task that waits for its turn is not done");
        self.free.push(slot);
        task
    }
}
