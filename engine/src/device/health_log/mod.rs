// SPDX-License-Identifier: Apache-2.0
//! The health log of a drive.

mod page;
mod read;

#[cfg(feature = "spdk")]
pub(crate) use page::HEALTH_LOG_BYTES;
pub use page::HealthLog;
pub use read::read_health_log;
