// SPDX-License-Identifier: Apache-2.0
//! Parts of the engine that are not public, for benches to drive one at a time on their own thread:
//! a [`ReactorHarness`] and a [`RecoveryHarness`], over simulated drives.
//!
//! - No thread is started and nothing waits for a clock, so one run takes the instructions of
//!   another.
//! - What runs is what a pool runs. Each harness checks what came out of it, and panics when that
//!   is wrong or nothing comes any more: a figure of work that was not done is worse than none.

mod reactor;
mod recovery;

pub use reactor::{CHUNK_BYTES, ReactorHarness};
pub use recovery::RecoveryHarness;
