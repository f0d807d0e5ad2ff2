// SPDX-License-Identifier: Apache-2.0
//! Commands in flight: a slot for each, and in it a request of the shim for each piece.
//!
//! - Everything is allocated once and stays in place: the shim keeps pointers to requests, and its
//!   callback finds the slot from a request.
//! - Cells, not `&mut`: the callback runs inside a call that the device makes. All of it happens on
//!   the one thread that uses the device at that time; no other thread touches anything here.
//! - A slot enters `done` once: when its last piece has ended and no further one will be sent.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use spdk_sys::stn_spdk_request;

use crate::device::{Command, DmaSlice, Operation};
use crate::error::IoError;

/// What a slot is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Free,
    /// Pieces are outstanding, or are still to be sent.
    Active,
    /// In `done`.
    Done,
}

/// One command's place.
struct Slot {
    stage: Cell<Stage>,
    command: Cell<Command>,
    since: Cell<Instant>,
    sent_bytes: Cell<u32>,
    sent_pieces: Cell<u32>,
    outstanding: Cell<u32>,
    /// The first failure of a piece.
    status: Cell<Result<(), IoError>>,
}

/// One request of the shim. A piece uses it from its submission to its callback.
struct Piece {
    request: UnsafeCell<stn_spdk_request>,
    slots: Cell<*const Slots>,
    slot: u32,
}

/// All slots of a device.
pub(super) struct Slots {
    slots: Box<[Slot]>,
    pieces: Box<[Piece]>,
    pieces_per_slot: usize,
    free: Box<[Cell<u32>]>,
    free_count: Cell<usize>,
    /// A ring.
    done: Box<[Cell<u32>]>,
    done_first: Cell<usize>,
    done_count: Cell<usize>,
    outstanding_pieces: Cell<u32>,
    aborted: Cell<bool>,
    losing: Cell<bool>,
}

impl Slots {
    pub(super) fn new(depth: u32, pieces_per_slot: usize) -> Arc<Slots> {
        let idle = Command {
            operation: Operation::Flush,
            offset_bytes: 0,
            memory: DmaSlice::EMPTY,
            tag: 0,
        };
        let now = Instant::now();
        let slot = |_| Slot {
            stage: Cell::new(Stage::Free),
            command: Cell::new(idle),
            since: Cell::new(now),
            sent_bytes: Cell::new(0),
            sent_pieces: Cell::new(0),
            outstanding: Cell::new(0),
            status: Cell::new(Ok(())),
        };
        let piece = |slot| Piece {
            request: UnsafeCell::new(stn_spdk_request::default()),
            slots: Cell::new(std::ptr::null()),
            slot,
        };
        // The Arc is never shared between threads: it is there because, unlike a Box, it may be
        // moved while pointers into it are alive.
        #[expect(clippy::arc_with_non_send_sync, reason = "see above")]
        let slots = Arc::new(Slots {
            slots: (0..depth).map(slot).collect(),
            pieces: (0..depth)
                .flat_map(|slot| std::iter::repeat_n(slot, pieces_per_slot))
                .map(piece)
                .collect(),
            pieces_per_slot,
            free: (0..depth).rev().map(Cell::new).collect(),
            free_count: Cell::new(depth as usize),
            done: (0..depth).map(|_| Cell::new(0)).collect(),
            done_first: Cell::new(0),
            done_count: Cell::new(0),
            outstanding_pieces: Cell::new(0),
            aborted: Cell::new(false),
            losing: Cell::new(false),
        });
        for piece in &slots.pieces {
            piece.slots.set(Arc::as_ptr(&slots));
            let request = piece.request.get();
            // SAFETY: a request that no other code knows yet.
            unsafe {
                (*request).complete = Some(piece_ended);
                (*request).context = std::ptr::from_ref(piece).cast_mut().cast();
            }
        }
        slots
    }

    /// Takes a slot for a command. `None` when all are in use.
    pub(super) fn take(&self, command: Command, now: Instant) -> Option<u32> {
        let last = self.free_count.get().checked_sub(1)?;
        self.free_count.set(last);
        let index = self.free[last].get();
        let slot = &self.slots[index as usize];
        slot.stage.set(Stage::Active);
        slot.command.set(command);
        slot.since.set(now);
        slot.sent_bytes.set(0);
        slot.sent_pieces.set(0);
        slot.status.set(Ok(()));
        Some(index)
    }

    /// Gives back a slot of which nothing was sent.
    pub(super) fn give_back(&self, index: u32) {
        debug_assert_eq!(self.slots[index as usize].outstanding.get(), 0);
        self.slots[index as usize].stage.set(Stage::Free);
        self.free[self.free_count.get()].set(index);
        self.free_count.set(self.free_count.get() + 1);
    }

