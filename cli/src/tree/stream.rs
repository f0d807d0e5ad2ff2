// SPDX-License-Identifier: Apache-2.0
//! The bytes of a save: its files, one after the other. A file that is no longer the one that was
//! looked at ends the save, unless that is allowed.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;

use super::entry::Kind;
use super::source::Source;
use crate::error::CommandError;

/// Reads the files of a save.
pub struct Stream<'a> {
    sources: &'a [Source],
    /// The next one.
    next: usize,
    /// The file being read, and how many of its bytes are read.
    open: Option<(&'a Source, File, u64)>,
    allows_changes: bool,
    /// Those that changed, where that is allowed.
    changed: Vec<&'a Source>,
}

impl<'a> Stream<'a> {
    /// Reads these.
    pub fn new(sources: &'a [Source], allows_changes: bool) -> Stream<'a> {
        Stream { sources, next: 0, open: None, allows_changes, changed: Vec::new() }
    }

    /// Reads on, over the ends of files, until `into` is full. There are as many bytes as were
    /// declared: the caller asks for no more.
    ///
    /// # Errors
    /// A file that cannot be read, or that changed.
    pub fn read(&mut self, mut into: &mut [u8]) -> Result<(), CommandError> {
        while !into.is_empty() {
            if !self.open_next()? {
                return Err(CommandError::Failed("the files ended before the checkpoint".into()));
            }
            let Some((source, file, done)) = &mut self.open else { continue };
            let wanted = (source.len_bytes - *done).min(into.len() as u64) as usize;
            let (part, rest) = into.split_at_mut(wanted);
            read_at(source, file, part, *done)?;
            *done += wanted as u64;
            into = rest;
            if *done == source.len_bytes {
                self.close()?;
            }
        }
        Ok(())
    }

    /// After the last byte, before the commit: the files at the end that are empty are opened, too,
    /// and then everything must still be what was looked at.
    ///
    /// # Errors
    /// As [`Stream::read`].
    pub fn finish(&mut self) -> Result<(), CommandError> {
        while self.open_next()? {
            self.close()?;
        }
        for source in self.sources {
            let unchanged = source.check_unchanged();
            self.judge(source, unchanged)?;
        }
        Ok(())
    }

    /// Those that changed meanwhile, each once.
    pub fn changed(&self) -> &[&'a Source] {
        &self.changed
    }

    /// Whether a file is open; opens the next one.
    fn open_next(&mut self) -> Result<bool, CommandError> {
        while self.open.is_none() {
            let Some(source) = self.sources.get(self.next) else { return Ok(false) };
            self.next += 1;
            if source.entry.kind != Kind::File {
                continue;
            }
            let file = source.open()?;
            let metadata = file.metadata().map_err(|error| source.failed(error))?;
            self.judge(source, source.check_identity(&metadata))?;
            self.open = Some((source, file, 0));
            if source.len_bytes == 0 {
                self.close()?;
            }
        }
        Ok(true)
    }

    /// All bytes are read that were declared: there must be no more.
    fn close(&mut self) -> Result<(), CommandError> {
        let Some((source, file, done)) = self.open.take() else { return Ok(()) };
        let more = loop {
            match file.read_at(&mut [0], done) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result.map_err(|error| source.failed(error))?,
            }
        };
        let metadata = file.metadata().map_err(|error| source.failed(error))?;
        let unchanged = source.check_identity(&metadata).and_then(|()| match more {
            0 => Ok(()),
            _ => Err(source.is_longer()),
        });
        self.judge(source, unchanged)
    }

    fn judge(
        &mut self,
        source: &'a Source,
        unchanged: Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        match unchanged {
            Err(_) if self.allows_changes => {
                if !self.changed.iter().any(|known| known.name == source.name) {
                    self.changed.push(source);
                }
                Ok(())
            }
            result => result,
        }
    }
}

fn read_at(
    source: &Source,
    file: &File,
    mut into: &mut [u8],
    from: u64,
) -> Result<(), CommandError> {
    let mut at = from;
    while !into.is_empty() {
        match file.read_at(into, at) {
            Ok(0) => return Err(source.is_shorter(at)),
            Ok(count) => {
                at += count as u64;
                into = &mut into[count..];
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(source.failed(error)),
        }
    }
    Ok(())
}
