// SPDX-License-Identifier: Apache-2.0
//! The prologue that every structure starts with, and the only way through it.
//!
//! | offset | size | field                                                          |
//! |--------|------|----------------------------------------------------------------|
//! | 0      | 8    | magic: which structure                                         |
//! | 8      | 16   | hash: XXH3-128 of all bytes from 24 to the end of the last block |
//! | 24     | 2    | major version                                                  |
//! | 26     | 2    | minor version                                                  |
//! | 28     | 4    | zero                                                           |
//! | 32     | 8    | offset on the drive where this was meant to lie                |
//! | 40     | 8    | length in bytes, prologue included, padding not                |
//! | 48     | 16   | pool                                                           |
//!
//! The first 64 bytes mean the same in every future version, so that an old program can distinguish
//! a newer format from a damaged one. [`Writer`] appends fields and seals them; [`Reader::open`]
//! checks the prologue and returns the fields, each bounds-checked.

use uuid::Uuid;

use super::object::MAX_META_OBJECT_BYTES;
use super::{Encoded, FormatError, MAJOR, MINOR, MetaExtent, hash128};
use crate::limits::{BLOCK_BYTES, MAX_DRIVE_BYTES};
use crate::planted::{Bug, planted};
use crate::units::{is_block_aligned, round_up};

/// Bytes of the prologue.
pub(super) const PROLOGUE_BYTES: u64 = 64;

const HASH_AT: usize = 8;
const HASHED_FROM: usize = HASH_AT + 16;
const OFFSET_AT: usize = HASHED_FROM + 8;
const LENGTH_AT: usize = OFFSET_AT + 8;
const POOL_AT: usize = LENGTH_AT + 8;
const _: () = assert!(POOL_AT + 16 == PROLOGUE_BYTES as usize);

/// Identifies a kind of structure.
pub(super) type Magic = [u8; 8];

pub(super) fn corrupt(detail: impl Into<String>) -> FormatError {
    FormatError::Corrupt(detail.into())
}

/// Whether all bytes are zero. Most slots of a root ring are, so the time to open a pool depends on
/// this. Without an early exit in the inner loop the compiler vectorizes it.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |any, byte| any | byte) == 0)
}

/// Bytes as hexadecimal, for messages.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Appends the fields of one structure.
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Starts a structure of `len_bytes`, prologue included; only the allocation depends on it.
    pub(super) fn new(magic: Magic, pool: Uuid, len_bytes: u64) -> Self {
        let capacity = round_up(len_bytes, BLOCK_BYTES).and_then(|n| usize::try_from(n).ok());
        let mut writer = Writer { bytes: Vec::with_capacity(capacity.unwrap_or(0)) };
        writer.put(&magic);
        writer.zeros(16);
        writer.u16(MAJOR);
        writer.u16(MINOR);
        writer.zeros(4 + 8 + 8);
        writer.put(pool.as_bytes());
        writer
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    pub(super) fn uuid(&mut self, value: Uuid) {
        self.put(value.as_bytes());
    }

    pub(super) fn extent(&mut self, value: &MetaExtent) {
        self.u64(value.offset_bytes);
        self.u64(value.len_bytes);
        self.put(&value.hash);
    }

    /// The fields so far, after the prologue.
    pub(super) fn body(&self) -> &[u8] {
        &self.bytes[PROLOGUE_BYTES as usize..]
    }

    /// Pads to whole blocks and fills in the prologue.
    pub(super) fn seal(mut self, offset_bytes: u64) -> Encoded {
        assert!(is_block_aligned(offset_bytes), "metadata is written in whole blocks");
        let len_bytes = self.bytes.len() as u64;
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        self.bytes[OFFSET_AT..LENGTH_AT].copy_from_slice(&offset_bytes.to_le_bytes());
        self.bytes[LENGTH_AT..POOL_AT].copy_from_slice(&len_bytes.to_le_bytes());
        let hash = hash128(&self.bytes[HASHED_FROM..]);
        self.bytes[HASH_AT..HASHED_FROM].copy_from_slice(&hash);
        Encoded { bytes: self.bytes, extent: MetaExtent { offset_bytes, len_bytes, hash } }
    }
}