    /// Takes the oldest ended command.
    pub(super) fn take_done(&self) -> Option<(u64, Result<(), IoError>)> {
        let count = self.done_count.get().checked_sub(1)?;
        let first = self.done_first.get();
        self.done_count.set(count);
        self.done_first.set((first + 1) % self.done.len());
        let index = self.done[first].get();
        let slot = &self.slots[index as usize];
        let ended = (slot.command.get().tag, slot.status.get());
        self.give_back(index);
        Some(ended)
    }

    pub(super) fn command(&self, index: u32) -> Command {
        self.slots[index as usize].command.get()
    }

    pub(super) fn sent_bytes(&self, index: u32) -> u32 {
        self.slots[index as usize].sent_bytes.get()
    }

    /// Whether more of the command is to be sent: not after a piece of it failed.
    pub(super) fn has_more_to_send(&self, index: u32) -> bool {
        let slot = &self.slots[index as usize];
        slot.stage.get() == Stage::Active
            && slot.status.get().is_ok()
            && (slot.sent_pieces.get() == 0
                || slot.sent_bytes.get() < slot.command.get().memory.len_bytes)
    }

    /// The request for the slot's next piece; `None` when it had more pieces than computed.
    pub(super) fn next_request(&self, index: u32) -> Option<*mut stn_spdk_request> {
        let number = self.slots[index as usize].sent_pieces.get() as usize;
        let at = index as usize * self.pieces_per_slot + number;
        (number < self.pieces_per_slot).then(|| self.pieces[at].request.get())
    }

    /// The next piece, of `len_bytes`, was sent.
    pub(super) fn sent(&self, index: u32, len_bytes: u32) {
        let slot = &self.slots[index as usize];
        slot.sent_bytes.set(slot.sent_bytes.get() + len_bytes);
        slot.sent_pieces.set(slot.sent_pieces.get() + 1);
        slot.outstanding.set(slot.outstanding.get() + 1);
        self.outstanding_pieces.set(self.outstanding_pieces.get() + 1);
    }

    /// The next piece could not be sent, and none will be.
    pub(super) fn send_failed(&self, index: u32, error: IoError) {
        let slot = &self.slots[index as usize];
        slot.status.set(slot.status.get().and(Err(error)));
        self.finish_if_ended(index);
    }

    /// Whether a piece of the slot is outstanding.
    pub(super) fn has_outstanding(&self, index: u32) -> bool {
        self.slots[index as usize].outstanding.get() > 0
    }

    /// Pieces that SPDK has.
    pub(super) fn outstanding_pieces(&self) -> u32 {
        self.outstanding_pieces.get()
    }

    /// Commands that were accepted and whose completions were not taken.
    pub(super) fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free_count.get()) as u32
    }

    /// Whether a command was aborted, which only the loss of its queue does.
    pub(super) fn saw_abort(&self) -> bool {
        self.aborted.get()
    }

    /// From here on a command that fails is lost, whatever its status says: the status comes from
    /// taking the queue down.
    pub(super) fn begin_to_lose(&self) {
        self.losing.set(true);
    }

    /// When the oldest active command came.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let active = self.slots.iter().filter(|slot| slot.stage.get() == Stage::Active);
        active.map(|slot| slot.since.get()).min()
    }

    /// Ends every active command as one of a lost drive. Called after the queue pair was freed: no
    /// callback will come.
    pub(super) fn end_all(&self) {
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.stage.get() == Stage::Active {
                slot.outstanding.set(0);
                slot.status.set(Err(IoError::Removed));
                self.finish_if_ended(index as u32);
            }
        }
        self.outstanding_pieces.set(0);
    }

    fn finish_if_ended(&self, index: u32) {
        let slot = &self.slots[index as usize];
        if slot.stage.get() == Stage::Active
            && slot.outstanding.get() == 0
            && !self.has_more_to_send(index)
        {
            slot.stage.set(Stage::Done);
            let place = (self.done_first.get() + self.done_count.get()) % self.done.len();
            self.done[place].set(index);
            self.done_count.set(self.done_count.get() + 1);
        }
    }

    fn piece_ended(&self, index: u32, status: Result<(), IoError>) {
        let slot = &self.slots[index as usize];
        let status = if self.losing.get() { status.map_err(|_| IoError::Removed) } else { status };
        if status == Err(IoError::Removed) {
            self.aborted.set(true);
        }
        slot.status.set(slot.status.get().and(status));
        slot.outstanding.set(slot.outstanding.get().saturating_sub(1));
        self.outstanding_pieces.set(self.outstanding_pieces.get().saturating_sub(1));
        self.finish_if_ended(index);
    }
}

