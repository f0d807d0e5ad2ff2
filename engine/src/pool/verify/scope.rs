// SPDX-License-Identifier: Apache-2.0
//! How much of a pool a verification looks at.

/// Which copies are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// All of them.
    Everything,
    /// Those that belong on drives that are being rebuilt.
    Rebuilding,
}
