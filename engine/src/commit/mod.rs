// SPDX-License-Identifier: Apache-2.0
//! Committing: how the pool gets from one generation to the next. Pure: no thread, no clock and no
//! lock of its own; the drives and the way to the state are traits.
//!
//! - [`plan`]: what makes one generation.
//! - [`order`]: in which order that reaches the drives.
//! - [`committer`]: the steps around it: who may commit, when the state goes by the new generation,
//!   and when nobody knows any more.
//! - [`labels`]: what is written around the generations: a new pool, a changed label, a drive that
//!   is taken in.
//!
//! The keeper, the sessions, recovery and the crash explorer all come through here, so the explorer
//! crashes the very steps that a pool takes.

mod committer;
mod labels;
mod order;
mod plan;
#[cfg(test)]
mod tests;

pub(crate) use committer::{Committer, Ended, StateCell, begin};
pub(crate) use labels::{make_pool, take_in, write_labels};
#[cfg(test)]
pub(crate) use plan::Plan;
