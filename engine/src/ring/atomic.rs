//! The atomics of the ring protocol: the real ones, or loom's while it checks the protocol.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(super) use ::loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
