// SPDX-License-Identifier: Apache-2.0
//! The contents of the ring: 64-byte requests and 32-byte completions, little-endian, and the check
//! that turns an untrusted request into a [`Request`].
//!
//! - Every bit without a meaning must be zero, so that a later version can give it one.
//! - The check here needs no context: the session checks that handles, keys and ranges exist.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::codes;
use crate::error::IoError;
use crate::limits::MAX_SEGMENT_BYTES;

const _: () = assert!(cfg!(target_endian = "little"), "ring entries are little-endian");

/// The operation of a request: the number in its first byte.
pub struct Opcode;

impl Opcode {
    /// Nothing; completes at once.
    pub const NOP: u8 = 0;
    /// Buffer to segment.
    pub const WRITE: u8 = 1;
    /// Segment to buffer.
    pub const READ: u8 = 2;
    /// Every byte of this participant's segment is written; completes when the checkpoint is
    /// durable and visible.
    pub const COMMIT: u8 = 3;
    /// Abort the checkpoint.
    pub const ABORT: u8 = 4;
}

/// A request as it lies in the ring. Fields that an opcode does not use are zero.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SubmitEntry {
    /// One of [`Opcode`].
    pub opcode: u8,
    /// No flags are defined.
    pub flags: u8,
    /// Zero.
    pub reserved0: u16,
    /// The key of the registered buffer.
    pub buffer: u32,
    /// The handle of the checkpoint.
    pub checkpoint: u64,
    /// Where in the buffer.
    pub buffer_offset_bytes: u64,
    /// How much.
    pub len_bytes: u64,
    /// Where in this participant's segment.
    pub segment_offset_bytes: u64,
    /// Comes back in the completion.
    pub user_data: u64,
    /// Zero.
    pub reserved1: [u64; 2],
}

/// A completion as it lies in the ring.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CompleteEntry {
    /// The request's.
    pub user_data: u64,
    /// Bytes moved, or a negative code of [`codes`].
    pub result: i64,
    /// No flags are defined.
    pub flags: u32,
    /// The NVMe status of a failure, `sct << 8 | sc`; 0 when it has none.
    pub detail: u32,
    /// The generation of a commit; the segment offset of the chunk that failed.
    pub aux: u64,
}

/// Words of a request.
pub(super) const SUBMIT_WORDS: usize = 8;
/// Words of a completion.
pub(super) const COMPLETE_WORDS: usize = 4;

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<SubmitEntry>() == SUBMIT_WORDS * 8 && size_of::<SubmitEntry>() == 64);
    assert!(offset_of!(SubmitEntry, opcode) == 0);
    assert!(offset_of!(SubmitEntry, flags) == 1);
    assert!(offset_of!(SubmitEntry, reserved0) == 2);
    assert!(offset_of!(SubmitEntry, buffer) == 4);
    assert!(offset_of!(SubmitEntry, checkpoint) == 8);
    assert!(offset_of!(SubmitEntry, buffer_offset_bytes) == 16);
    assert!(offset_of!(SubmitEntry, len_bytes) == 24);
    assert!(offset_of!(SubmitEntry, segment_offset_bytes) == 32);
    assert!(offset_of!(SubmitEntry, user_data) == 40);
    assert!(offset_of!(SubmitEntry, reserved1) == 48);
    assert!(size_of::<CompleteEntry>() == COMPLETE_WORDS * 8 && size_of::<CompleteEntry>() == 32);
    assert!(offset_of!(CompleteEntry, user_data) == 0);
    assert!(offset_of!(CompleteEntry, result) == 8);
    assert!(offset_of!(CompleteEntry, flags) == 16);
    assert!(offset_of!(CompleteEntry, detail) == 20);
    assert!(offset_of!(CompleteEntry, aux) == 24);
};

/// The bytes that a write or a read moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The handle of the checkpoint.
    pub checkpoint: u64,
    /// The key of the registered buffer.
    pub buffer: u32,
    /// Where in the buffer.
    pub buffer_offset_bytes: u64,
    /// How much: at least 1, at most [`MAX_SEGMENT_BYTES`]. Neither end overflows.
    pub len_bytes: u64,
    /// Where in this participant's segment.
    pub segment_offset_bytes: u64,
}

/// A request whose form was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Completes at once.
    Nop,
    /// Buffer to segment.
    Write(Transfer),
    /// Segment to buffer.
    Read(Transfer),
    /// This participant is done.
    Commit {
        /// The handle of the checkpoint.
        checkpoint: u64,
    },
    /// Abort the checkpoint.
    Abort {
        /// The handle of the checkpoint.
        checkpoint: u64,
    },
}

/// What is wrong with a request's form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RejectCode {
    /// The opcode is not known.
    #[error("unknown opcode")]
    Opcode,
    /// A flag is set that is not known.
    #[error("unknown flag")]
    Flags,
    /// A reserved field is not zero.
    #[error("reserved field is not zero")]
    Reserved,
    /// A field that the opcode does not use is not zero.
    #[error("field that the opcode does not use is not zero")]
    Unused,
    /// Nothing to move.
    #[error("length is zero")]
    Empty,
    /// The length or an end is out of bounds.
    #[error("range is out of bounds")]
    Range,
}

