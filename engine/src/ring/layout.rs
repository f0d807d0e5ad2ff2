// SPDX-License-Identifier: Apache-2.0
//! The layout of the ring's memory, and the only code that turns it into references.
//!
//! ```text
//!     0  identity: magic u64, version, submit entry bytes, complete entry bytes,
//!        submit entries, complete entries (u32 each)
//!   128  submit tail       written by the client    | each alone in 128 bytes, the unit in which
//!   256  submit head       written by the engine    | processors fetch pairs of cache lines
//!   384  complete tail     written by the engine
//!   512  complete head     written by the client
//!   640  engine sleeping   1 by the engine, 0 by either
//!   768  client sleeping   1 by the client, 0 by either
//!   896  state             written by the engine
//!  4096  submit entries, then complete entries
//! ```
//!
//! - Indices run freely over all of u32 and wrap; the place of an entry is its index modulo the
//!   size of the array, a power of two.
//! - Every access to the memory is atomic. So another process that writes there at the same moment
//!   can change values, but cannot cause undefined behaviour.
//! - Sizes are private copies: the identity is written once, and a client reads it once and checks
//!   it.

#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic as plain;

use super::atomic::{AtomicU32, Ordering, Slot};
use super::entry::{COMPLETE_WORDS, CompleteEntry, SUBMIT_WORDS, SubmitEntry};
use crate::error::Error;
use crate::memory::Region;

/// The most submit entries of a ring.
pub const MAX_SUBMIT_ENTRIES: u32 = 4096;
/// The most complete entries of a ring.
pub const MAX_COMPLETE_ENTRIES: u32 = 65_536;

const MAGIC: u64 = u64::from_le_bytes(*b"STNRING\0");
const VERSION: u32 = 1;
const LINE_BYTES: usize = 128;
const ARRAYS_OFFSET_BYTES: usize = 4096;
const SUBMIT_ENTRY_BYTES: usize = SUBMIT_WORDS * 8;
const COMPLETE_ENTRY_BYTES: usize = COMPLETE_WORDS * 8;

/// Checked sizes of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSizes {
    submit_entries: u32,
    complete_entries: u32,
}

impl RingSizes {
    /// A ring of `submit_entries`, a power of two up to [`MAX_SUBMIT_ENTRIES`], and twice as many
    /// complete entries.
    ///
    /// # Errors
    /// [`Error::Usage`] for any other number.
    pub fn new(submit_entries: u32) -> Result<Self, Error> {
        Self::with_complete(submit_entries, submit_entries.saturating_mul(2))
    }

    /// The same, with `complete_entries` a power of two from `submit_entries` up to
    /// [`MAX_COMPLETE_ENTRIES`]. It bounds the requests that a client may have outstanding.
    ///
    /// # Errors
    /// [`Error::Usage`] for any other number.
    pub fn with_complete(submit_entries: u32, complete_entries: u32) -> Result<Self, Error> {
        if !submit_entries.is_power_of_two() || submit_entries > MAX_SUBMIT_ENTRIES {
            return Err(Error::Usage(format!(
                "a submit ring of {submit_entries} entries: pass a power of two from 1 to \
                 {MAX_SUBMIT_ENTRIES}"
            )));
        }
        if !complete_entries.is_power_of_two()
            || complete_entries < submit_entries
            || complete_entries > MAX_COMPLETE_ENTRIES
        {
            return Err(Error::Usage(format!(
                "a complete ring of {complete_entries} entries: pass a power of two from \
                 {submit_entries} (the size of the submit ring) to {MAX_COMPLETE_ENTRIES}"
            )));
        }
        Ok(RingSizes { submit_entries, complete_entries })
    }

    /// Entries of the submit ring.
    pub fn submit_entries(self) -> u32 {
        self.submit_entries
    }

    /// Entries of the complete ring.
    pub fn complete_entries(self) -> u32 {
        self.complete_entries
    }

    fn complete_offset_bytes(self) -> usize {
        ARRAYS_OFFSET_BYTES + self.submit_entries as usize * SUBMIT_ENTRY_BYTES
    }

    fn len_bytes(self) -> usize {
        self.complete_offset_bytes() + self.complete_entries as usize * COMPLETE_ENTRY_BYTES
    }
}

/// Whether the engine still serves a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingState {
    /// It does.
    Open,
    /// It has released the ring.
    Closed,
    /// An index jumped: one end, or another writer of its memory, is broken.
    Poisoned,
}

impl RingState {
    pub(super) fn to_word(self) -> u32 {
        match self {
            RingState::Open => 0,
            RingState::Closed => 1,
            RingState::Poisoned => 2,
        }
    }

    pub(super) fn from_word(word: u32) -> Self {
        match word {
            0 => RingState::Open,
            1 => RingState::Closed,
            _ => RingState::Poisoned,
        }
    }
}

/// Identifies the memory. Always plain atomics: it is not part of the protocol that loom checks.
#[repr(C)]
struct Identity {
    magic: plain::AtomicU64,
    version: plain::AtomicU32,
    submit_entry_bytes: plain::AtomicU32,
    complete_entry_bytes: plain::AtomicU32,
    submit_entries: plain::AtomicU32,
    complete_entries: plain::AtomicU32,
}

