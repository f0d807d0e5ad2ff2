// SPDX-License-Identifier: Apache-2.0
//! The reservation that an open device holds.

/// What a device knows of its reservation.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The drive has reservations, and they may be used.
    pub(super) is_supported: bool,
    /// The drive can keep them over a power loss.
    pub(super) persists: bool,
    pub(super) may_report: bool,
    pub(super) has_long_host_identifier: bool,
    /// The drive stays reserved when it is closed.
    pub(super) stays_reserved: bool,
    /// Registered, and not given back.
    pub(super) key: Option<u64>,
    /// Of earlier owners of the lock, which have ended.
    pub(super) ended_keys: Vec<u64>,
}