/// Reads the fields of one structure. It exists only for bytes whose hash is right.
pub(super) struct Reader<'a> {
    /// The pool in the prologue.
    pub(super) pool: Uuid,
    left: &'a [u8],
    padding: &'a [u8],
    /// Of a newer minor version: bytes that have no meaning here may have one there.
    newer_minor: bool,
}

impl<'a> Reader<'a> {
    /// Checks the prologue of a structure that was read at `offset_bytes`.
    pub(super) fn open(
        magic: Magic,
        bytes: &'a [u8],
        offset_bytes: u64,
    ) -> Result<Self, FormatError> {
        if !bytes.is_empty() && is_zero(bytes) {
            return Err(FormatError::Blank);
        }
        if bytes.len() < BLOCK_BYTES as usize || !is_block_aligned(bytes.len() as u64) {
            return Err(corrupt(format!("{} bytes are not whole blocks", bytes.len())));
        }
        if bytes[..HASH_AT] != magic {
            return Err(FormatError::NotOurs);
        }
        let computed = hash128(&bytes[HASHED_FROM..]);
        if bytes[HASH_AT..HASHED_FROM] != computed && !planted(Bug::ChecksumNotCompared) {
            return Err(corrupt(format!(
                "hash {} is stored, {} is computed",
                hex(&bytes[HASH_AT..HASHED_FROM]),
                hex(&computed)
            )));
        }

        let mut reader = Reader {
            pool: Uuid::nil(),
            left: &bytes[HASHED_FROM..],
            padding: &[],
            newer_minor: false,
        };
        let (major, minor) = (reader.u16()?, reader.u16()?);
        if major > MAJOR {
            return Err(newer(format!("{major}.{minor}")));
        }
        if major == 0 {
            return Err(corrupt(format!("format {major}.{minor} does not exist")));
        }
        if major < MAJOR {
            let found = format!("{major}.{minor}");
            return Err(FormatError::Older { found, supported: format!("{MAJOR}.0") });
        }
        reader.newer_minor = minor > MINOR;
        reader.zeros(4)?;
        let meant_for = reader.u64()?;
        if meant_for != offset_bytes || !is_block_aligned(meant_for) {
            return Err(corrupt(format!(
                "meant for byte {meant_for}, found at byte {offset_bytes}: a misdirected write or read"
            )));
        }
        let len_bytes = reader.u64()?;
        let fills = round_up(len_bytes, BLOCK_BYTES) == Some(bytes.len() as u64);
        if len_bytes < PROLOGUE_BYTES || !fills {
            return Err(corrupt(format!("length {len_bytes} does not fill {} bytes", bytes.len())));
        }
        reader.pool = reader.uuid()?;
        // `fills` bounds `len_bytes` by the slice's length.
        let (body, padding) = bytes.split_at(len_bytes as usize);
        reader.left = &body[PROLOGUE_BYTES as usize..];
        reader.padding = padding;
        Ok(reader)
    }

    /// As [`Reader::open`], for an object that another structure names.
    pub(super) fn open_named(
        magic: Magic,
        bytes: &'a [u8],
        extent: &MetaExtent,
        pool: Uuid,
    ) -> Result<Self, FormatError> {
        let reader = Reader::open(magic, bytes, extent.offset_bytes)?;
        if bytes[HASH_AT..HASHED_FROM] != extent.hash {
            return Err(corrupt(format!(
                "hash {}, where {} is recorded: a stale or foreign copy",
                hex(&bytes[HASH_AT..HASHED_FROM]),
                hex(&extent.hash)
            )));
        }
        let len_bytes = bytes.len() - reader.padding.len();
        if len_bytes as u64 != extent.len_bytes {
            return Err(corrupt(format!(
                "length {len_bytes}, where {} is recorded",
                extent.len_bytes
            )));
        }
        reader.expect_pool(pool)?;
        Ok(reader)
    }

