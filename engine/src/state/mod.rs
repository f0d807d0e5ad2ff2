// SPDX-License-Identifier: Apache-2.0
//! The state of an open pool: what is committed, what is being written, what is free. Pure.
//!
//! - Free space is derived: a data slot or metadata unit is used if and only if a checkpoint of
//!   one of the two newest generations, an open checkpoint, or one that is still read names
//!   it. Nothing else is stored, so nothing can leak or be freed twice; debug builds derive it
//!   again at each commit and compare.
//! - So the space that generation `g` removes is reusable once `g + 1` is committed, and not
//!   earlier: the two newest generations are never overwritten.
//! - A slot that could not be written is not used either.
//! - The cost of a commit here depends on what it adds and removes, not on how much the pool holds.
//! - The state changes when a generation is durable ([`State::adopt`]), not when it is planned.

mod availability;
mod hold;
mod holding;
mod in_use;
mod open_checkpoint;
mod pool_state;
mod saving;
mod tables;
#[cfg(test)]
mod tests;

pub use availability::Availability;
pub(crate) use holding::{Committed, Holding};
pub(crate) use in_use::{NotHeld, Use};
pub use open_checkpoint::CheckpointSpec;
pub(crate) use open_checkpoint::{ChunkPlace, Identity, OpenCheckpoint, Readiness};
pub(crate) use pool_state::{Change, State};
pub(crate) use saving::BeginError;