/// A word alone in its cache lines.
#[repr(C, align(128))]
pub(super) struct Line(pub(super) AtomicU32);

/// Whether an end sleeps: 0 or 1, alone in its cache lines. It is the only kind of word that both
/// ends write, so every write is a swap: no write of one end hides one of the other that it missed.
#[repr(C)]
pub(super) struct Sleeping(Line);

impl Sleeping {
    pub(super) fn set(&self) {
        self.0.0.swap(1, Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) != 0
    }

    /// Whether it was set. Usually it was not, and then this costs only a load.
    pub(super) fn clear(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) != 0 && self.0.0.swap(0, Ordering::Relaxed) != 0
    }
}

/// The words that the two ends share.
#[repr(C)]
pub(super) struct Control {
    pub(super) submit_tail: Line,
    pub(super) submit_head: Line,
    pub(super) complete_tail: Line,
    pub(super) complete_head: Line,
    pub(super) engine_sleeping: Sleeping,
    pub(super) client_sleeping: Sleeping,
    pub(super) state: Line,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Identity>() <= LINE_BYTES);
    assert!(offset_of!(Identity, version) == 8);
    assert!(offset_of!(Identity, submit_entry_bytes) == 12);
    assert!(offset_of!(Identity, complete_entry_bytes) == 16);
    assert!(offset_of!(Identity, submit_entries) == 20);
    assert!(offset_of!(Identity, complete_entries) == 24);
    assert!(offset_of!(Control, submit_tail) == 0);
    assert!(ARRAYS_OFFSET_BYTES.is_multiple_of(LINE_BYTES));
};
#[cfg(not(loom))]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(Control, submit_head) == LINE_BYTES);
    assert!(offset_of!(Control, complete_tail) == 2 * LINE_BYTES);
    assert!(offset_of!(Control, complete_head) == 3 * LINE_BYTES);
    assert!(offset_of!(Control, engine_sleeping) == 4 * LINE_BYTES);
    assert!(offset_of!(Control, client_sleeping) == 5 * LINE_BYTES);
    assert!(offset_of!(Control, state) == 6 * LINE_BYTES);
    assert!(LINE_BYTES + size_of::<Control>() <= ARRAYS_OFFSET_BYTES);
};

/// The ring's memory as both ends of one process hold it.
pub(super) struct Mapping {
    region: Region,
    sizes: RingSizes,
    /// loom's atomics cannot be in a memfd: while loom checks the protocol, the words are here.
    #[cfg(loom)]
    model: Model,
}

impl Mapping {
    /// A new ring whose indices all are `start`.
    pub(super) fn create(sizes: RingSizes, start: u32) -> Result<Mapping, Error> {
        let region = Region::ordinary(sizes.len_bytes() as u64)?;
        let mapping = Mapping {
            region,
            sizes,
            #[cfg(loom)]
            model: Model::new(sizes),
        };
        let identity = mapping.identity();
        identity.version.store(VERSION, Ordering::Relaxed);
        identity.submit_entry_bytes.store(SUBMIT_ENTRY_BYTES as u32, Ordering::Relaxed);
        identity.complete_entry_bytes.store(COMPLETE_ENTRY_BYTES as u32, Ordering::Relaxed);
        identity.submit_entries.store(sizes.submit_entries, Ordering::Relaxed);
        identity.complete_entries.store(sizes.complete_entries, Ordering::Relaxed);
        let control = mapping.control();
        if start != 0 {
            let indices = [
                &control.submit_tail,
                &control.submit_head,
                &control.complete_tail,
                &control.complete_head,
            ];
            indices.into_iter().for_each(|index| index.0.store(start, Ordering::Relaxed));
        }
        identity.magic.store(MAGIC, Ordering::Release);
        Ok(mapping)
    }

    /// Maps a ring that another process, or this one, created and that has no client yet.
    pub(super) fn attach(memfd: OwnedFd) -> Result<Mapping, Error> {
        let region = Region::from_memfd(memfd)?;
        if region.len_bytes() < ARRAYS_OFFSET_BYTES as u64 {
            return Err(Error::Environment(format!(
                "the descriptor holds {} bytes, too few for a ring",
                region.len_bytes()
            )));
        }
        let sizes = RingSizes { submit_entries: 1, complete_entries: 1 };
        let mut mapping = Mapping {
            region,
            sizes,
            #[cfg(loom)]
            model: Model::new(sizes),
        };
        mapping.sizes = mapping.read_identity()?;
        let control = mapping.control();
        let used = [&control.submit_tail, &control.complete_head];
        if used.into_iter().any(|index| index.0.load(Ordering::Acquire) != 0) {
            return Err(Error::Usage("the ring has a client already; open a new session".into()));
        }
        Ok(mapping)
    }

