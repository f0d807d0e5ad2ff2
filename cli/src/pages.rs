// SPDX-License-Identifier: Apache-2.0
//! Man pages and shell completions, made from the definition of the command line: `stanchion pages
//! DIRECTORY`, which `scripts/install` runs. It is not listed among the subcommands.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// Makes the pages when the command line is `stanchion pages DIRECTORY`.
pub fn made_if_asked(command: impl FnOnce() -> Command) -> Option<ExitCode> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let [word, directory] = words.as_slice() else { return None };
    if word != OsStr::new("pages") {
        return None;
    }
    Some(match write(command(), Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stanchion: error: writing pages into {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    })
}

/// `man1/` with a page for the command and one for each subcommand, and `completions/`.
fn write(command: Command, directory: &Path) -> io::Result<()> {
    let man = directory.join("man1");
    let completions = directory.join("completions");
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(command.clone().disable_help_subcommand(true), man)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command.clone(), "stanchion", &completions)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_visible_subcommand_has_a_page() {
        let shown = Command::new("save").about("Save files").arg(clap::arg!(<FILE>));
        let command = Command::new("stanchion").subcommand(shown);
        let directory = tempfile::tempdir().unwrap();
        write(command, directory.path()).unwrap();
        let page = fs::read_to_string(directory.path().join("man1/stanchion-save.1")).unwrap();
        assert!(page.contains("Save files") && page.contains("FILE"), "{page}");
        let top = fs::read_to_string(directory.path().join("man1/stanchion.1")).unwrap();
        assert!(top.contains("stanchion\\-save(1)"), "{top}");
        for name in ["stanchion.bash", "stanchion.fish", "_stanchion"] {
            assert!(directory.path().join("completions").join(name).is_file(), "{name}");
        }
    }
}
