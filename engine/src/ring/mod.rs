// SPDX-License-Identifier: Apache-2.0
//! The ring between one trainer thread and one reactor: 64-byte requests one way, 32-byte
//! completions the other, in a memfd, with the same layout in one process and across two.
//!
//! - One writer per index. Each end keeps its own index and its last view of the other's in private
//!   memory; values in shared memory are checked before they are used.
//! - The engine copies a request once, word by word, and never reads the shared one again.
//! - An index that jumps poisons the ring permanently: the session ends, and no other is affected.
//! - A completion slot is reserved when a request is taken, so a completion always has room.
//! - The client never has more requests outstanding than there are completion slots. So the engine
//!   never finds the completion ring full, unless the client breaks this rule; then only it stalls.
//! - Nothing here makes a system call, allocates (after creation), locks or waits.
//!
//! # Sleeping
//!
//! Either end may sleep. A return value reports to the other end that it must wake the sleeper; how
//! is up to the caller (unpark, eventfd). No wake-up is lost, because of two fences:
//!
//! | sleeper (`prepare_sleep`, `prepare_wait`) | publisher (`submit`, `publish`) |
//! |---|---|
//! | sleeping = 1 | index = new |
//! | SeqCst fence | SeqCst fence |
//! | read index: new, do not sleep | read sleeping: 1, wake |
//!
//! Whichever fence comes first in their single order, the other side's read sees the store before
//! it: at least one of the two reads sees the other's store. The publisher that finds 1 swaps it
//! for 0, so that one sleep costs one wake; the end that swaps must wake. A wake may come after its
//! sleep has ended, so sleepers check again in a loop. The loom tests check this exhaustively.
//!
//! A client that waits for room in the submit ring waits for completions: if it had none
//! outstanding, there would be room.

mod atomic;
mod client;
pub mod codes;
mod engine;
mod entry;
mod event;
mod layout;
#[cfg(loom)]
#[cfg(test)]
mod loom_tests;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;

pub use client::{Client, SubmitOutcome};
pub use engine::Engine;
#[cfg(any(test, feature = "internals"))]
pub use engine::Poisoned;
#[cfg(any(test, feature = "internals"))]
pub use entry::RejectCode;
pub use entry::{CompleteEntry, Opcode, Request, SubmitEntry, Transfer};
pub use event::Event;
#[cfg(any(test, feature = "internals"))]
pub use layout::{MAX_COMPLETE_ENTRIES, MAX_SUBMIT_ENTRIES};
pub use layout::{RingSizes, RingState};

use std::sync::Arc;

use crate::error::Error;

/// Both ends of a new ring in this process.
///
/// # Errors
/// When the memory is not available.
pub fn pair(sizes: RingSizes) -> Result<(Client, Engine), Error> {
    pair_from(sizes, 0)
}

/// Both ends, with every index starting at `start`: tests start just below the wrap.
fn pair_from(sizes: RingSizes, start: u32) -> Result<(Client, Engine), Error> {
    let mapping = Arc::new(layout::Mapping::create(sizes, start)?);
    Ok((Client::new(Arc::clone(&mapping), start), Engine::new(mapping, start)))
}
