// SPDX-License-Identifier: Apache-2.0
//! `libstanchion`: the functions of `include/stanchion.h`, one file for each of its types.
//!
//! - A handle is a number that looks like a pointer and is never followed: see `handle`.
//! - Every function's body runs inside `ffi::call`, which stops panics and keeps the error's text.
//! - Outputs are written last, on success only.

mod buffer;
mod checkpoint;
mod drive;
mod error;
mod ffi;
mod format;
mod handle;
mod list;
mod log;
mod memory;
mod name;
mod pool;
mod process;
mod restore;
mod ring;
mod save;
mod segment;
mod session;
mod shard;
mod text;
mod version;

pub use buffer::*;
pub use checkpoint::*;
pub use drive::*;
pub use error::*;
pub use format::*;
pub use list::*;
pub use log::*;
pub use pool::*;
pub use restore::*;
pub use ring::*;
pub use save::*;
pub use segment::*;
pub use session::*;
pub use shard::*;
pub use version::*;
