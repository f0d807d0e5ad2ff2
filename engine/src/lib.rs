//! The Stanchion engine. See ARCHITECTURE.md for the path of the bytes and who owns what when.

pub mod address;
mod backoff;
#[cfg(any(test, feature = "bench"))]
pub mod bench;
mod bulk;
mod checksum;
mod commit;
#[cfg(any(test, feature = "crash-explorer"))]
pub mod crash;
pub mod device;
pub mod direct;
mod drive_info;
pub mod drives;
pub mod error;
pub mod extent;
pub mod format;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod host;
pub mod limits;
pub mod memory;
mod name;
mod notice;
mod placement;
pub mod planted;
mod pool;
mod reactor;
mod recover;
pub mod ring;
mod session;
mod state;
pub mod units;

pub use bulk::{BulkOptions, BulkSession, Lent, Saved};
pub use error::{Damage, Error, ErrorKind, IoError};
pub use format::{DriveState, Redundancy};
pub use name::{CheckpointName, check_base_name};
pub use pool::{
    Admission, CheckpointInfo, Content, FormatOptions, FormatReport, Notice, Pool, PoolDrive,
    PoolInfo, PoolMode, PoolOptions, SegmentInfo, Survey, VerifyProgress, VerifyReport,
    admit as admit_drive, admit_on as admit_drive_on, format as format_pool,
    format_on as format_pool_on, survey,
};
pub use session::{OpenedSegment, Session, SessionBuffer, SessionOptions};
pub use state::{Availability, CheckpointSpec};