    /// The structure is sound; it must also belong to this pool.
    pub(super) fn expect_pool(&self, pool: Uuid) -> Result<(), FormatError> {
        if self.pool == pool { Ok(()) } else { Err(FormatError::NotOurs) }
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let (taken, left) = self.left.split_at_checked(count).ok_or_else(|| {
            corrupt(format!("a field of {count} bytes where {} are left", self.left.len()))
        })?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, FormatError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn uuid(&mut self) -> Result<Uuid, FormatError> {
        self.array().map(Uuid::from_bytes)
    }

    pub(super) fn hash(&mut self) -> Result<[u8; 16], FormatError> {
        self.array()
    }

    /// An extent, bounded so that arithmetic on it cannot overflow. [`super::Layout`] checks
    /// whether it lies in the right area.
    pub(super) fn extent(&mut self) -> Result<MetaExtent, FormatError> {
        let extent =
            MetaExtent { offset_bytes: self.u64()?, len_bytes: self.u64()?, hash: self.hash()? };
        let MetaExtent { offset_bytes, len_bytes, .. } = extent;
        if !is_block_aligned(offset_bytes)
            || offset_bytes > MAX_DRIVE_BYTES
            || !(PROLOGUE_BYTES..=MAX_META_OBJECT_BYTES).contains(&len_bytes)
        {
            return Err(corrupt(format!("no extent: {len_bytes} bytes at byte {offset_bytes}")));
        }
        Ok(extent)
    }

    /// Text of `len` bytes, at most `max`.
    pub(super) fn text(&mut self, len: usize, max: usize) -> Result<String, FormatError> {
        if len > max {
            return Err(corrupt(format!("a text of {len} bytes, at most {max} are allowed")));
        }
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(corrupt(format!("text {} is not UTF-8", hex(bytes)))),
        }
    }

    /// Text of `len` bytes in a field of `size`, filled up with zeros.
    pub(super) fn padded_text(&mut self, len: usize, size: usize) -> Result<String, FormatError> {
        let text = self.text(len, size)?;
        self.zeros(size - len)?;
        Ok(text)
    }

    /// Flags, of which this program knows those in `known`.
    pub(super) fn flags(&mut self, known: u16) -> Result<u16, FormatError> {
        let flags = self.u16()?;
        if flags & !known != 0 && !self.newer_minor {
            return Err(corrupt(format!("flags {flags:#x}, of which {known:#x} are known")));
        }
        Ok(flags & known)
    }

    /// Bytes that have no meaning yet.
    pub(super) fn zeros(&mut self, count: usize) -> Result<(), FormatError> {
        if self.take(count)?.iter().any(|b| *b != 0) && !self.newer_minor {
            return Err(corrupt("a reserved byte is not zero"));
        }
        Ok(())
    }

    /// `count` as a length to allocate, if the remaining bytes can hold that many records of at
    /// least `each_bytes`.
    pub(super) fn count(&self, count: u64, each_bytes: u64) -> Result<usize, FormatError> {
        let held = self.left.len() as u64 / each_bytes;
        if count > held {
            return Err(corrupt(format!("{count} records where {held} fit")));
        }
        // A slice's length bounds it.
        Ok(count as usize)
    }

    /// No byte may follow the last field.
    pub(super) fn finish(self) -> Result<(), FormatError> {
        if !self.newer_minor && !self.left.is_empty() {
            return Err(corrupt(format!("{} bytes after the last field", self.left.len())));
        }
        if !self.newer_minor && !is_zero(self.padding) {
            return Err(corrupt("a byte of the padding is not zero"));
        }
        Ok(())
    }
}

