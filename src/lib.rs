// SPDX-License-Identifier: Apache-2.0
//! Stanchion: a userspace storage engine for deep-learning checkpoints.
//!
//! For Rust this crate re-exports what a trainer uses of the engine. For every other language it is
//! `libstanchion`.

// For the tests of the header: Rust programs use the names below.
#[doc(hidden)]
pub mod c;

/// What goes through a session's ring.
pub mod ring {
    pub use stanchion_engine::{CompleteEntry, SubmitEntry, Transfer, codes};
}

// A pool: formatting, opening, inspecting, verifying, adding a drive.
pub use stanchion_engine::{
    Admission, Content, DriveAddress, DriveEntry, DriveInfo, DriveState, Filled, FormatOptions,
    FormatReport, Notice, Pool, PoolDrive, PoolInfo, PoolMode, PoolOptions, Redundancy,
    Replacement, Survey, VerifyProgress, VerifyReport, admit_drive, format_pool, survey,
};
// Checkpoints.
pub use stanchion_engine::{
    AttributeType, Attributes, Availability, CheckpointInfo, CheckpointName, CheckpointSpec,
    Generation, SegmentInfo, Shard,
};
// Sessions: buffers and a ring, or whole segments in one call.
pub use stanchion_engine::{
    BulkOptions, BulkSession, HugePages, Lent, OpenedSegment, Region, Saved, Session,
    SessionBuffer, SessionOptions,
};
pub use stanchion_engine::{Damage, Error, ErrorKind, IoError};
