//! The Stanchion engine. See ARCHITECTURE.md for the path of the bytes and who owns what when.

pub mod address;
#[cfg(any(test, feature = "bench"))]
pub mod bench;
mod checksum;
mod commit;
#[cfg(any(test, feature = "crash-explorer"))]
pub mod crash;
pub mod device;
pub mod direct;
pub mod drives;
pub mod error;
pub mod extent;
mod facts;
pub mod format;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod health;
mod idle;
pub mod limits;
mod lock;
mod membership;
pub mod memory;
mod metadata;
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

pub use error::{Damage, Error, ErrorKind, IoError};
pub use format::{DriveState, Redundancy};
pub use health::Health;
pub use name::{CheckpointName, check_base_name};
pub use pool::{
    Admission, CheckpointInfo, Content, DriveInfo, FormatOptions, FormatReport, Notice, Pool,
    PoolInfo, PoolMode, PoolOptions, SegmentInfo, Survey, VerifyProgress, VerifyReport,
    admit as admit_drive, admit_on as admit_drive_on, format as format_pool,
    format_on as format_pool_on, survey,
};
pub use session::{OpenedSegment, Session, SessionBuffer, SessionOptions};
pub use state::CheckpointSpec;
