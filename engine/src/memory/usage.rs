// SPDX-License-Identifier: Apache-2.0
//! Counts who may still touch a buffer.

use std::sync::atomic::{AtomicU32, Ordering};

/// Counts who may still touch a buffer. Shared by the buffer, the tables that list it, and
/// requests.
#[derive(Debug, Default)]
pub struct BufferUsage {
    in_flight: AtomicU32,
    registered: AtomicU32,
}

impl BufferUsage {
    /// A request names the buffer from now on. Never blocks.
    pub fn begin(&self) {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before < u32::MAX);
    }

    /// A request ended: no device touches the buffer for it any more. Never blocks.
    pub fn end(&self) {
        // Release: the work of the device and the reactor comes before the check that finds it
        // idle.
        let before = self.in_flight.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "more requests ended than began");
    }

    /// Whether no request names the buffer.
    pub fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }

    pub(super) fn register(&self) {
        self.registered.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn unregister(&self) {
        let before = self.registered.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "more removed than registered");
    }

    /// Whether no request can reach the buffer any more. Tables are checked first: a reactor begins
    /// requests only while its table has the buffer, so after that no new one can appear.
    pub(super) fn is_unreachable(&self) -> bool {
        self.registered.load(Ordering::Acquire) == 0 && self.is_idle()
    }
}
