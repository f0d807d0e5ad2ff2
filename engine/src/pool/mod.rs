// SPDX-License-Identifier: Apache-2.0
//! A pool: drives formatted together, opened by one owner.

mod admit;
mod content;
pub(crate) mod context;
mod explain;
mod foreign;
pub(crate) mod format;
mod handle;
pub(crate) mod hold;
mod info;
pub(crate) mod keeper;
pub(crate) mod open;
pub(crate) mod open_pool;
mod options;
mod ownership;
mod same_drive;
mod sizing;
mod threads;
mod verify;

pub use crate::notice::Notice;
#[cfg(any(test, feature = "internals"))]
pub use admit::admit_on;
pub use admit::{Admission, Replacement, admit};
#[cfg(any(test, feature = "internals"))]
pub(crate) use content::read_content;
pub use content::{Content, Survey};
#[cfg(any(test, feature = "internals"))]
pub use format::format_on;
pub use format::{FormatOptions, FormatReport, format, survey};
pub use handle::Pool;
pub use info::{CheckpointInfo, PoolDrive, PoolInfo, SegmentInfo};
pub use options::{PoolMode, PoolOptions};
pub use sizing::PoolSizing;
#[cfg(any(test, feature = "internals"))]
pub(crate) use verify::{Begin, ChunkCheck, Step, Verdict, check_pool};
pub use verify::{Filled, VerifyProgress, VerifyReport};
