// SPDX-License-Identifier: Apache-2.0
//! Whole segments in one call: [`Pool::save`] and [`Pool::restore`], and the [`BulkSession`] behind
//! them.
//!
//! - The memory is bounded: a fixed number of equal buffers, cut from the session's memory, several
//!   of them under way at once.
//! - Bytes come and go in the order of the segment, whatever order the drives answer in.
//! - Memory that the caller lends is reached by the drives directly; all other bytes are copied
//!   once, through the buffers.
//! - When a call returns, nothing of it is under way any more, also after an error.

mod calls;
mod pieces;
mod restore;
mod save;
mod session;

pub use save::Saved;
pub use session::{BulkOptions, BulkSession, Lent};