impl RejectCode {
    /// The result code for the completion.
    pub fn code(self) -> i64 {
        match self {
            RejectCode::Range => codes::RANGE,
            _ => codes::INVALID,
        }
    }
}

impl SubmitEntry {
    /// A request that only completes.
    pub fn nop(user_data: u64) -> Self {
        SubmitEntry { opcode: Opcode::NOP, user_data, ..Self::default() }
    }

    /// A write of buffer bytes to the segment.
    pub fn write(transfer: Transfer, user_data: u64) -> Self {
        Self::transfer(Opcode::WRITE, transfer, user_data)
    }

    /// A read of segment bytes into the buffer.
    pub fn read(transfer: Transfer, user_data: u64) -> Self {
        Self::transfer(Opcode::READ, transfer, user_data)
    }

    /// Commits this participant's part.
    pub fn commit(checkpoint: u64, user_data: u64) -> Self {
        SubmitEntry { opcode: Opcode::COMMIT, checkpoint, user_data, ..Self::default() }
    }

    /// Aborts the checkpoint.
    pub fn abort(checkpoint: u64, user_data: u64) -> Self {
        SubmitEntry { opcode: Opcode::ABORT, checkpoint, user_data, ..Self::default() }
    }

    fn transfer(opcode: u8, transfer: Transfer, user_data: u64) -> Self {
        SubmitEntry {
            opcode,
            buffer: transfer.buffer,
            checkpoint: transfer.checkpoint,
            buffer_offset_bytes: transfer.buffer_offset_bytes,
            len_bytes: transfer.len_bytes,
            segment_offset_bytes: transfer.segment_offset_bytes,
            user_data,
            ..Self::default()
        }
    }

    /// Checks the form of a request from a client.
    ///
    /// # Errors
    /// The first error. The request still gets its completion.
    pub fn decode(&self) -> Result<Request, RejectCode> {
        if self.opcode > Opcode::ABORT {
            return Err(RejectCode::Opcode);
        }
        if self.flags != 0 {
            return Err(RejectCode::Flags);
        }
        if self.reserved0 != 0 || self.reserved1 != [0; 2] {
            return Err(RejectCode::Reserved);
        }
        let checkpoint = self.checkpoint;
        match self.opcode {
            Opcode::WRITE => self.decode_transfer().map(Request::Write),
            Opcode::READ => self.decode_transfer().map(Request::Read),
            _ if self.names_bytes() => Err(RejectCode::Unused),
            Opcode::COMMIT => Ok(Request::Commit { checkpoint }),
            Opcode::ABORT => Ok(Request::Abort { checkpoint }),
            Opcode::NOP if checkpoint == 0 => Ok(Request::Nop),
            _ => Err(RejectCode::Unused),
        }
    }

    fn names_bytes(&self) -> bool {
        self.buffer != 0
            || self.buffer_offset_bytes != 0
            || self.len_bytes != 0
            || self.segment_offset_bytes != 0
    }

    fn decode_transfer(&self) -> Result<Transfer, RejectCode> {
        if self.len_bytes == 0 {
            return Err(RejectCode::Empty);
        }
        let segment_end = self.segment_offset_bytes.checked_add(self.len_bytes);
        let buffer_end = self.buffer_offset_bytes.checked_add(self.len_bytes);
        if segment_end.is_none_or(|end| end > MAX_SEGMENT_BYTES) || buffer_end.is_none() {
            return Err(RejectCode::Range);
        }
        Ok(Transfer {
            checkpoint: self.checkpoint,
            buffer: self.buffer,
            buffer_offset_bytes: self.buffer_offset_bytes,
            len_bytes: self.len_bytes,
            segment_offset_bytes: self.segment_offset_bytes,
        })
    }

    pub(super) fn to_words(self) -> [u64; SUBMIT_WORDS] {
        zerocopy::transmute!(self)
    }

    pub(super) fn from_words(words: [u64; SUBMIT_WORDS]) -> Self {
        zerocopy::transmute!(words)
    }
}

impl CompleteEntry {
    /// Everything that was requested is done. `result` is the bytes moved, at most `i64::MAX`.
    pub fn success(user_data: u64, bytes: u64, aux: u64) -> Self {
        let result = i64::try_from(bytes).unwrap_or(i64::MAX);
        CompleteEntry { user_data, result, aux, ..Self::default() }
    }

    /// A failure without an NVMe status; `code` is one of [`codes`].
    pub fn failure(user_data: u64, code: i64, aux: u64) -> Self {
        debug_assert!(code < 0);
        CompleteEntry { user_data, result: code, aux, ..Self::default() }
    }

    /// A failed command; `aux` is the segment offset of the chunk that failed.
    pub fn io_failure(user_data: u64, error: IoError, aux: u64) -> Self {
        let (result, detail) = codes::of_io_error(error);
        CompleteEntry { user_data, result, detail, aux, flags: 0 }
    }

