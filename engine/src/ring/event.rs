// SPDX-License-Identifier: Apache-2.0
//! An event: a descriptor that a client puts into its poll loop, readable when there may be
//! completions.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

use zerocopy::IntoBytes as _;

use crate::error::Error;

/// An eventfd that counts signals. Neither end ever blocks on it.
#[derive(Debug)]
pub struct Event {
    file: File,
}

impl Event {
    /// A new one, not signalled. It does not survive `exec`.
    ///
    /// # Errors
    /// When the process has too many descriptors.
    pub fn new() -> Result<Event, Error> {
        // SAFETY: plain call with integers; it makes a new descriptor or fails.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::last_os("eventfd"));
        }
        // SAFETY: the descriptor was just made and has no other owner.
        Ok(Event { file: unsafe { OwnedFd::from_raw_fd(fd) }.into() })
    }

    /// Makes it readable.
    pub fn signal(&self) {
        // It fails only when 2^64 - 2 signals were not read: then it is readable.
        let _ = (&self.file).write(1_u64.as_bytes());
    }

    /// Makes it unreadable; returns how many signals there were.
    pub fn take_signals(&self) -> u64 {
        let mut count = 0_u64;
        // It fails, and the count stays 0, when there was no signal.
        let _ = (&self.file).read(count.as_mut_bytes());
        count
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_counted_and_taken() {
        let event = Event::new().unwrap();
        assert_eq!(event.take_signals(), 0);
        event.signal();
        event.signal();
        assert_eq!(event.take_signals(), 2);
        assert_eq!(event.take_signals(), 0);
    }
}
