//! A pool: drives formatted together, opened by one owner.

mod admit;
pub(crate) mod context;
mod explain;
pub(crate) mod format;
mod handle;
mod info;
pub(crate) mod keeper;
pub(crate) mod open;
pub(crate) mod open_pool;
mod options;
mod threads;
mod verify;
mod verify_data;
mod verify_report;

pub use crate::notice::Notice;
pub use admit::{Admission, admit, admit_on};
pub use format::{Content, FormatOptions, FormatReport, Survey, format, format_on, survey};
pub use handle::Pool;
pub use info::{CheckpointInfo, PoolDrive, PoolInfo, SegmentInfo};
pub use options::{PoolMode, PoolOptions};
pub use verify_report::{VerifyProgress, VerifyReport};
