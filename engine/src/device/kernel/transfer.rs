// SPDX-License-Identifier: Apache-2.0
//! How far a transfer is when a system call for it returns.

use crate::error::IoError;

/// What to do after one system call of a transfer came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AfterCall {
    /// All that was requested, or an error.
    Done(Result<(), IoError>),
    /// Go on from `done_bytes`, which may be unchanged.
    Continue { done_bytes: u32 },
}

/// Decides on `result`, bytes or a negative errno, of a call for `len_bytes - done_bytes`.
pub(super) fn after_call(
    len_bytes: u32,
    done_bytes: u32,
    result: i64,
    unit_bytes: u32,
) -> AfterCall {
    if result < 0 {
        let errno = i32::try_from(-result).unwrap_or(libc::EIO);
        return match errno {
            libc::EAGAIN | libc::EINTR => AfterCall::Continue { done_bytes },
            // The device is gone, or its driver has no path to it.
            libc::ENODEV | libc::ENXIO | libc::ENOLINK => AfterCall::Done(Err(IoError::Removed)),
            _ => AfterCall::Done(Err(IoError::Os(errno))),
        };
    }
    let moved = u32::try_from(result).unwrap_or(u32::MAX).min(len_bytes - done_bytes);
    let done = done_bytes + moved;
    if done == len_bytes {
        AfterCall::Done(Ok(()))
    } else if moved == 0 || !done.is_multiple_of(unit_bytes) {
        // The end of the file; direct I/O could not go on from the middle of a sector.
        AfterCall::Done(Err(IoError::Short { moved_bytes: done }))
    } else {
        AfterCall::Continue { done_bytes: done }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_transfers_continue_and_the_end_of_the_file_stops_them() {
        assert_eq!(after_call(8192, 0, 8192, 512), AfterCall::Done(Ok(())));
        assert_eq!(after_call(8192, 0, 512, 512), AfterCall::Continue { done_bytes: 512 });
        assert_eq!(after_call(8192, 512, 7680, 512), AfterCall::Done(Ok(())));
        let short = |moved_bytes| AfterCall::Done(Err(IoError::Short { moved_bytes }));
        assert_eq!(after_call(8192, 512, 0, 512), short(512));
        assert_eq!(after_call(8192, 4096, 100, 512), short(4196));
        assert_eq!(after_call(8192, 0, 512, 4096), short(512));
        assert_eq!(after_call(4096, 0, i64::MAX, 512), AfterCall::Done(Ok(())));
    }

    #[test]
    fn errors_are_retried_or_reported() {
        let retry = AfterCall::Continue { done_bytes: 512 };
        assert_eq!(after_call(8192, 512, -i64::from(libc::EAGAIN), 512), retry);
        assert_eq!(after_call(8192, 512, -i64::from(libc::EINTR), 512), retry);
        let failed = |error| AfterCall::Done(Err(error));
        assert_eq!(after_call(8192, 0, -i64::from(libc::EIO), 512), failed(IoError::Os(libc::EIO)));
        assert_eq!(after_call(8192, 0, -i64::from(libc::ENODEV), 512), failed(IoError::Removed));
        assert_eq!(after_call(8192, 0, i64::MIN + 1, 512), failed(IoError::Os(libc::EIO)));
    }
}