/// The shim's callback: runs inside a call of the device, on the device's thread.
unsafe extern "C" fn piece_ended(context: *mut c_void, sct: u16, sc: u16, dnr: bool) {
    // SAFETY: the context is a piece of a device's slots, which outlive its queue pair, and only
    // shared references to either exist. The request itself is not accessed.
    let (slots, slot) = unsafe {
        let piece = &*context.cast_const().cast::<Piece>();
        (&*piece.slots.get(), piece.slot)
    };
    slots.piece_ended(slot, status(sct, sc, dnr));
}

pub(super) fn status(sct: u16, sc: u16, dnr: bool) -> Result<(), IoError> {
    /// "Aborted by request" and "aborted due to SQ deletion": we request no aborts, so the queue is
    /// gone. SPDK's release decides which of the two it is, and the retry bit.
    const ABORTED: [(u16, u16); 2] = [(0, 0x07), (0, 0x08)];
    match (sct, sc) {
        (0, 0) => Ok(()),
        found if ABORTED.contains(&found) => Err(IoError::Removed),
        _ => Err(IoError::Nvme { sct: sct as u8, sc: sc as u8, dnr }), // 3 and 8 bits by NVMe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(slots: &Slots, slot: u32, piece: usize, sct: u16, sc: u16) {
        let piece = &slots.pieces[slot as usize * slots.pieces_per_slot + piece];
        // SAFETY: as the shim calls it.
        unsafe { piece_ended(std::ptr::from_ref(piece).cast_mut().cast(), sct, sc, true) };
    }

    fn write(tag: u64, len_bytes: u32) -> Command {
        let memory = DmaSlice { len_bytes, ..DmaSlice::EMPTY };
        Command { operation: Operation::Write, offset_bytes: 0, memory, tag }
    }

    #[test]
    fn a_command_ends_with_its_last_piece_and_keeps_the_first_failure() {
        let slots = Slots::new(2, 3);
        let slot = slots.take(write(7, 3 * 4096), Instant::now()).unwrap();
        for _ in 0..3 {
            assert!(slots.has_more_to_send(slot));
            slots.next_request(slot).unwrap();
            slots.sent(slot, 4096);
        }
        assert!(!slots.has_more_to_send(slot));
        assert!(slots.next_request(slot).is_none());
        end(&slots, slot, 2, 2, 0x80);
        end(&slots, slot, 0, 0, 0x80);
        assert_eq!(slots.take_done(), None);
        end(&slots, slot, 1, 0, 0);
        let failure = IoError::Nvme { sct: 2, sc: 0x80, dnr: true };
        assert_eq!(slots.take_done(), Some((7, Err(failure))));
        assert_eq!((slots.take_done(), slots.in_flight()), (None, 0));
        assert!(!slots.saw_abort());
    }

    #[test]
    fn a_command_that_fails_half_sent_waits_for_the_pieces_that_were_sent() {
        let slots = Slots::new(1, 2);
        let slot = slots.take(write(1, 8192), Instant::now()).unwrap();
        assert!(slots.take(write(2, 4096), Instant::now()).is_none());
        slots.sent(slot, 4096);
        // The first half has ended, the second is not sent: it is not over.
        end(&slots, slot, 0, 0, 0);
        assert_eq!(slots.take_done(), None);
        assert!(slots.has_more_to_send(slot));
        slots.send_failed(slot, IoError::Os(libc::EINVAL));
        assert_eq!(slots.take_done(), Some((1, Err(IoError::Os(libc::EINVAL)))));
        assert!(slots.take(write(2, 4096), Instant::now()).is_some());
    }

    #[test]
    fn a_lost_queue_ends_everything_once() {
        let slots = Slots::new(3, 1);
        for tag in 0..3 {
            let slot = slots.take(write(tag, 4096), Instant::now()).unwrap();
            slots.sent(slot, 4096);
        }
        end(&slots, 1, 0, 0, 0);
        end(&slots, 0, 0, 0, 0x08);
        assert!(slots.saw_abort());
        slots.end_all();
        let ended: Vec<_> = std::iter::from_fn(|| slots.take_done()).collect();
        let removed = Err(IoError::Removed);
        assert_eq!(ended, [(1, Ok(())), (0, removed), (2, removed)]);
        assert_eq!((slots.in_flight(), slots.outstanding_pieces()), (0, 0));
    }
}
