// SPDX-License-Identifier: Apache-2.0
//! Opening: from the bytes on the drives to the newest whole generation. Pure, over `Drives`.
//!
//! - One valid root is enough evidence: it was written only after all it names was durable on all
//!   drives. The newest valid root of any drive wins.
//! - If its catalogue is damaged on every drive, its parent is taken, and said so. Recovery never
//!   goes further back: older generations' extents may have been reused.
//! - A read that merely failed is no damage. What it keeps from being decided is an error: to take
//!   an older generation, or to use the space of what was not read, would lose what is not lost.
//! - An opening for reading writes nothing. One for writing ends with an empty generation, by the
//!   committer, which rolls a root forward that reached only some drives.
//! - The cost does not depend on the drives' capacity.

pub(crate) mod holdings;
pub(crate) mod labels;
pub(crate) mod membership;
pub(crate) mod metadata;
pub(crate) mod newest;
pub(crate) mod opening;
pub(crate) mod roots;
