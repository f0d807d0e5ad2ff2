// SPDX-License-Identifier: Apache-2.0
//! Memory that drives may read and write directly.

mod arena;
mod available;
mod forked;
mod mappings;
mod region;
mod span;
mod table;
mod usage;

pub use arena::{Arena, Buffer};
#[cfg(any(test, feature = "internals"))]
pub use region::HUGE_PAGE_BYTES;
pub use region::{HugePages, Region};
pub use span::{DmaSlice, Span};
pub(crate) use table::slot_of;
pub use table::{BufferTable, Registration};
pub use usage::BufferUsage;

/// Sets how late the kernel may end this thread's sleeps. Failure only makes them later.
#[allow(unsafe_code)]
pub(crate) fn set_timer_slack_ns(slack_ns: u64) {
    // SAFETY: plain call with integers; it touches only this thread's own setting.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack_ns) };
}
