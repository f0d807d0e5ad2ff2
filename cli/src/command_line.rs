// SPDX-License-Identifier: Apache-2.0
//! Parses the command line into a subcommand with its options.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::context::Context;
use crate::error::CommandError;
use crate::options::{Group, Options};
use crate::output::Output;
use crate::subcommand::{ALL, Entry, Version};

const ABOUT: &str = "\
Saves deep-learning checkpoints to whole drives, and restores them.

`stanchion format` makes a pool of whole drives. A checkpoint NAME@STEP becomes visible all at once when \
it is durable, or not at all; every byte is checked when it is read.";

const EXAMPLES: &str = "\
Examples:
  Make a pool of two files, save two files as a checkpoint, and restore them:
    export STANCHION_DRIVES=$'/data/a.img\\n/data/b.img'
    stanchion format --size 4GiB --yes
    stanchion save llama@100 model.safetensors optimizer.pt
    stanchion list
    stanchion restore llama@100 -o restored/

A drive is named by its address: a file, a block device (/dev/nvme0n1), a PCI function for SPDK
(pcie:0000:04:00.0), or an SPDK transport ID
(\"trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn...\"), with hostnqn:nqn...
where the target admits only hosts that it knows by name.
Drives are taken from --drive, else from --config, else from STANCHION_DRIVES (one per line), else
from /etc/stanchion/stanchion.toml. Name every drive of a pool, in any order.

Exit codes: 0 ok, 1 failed, 2 usage, 3 data damaged, 4 partly done, 10 not formatted or not found,
11 busy, 12 refused for safety, 13 environment not ready, 130 interrupted.";

/// The whole command line. Man pages and shell completions are made from it as well.
pub fn command() -> Command {
    let top = Command::new("stanchion")
        .version(env!("CARGO_PKG_VERSION"))
        .override_usage("stanchion [OPTIONS] <SUBCOMMAND>")
        .after_help(EXAMPLES)
        .arg_required_else_help(true)
        // Not clap's, which would ignore --json.
        .disable_version_flag(true)
        .arg(
            Arg::new("version")
                .short('V')
                .long("version")
                .action(ArgAction::SetTrue)
                .help("Print the version"),
        )
        .subcommands(ALL.iter().map(|entry| (entry.command)()));
    let top = Group::ALL.into_iter().fold(top, |command, group| group.add_to(command));
    // The groups bring their own.
    top.about("Deep-learning checkpoints on whole drives").long_about(ABOUT)
}

/// What the command line asks for.
pub struct Invocation {
    entry: Entry,
    matches: ArgMatches,
    /// The shared options.
    pub options: Options,
}

impl Invocation {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Those of the subcommand.
    pub fn run(&self, context: &Context) -> Result<(), CommandError> {
        (self.entry.run)(&self.matches, context)
    }
}

/// Reads the command line.
///
/// # Errors
/// A mistake, or a request for help; clap's error kind says which.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Invocation, clap::Error> {
    let mut command = command();
    let mut top = command.try_get_matches_from_mut(words)?;
    let before = Options::read(&top, &Group::ALL)?;
    let given = match top.remove_subcommand() {
        _ if top.get_flag("version") => {
            let entry = Entry::of::<Version>();
            let matches = (entry.command)().try_get_matches_from([entry.name])?;
            return Ok(Invocation { entry, matches, options: before });
        }
        Some((name, matches)) => ALL.into_iter().find(|e| e.name == name).map(|e| (e, matches)),
        None => None,
    };
    let Some((entry, matches)) = given else {
        let text = "a subcommand is missing; `stanchion --help` lists them";
        return Err(command.error(ErrorKind::MissingSubcommand, text));
    };
    for group in Group::ALL.iter().filter(|group| !entry.groups.contains(group)) {
        if let Some(option) = group.given_in(&top) {
            let text =
                format!("{option} is not an option of `stanchion {}`; leave it out", entry.name);
            return Err(command.error(ErrorKind::UnknownArgument, text));
        }
    }
    let options = before.and_then(Options::read(&matches, entry.groups)?);
    Ok(Invocation { entry, matches, options })
}

/// Prints help, or a mistake on the command line, and gives the exit code.
pub fn report(error: &clap::Error, words: &[OsString]) -> ExitCode {
    let mut options = words.iter().skip(1).take_while(|word| *word != OsStr::new("--"));
    let json = options.any(|word| word == "--json");
    if json && error.kind() != ErrorKind::DisplayHelp {
        let text = error.render().to_string();
        let text = text.trim().trim_start_matches("error: ").to_owned();
        return Output { json, quiet: false }.end(Err(CommandError::Usage(text)));
    }
    // A reader that has closed the pipe has seen what it wanted.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Invocation, clap::Error> {
        parse(std::iter::once("stanchion").chain(words.iter().copied()).map(OsString::from))
    }

    fn mistake(words: &[&str]) -> String {
        parsed(words).err().map(|error| error.to_string()).unwrap()
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn options_may_stand_on_both_sides() {
        let before = ["--drive", "a", "--queue-depth", "4"];
        let after = ["list", "--drive", "b", "--json", "--queue-depth", "8"];
        let options = parsed(&[&before[..], &after].concat()).unwrap().options;
        assert_eq!(options.drives.drives, ["a", "b"]);
        assert!(options.output.json && !options.output.quiet);
        assert_eq!(options.engine.queue_depth, Some(8));
    }

    #[test]
    fn only_the_options_that_a_subcommand_uses_are_taken() {
        for words in [
            &["--degraded", "list"][..],
            &["--cores", "1", "format"],
            &["--drive", "a", "plan", "--size", "1GB", "--iteration", "1"],
        ] {
            let text = mistake(words);
            assert!(text.contains(words[0]) && text.contains("is not an option of"), "{text}");
        }
        assert!(mistake(&["list", "--degraded"]).contains("--degraded"));
        assert!(parsed(&["rm", "a@1", "--degraded"]).unwrap().options.write.degraded);
    }

    #[test]
    fn help_shows_own_options_first() {
        for entry in ALL {
            let help = (entry.command)().render_help().to_string();
            let own = help.find("\nOptions:\n").unwrap();
            for (group, heading) in [
                (Group::Drives, "Pool options:"),
                (Group::Engine, "Engine options:"),
                (Group::Output, "Output options:"),
            ] {
                let at = help.find(heading);
                assert_eq!(
                    at.is_some(),
                    entry.groups.contains(&group),
                    "{}: {heading}",
                    entry.name
                );
                assert!(at.is_none_or(|at| at > own), "{}: {heading}", entry.name);
            }
        }
    }

    /// Help wraps at 100 columns; a longer line would leave single words on a line.
    #[test]
    fn texts_after_the_options_are_not_wrapped() {
        let commands = ALL.iter().map(|entry| (entry.command)()).chain([command()]);
        for text in commands.filter_map(|command| command.get_after_help().cloned()) {
            for line in text.to_string().lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }

    #[test]
    fn a_subcommand_is_needed() {
        assert!(mistake(&["--quiet"]).contains("a subcommand is missing"));
        assert!(mistake(&["nonsense"]).contains("nonsense"));
        assert_eq!(parsed(&["--version", "--json"]).unwrap().entry.name, "version");
    }
}