/// The error for sound bytes of a newer format.
pub(super) fn newer(found: String) -> FormatError {
    FormatError::Newer { found, supported: format!("{MAJOR}.{MINOR}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{META_AT, edited};
    use super::*;

    const MAGIC: Magic = *b"STN TEST";
    const POOL: Uuid = Uuid::from_u128(7);

    fn sealed() -> Encoded {
        let mut writer = Writer::new(MAGIC, POOL, 72);
        writer.u64(0x0807_0605_0403_0201);
        writer.seal(META_AT)
    }

    #[test]
    fn prologue_is_as_specified() {
        let Encoded { bytes, extent } = sealed();
        assert_eq!(bytes.len(), 4096);
        assert_eq!(bytes[..8], MAGIC);
        assert_eq!(bytes[8..24], hash128(&bytes[24..]));
        assert_eq!(bytes[24..32], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[32..40], META_AT.to_le_bytes());
        assert_eq!(bytes[40..48], 72_u64.to_le_bytes());
        assert_eq!(bytes[48..64], *POOL.as_bytes());
        assert_eq!(bytes[64..72], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(bytes[72..].iter().all(|b| *b == 0));
        assert_eq!(extent, MetaExtent { offset_bytes: META_AT, len_bytes: 72, hash: extent.hash });
        assert_eq!(bytes[8..24], extent.hash);
    }

    /// The kind of error that [`Reader::open`] gives for `bytes`.
    fn refusal(bytes: &[u8]) -> FormatError {
        Reader::open(MAGIC, bytes, META_AT).err().expect("a refusal")
    }

    #[test]
    fn each_refusal_in_its_order() {
        let good = sealed().bytes;
        assert_eq!(refusal(&[0; 4096]), FormatError::Blank);
        assert!(matches!(refusal(&[]), FormatError::Corrupt(_)));
        assert!(matches!(refusal(&good[..4095]), FormatError::Corrupt(_)));
        assert_eq!(refusal(&edited(&good, |b| b[0] = b'X').0), FormatError::NotOurs);

        // A newer major version counts only under a right hash.
        let mut newer = good.clone();
        newer[24] = 3;
        assert!(matches!(refusal(&newer), FormatError::Corrupt(t) if t.starts_with("hash")));
        let (newer, _) = edited(&newer, |b| b[32] ^= 1);
        let supported = "2.0".to_owned();
        let found = "3.0".into();
        assert_eq!(refusal(&newer), FormatError::Newer { found, supported: supported.clone() });
        // So does an older one, whatever follows.
        let (older, _) = edited(&good, |b| (b[24], b[26], b[32]) = (1, 7, b[32] ^ 1));
        assert_eq!(refusal(&older), FormatError::Older { found: "1.7".into(), supported });
        let (none, _) = edited(&good, |b| b[24] = 0);
        assert!(matches!(refusal(&none), FormatError::Corrupt(t) if t.contains("does not exist")));

        let (crooked, _) = edited(&good, |b| b[32] = 1);
        assert!(Reader::open(MAGIC, &crooked, META_AT + 1).is_err(), "not block aligned");
        let (moved, _) = edited(&good, |b| b[34] ^= 1);
        assert!(matches!(refusal(&moved), FormatError::Corrupt(t) if t.contains("misdirected")));
        for len_bytes in [0, 63, 4097, u64::MAX] {
            let (bytes, _) = edited(&good, |b| b[40..48].copy_from_slice(&len_bytes.to_le_bytes()));
            assert!(matches!(refusal(&bytes), FormatError::Corrupt(t) if t.starts_with("length")));
        }
    }

    #[test]
    fn a_named_object_must_be_the_one_that_was_named() {
        let Encoded { bytes, extent } = sealed();
        let open = |extent: &MetaExtent, pool| Reader::open_named(MAGIC, &bytes, extent, pool);
        assert!(open(&extent, POOL).is_ok());
        assert_eq!(open(&extent, Uuid::nil()).err(), Some(FormatError::NotOurs));
        let stale = MetaExtent { hash: [1; 16], ..extent };
        assert!(matches!(open(&stale, POOL), Err(FormatError::Corrupt(t)) if t.contains("stale")));
        let longer = MetaExtent { len_bytes: 73, ..extent };
        assert!(matches!(open(&longer, POOL), Err(FormatError::Corrupt(_))));
    }

    #[test]
    fn bytes_without_a_meaning_are_zero_unless_a_newer_minor_gave_them_one() {
        for at in [30, 100] {
            let finish = |bytes: &[u8]| {
                let mut reader = Reader::open(MAGIC, bytes, META_AT)?;
                reader.u64()?;
                reader.finish()
            };
            let (odd, _) = edited(&sealed().bytes, |b| b[at] = 1);
            assert!(matches!(finish(&odd), Err(FormatError::Corrupt(_))), "byte {at}");
            let (newer_minor, _) = edited(&odd, |b| b[26] = 1);
            assert_eq!(finish(&newer_minor), Ok(()), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert!(Reader::open(MAGIC, &bytes, META_AT).is_err());
        }
    }
}
