// SPDX-License-Identifier: Apache-2.0
//! A session: what one trainer thread holds. Memory, a submit ring and a complete ring.
//!
//! It has two halves. The `front` lives in the client's process: the client's end of the ring, the
//! buffers, the outstanding entries, the waits. The `back` lives in the engine's: the session's
//! port in its reactor, the registered regions, the handles, the teardown.
//!
//! - The halves exchange entries and completions, through the ring, and make the calls that `back`
//!   lists. The rest of a half is private to it.
//! - The front may misbehave or die at any time: the back keeps its own count of what it must take
//!   back.

mod back;
mod front;

pub use back::OpenedSegment;
pub use front::{Session, SessionBuffer, SessionOptions};
