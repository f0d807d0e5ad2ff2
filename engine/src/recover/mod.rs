// SPDX-License-Identifier: Apache-2.0
//! Recovery: from the bytes on the drives to the newest whole generation. Pure, over `Drives`.
//!
//! - One valid root is enough evidence: it was written only after everything that it names was
//!   durable on all drives. The newest valid root of any drive is taken; which one is the newest,
//!   and which ones are late writes of an owner that was replaced, `history` decides.
//! - If its catalogue is damaged on every drive, its parent can be taken, on request only. Recovery
//!   never goes further back: the extents of older generations may have been reused.
//! - A member without a root that had reached every member missed a commit. It is not used like a
//!   member: for reading it is the last source, and for writing it is refused.
//! - A failed read is not damage. If a decision depends on it, opening fails: an older generation,
//!   or reuse of the space that was not read, could lose sound data.
//! - Opening for reading writes nothing. Opening for writing ends with an empty generation, made by
//!   the committer. It rolls forward a root that reached only some drives.
//! - The cost does not depend on the drives' capacity.

pub(crate) mod currency;
mod history;
pub(crate) mod holdings;
pub(crate) mod labels;
pub(crate) mod membership;
pub(crate) mod metadata;
pub(crate) mod newest;
pub(crate) mod one_drive;
pub(crate) mod opening;
pub(crate) mod roots;
pub(crate) mod unlabelled;
pub(crate) mod vacancy;
