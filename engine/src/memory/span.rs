// SPDX-License-Identifier: Apache-2.0
//! A span: some bytes of a region that a transfer or a checksum is using.
//!
//! A span holds its region, so the mapping outlives the work on it: a drive's queue slot keeps the
//! span of each command until that command's completion. By the rules of the ring, spans of
//! different entries never overlap. A trainer that breaks the rules (it can: the memory is its own)
//! damages only its own bytes, and the checksum detects that.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use crate::limits::BLOCK_BYTES;
use crate::memory::Region;

/// Memory for one command. Plain pointer and length: the reactor decides who owns it.
#[derive(Clone, Copy, Debug)]
pub struct DmaSlice {
    /// The first byte; block aligned.
    pub address: NonNull<u8>,
    /// A whole number of blocks; 0 for a flush.
    pub len_bytes: u32,
}

impl DmaSlice {
    /// For commands without data.
    pub const EMPTY: DmaSlice = DmaSlice { address: NonNull::dangling(), len_bytes: 0 };
}

// SAFETY: a DmaSlice is an address, not a borrow. Each use of the memory behind it is an unsafe
// operation of its own, with its own argument for exclusiveness and lifetime.
unsafe impl Send for DmaSlice {}

/// Bytes of a region. Offset block aligned.
#[derive(Clone, Debug)]
pub struct Span {
    region: Arc<Region>,
    offset_bytes: u64,
    len_bytes: u32,
}

impl Span {
    /// The span of `len_bytes` at `offset_bytes`, or `None` when it does not lie within the region
    /// or does not start on a block.
    pub fn new(region: &Arc<Region>, offset_bytes: u64, len_bytes: u32) -> Option<Span> {
        if !offset_bytes.is_multiple_of(BLOCK_BYTES) {
            return None;
        }
        region.at(offset_bytes, u64::from(len_bytes))?;
        Some(Span { region: Arc::clone(region), offset_bytes, len_bytes })
    }

    /// The region that it lies in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Its length.
    #[cfg(any(test, feature = "internals"))]
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: `new` checked that offset and length lie within the mapping.
        unsafe { self.region.base().add(self.offset_bytes as usize) }
    }

    /// The same start with another length, if that still lies within the region.
    #[cfg(any(test, feature = "internals"))]
    pub fn with_len(&self, len_bytes: u32) -> Option<Span> {
        Span::new(&self.region, self.offset_bytes, len_bytes)
    }

    /// For a command on a drive.
    pub fn as_dma(&self) -> DmaSlice {
        DmaSlice { address: self.start(), len_bytes: self.len_bytes }
    }

    /// The bytes, for reading.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is alive (we hold the region) and the range was checked by `new`. No
        // thread of this process writes it meanwhile: a `Buffer` with an entry in flight gives no
        // mutable slice, and drives write only what a read command named, before its completion.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len_bytes as usize) }
    }

    /// Copies `data` to the start of the span.
    ///
    /// # Panics
    /// When `data` is longer than the span: the caller's arithmetic is wrong.
    #[cfg(any(test, feature = "internals"))]
    pub fn fill_from(&self, data: &[u8]) {
        assert!(data.len() <= self.len_bytes as usize);
        // SAFETY: the range is inside the mapping; `data` is ordinary memory and cannot overlap
        // with bytes that are only reachable through spans and idle buffers.
        unsafe { self.start().as_ptr().copy_from(data.as_ptr(), data.len()) };
    }

    /// Sets the bytes from `from` to the end of the span to zero.
    pub fn zero_from(&self, from: u32) {
        let count = self.len_bytes.saturating_sub(from) as usize;
        if count > 0 {
            // SAFETY: from + count is the span's length, which lies within the mapping.
            unsafe { self.start().add(from as usize).as_ptr().write_bytes(0, count) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HugePages;

    #[test]
    fn spans_stay_inside_their_region() {
        let region = Arc::new(Region::new(1, HugePages::Off).unwrap());
        let end = region.len_bytes();
        assert!(Span::new(&region, 1, 1).is_none());
        assert!(Span::new(&region, end, 1).is_none());
        assert!(Span::new(&region, end - 4096, 4097).is_none());
        let span = Span::new(&region, end - 4096, 4096).unwrap();
        span.fill_from(&[7; 4096]);
        span.zero_from(100);
        assert!(span.bytes()[..100].iter().all(|b| *b == 7));
        assert!(span.bytes()[100..].iter().all(|b| *b == 0));
    }
}
