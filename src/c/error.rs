// SPDX-License-Identifier: Apache-2.0
//! Error numbers, their texts, and the details of each thread's last failed call.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;

use stanchion_engine::codes;
use stanchion_engine::{BulkSession, Error, IoError};

use super::text::write_text;

/// Bytes on a drive are not what was written there.
pub const STN_E_DAMAGED: c_int = 4097;
/// The pool refuses writes after a failed flush or root write.
pub const STN_E_POISONED: c_int = 4098;
/// The drive is gone.
pub const STN_E_REMOVED: c_int = 4099;
/// The drive is shorter than it was.
pub const STN_E_SHORT: c_int = 4100;
/// A commit before every byte was written.
pub const STN_E_INCOMPLETE: c_int = 4101;
/// The drive has no pool of ours.
pub const STN_E_NOT_FORMATTED: c_int = 4102;
/// The pool needs a newer library.
pub const STN_E_NEWER_FORMAT: c_int = 4103;
/// Not exactly the drives of one pool were named.
pub const STN_E_DRIVES: c_int = 4104;
/// Refused, because it could destroy data.
pub const STN_E_REFUSED: c_int = 4105;
/// The machine is not set up for it.
pub const STN_E_ENVIRONMENT: c_int = 4106;
/// A defect of the library.
pub const STN_E_PANIC: c_int = 4107;
/// The pool needs an older library.
pub const STN_E_OLDER_FORMAT: c_int = 4108;

// Completions carry the engine's codes unchanged.
const _: () = {
    assert!(codes::CHECKSUM == -(STN_E_DAMAGED as i64));
    assert!(codes::POISONED == -(STN_E_POISONED as i64));
    assert!(codes::REMOVED == -(STN_E_REMOVED as i64));
    assert!(codes::SHORT == -(STN_E_SHORT as i64));
    assert!(codes::INCOMPLETE == -(STN_E_INCOMPLETE as i64));
};

/// Why a call failed: a number above 0, and what happened to what.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) code: c_int,
    pub(crate) detail: Cow<'static, str>,
}

impl CallError {
    pub(crate) const fn new(code: c_int, detail: &'static str) -> CallError {
        CallError { code, detail: Cow::Borrowed(detail) }
    }

    pub(crate) fn with(code: c_int, detail: String) -> CallError {
        CallError { code, detail: Cow::Owned(detail) }
    }

    /// The same, with another number where it is `from`.
    pub(crate) fn instead(self, from: c_int, to: c_int) -> CallError {
        if self.code == from { CallError { code: to, ..self } } else { self }
    }
}

/// An invalid argument.
pub(crate) fn invalid(detail: impl Into<Cow<'static, str>>) -> CallError {
    CallError { code: libc::EINVAL, detail: detail.into() }
}

impl From<Error> for CallError {
    fn from(error: Error) -> CallError {
        CallError::with(number_of(&error), error.to_string())
    }
}

/// A failure where memory is the only thing that the machine may lack.
pub(crate) fn of_memory(error: Error) -> CallError {
    CallError::from(error).instead(STN_E_ENVIRONMENT, libc::ENOMEM)
}

/// A failed save or restore: where an entry failed, the number is its completion's.
pub(crate) fn of_bulk(error: CallError, bulk: &BulkSession<'_>) -> CallError {
    match bulk.failure() {
        Some(entry) => {
            CallError { code: i32::try_from(-entry.result).unwrap_or(libc::EIO), ..error }
        }
        None => error,
    }
}

fn number_of(error: &Error) -> c_int {
    match error {
        Error::Usage(_) => libc::EINVAL,
        Error::ReadOnly => libc::EROFS,
        Error::TooMany { .. } => libc::EMFILE,
        Error::Environment(_) => STN_E_ENVIRONMENT,
        Error::Os { source, .. } => match source.raw_os_error() {
            Some(errno) if errno > 0 => errno,
            _ => libc::EIO,
        },
        Error::Io { source, .. } | Error::DriveUnfit { source, .. } => number_of_io(*source),
        Error::DriveNotFound { .. } => libc::ENODEV,
        Error::NotFormatted { .. } => STN_E_NOT_FORMATTED,
        Error::NewerFormat { .. } => STN_E_NEWER_FORMAT,
        Error::OlderFormat { .. } => STN_E_OLDER_FORMAT,
        Error::ForeignDrive { .. }
        | Error::MissingDrives { .. }
        | Error::DuplicateDrive { .. }
        | Error::StaleDrive { .. } => STN_E_DRIVES,
        Error::ShortDrive { .. } => STN_E_SHORT,
        Error::Busy { .. } | Error::LostOwnership { .. } => libc::EBUSY,
        Error::Stale(_) => libc::ESTALE,
        Error::Refused { .. } => STN_E_REFUSED,
        Error::NoSuchCheckpoint(_) => libc::ENOENT,
        Error::CheckpointExists(_) => libc::EEXIST,
        Error::NoSpace { .. } | Error::NoMetadataSpace => libc::ENOSPC,
        Error::Damaged(_) | Error::NewestUnreadable { .. } => STN_E_DAMAGED,
        Error::Poisoned { .. } => STN_E_POISONED,
        Error::NotCommitted { .. } => libc::ECANCELED,
        // A thread of the pool ended while its handle was alive.
        Error::Closed(_) => STN_E_PANIC,
        // A test compares this match with the variants in the engine: a new one belongs here too.
        _ => libc::EIO,
    }
}

