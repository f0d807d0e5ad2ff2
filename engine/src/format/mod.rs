// SPDX-License-Identifier: Apache-2.0
//! Structures on a drive and their bytes. Pure: no I/O, no clock, no threads.
//!
//! `docs/on-disk-format.md` is the specification; only this code implements it.
//!
//! Invariants:
//! - Integers are little-endian; every structure starts with the same 64-byte prologue (`codec`)
//!   and fills whole blocks.
//! - Every byte of every block is checked: the hash covers everything after it, padding included,
//!   and the magic before it is compared. No bit can change undetected.
//! - Fields are read through a `codec::Reader`, which exists only for bytes whose hash is right;
//!   unverified bytes cannot be used by mistake. Bytes with a right hash are still checked field by
//!   field.
//! - A count is checked against the available bytes before anything is allocated for it.
//! - What `decode` returns is consistent in itself. `validate` checks whether it fits the pool
//!   (drives, slots, areas); callers use neither locations nor extents before that.

pub mod attributes;
pub mod catalogue;
mod checksum;
mod codec;
mod error;
pub mod label;
pub mod layout;
pub mod manifest;
mod object;
pub mod owner;
pub mod root;
pub mod segment;
pub mod shard;
mod shard_list;
mod table_ref;
mod table_run;
#[cfg(test)]
pub(crate) mod testing;
mod tombstone;
mod version;

pub use attributes::{AttributeType, Attributes};
pub use catalogue::{Access, Catalogue, CatalogueEntry};
pub use checksum::{crc64, hash128};
pub use error::FormatError;
pub use label::{
    DriveEntry, DriveState, Features, Label, MAX_SERIAL_BYTES, Redundancy, table_copies_of,
};
pub use layout::{Layout, Zone};
pub use manifest::{Manifest, SegmentRef};
pub use object::{Encoded, MetaExtent, blocks_of};
pub use owner::{Owner, OwnerProcess};
pub use root::Root;
pub use segment::{ChunkRecord, SegmentTable};
pub use shard::Shard;
pub use shard_list::ShardList;
pub use table_ref::{MAX_TABLE_RUNS, TableRef};
pub use table_run::TableRun;
pub(crate) use tombstone::{TOMBSTONE_MAGIC, encode_tombstone, is_tombstone};
pub use version::{MAJOR, MINOR};
