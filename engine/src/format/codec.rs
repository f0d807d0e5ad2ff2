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
//! The first 64 bytes mean the same in every version to come, so that an old program can tell a
//! newer format from a damaged one. [`Writer`] appends fields and seals them; [`Reader::open`]
//! checks the prologue and hands out the fields, each bounds-checked.

use uuid::Uuid;

use super::{Encoded, FormatError, MAJOR, MAX_META_OBJECT_BYTES, MINOR, MetaExtent, hash128};
use crate::limits::BLOCK_BYTES;
use crate::units::{is_block_aligned, round_up};

/// Bytes of the prologue.
pub(super) const PROLOGUE_BYTES: u64 = 64;

const HASH_AT: usize = 8;
const HASHED_FROM: usize = HASH_AT + 16;
const OFFSET_AT: usize = HASHED_FROM + 8;
const LENGTH_AT: usize = OFFSET_AT + 8;
const POOL_AT: usize = LENGTH_AT + 8;
const _: () = assert!(POOL_AT + 16 == PROLOGUE_BYTES as usize);

/// What identifies a kind of structure.
pub(super) type Magic = [u8; 8];

pub(super) fn corrupt(detail: impl Into<String>) -> FormatError {
    FormatError::Corrupt(detail.into())
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

    /// The fields so far, behind the prologue.
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
    /// Of a newer minor version: bytes without a meaning here may have one there.
    newer_minor: bool,
}

impl<'a> Reader<'a> {
    /// Checks the prologue of a structure that was read at `offset_bytes`.
    pub(super) fn open(
        magic: Magic,
        bytes: &'a [u8],
        offset_bytes: u64,
    ) -> Result<Self, FormatError> {
        if !bytes.is_empty() && bytes.iter().all(|b| *b == 0) {
            return Err(FormatError::Blank);
        }
        if bytes.len() < BLOCK_BYTES as usize || !is_block_aligned(bytes.len() as u64) {
            return Err(corrupt(format!("{} bytes are not whole blocks", bytes.len())));
        }
        if bytes[..HASH_AT] != magic {
            return Err(FormatError::NotOurs);
        }
        let computed = hash128(&bytes[HASHED_FROM..]);
        if bytes[HASH_AT..HASHED_FROM] != computed {
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
        if major < MAJOR {
            return Err(corrupt(format!("format {major}.{minor} never was")));
        }
        reader.newer_minor = minor > MINOR;
        reader.zeros(4)?;
        let meant_for = reader.u64()?;
        if meant_for != offset_bytes {
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

    /// The structure is sound; it must also be of this pool.
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

    /// An extent, bounded so that arithmetic on it cannot overflow. [`super::Layout`] says whether
    /// it lies where it may.
    pub(super) fn extent(&mut self) -> Result<MetaExtent, FormatError> {
        let extent =
            MetaExtent { offset_bytes: self.u64()?, len_bytes: self.u64()?, hash: self.hash()? };
        let MetaExtent { offset_bytes, len_bytes, .. } = extent;
        if !is_block_aligned(offset_bytes)
            || offset_bytes > super::layout::MAX_DRIVE_BYTES
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

    /// Bytes that have no meaning yet.
    pub(super) fn zeros(&mut self, count: usize) -> Result<(), FormatError> {
        if self.take(count)?.iter().any(|b| *b != 0) && !self.newer_minor {
            return Err(corrupt("a reserved byte is not zero"));
        }
        Ok(())
    }

    /// `count` as a length to allocate, if the bytes left can hold that many records of at least
    /// `each_bytes`.
    pub(super) fn count(&self, count: u64, each_bytes: u64) -> Result<usize, FormatError> {
        let held = self.left.len() as u64 / each_bytes;
        if count > held {
            return Err(corrupt(format!("{count} records where {held} fit")));
        }
        // A slice's length bounds it.
        Ok(count as usize)
    }

    /// Nothing may follow the last field.
    pub(super) fn finish(self) -> Result<(), FormatError> {
        if !self.newer_minor && !self.left.is_empty() {
            return Err(corrupt(format!("{} bytes after the last field", self.left.len())));
        }
        if !self.newer_minor && self.padding.iter().any(|b| *b != 0) {
            return Err(corrupt("a byte of the padding is not zero"));
        }
        Ok(())
    }
}

/// Sound bytes that this program is too old for.
pub(super) fn newer(found: String) -> FormatError {
    FormatError::Newer { found, supported: format!("{MAJOR}.{MINOR}") }
}
