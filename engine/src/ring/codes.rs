// SPDX-License-Identifier: Apache-2.0
//! Result codes of completions. Zero and above is success: the bytes moved.
//!
//! From -1 to -4095 it is a negative errno, where one fits; from -4096 down it is one of ours. A
//! number is never given a second meaning.

use crate::error::IoError;

/// The request is malformed.
pub const INVALID: i64 = -(libc::EINVAL as i64);
/// The checkpoint handle or the buffer key is not one of this session's.
pub const BAD_HANDLE: i64 = -(libc::EBADF as i64);
/// The range leaves the buffer or the segment.
pub const RANGE: i64 = -(libc::ERANGE as i64);
/// The chunk was written already.
pub const EXISTS: i64 = -(libc::EEXIST as i64);
/// A drive failed the command; `detail` has the NVMe status.
pub const IO: i64 = -(libc::EIO as i64);
/// The pool has no room.
pub const NO_SPACE: i64 = -(libc::ENOSPC as i64);
/// The checkpoint was aborted, or the session ended.
pub const CANCELED: i64 = -(libc::ECANCELED as i64);
/// The checkpoint or the buffer is in use.
pub const BUSY: i64 = -(libc::EBUSY as i64);
/// A limit of the engine is reached.
pub const NO_MEMORY: i64 = -(libc::ENOMEM as i64);

/// The bytes read are not the bytes that were written.
pub const CHECKSUM: i64 = -4097;
/// The pool refuses writes after a failed flush or root write.
pub const POISONED: i64 = -4098;
/// The drive is gone.
pub const REMOVED: i64 = -4099;
/// The drive, or the file that stands for it, is shorter than it was.
pub const SHORT: i64 = -4100;
/// A commit before every byte of the segment was written; aux counts the missing chunks.
pub const INCOMPLETE: i64 = -4101;

/// A thread of the engine failed at this entry; it may be repeated.
pub const NOT_RECOVERABLE: i64 = -(libc::ENOTRECOVERABLE as i64);

/// The lowest errno; the values below are ours.
const LOWEST_ERRNO: i64 = -4095;

/// What a result code means, in words.
pub fn describe(code: i64) -> &'static str {
    match code {
        0.. => "success",
        INVALID => "the request is malformed",
        BAD_HANDLE => "the checkpoint handle or buffer key is not known",
        RANGE => "the range leaves the buffer or the segment",
        EXISTS => "the chunk was written already",
        IO => "a drive failed the command",
        NO_SPACE => "the pool has no room",
        CANCELED => "the checkpoint was aborted",
        BUSY => "the checkpoint or buffer is in use",
        NO_MEMORY => "a limit of the engine is reached",
        CHECKSUM => "the bytes read are not the bytes that were written",
        POISONED => "the pool refuses writes after a failed flush or root write; open it again",
        REMOVED => "the drive is gone",
        SHORT => "the drive is shorter than it was",
        INCOMPLETE => "the segment has chunks that were not written",
        NOT_RECOVERABLE => "a thread of the engine failed; the log has its message",
        LOWEST_ERRNO..0 => "an operating-system error",
        _ => "an unknown code of a newer engine",
    }
}

/// The same, with the NVMe status where the drive gave one.
pub fn describe_with_status(code: i64, detail: u32) -> String {
    let words = describe(code);
    match detail {
        0 => words.to_owned(),
        _ if code != IO => words.to_owned(),
        status => format!("{words} (NVMe status {:02x}/{:02x})", status >> 8, status & 0xff),
    }
}

/// The code and the detail (NVMe status, `sct << 8 | sc`) that stand for a failed command.
pub fn of_io_error(error: IoError) -> (i64, u32) {
    match error {
        IoError::Nvme { .. } => (IO, u32::from(error.nvme_status())),
        IoError::Os(errno) => {
            let code = -i64::from(errno);
            (if (LOWEST_ERRNO..0).contains(&code) { code } else { IO }, 0)
        }
        IoError::Short { .. } => (SHORT, 0),
        IoError::Removed => (REMOVED, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_words() {
        let all = [
            INVALID,
            BAD_HANDLE,
            RANGE,
            EXISTS,
            IO,
            NO_SPACE,
            CANCELED,
            BUSY,
            NO_MEMORY,
            CHECKSUM,
            POISONED,
            REMOVED,
            SHORT,
            INCOMPLETE,
            NOT_RECOVERABLE,
        ];
        let mut words: Vec<_> = all.iter().map(|&code| describe(code)).collect();
        words.extend([describe(1), describe(-1), describe(i64::MIN)]);
        words.sort_unstable();
        let count = words.len();
        words.dedup();
        assert_eq!(words.len(), count);
    }

    #[test]
    fn io_errors_keep_their_details() {
        assert_eq!(of_io_error(IoError::Nvme { sct: 2, sc: 0x81, dnr: true }), (IO, 0x0281));
        assert!(describe_with_status(IO, 0x0281).ends_with("(NVMe status 02/81)"));
        assert_eq!(describe_with_status(REMOVED, 0), describe(REMOVED));
        assert_eq!(of_io_error(IoError::Os(libc::ENOSPC)), (NO_SPACE, 0));
        assert_eq!(of_io_error(IoError::Os(0)), (IO, 0));
        assert_eq!(of_io_error(IoError::Os(i32::MIN)), (IO, 0));
        assert_eq!(of_io_error(IoError::Removed), (REMOVED, 0));
        assert_eq!(of_io_error(IoError::Short { moved_bytes: 1 }), (SHORT, 0));
    }
}
