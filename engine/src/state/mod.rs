// SPDX-License-Identifier: Apache-2.0
//! The state of an open pool: what is committed, what is being written, what is free. Pure.
//!
//! - Free space is derived: a data slot or metadata block is used if and only if a checkpoint of
//!   one of the two newest generations, or an open checkpoint, names it. Nothing else is stored, so
//!   nothing can leak or be freed twice; in debug builds each commit derives it again and compares.
//! - What generation `g` removes is therefore reusable once `g + 1` is committed, and not earlier:
//!   the two newest generations are never written.
//! - A slot that could not be written is used by nobody, too.
//! - What a commit costs here depends on what it adds and removes, not on how much the pool holds.
//! - The state changes when a generation is durable ([`State::adopt`]), not when it is planned.

mod availability;
mod holding;
mod open_checkpoint;
mod pool_state;
mod saving;
#[cfg(test)]
mod tests;

pub use availability::Availability;
pub(crate) use holding::{Committed, Holding};
pub use open_checkpoint::CheckpointSpec;
pub(crate) use open_checkpoint::{ChunkPlace, OpenCheckpoint, Readiness};
pub(crate) use pool_state::{Change, State};
pub(crate) use saving::BeginError;
