// SPDX-License-Identifier: Apache-2.0
//! The command killed at random instants, on drives that SPDK drives over NVMe/TCP. Skipped, with a
//! message, where there is no SPDK.

#![allow(clippy::unwrap_used)]

mod kill_support;

use kill_support::{Plan, Rig};

const DRIVE_BYTES: u64 = 48 << 20;

#[test]
fn nothing_acknowledged_is_lost_and_nothing_partial_is_seen() {
    if let Some(rig) = Rig::spdk(DRIVE_BYTES) {
        kill_support::run("spdk", rig, Plan::spdk());
    }
}
