// SPDX-License-Identifier: Apache-2.0
//! NAME@STEP as the caller writes it.

#![allow(unsafe_code)]

use std::ffi::c_char;

use stanchion_engine::CheckpointName;

use super::error::CallError;
use super::ffi;

/// A NAME@STEP of the caller's.
///
/// # Safety
/// `name` is NULL or a string.
pub(crate) unsafe fn checkpoint_name(name: *const c_char) -> Result<CheckpointName, CallError> {
    // SAFETY: the caller's promise.
    Ok(unsafe { ffi::text(name, "name")? }.parse::<CheckpointName>()?)
}
