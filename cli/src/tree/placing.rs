// SPDX-License-Identifier: Apache-2.0
//! A built tree gets its place: a new output directory by one rename, one that exists file by file.
//! What was done is undone when a later step fails.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, RenameFlags};
use rustix::fs::{linkat, mkdirat, renameat, renameat_with, statat, unlinkat};
use rustix::io::Errno;
use stanchion_engine::DriveAddress;

use super::building::{cannot_write, has_one_sync, settle};
use super::folder::Folder;
use super::plan::{Plan, shown};
use super::staging::{Staging, remove_leftovers};
use crate::drive_files;
use crate::error::CommandError;
use crate::output::plain;

/// Where a tree is to be.
#[derive(Debug)]
pub struct Site {
    /// The output directory, as it was named.
    output: PathBuf,
    exists: bool,
    replaces: bool,
}

impl Site {
    /// Looks at everything that a restore is to write, and writes nothing.
    ///
    /// # Errors
    /// [`CommandError::Refused`] for what is in the way, by its path.
    pub fn look(
        output: &Path,
        plan: &Plan,
        replaces: bool,
        drives: &[DriveAddress],
    ) -> Result<Site, CommandError> {
        // Without a `.` or a slash at its end, which would be another name of the same directory.
        let output: PathBuf = output.components().collect();
        let site = Site { exists: is_there(&output)?, output, replaces };
        if site.exists {
            site.look_inside(plan, drives)?;
        } else {
            drive_files::refuse([site.output.as_path()].into_iter(), drives)?;
        }
        Ok(site)
    }

    /// Whether the output directory is new.
    pub fn is_new(&self) -> bool {
        !self.exists
    }

    /// Removes what killed restores left here, and makes the staging directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn begin(&self) -> Result<Staging, CommandError> {
        let parent = parent_of(&self.output);
        remove_leftovers(parent);
        if self.exists {
            remove_leftovers(&self.output);
        }
        Staging::new(if self.exists { &self.output } else { parent })
    }

    /// Gives everything its place. `watch` may end it between two files; what was done is undone.
    ///
    /// # Errors
    /// What could not be placed, by its path; an error of `watch`. Nothing is changed then.
    pub fn place(
        &self,
        plan: &Plan,
        staging: &mut Staging,
        watch: &dyn Fn() -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        if self.exists {
            let folder = Folder::named(&self.output)
                .map_err(|error| cannot_write(&self.output, "", error))?;
            let mut filling = Filling { site: self, staging, folder, done: Vec::new() };
            let filled = filling.fill(plan, watch);
            if filled.is_err() {
                filling.undo();
            }
            return filled;
        }
        watch()?;
        let (from, tree) = staging.tree_name();
        move_new(&from, Path::new(tree), CWD, &self.output)
            .map_err(|error| self.not_placed("", error))?;
        let synced = fs::File::open(parent_of(&self.output)).and_then(|opened| opened.sync_all());
        drop(from);
        staging.keep_parents();
        synced.map_err(|error| cannot_write(&self.output, "", error))
    }

    fn look_inside(&self, plan: &Plan, drives: &[DriveAddress]) -> Result<(), CommandError> {
        let device = fs::metadata(&self.output)
            .map_err(|error| cannot_write(&self.output, "", error))?
            .dev();
        for (path, _) in &plan.directories {
            let Some(found) = self.found(path)? else { continue };
            let why = match () {
                () if found.is_symlink() => "is a link, and nothing is written through links",
                () if !found.is_dir() => "is not a directory",
                () if found.dev() != device => {
                    "is on another file system than the output directory, so files cannot be moved \
                     there at once"
                }
                () => continue,
            };
            return Err(CommandError::Refused(format!(
                "{} {why}; restore into another directory",
                shown(&self.output, path)
            )));
        }
        for path in plan.paths() {
            match self.found(path)? {
                Some(found) if found.is_dir() => return Err(self.is_directory(path)),
                Some(_) if !self.replaces => return Err(self.exists(path)),
                _ => {}
            }
        }
        let paths: Vec<PathBuf> = plan.paths().map(|path| self.output.join(path)).collect();
        drive_files::refuse(paths.iter().map(PathBuf::as_path), drives)
    }

    /// What lies at a path. The directories above it were looked at before.
    fn found(&self, path: &str) -> Result<Option<Metadata>, CommandError> {
        match fs::symlink_metadata(self.output.join(path)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(CommandError::os(format!("looking at {}", shown(&self.output, path)), error))
            }
        }
    }

    fn exists(&self, path: &str) -> CommandError {
        CommandError::Refused(format!(
            "{} exists; pass --force to replace it",
            shown(&self.output, path)
        ))
    }

    fn is_directory(&self, path: &str) -> CommandError {
        CommandError::Refused(format!(
            "{} is a directory, which no file replaces; restore into another directory",
            shown(&self.output, path)
        ))
    }

    fn not_placed(&self, path: &str, error: Errno) -> CommandError {
        match error {
            Errno::EXIST | Errno::NOTEMPTY if path.is_empty() => CommandError::Refused(format!(
                "{} was made by another program meanwhile; nothing was changed: restore again",
                plain(&self.output.to_string_lossy())
            )),
            Errno::EXIST => self.exists(path),
            _ => cannot_write(&self.output, path, error.into()),
        }
    }
}

/// What was done to an output directory that exists.
enum Done {
    MadeDirectory(String),
    Placed(String),
    /// The two files were exchanged.
    Exchanged(String),
    /// The old file has this name next to the tree.
    SetAside(String, String),
}

/// Fills a directory that exists.
struct Filling<'a> {
    site: &'a Site,
    staging: &'a mut Staging,
    folder: Folder,
    done: Vec<Done>,
}

