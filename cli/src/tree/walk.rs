// SPDX-License-Identifier: Apache-2.0
//! Looks at what is to be saved, before any space is reserved: every file is opened once, so that
//! one that cannot be read fails here, wherever it stands.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use super::entry::Kind;
use super::exclusion::Exclusion;
use super::path;
use super::source::{Source, open_file};
use crate::error::CommandError;
use crate::output::plain;

/// The longest name of a shard.
const MAX_NAME_BYTES: usize = 1024;

/// What a save takes, and how it names it.
#[derive(Debug, Default)]
pub struct Rules {
    /// Paths that are left out.
    pub exclusions: Vec<Exclusion>,
    /// A link that leaves its tree is refused; otherwise what it leads to is saved.
    pub refuses_outside_links: bool,
    /// Files may change while they are read.
    pub allows_changes: bool,
}

/// Looks at paths. Each is a file, or a directory with all that is below it.
#[derive(Default)]
pub struct Walk {
    rules: Rules,
    sources: Vec<Source>,
    /// The sources by their names.
    numbers: HashMap<String, usize>,
    /// The directories that the walk is in.
    entered: Vec<(u64, u64)>,
}

impl Walk {
    /// A walk by these rules.
    pub fn new(rules: Rules) -> Walk {
        Walk { rules, ..Walk::default() }
    }

    /// Adds a path under its last part, as `cp -r` does; of one that ends in `.` its contents only.
    ///
    /// # Errors
    /// What cannot be saved, by its path.
    pub fn add(&mut self, path: &Path) -> Result<(), CommandError> {
        let mut bytes = path.as_os_str().as_bytes();
        while let [rest @ .., b'/'] = bytes {
            bytes = rest;
        }
        let last = bytes.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if matches!(last, b"" | b"." | b"..") && !path.as_os_str().is_empty() {
            return self.add_contents(path);
        }
        let name = text(OsStr::from_bytes(last), path)?;
        self.visit(path, name, path::part_count(name), true)
    }

    /// Adds a path under the whole of itself; links that stay below the current directory are kept.
    ///
    /// # Errors
    /// As [`Walk::add`]; a path that is absolute or has `..`.
    pub fn add_relative(&mut self, path: &Path) -> Result<(), CommandError> {
        let mut parts = Vec::new();
        for component in path.components() {
            match component {
                Component::CurDir => {}
                Component::Normal(part) => parts.push(text(part, path)?),
                _ => {
                    return Err(CommandError::Usage(format!(
                        "{} is absolute or has a part ..; a path that is kept whole starts at the \
                         current directory: change the directory first",
                        shown(path)
                    )));
                }
            }
        }
        match parts.is_empty() {
            true => self.add_contents(path),
            false => self.visit(path, &parts.join("/"), 0, false),
        }
    }

    /// Adds a file that has no path: standard input.
    ///
    /// # Errors
    /// When something else has its name.
    pub fn add_spooled(&mut self, name: &str, file: fs::File) -> Result<(), CommandError> {
        path::check(name)
            .map_err(|why| CommandError::Usage(format!("--as {}: {why}", plain(name))))?;
        let metadata = file.metadata().map_err(|error| {
            CommandError::os("looking at what was read from standard input", error)
        })?;
        let mut source = Source::new(Path::new("-"), name, Kind::File, &metadata);
        // It was made just now, with permissions for us only.
        source.entry.mode = None;
        source.entry.modified_ns = None;
        source.spooled = Some(file);
        self.push(source)
    }

    /// What was found: at least one shard. A directory comes before what is in it.
    ///
    /// # Errors
    /// When there is nothing, or a path lies below another one that is not a directory.
    pub fn finish(self) -> Result<Vec<Source>, CommandError> {
        if self.numbers.is_empty() {
            return Err(CommandError::Usage(
                "nothing is left to save: name files or directories that --exclude does not leave \
                 out"
                .into(),
            ));
        }
        for source in &self.sources {
            for parent in path::parents(&source.name) {
                let other = self.numbers.get(parent).map(|number| &self.sources[*number]);
                let Some(other) = other.filter(|other| other.entry.kind != Kind::Directory) else {
                    continue;
                };
                return Err(CommandError::Usage(format!(
                    "{} would be saved below {}, which is not a directory; save them as two \
                     checkpoints",
                    source.shown(),
                    other.shown()
                )));
            }
        }
        Ok(self.sources)
    }

    fn add_contents(&mut self, path: &Path) -> Result<(), CommandError> {
        let metadata = fs::metadata(path).map_err(|error| not_found(path, error))?;
        self.enter(path, "", 0, Source::new(path, "", Kind::Directory, &metadata), &metadata)
    }

