//! A session: what one trainer thread holds. Memory, a submit ring and a complete ring.
//!
//! It has two halves. The `front` is what lives in the client's process: the client's end of the ring,
//! the buffers, the entries outstanding, the waits. The `back` is what lives in the engine's: the
//! session's port in its reactor, the regions that drives know, the handles, the teardown.
//!
//! - Between the halves pass entries and completions, through the ring, and the calls that `back`
//!   lists. All else of a half is private to it.
//! - The front may be wrong or die at any time: the back counts for itself what is to be given back.

mod back;
mod front;

pub use back::OpenedSegment;
pub use front::{Session, SessionBuffer, SessionOptions};