impl Filling<'_> {
    fn fill(
        &mut self,
        plan: &Plan,
        watch: &dyn Fn() -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let mut ours = Vec::new();
        for (path, entry) in &plan.directories {
            watch()?;
            let is_new =
                self.make(path).map_err(|error| cannot_write(&self.site.output, path, error))?;
            let is_ours = is_new || self.site.replaces;
            ours.push((path.as_str(), entry.as_ref().filter(|_| is_ours)));
        }
        for path in plan.paths() {
            watch()?;
            let (new, name) = self
                .staging
                .tree()
                .resolve(path)
                .and_then(|(folder, name)| Ok((folder.try_clone_to_owned()?, name)))
                .map_err(|error| cannot_write(&self.site.output, path, error))?;
            self.place(&new, name, path)?;
        }
        let at_once = has_one_sync(self.folder.top(), ours.len())
            .map_err(|error| cannot_write(&self.site.output, "", error))?;
        settle(&self.site.output, &mut self.folder, ours.into_iter(), at_once)
    }

    /// Makes a directory, if it is not there.
    fn make(&mut self, path: &str) -> io::Result<bool> {
        let (folder, name) = self.folder.resolve(path)?;
        match mkdirat(folder, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => {
                self.done.push(Done::MadeDirectory(path.to_owned()));
                Ok(true)
            }
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn place(&mut self, new: impl AsFd, name: &str, path: &str) -> Result<(), CommandError> {
        let site = self.site;
        let (folder, name_there) =
            self.folder.resolve(path).map_err(|error| cannot_write(&site.output, path, error))?;
        let failed = |error| site.not_placed(path, error);
        let found = match statat(folder, name_there, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Some(rustix::fs::FileType::from_raw_mode(found.st_mode)),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(failed(error)),
        };
        let done = match found {
            None => {
                move_new(&new, Path::new(name), folder, Path::new(name_there)).map_err(failed)?;
                Done::Placed(path.to_owned())
            }
            Some(kind) if kind.is_dir() => return Err(site.is_directory(path)),
            Some(_) if !site.replaces => return Err(site.exists(path)),
            Some(_) => match renameat_with(&new, name, folder, name_there, RenameFlags::EXCHANGE) {
                Ok(()) => Done::Exchanged(path.to_owned()),
                Err(error) if is_unsupported(error) => {
                    let aside = format!("old-{}", self.done.len());
                    let (beside, _) = self.staging.tree_name();
                    renameat(folder, name_there, &beside, &aside).map_err(failed)?;
                    drop(beside);
                    self.done.push(Done::SetAside(path.to_owned(), aside));
                    renameat(&new, name, folder, name_there).map_err(failed)?;
                    Done::Placed(path.to_owned())
                }
                Err(error) => return Err(failed(error)),
            },
        };
        self.done.push(done);
        Ok(())
    }

    /// Undoes what was done, the last first. What cannot be undone stays.
    fn undo(&mut self) {
        while let Some(done) = self.done.pop() {
            let (Done::MadeDirectory(path)
            | Done::Placed(path)
            | Done::Exchanged(path)
            | Done::SetAside(path, _)) = &done;
            let Ok((folder, name)) = self.folder.resolve(path) else { continue };
            let _ = match &done {
                Done::MadeDirectory(_) => unlinkat(folder, name, AtFlags::REMOVEDIR),
                Done::Placed(_) => unlinkat(folder, name, AtFlags::empty()),
                Done::Exchanged(_) => match self.staging.tree().resolve(path) {
                    Ok((new, new_name)) => {
                        renameat_with(new, new_name, folder, name, RenameFlags::EXCHANGE)
                    }
                    Err(_) => continue,
                },
                Done::SetAside(_, aside) => {
                    let (beside, _) = self.staging.tree_name();
                    renameat(beside, aside, folder, name)
                }
            };
        }
    }
}

/// Moves to a name that is not taken: by a rename that refuses to replace; where the file system
/// has none, by a link, which a directory cannot have; where it has no links, by a look and a
/// rename.
fn move_new(from: impl AsFd, name: &Path, to: impl AsFd, name_there: &Path) -> Result<(), Errno> {
    match renameat_with(&from, name, &to, name_there, RenameFlags::NOREPLACE) {
        Err(error) if is_unsupported(error) => {}
        result => return result,
    }
    match linkat(&from, name, &to, name_there, AtFlags::empty()) {
        Ok(()) => return unlinkat(&from, name, AtFlags::empty()),
        Err(Errno::EXIST) => return Err(Errno::EXIST),
        Err(_) => {}
    }
    match statat(&to, name_there, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(Errno::NOENT) => renameat(&from, name, &to, name_there),
        Err(error) => Err(error),
    }
}

/// The answers of file systems that lack a kind of rename.
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Whether the output directory exists.
fn is_there(output: &Path) -> Result<bool, CommandError> {
    let shown = plain(&output.to_string_lossy());
    match fs::metadata(output) {
        Ok(found) if found.is_dir() => Ok(true),
        Ok(_) => Err(CommandError::Refused(format!(
            "{shown} is not a directory; name another output directory"
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match fs::symlink_metadata(output) {
                Ok(_) => Err(CommandError::Refused(format!(
                    "{shown} is a link to where nothing is; name another output directory"
                ))),
                Err(_) if output.file_name().is_none() => {
                    Err(CommandError::NotFound(format!("{shown}: no such file or directory")))
                }
                Err(_) => Ok(false),
            }
        }
        Err(error) => Err(CommandError::os(format!("looking at {shown}"), error)),
    }
}

fn parent_of(output: &Path) -> &Path {
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}
