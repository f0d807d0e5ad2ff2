// SPDX-License-Identifier: Apache-2.0
//! The `sim` back end: a drive in memory, seeded and deterministic, with power cuts and faults.
//!
//! [`SimDrive`] is the hardware: it outlives its users, and tests act on it from outside.
//! [`SimDevice`] is what the engine opens. One at a time.
//!
//! The stages of a command: submitted, completed (volatile), durable. The invariants:
//! - A write's bytes are taken when it is submitted; they become what reads see when it completes,
//!   and durable when a flush completes that was submitted after that, or at once if the write was
//!   [`super::Operation::WriteDurable`] or the drive has no volatile cache.
//! - A power cut keeps all that is durable. Of every other write, completed or in flight, it keeps
//!   all, nothing, or any 512-byte sectors. A failed command may be in flight, for this purpose,
//!   only where a fault says so ([`Effect::FailThenLand`]).
//! - Everything that happens is a function of the configuration, the seeds and the order of calls.
//! - `submit` and `poll` make no system calls beyond a mutex without contention. On a dense drive
//!   without faults and trace they never allocate; a sparse one allocates for each write.
//!
//! A dense drive has all its memory from the start and stores a write when it is submitted. That is
//! a drive without a volatile cache whose in-flight writes happen to survive every power cut.

mod config;
mod content;
mod device;
mod drive;
mod fault;
mod hardware;
mod reservation;
mod reserving;
mod rng;
#[cfg(test)]
mod tests;
mod trace;
mod world;
mod write;

pub use config::{CompletionOrder, SimConfig};
pub use device::SimDevice;
pub use drive::SimDrive;
pub use fault::{Effect, Fault, When};
pub use rng::SimRng;
pub use trace::TraceEvent;
pub use world::SimWorld;
pub use write::{AtRisk, Torn, WriteId, WriteState};
