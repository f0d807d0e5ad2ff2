// SPDX-License-Identifier: Apache-2.0
//! Trees of files: from the file system into a checkpoint, and back. docs/trees.md has the rules.

pub mod building;
pub mod chosen;
pub mod entry;
pub mod exclusion;
pub mod folder;
pub mod path;
pub mod placing;
pub mod plan;
pub mod source;
pub mod staging;
pub mod stream;
pub mod target;
pub mod walk;
