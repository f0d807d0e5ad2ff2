// SPDX-License-Identifier: Apache-2.0
//! Internal parts of the engine for benches, each driven alone on the bench's own thread: a
//! [`ReactorHarness`] and a [`RecoveryHarness`], over simulated drives; and [`fill_pool`], which
//! makes a full pool for a bench to open.
//!
//! - In a harness no thread is started and nothing waits for a clock, so every run takes the same
//!   number of instructions.
//! - The code is the one that a pool runs. Each harness checks the results and panics when they are
//!   wrong or missing: a figure of work that was not done is worse than none.

mod full_pool;
mod reactor;
mod recovery;

pub use full_pool::{Filled, Job, fill_pool};
pub use reactor::{CHUNK_BYTES, ReactorHarness};
pub use recovery::RecoveryHarness;