    /// Looks at a path. `top` is the number of its name's parts that are the top of its tree.
    fn visit(
        &mut self,
        path: &Path,
        name: &str,
        top: usize,
        is_argument: bool,
    ) -> Result<(), CommandError> {
        if self.rules.exclusions.iter().any(|exclusion| exclusion.matches(name)) {
            return Ok(());
        }
        let mut metadata = fs::symlink_metadata(path).map_err(|error| not_found(path, error))?;
        let (mut top, mut is_followed) = (top, false);
        if metadata.is_symlink() {
            let target = fs::read_link(path).map_err(|error| cannot_read(path, error))?;
            let bytes = target.as_os_str().as_bytes();
            let depth = path::part_count(name).saturating_sub(1).checked_sub(top);
            if !is_argument && depth.is_some_and(|depth| path::stays_inside(bytes, depth)) {
                return self.push(Source::new(path, name, Kind::Link(bytes.to_vec()), &metadata));
            }
            metadata = self.follow(path, &target, is_argument)?;
            (top, is_followed) = (path::part_count(name), true);
        }
        let kind = if metadata.is_dir() { Kind::Directory } else { Kind::File };
        let source = Source { is_followed, ..Source::new(path, name, kind, &metadata) };
        if metadata.is_dir() {
            return self.enter(path, name, top, source, &metadata);
        }
        if !metadata.is_file() {
            return Err(CommandError::Usage(format!(
                "{} is not a regular file, a directory or a link; leave it out with --exclude",
                shown(path)
            )));
        }
        open_file(path).map_err(|error| cannot_read(path, error))?;
        self.push(source)
    }

    fn follow(
        &self,
        path: &Path,
        target: &Path,
        is_argument: bool,
    ) -> Result<Metadata, CommandError> {
        if self.rules.refuses_outside_links && !is_argument {
            return Err(CommandError::Refused(format!(
                "{} is a link to {}, out of its tree; pass --outside-links follow to save what it \
                 leads to, or leave it out with --exclude",
                shown(path),
                shown(target)
            )));
        }
        fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => CommandError::NotFound(format!(
                "{} is a link to {}, where nothing is; repair it, or leave it out with --exclude",
                shown(path),
                shown(target)
            )),
            _ => cannot_read(path, error),
        })
    }

    /// Adds a directory with all that is in it, in the order of the names.
    fn enter(
        &mut self,
        path: &Path,
        name: &str,
        top: usize,
        source: Source,
        metadata: &Metadata,
    ) -> Result<(), CommandError> {
        let identity = (metadata.dev(), metadata.ino());
        if self.entered.contains(&identity) {
            return Err(CommandError::Refused(format!(
                "{} leads back to a directory that it lies in, so it has no end; leave it out with \
                 --exclude",
                shown(path)
            )));
        }
        self.push(source)?;
        self.entered.push(identity);
        let entries = fs::read_dir(path).and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<io::Result<Vec<_>>>()
        });
        let mut entries = entries.map_err(|error| cannot_read(path, error))?;
        entries.sort();
        for entry in entries {
            let inner: PathBuf = path.join(&entry);
            let part = text(&entry, &inner)?;
            let inner_name =
                if name.is_empty() { part.to_owned() } else { format!("{name}/{part}") };
            self.visit(&inner, &inner_name, top, false)?;
        }
        self.entered.pop();
        Ok(())
    }

    fn push(&mut self, mut source: Source) -> Result<(), CommandError> {
        if source.name.is_empty() {
            self.sources.push(source);
            return Ok(());
        }
        if source.name.len() > MAX_NAME_BYTES {
            return Err(CommandError::Usage(format!(
                "{}: its path in the checkpoint has {} bytes, and at most {MAX_NAME_BYTES} are \
                 possible; save a directory further down",
                source.shown(),
                source.name.len()
            )));
        }
        if let Some(number) = self.numbers.get(&source.name) {
            let other = &self.sources[*number];
            if other.identity == source.identity && other.entry.kind == source.entry.kind {
                return Ok(());
            }
            return Err(CommandError::Usage(format!(
                "{} and {} would both be saved as {}; save the directory that has both, or pass \
                 --relative to keep the paths as they are given",
                other.shown(),
                source.shown(),
                plain(&source.name)
            )));
        }
        source.entry.may_have_changed =
            self.rules.allows_changes && source.entry.kind == Kind::File;
        source.entry.to_attributes().map_err(|why| {
            CommandError::Usage(format!("{} cannot be saved: {why}", source.shown()))
        })?;
        self.numbers.insert(source.name.clone(), self.sources.len());
        self.sources.push(source);
        Ok(())
    }
}

fn shown(path: &Path) -> String {
    plain(&path.to_string_lossy())
}

fn text<'a>(part: &'a OsStr, path: &Path) -> Result<&'a str, CommandError> {
    part.to_str().ok_or_else(|| {
        CommandError::Usage(format!(
            "{}: its name is not UTF-8; rename it, or leave it out with --exclude",
            shown(path)
        ))
    })
}

fn not_found(path: &Path, error: io::Error) -> CommandError {
    CommandError::path(format!("file {}", shown(path)), error)
}

fn cannot_read(path: &Path, error: io::Error) -> CommandError {
    CommandError::os(format!("reading {}", shown(path)), error)
}
