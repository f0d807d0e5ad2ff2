// SPDX-License-Identifier: Apache-2.0
//! What every command must satisfy, whatever the back end.

use std::ptr::NonNull;

use crate::device::{Command, DriveInfo, OpenMode, Operation, SubmitError};
use crate::error::IoError;
use crate::units::is_block_aligned;

/// Checks that the command is whole blocks within the drive,
/// and that its memory lies in a registered region.
pub(crate) fn check(
    command: &Command,
    info: &DriveInfo,
    mode: OpenMode,
    registered: impl FnOnce(NonNull<u8>, u64) -> bool,
) -> Result<(), SubmitError> {
    let refuse = |errno| Err(SubmitError::Failed(IoError::Os(errno)));
    let length = u64::from(command.memory.len_bytes);
    if command.operation == Operation::Flush {
        return Ok(());
    }
    if command.operation != Operation::Read && mode == OpenMode::ReadOnly {
        return refuse(libc::EROFS);
    }
    let within = command.offset_bytes.checked_add(length).is_some_and(|e| e <= info.capacity_bytes);
    let whole = length != 0
        && is_block_aligned(length)
        && is_block_aligned(command.offset_bytes)
        && is_block_aligned(command.memory.address.as_ptr() as u64);
    if !whole || !within || length > info.max_transfer_bytes {
        return refuse(libc::EINVAL);
    }
    if !registered(command.memory.address, length) {
        return refuse(libc::EFAULT);
    }
    Ok(())
}
