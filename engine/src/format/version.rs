// SPDX-License-Identifier: Apache-2.0
//! The version of the format.

/// The format's major version: a reader of an older major understands nothing behind the prologue.
pub const MAJOR: u16 = 1;
/// The format's minor version: a newer minor adds only what an older reader may pass over.
pub const MINOR: u16 = 0;
