// SPDX-License-Identifier: Apache-2.0
//! A directory that paths are resolved below, part by part and without following links, so that
//! nothing below it leads out of it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// How directories are opened: never through a link.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory that paths are resolved below.
#[derive(Debug)]
pub struct Folder {
    top: OwnedFd,
    /// The directory that was opened last: files of one directory follow each other.
    last: Option<(String, OwnedFd)>,
}

impl Folder {
    /// The directory at a path that the user named; it may be a link to one.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn named(path: &Path) -> io::Result<Folder> {
        let top = openat(CWD, path, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty())?;
        Ok(Folder { top, last: None })
    }

    /// A directory in another one.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn inside(parent: impl AsFd, name: &str) -> io::Result<Folder> {
        Ok(Folder { top: openat(parent, name, DIRECTORY, Mode::empty())?, last: None })
    }

    /// The directory itself.
    pub fn top(&self) -> BorrowedFd<'_> {
        self.top.as_fd()
    }

    /// The directory that a path lies in, and the last part of the path.
    ///
    /// # Errors
    /// When one of the path's directories is none, or is a link.
    pub fn resolve<'a>(&mut self, path: &'a str) -> io::Result<(BorrowedFd<'_>, &'a str)> {
        let Some((parent, name)) = path.rsplit_once('/') else {
            return Ok((self.top.as_fd(), path));
        };
        if self.last.as_ref().is_none_or(|(known, _)| known != parent) {
            let mut current: Option<OwnedFd> = None;
            for part in parent.split('/') {
                let from = current.as_ref().map_or(self.top.as_fd(), AsFd::as_fd);
                current = Some(openat(from, part, DIRECTORY, Mode::empty())?);
            }
            self.last = current.map(|opened| (parent.to_owned(), opened));
        }
        let opened = self.last.as_ref().map_or(self.top.as_fd(), |(_, opened)| opened.as_fd());
        Ok((opened, name))
    }
}
