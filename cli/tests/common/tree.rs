// SPDX-License-Identifier: Apache-2.0
//! Trees of files: made, and compared with what was restored.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use super::Place;

impl Place {
    /// Writes a file, with the directories above it.
    pub fn deep_file(&self, path: &str, bytes: &[u8]) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        self.file(path, bytes);
    }

    /// Makes a symbolic link, with the directories above it.
    pub fn link(&self, path: &str, target: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        symlink(target, self.path(path)).unwrap();
    }

    pub fn chmod(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Sets the time of the last change, of a link itself.
    pub fn touch(&self, path: &str, time: &str) {
        let mut command = Command::new("touch");
        command.args(["-h", "-m", "-d", time, path]).current_dir(self.directory());
        assert!(command.status().unwrap().success());
    }

    /// Everything below a directory: path, kind, mode, time of the last change, target.
    pub fn listing(&self, directory: &str) -> String {
        let mut command = Command::new("find");
        command.args([directory, "-mindepth", "1", "-printf", "%P %y %m %T@ %l\\n"]);
        let output = command.current_dir(self.directory()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        // A link's mode is not its own.
        let mut lines: Vec<String> =
            text.lines().map(|line| line.replace(" l 777 ", " l ")).collect();
        lines.sort();
        lines.join("\n")
    }

    /// The two directories have the same bytes, links, modes and times.
    #[track_caller]
    pub fn same_trees(&self, one: &str, other: &str) {
        let mut command = Command::new("diff");
        command.args(["-r", "--no-dereference", one, other]).current_dir(self.directory());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(self.listing(one), self.listing(other));
    }
}