fn number_of_io(error: IoError) -> c_int {
    let (code, _) = codes::of_io_error(error);
    c_int::try_from(-code).unwrap_or(libc::EIO)
}

/// Texts for our own numbers.
fn own_words(number: c_int) -> Option<&'static CStr> {
    Some(match number {
        STN_E_DAMAGED => c"bytes on a drive are not what was written there",
        STN_E_POISONED => c"the pool refuses writes after a failed flush or root write",
        STN_E_REMOVED => c"the drive is gone",
        STN_E_SHORT => c"the drive is shorter than it was",
        STN_E_INCOMPLETE => c"the segment has chunks that were not written",
        STN_E_NOT_FORMATTED => c"the drive is not formatted by stanchion",
        STN_E_NEWER_FORMAT => c"the pool needs a newer stanchion",
        STN_E_OLDER_FORMAT => c"the pool needs an older stanchion",
        STN_E_DRIVES => c"the drives named are not exactly those of one pool",
        STN_E_REFUSED => c"refused, because it could destroy data",
        STN_E_ENVIRONMENT => c"the machine is not set up for it",
        STN_E_PANIC => c"a defect of the stanchion library",
        _ => return None,
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_strerror(error: c_int) -> *const c_char {
    const ERRNOS: usize = 134;
    static WORDS: OnceLock<Vec<CString>> = OnceLock::new();
    let number = error.checked_abs().unwrap_or(c_int::MAX);
    if let Some(words) = own_words(number) {
        return words.as_ptr();
    }
    if number == 0 {
        return c"success".as_ptr();
    }
    let words = WORDS.get_or_init(|| (0..ERRNOS as c_int).map(errno_words).collect());
    match words.get(number as usize) {
        Some(words) => words.as_ptr(),
        None => c"an error number that this version does not know".as_ptr(),
    }
}

/// The system's text, without the number that Rust appends.
fn errno_words(number: c_int) -> CString {
    let words = std::io::Error::from_raw_os_error(number).to_string();
    let words = words.split(" (os error").next().unwrap_or_default().to_owned();
    CString::new(words).unwrap_or_default()
}

thread_local! {
    static LAST: RefCell<Cow<'static, str>> = const { RefCell::new(Cow::Borrowed("")) };
}

/// Keeps the text of a failure for `stn_last_error`.
pub(crate) fn remember(detail: Cow<'static, str>) {
    // A thread that is ending keeps nothing.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = detail;
        }
    });
}

/// See `stanchion.h`.
///
/// # Safety
/// `buffer` is NULL, or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_last_error(buffer: *mut c_char, size: usize) -> usize {
    let copy = |last: &RefCell<Cow<'static, str>>| {
        let Ok(last) = last.try_borrow() else { return 0 };
        // SAFETY: the caller's promise.
        unsafe { write_text(buffer, size, &last) };
        last.len()
    };
    LAST.try_with(copy).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(error: c_int) -> String {
        // SAFETY: the function returns static strings.
        unsafe { CStr::from_ptr(stn_strerror(error)) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn every_number_has_words() {
        assert_eq!(words(0), "success");
        assert_eq!(words(-libc::ENOENT), "No such file or directory");
        assert_eq!(words(libc::EHWPOISON), words(-libc::EHWPOISON));
        assert!(!words(133).contains("os error"));
        for number in STN_E_DAMAGED..=STN_E_PANIC {
            assert_ne!(words(number), words(c_int::MAX), "{number}");
            assert_eq!(words(number), words(-number));
        }
        assert_eq!(words(c_int::MIN), words(134));
    }

    #[test]
    fn every_error_of_the_engine_has_a_number() {
        let engine = include_str!("../../engine/src/error.rs");
        let body = engine.split("pub enum Error {").nth(1).unwrap();
        let body = body.split("\n}\n").next().unwrap();
        let variants: Vec<&str> = body
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
            .map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap())
            .collect();
        assert!(variants.len() > 15, "{variants:?}");
        let ours = include_str!("error.rs");
        for variant in variants {
            assert!(ours.contains(&format!("Error::{variant}")), "{variant} has no number");
        }
    }
}