    fn read_identity(&self) -> Result<RingSizes, Error> {
        let identity = self.identity();
        if identity.magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::Environment("the descriptor holds no stanchion ring".into()));
        }
        let version = identity.version.load(Ordering::Relaxed);
        let entry_bytes = [&identity.submit_entry_bytes, &identity.complete_entry_bytes]
            .map(|bytes| bytes.load(Ordering::Relaxed));
        if version != VERSION
            || entry_bytes != [SUBMIT_ENTRY_BYTES as u32, COMPLETE_ENTRY_BYTES as u32]
        {
            return Err(Error::Environment(format!(
                "the engine's ring has version {version} with entries of {entry_bytes:?} bytes; \
                 this program speaks version {VERSION}; use one version of stanchion on both sides"
            )));
        }
        let sizes = RingSizes::with_complete(
            identity.submit_entries.load(Ordering::Relaxed),
            identity.complete_entries.load(Ordering::Relaxed),
        )?;
        if self.region.len_bytes() < sizes.len_bytes() as u64 {
            return Err(Error::Environment(format!(
                "the ring says {sizes:?} and its memory has only {} bytes",
                self.region.len_bytes()
            )));
        }
        Ok(sizes)
    }

    pub(super) fn sizes(&self) -> RingSizes {
        self.sizes
    }

    pub(super) fn memfd(&self) -> BorrowedFd<'_> {
        self.region.memfd().expect("rings lie in regions of our own")
    }

    fn identity(&self) -> &Identity {
        // SAFETY: create and attach made sure that the region has the header page; its base is page
        // aligned; atomics have no invalid values; and all access to the memory is atomic.
        unsafe { self.region.base().cast::<Identity>().as_ref() }
    }

    #[cfg(not(loom))]
    pub(super) fn control(&self) -> &Control {
        // SAFETY: as for `identity`; the words end before ARRAYS_OFFSET_BYTES, asserted above, and
        // LINE_BYTES keeps their alignment.
        unsafe { self.region.base().add(LINE_BYTES).cast::<Control>().as_ref() }
    }

    #[cfg(not(loom))]
    fn submit_slot(&self, index: u32) -> &Slot<SUBMIT_WORDS> {
        let place = (index & (self.sizes.submit_entries - 1)) as usize;
        let offset = ARRAYS_OFFSET_BYTES + place * SUBMIT_ENTRY_BYTES;
        // SAFETY: place < submit_entries, and the region has at least sizes.len_bytes(), checked
        // when the mapping was made; the offset is a multiple of 8; all access is atomic.
        unsafe { self.region.base().add(offset).cast().as_ref() }
    }

    #[cfg(not(loom))]
    fn complete_slot(&self, index: u32) -> &Slot<COMPLETE_WORDS> {
        let place = (index & (self.sizes.complete_entries - 1)) as usize;
        let offset = self.sizes.complete_offset_bytes() + place * COMPLETE_ENTRY_BYTES;
        // SAFETY: as for `submit_slot`, with place < complete_entries.
        unsafe { self.region.base().add(offset).cast().as_ref() }
    }

    pub(super) fn load_submit(&self, index: u32) -> SubmitEntry {
        SubmitEntry::from_words(self.submit_slot(index).load())
    }

    pub(super) fn store_submit(&self, index: u32, entry: SubmitEntry) {
        self.submit_slot(index).store(entry.to_words());
    }

    pub(super) fn load_complete(&self, index: u32) -> CompleteEntry {
        CompleteEntry::from_words(self.complete_slot(index).load())
    }

    pub(super) fn store_complete(&self, index: u32, entry: CompleteEntry) {
        self.complete_slot(index).store(entry.to_words());
    }
}

#[cfg(loom)]
struct Model {
    control: Control,
    submit: Vec<Slot<SUBMIT_WORDS>>,
    complete: Vec<Slot<COMPLETE_WORDS>>,
}

// SAFETY: all words are atomic, and loom's cells hold nothing; they report races to loom.
#[cfg(loom)]
unsafe impl Send for Model {}
// SAFETY: as above.
#[cfg(loom)]
unsafe impl Sync for Model {}

#[cfg(loom)]
impl Model {
    fn new(sizes: RingSizes) -> Model {
        fn line() -> Line {
            Line(AtomicU32::new(0))
        }
        Model {
            control: Control {
                submit_tail: line(),
                submit_head: line(),
                complete_tail: line(),
                complete_head: line(),
                engine_sleeping: Sleeping(line()),
                client_sleeping: Sleeping(line()),
                state: line(),
            },
            submit: (0..sizes.submit_entries).map(|_| Slot::new()).collect(),
            complete: (0..sizes.complete_entries).map(|_| Slot::new()).collect(),
        }
    }
}

#[cfg(loom)]
impl Mapping {
    pub(super) fn control(&self) -> &Control {
        &self.model.control
    }

    fn submit_slot(&self, index: u32) -> &Slot<SUBMIT_WORDS> {
        &self.model.submit[(index & (self.sizes.submit_entries - 1)) as usize]
    }

    fn complete_slot(&self, index: u32) -> &Slot<COMPLETE_WORDS> {
        &self.model.complete[(index & (self.sizes.complete_entries - 1)) as usize]
    }
}
