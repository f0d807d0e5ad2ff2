// SPDX-License-Identifier: Apache-2.0
//! The version of the format.

/// The format's major version: a reader of an older major version understands only the prologue.
pub const MAJOR: u16 = 2;
/// The format's minor version: a newer minor version adds only what an older reader may ignore.
pub const MINOR: u16 = 0;
