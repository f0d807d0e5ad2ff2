// SPDX-License-Identifier: Apache-2.0
//! The command killed at random instants, on drives that are files.

#![allow(clippy::unwrap_used)]

mod kill_support;

use kill_support::{Plan, Rig};

const DRIVE_BYTES: u64 = 48 << 20;

#[test]
fn nothing_acknowledged_is_lost_and_nothing_partial_is_seen() {
    kill_support::run("kernel", Rig::kernel(DRIVE_BYTES), Plan::kernel());
}
