// SPDX-License-Identifier: Apache-2.0
//! Limits of everything that is counted or sized, with the relations between them checked at
//! compile time. A stored value is validated against this file when it is read.

/// The unit of addresses, lengths and alignment everywhere: on drives, in buffers, in metadata.
/// It is a multiple of every NVMe sector size in use (512 and 4096).
pub const BLOCK_BYTES: u64 = 4096;

/// The unit of striping, checksum and I/O when the drives allow it.
pub const DEFAULT_CHUNK_BYTES: u64 = 1 << 20;
/// The smallest chunk: for a drive with a smaller maximum transfer the back end splits commands.
pub const MIN_CHUNK_BYTES: u64 = 4 << 10;
/// The largest chunk, so that the length of one chunk always fits 32 bits.
pub const MAX_CHUNK_BYTES: u64 = 16 << 20;

/// Drives in one pool. The label's drive table must fit one block.
pub const MAX_DRIVES: usize = 32;
/// Checkpoints in one pool; the catalogue of a full pool must fit its slot.
pub const MAX_CHECKPOINTS: usize = 65_536;
/// Bytes of a checkpoint's name, UTF-8.
pub const MAX_NAME_BYTES: usize = 128;
/// Writers of one checkpoint.
pub const MAX_PARTICIPANTS: u32 = 65_536;
/// Shards of one segment.
pub const MAX_SHARDS: usize = 1 << 20;
/// Metadata bytes of the shards of one segment: they are read and written as one object.
pub const MAX_SHARD_LIST_BYTES: u64 = 256 << 20;
/// Bytes of a shard's name, UTF-8.
pub const MAX_SHARD_NAME_BYTES: usize = 1024;
/// Bytes of a shard's dtype, ASCII.
pub const MAX_DTYPE_BYTES: usize = 16;
/// Dimensions of a shard.
pub const MAX_SHARD_DIMENSIONS: usize = 16;
/// Bytes of one segment: 2^48 chunks would not fit the location record.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 50;

/// The largest generation and epoch that is read, so that counting on from it never overflows.
pub const MAX_NUMBER: u64 = 1 << 62;

/// Root slots in one ring. A slot is rewritten only this many generations later, so a write that
/// lands late, or a torn one, can only damage a root that is no longer needed.
pub const ROOT_SLOTS: u64 = 64;
/// Catalogue slots: the two newest generations are never written, so at least three are needed.
pub const CATALOGUE_SLOTS: u64 = 4;

const _: () = {
    assert!(DEFAULT_CHUNK_BYTES.is_power_of_two() && DEFAULT_CHUNK_BYTES >= MIN_CHUNK_BYTES);
    assert!(MIN_CHUNK_BYTES >= BLOCK_BYTES && MAX_CHUNK_BYTES >= DEFAULT_CHUNK_BYTES);
    assert!(CATALOGUE_SLOTS >= 3 && ROOT_SLOTS > CATALOGUE_SLOTS);
    assert!(MAX_DRIVES < u16::MAX as usize);
    assert!(MAX_SEGMENT_BYTES / MIN_CHUNK_BYTES < 1 << 48);
};

/// Commands that may be in flight on one drive at most.
pub const MAX_QUEUE_DEPTH: u32 = 4096;

/// The largest drive of a pool, so that sums over all drives stay far from overflow.
pub const MAX_DRIVE_BYTES: u64 = 1 << 56;
