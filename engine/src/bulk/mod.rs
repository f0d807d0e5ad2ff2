// SPDX-License-Identifier: Apache-2.0
//! Whole segments in one call: [`crate::Pool::save`] and [`crate::Pool::restore`], and the
//! [`BulkSession`] that does both.
//!
//! - Memory is bounded: a fixed number of equal buffers from the session's memory, several of them
//!   in flight at once.
//! - Bytes are read and passed on in the order of the segment; the drives may answer in any order.
//! - Drives reach memory that the caller lends directly; all other bytes are copied once, through
//!   the buffers.
//! - When a call returns, nothing of it is in flight, also after an error.

mod calls;
mod pieces;
mod restore;
mod save;
mod session;

pub use save::Saved;
pub use session::{BulkOptions, BulkSession, Lent};
