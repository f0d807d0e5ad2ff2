// SPDX-License-Identifier: Apache-2.0
//! Committing: from one generation of the pool to the next. Pure: no thread, no clock and no lock
//! of its own; the drives and the access to the state are traits.
//!
//! - [`plan`]: the contents of one generation.
//! - [`order`]: the order in which they reach the drives.
//! - [`rival`]: whether another owner writes the pool, too.
//! - [`committer`]: the steps around it: who may commit, when the state adopts the new generation,
//!   and when it is unknown what is durable.
//! - [`labels`]: what is written around the generations: a new pool, a changed label, a drive that
//!   is admitted.
//!
//! The keeper, the sessions, recovery and the crash explorer all use this code, so the explorer
//! crashes the steps that a real pool takes.

mod committer;
mod failure;
mod labels;
mod order;
mod plan;
mod rival;
#[cfg(test)]
mod tests;

pub(crate) use committer::{Committer, Ended, StateCell, begin};
pub(crate) use labels::{make_pool, take_in, write_labels};
#[cfg(test)]
pub(crate) use plan::Plan;
