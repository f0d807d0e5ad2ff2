// SPDX-License-Identifier: Apache-2.0
//! The entries of a session that are in flight, and what they use until their completions are
//! taken.
//!
//! - While an entry is in flight, a ticket replaces its user data. So each completion finds its
//!   entry, even if the caller uses the same number twice.
//! - A buffer counts as in flight from `submit` to `peek`, not only while the reactor works with
//!   it.
//! - All memory is allocated at the start.

use std::sync::Arc;

use crate::memory::{BufferUsage, slot_of};
use crate::ring::{CompleteEntry, Opcode, SubmitEntry};

/// One entry in flight.
#[derive(Default)]
struct Ticket {
    user_data: u64,
    /// Of the buffer that the entry names, if that is one of the session's.
    usage: Option<Arc<BufferUsage>>,
}

/// The entries, by ticket, and the buffers that they may name.
pub(super) struct Outstanding {
    tickets: Box<[Ticket]>,
    free: Vec<u32>,
    /// By a key's slot: the key that had it last, and the buffer's usage.
    buffers: Vec<Option<(u32, Arc<BufferUsage>)>>,
}

impl Outstanding {
    /// Room for as many entries as the ring lets be outstanding.
    pub(super) fn new(entries: u32) -> Outstanding {
        Outstanding {
            tickets: (0..entries).map(|_| Ticket::default()).collect(),
            free: (0..entries).rev().collect(),
            buffers: Vec::new(),
        }
    }

    /// Entries may name this buffer from now on. Its key's slot was free, so the earlier buffer is
    /// gone.
    pub(super) fn add_buffer(&mut self, key: u32, usage: &Arc<BufferUsage>) {
        let slot = usize::from(slot_of(key));
        if slot >= self.buffers.len() {
            self.buffers.resize_with(slot + 1, || None);
        }
        self.buffers[slot] = Some((key, Arc::clone(usage)));
    }

    /// The entry as it goes on the ring.
    pub(super) fn depart(&mut self, entry: SubmitEntry) -> SubmitEntry {
        // The ring has no more room than there are tickets.
        let Some(number) = self.free.pop() else { unreachable!("more entries than tickets") };
        let ticket = &mut self.tickets[number as usize];
        ticket.user_data = entry.user_data;
        if matches!(entry.opcode, Opcode::WRITE | Opcode::READ)
            && let Some(Some((key, usage))) = self.buffers.get(usize::from(slot_of(entry.buffer)))
            && *key == entry.buffer
        {
            usage.begin();
            ticket.usage = Some(Arc::clone(usage));
        }
        SubmitEntry { user_data: u64::from(number), ..entry }
    }

    /// The completion as its caller sees it.
    pub(super) fn arrive(&mut self, completion: &mut CompleteEntry) {
        let number = completion.user_data;
        let Some(ticket) = self.tickets.get_mut(number as usize) else {
            debug_assert!(false, "a completion of no entry: {completion:?}");
            return;
        };
        completion.user_data = ticket.user_data;
        if let Some(usage) = ticket.usage.take() {
            usage.end();
        }
        self.free.push(number as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Transfer;

    fn write(buffer: u32) -> SubmitEntry {
        let transfer = Transfer {
            checkpoint: 1,
            buffer,
            buffer_offset_bytes: 0,
            len_bytes: 1,
            segment_offset_bytes: 0,
        };
        SubmitEntry::write(transfer, u64::MAX)
    }

    #[test]
    fn user_data_comes_back_and_buffers_are_in_flight_between() {
        let mut outstanding = Outstanding::new(2);
        let usage = Arc::new(BufferUsage::default());
        outstanding.add_buffer(0x7_0003, &usage);
        let first = outstanding.depart(write(0x7_0003));
        let second = outstanding.depart(write(0x7_0003));
        assert_ne!(first.user_data, second.user_data);
        assert_eq!(SubmitEntry { user_data: u64::MAX, ..first }, write(0x7_0003));
        for entry in [second, first] {
            assert!(!usage.is_idle());
            let mut completion = CompleteEntry::success(entry.user_data, 1, 0);
            outstanding.arrive(&mut completion);
            assert_eq!(completion, CompleteEntry::success(u64::MAX, 1, 0));
        }
        assert!(usage.is_idle());
    }

    #[test]
    fn keys_that_name_nothing_use_nothing() {
        let mut outstanding = Outstanding::new(1);
        let usage = Arc::new(BufferUsage::default());
        outstanding.add_buffer(0x7_0003, &usage);
        for key in [0, 0x6_0003, 0x7_0002, 0x7_0004, u32::MAX] {
            let entry = outstanding.depart(write(key));
            assert!(usage.is_idle());
            outstanding.arrive(&mut CompleteEntry::failure(entry.user_data, -9, 0));
        }
        // A nop does not name the buffer whose key it carries.
        outstanding.depart(SubmitEntry { buffer: 0x7_0003, ..SubmitEntry::nop(0) });
        assert!(usage.is_idle());
    }
}
