// SPDX-License-Identifier: Apache-2.0
//! The Stanchion engine. See ARCHITECTURE.md for the path of the bytes and who owns what when.
//!
//! The public items are those that a trainer, the C library and the command use. The feature
//! `internals` opens the rest to tests, benches and fuzzers.

mod address;
mod backoff;
mod bulk;
mod checksum;
mod commit;
mod device;
mod direct;
mod drive_info;
mod drives;
mod error;
mod extent;
mod format;
pub mod host;
#[cfg(any(test, feature = "internals"))]
pub mod internals;
pub mod limits;
mod memory;
mod name;
mod notice;
mod placement;
mod planted;
mod pool;
mod reactor;
mod recover;
mod ring;
mod session;
mod state;
mod units;

// What a trainer uses; the crate `stanchion` names the same.
pub use address::DriveAddress;
pub use bulk::{BulkOptions, BulkSession, Lent, Saved};
pub use drive_info::{DriveInfo, Origin};
pub use error::{Damage, Error, ErrorKind, IoError, Stale};
pub use format::{AttributeType, Attributes, DriveEntry, DriveState, Redundancy, Shard};
pub use memory::{HugePages, Region};
pub use name::CheckpointName;
pub use pool::{
    Admission, CheckpointInfo, Content, Filled, FormatOptions, FormatReport, Notice, Pool,
    PoolDrive, PoolInfo, PoolMode, PoolOptions, PoolSizing, Replacement, SegmentInfo, Survey,
    VerifyProgress, VerifyReport, admit as admit_drive, format as format_pool, survey,
};
pub use ring::{CompleteEntry, SubmitEntry, Transfer, codes};
pub use session::{OpenedSegment, Session, SessionBuffer, SessionOptions};
pub use state::{Availability, CheckpointSpec};
pub use units::Generation;

// What the C library and the command need in addition.
pub use device::health_log::{HealthLog, read_health_log};
pub use device::kernel::{DirectIo, direct_io, try_io_uring};
pub use device::reservation::WITHOUT_RESERVATIONS;
pub use format::{MAJOR as FORMAT_MAJOR, MINOR as FORMAT_MINOR};
pub use name::check_base_name;
pub use ring::Opcode;