    pub(super) fn to_words(self) -> [u64; COMPLETE_WORDS] {
        zerocopy::transmute!(self)
    }

    pub(super) fn from_words(words: [u64; COMPLETE_WORDS]) -> Self {
        zerocopy::transmute!(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRANSFER: Transfer = Transfer {
        checkpoint: 7,
        buffer: 0x0001_0002,
        buffer_offset_bytes: 4096,
        len_bytes: 1 << 20,
        segment_offset_bytes: 1 << 30,
    };

    #[test]
    fn constructors_decode_to_what_they_say() {
        assert_eq!(SubmitEntry::nop(1).decode(), Ok(Request::Nop));
        assert_eq!(SubmitEntry::write(TRANSFER, 2).decode(), Ok(Request::Write(TRANSFER)));
        assert_eq!(SubmitEntry::read(TRANSFER, 3).decode(), Ok(Request::Read(TRANSFER)));
        assert_eq!(SubmitEntry::commit(9, 4).decode(), Ok(Request::Commit { checkpoint: 9 }));
        assert_eq!(SubmitEntry::abort(9, 5).decode(), Ok(Request::Abort { checkpoint: 9 }));
    }

    #[test]
    fn each_fault_has_its_code() {
        let write = SubmitEntry::write(TRANSFER, 0);
        let nop = SubmitEntry::nop(0);
        let commit = SubmitEntry::commit(1, 0);
        let cases = [
            (SubmitEntry { opcode: 5, ..nop }, RejectCode::Opcode),
            (SubmitEntry { opcode: 255, ..nop }, RejectCode::Opcode),
            (SubmitEntry { flags: 0x80, ..write }, RejectCode::Flags),
            (SubmitEntry { reserved0: 1, ..write }, RejectCode::Reserved),
            (SubmitEntry { reserved1: [0, 1], ..write }, RejectCode::Reserved),
            (SubmitEntry { reserved1: [1, 0], ..commit }, RejectCode::Reserved),
            (SubmitEntry { checkpoint: 1, ..nop }, RejectCode::Unused),
            (SubmitEntry { buffer: 1, ..nop }, RejectCode::Unused),
            (SubmitEntry { buffer: 1, ..commit }, RejectCode::Unused),
            (SubmitEntry { buffer_offset_bytes: 1, ..commit }, RejectCode::Unused),
            (SubmitEntry { len_bytes: 1, ..commit }, RejectCode::Unused),
            (SubmitEntry { segment_offset_bytes: 1, ..commit }, RejectCode::Unused),
            (SubmitEntry { len_bytes: 0, ..write }, RejectCode::Empty),
            (SubmitEntry { len_bytes: u64::MAX, ..write }, RejectCode::Range),
            (SubmitEntry { segment_offset_bytes: MAX_SEGMENT_BYTES, ..write }, RejectCode::Range),
            (SubmitEntry { buffer_offset_bytes: u64::MAX, ..write }, RejectCode::Range),
        ];
        for (entry, code) in cases {
            assert_eq!(entry.decode(), Err(code), "{entry:?}");
            assert!(code.code() < 0);
        }
    }

    #[test]
    fn the_bytes_are_little_endian() {
        let words = SubmitEntry::write(TRANSFER, 0x1122).to_words();
        assert_eq!(words[0], 0x0001_0002_0000_0001);
        assert_eq!(words[1..6], [7, 4096, 1 << 20, 1 << 30, 0x1122]);
        let failure = IoError::Nvme { sct: 0, sc: 0x80, dnr: false };
        let words = CompleteEntry::io_failure(5, failure, 6).to_words();
        assert_eq!(words, [5, codes::IO.cast_unsigned(), 0x80 << 32, 6]);
    }

    proptest! {
        /// Any 64 bytes decode without a panic, and what is accepted means exactly those bytes.
        #[test]
        fn decoding_loses_nothing(mut words in any::<[u64; SUBMIT_WORDS]>(), tame in any::<u8>()) {
            words[0] &= if tame & 1 == 0 { u64::MAX } else { 0xffff_ffff_0000_0007 };
            if tame & 2 != 0 { words[6] = 0; words[7] = 0; }
            for (bit, word) in [(4, 2), (8, 3), (16, 4)] {
                if tame & bit != 0 { words[word] >>= 16; }
            }
            let entry = SubmitEntry::from_words(words);
            prop_assert_eq!(entry.to_words(), words);
            let again = match entry.decode() {
                Err(code) => { prop_assert!(code.code() < 0); return Ok(()); }
                Ok(Request::Nop) => SubmitEntry::nop(entry.user_data),
                Ok(Request::Write(t)) => SubmitEntry::write(t, entry.user_data),
                Ok(Request::Read(t)) => SubmitEntry::read(t, entry.user_data),
                Ok(Request::Commit { checkpoint }) => SubmitEntry::commit(checkpoint, entry.user_data),
                Ok(Request::Abort { checkpoint }) => SubmitEntry::abort(checkpoint, entry.user_data),
            };
            prop_assert_eq!(again, entry);
        }
    }
}
