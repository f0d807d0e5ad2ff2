// SPDX-License-Identifier: Apache-2.0
//! An open segment: the place and the state of each of its chunks.
//!
//! Placement is decided when the segment is opened, so a reactor only looks it up; the keeper
//! replaces a place that turns out to be bad. Only one reactor, the one that serves the segment's
//! session, changes the states; the keeper reads the checksums after that reactor has reported the
//! segment complete.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::units::{Copies, DriveIndex, Location};

/// What the segment was opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A save: chunks are written once. The pool state's number of the open checkpoint.
    Save { checkpoint: u64 },
    /// A restore: chunks are read and compared.
    Restore,
    /// A repair: chunks are read and compared, and what was read may be written to a place whose
    /// own copy is bad.
    Repair,
}

impl Purpose {
    /// Whether its chunks may be read.
    pub(crate) fn reads(self) -> bool {
        !self.saves()
    }

    /// Whether its chunks may be written.
    pub(crate) fn writes(self) -> bool {
        self != Purpose::Restore
    }

    /// Whether its chunks are new: each is written once, and its checksum is computed then.
    pub(crate) fn saves(self) -> bool {
        matches!(self, Purpose::Save { .. })
    }
}

/// One participant's segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) purpose: Purpose,
    pub(crate) participant: u32,
    pub(crate) len_bytes: u64,
    pub(crate) chunk_bytes: u64,
    chunks: Box<[Chunk]>,
    /// Chunks that are not written.
    missing: AtomicU64,
}

#[derive(Debug)]
struct Chunk {
    /// Packed; the second is [`NOWHERE`] when there is none. A copy at a bad place is moved to
    /// another one.
    places: [AtomicU64; 2],
    crc64: AtomicU64,
    /// [`EMPTY`], [`WRITTEN`], or how many of its copies are still to be written.
    state: AtomicU8,
}

/// No location packs to this value: there is no such drive.
const NOWHERE: u64 = u64::MAX;
const SLOT_BITS: u32 = 48;

fn pack(location: Location) -> u64 {
    u64::from(location.drive.0) << SLOT_BITS | location.slot
}

fn unpack(place: u64) -> Location {
    let slot = place & ((1 << SLOT_BITS) - 1);
    Location { drive: DriveIndex((place >> SLOT_BITS) as u16), slot }
}

impl Chunk {
    fn new(copies: Copies, crc64: u64, state: u8) -> Chunk {
        let places = [pack(copies.first), copies.second.map_or(NOWHERE, pack)];
        Chunk {
            places: places.map(AtomicU64::new),
            crc64: AtomicU64::new(crc64),
            state: AtomicU8::new(state),
        }
    }

    fn copies(&self) -> Copies {
        let [first, second] = [0, 1].map(|copy: usize| self.places[copy].load(Ordering::Relaxed));
        let second = (second != NOWHERE).then(|| unpack(second));
        Copies { first: unpack(first), second }
    }
}

const EMPTY: u8 = 0;
const WRITTEN: u8 = u8::MAX;

impl Segment {
    /// A segment to save.
    pub(crate) fn for_save(
        checkpoint: u64,
        participant: u32,
        len_bytes: u64,
        chunk_bytes: u64,
        copies: &[Copies],
    ) -> Segment {
        let chunks = copies.iter().map(|&copies| Chunk::new(copies, 0, EMPTY)).collect();
        let purpose = Purpose::Save { checkpoint };
        let missing = AtomicU64::new(copies.len() as u64);
        Segment { purpose, participant, len_bytes, chunk_bytes, chunks, missing }
    }

    /// A segment to restore, with the checksum of each chunk.
    pub(crate) fn for_restore(
        participant: u32,
        len_bytes: u64,
        chunk_bytes: u64,
        chunks: impl Iterator<Item = (Copies, u64)>,
    ) -> Segment {
        let chunks = chunks.map(|(copies, crc64)| Chunk::new(copies, crc64, WRITTEN)).collect();
        let (purpose, missing) = (Purpose::Restore, AtomicU64::new(0));
        Segment { purpose, participant, len_bytes, chunk_bytes, chunks, missing }
    }

    /// The same, and chunks may be written again: the writer has checked the bytes, and holds the
    /// checkpoint that they belong to.
    pub(crate) fn for_repair(self) -> Segment {
        Segment { purpose: Purpose::Repair, ..self }
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        self.chunks.len() as u64
    }

    /// Data bytes of a chunk: all chunks but the last are full.
    pub(crate) fn chunk_data_bytes(&self, chunk: u64) -> u32 {
        let start = chunk * self.chunk_bytes;
        (self.len_bytes - start).min(self.chunk_bytes) as u32
    }

    pub(crate) fn copies(&self, chunk: u64) -> Copies {
        self.chunks[chunk as usize].copies()
    }

    /// Moves one copy of a chunk that is being written to another place.
    pub(crate) fn move_copy(&self, chunk: u64, second: bool, to: Location) {
        let place = &self.chunks[chunk as usize].places[usize::from(second)];
        place.store(pack(to), Ordering::Relaxed);
    }

    pub(crate) fn crc64(&self, chunk: u64) -> u64 {
        self.chunks[chunk as usize].crc64.load(Ordering::Acquire)
    }

    pub(crate) fn set_crc64(&self, chunk: u64, crc64: u64) {
        self.chunks[chunk as usize].crc64.store(crc64, Ordering::Release);
    }

    /// Whether none of these chunks has been written; if so they are marked as being written.
    pub(crate) fn claim(&self, first: u64, count: u64) -> bool {
        let chunks = &self.chunks[first as usize..(first + count) as usize];
        if chunks.iter().any(|chunk| chunk.state.load(Ordering::Relaxed) != EMPTY) {
            return false;
        }
        for chunk in chunks {
            chunk.state.store(chunk.copies().count(), Ordering::Relaxed);
        }
        true
    }

    /// One copy of a claimed chunk is written. A repair claims nothing.
    pub(crate) fn copy_written(&self, chunk: u64) {
        if !self.purpose.saves() {
            return;
        }
        let state = &self.chunks[chunk as usize].state;
        let left = state.load(Ordering::Relaxed) - 1;
        state.store(if left == 0 { WRITTEN } else { left }, Ordering::Release);
        if left == 0 {
            self.missing.store(self.missing_chunks() - 1, Ordering::Release);
        }
    }

    /// Takes back the claim of a write that failed: it may be repeated as it was, so those of its
    /// chunks that were written count as missing again. No write of them is in flight. A repair
    /// claims nothing.
    pub(crate) fn unclaim(&self, first: u64, count: u64) {
        if !self.purpose.saves() {
            return;
        }
        let mut missing = self.missing_chunks();
        for chunk in &self.chunks[first as usize..(first + count) as usize] {
            missing += u64::from(chunk.state.load(Ordering::Relaxed) == WRITTEN);
            chunk.state.store(EMPTY, Ordering::Release);
        }
        self.missing.store(missing, Ordering::Release);
    }

    /// Chunks that are not written.
    pub(crate) fn missing_chunks(&self) -> u64 {
        self.missing.load(Ordering::Acquire)
    }
}
