// SPDX-License-Identifier: Apache-2.0
//! The subcommands: one file each, with its arguments, what it does, and what it prints.
//!
//! A new one is a file with a type that implements [`Subcommand`], and a line in [`ALL`].

mod bench;
mod bind;
mod doctor;
mod drives;
mod format;
mod interface;
mod list;
mod plan;
mod restore;
mod rm;
mod save;
mod show;
mod unbind;
mod verify;
mod version;

use clap::{ArgMatches, Command};

use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;

pub use interface::Subcommand;
pub use version::Version;

/// A subcommand in the table.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its name on the command line.
    pub name: &'static str,
    /// The shared options that it uses.
    pub groups: &'static [Group],
    /// Its command line: first its own options, then the shared ones.
    pub command: fn() -> Command,
    /// Reads its own arguments and runs it.
    pub run: fn(&ArgMatches, &Context) -> Result<(), CommandError>,
}

impl Entry {
    /// The entry of a subcommand.
    pub const fn of<T: Subcommand>() -> Entry {
        Entry { name: T::NAME, groups: T::GROUPS, command: command::<T>, run: run::<T> }
    }
}

fn command<T: Subcommand>() -> Command {
    let own = T::augment_args(Command::new(T::NAME));
    let all = T::GROUPS.iter().fold(own, |command, group| group.add_to(command));
    // The groups bring their own.
    all.about(T::ABOUT).long_about(None)
}

fn run<T: Subcommand>(matches: &ArgMatches, context: &Context) -> Result<(), CommandError> {
    let own = T::from_arg_matches(matches);
    own.map_err(|error| CommandError::Usage(error.to_string()))?.run(context)
}

/// Every subcommand, in the order of the help.
pub const ALL: [Entry; 14] = [
    Entry::of::<drives::Drives>(),
    Entry::of::<format::Format>(),
    Entry::of::<list::List>(),
    Entry::of::<show::Show>(),
    Entry::of::<save::Save>(),
    Entry::of::<restore::Restore>(),
    Entry::of::<verify::Verify>(),
    Entry::of::<rm::Rm>(),
    Entry::of::<bench::Bench>(),
    Entry::of::<doctor::Doctor>(),
    Entry::of::<bind::Bind>(),
    Entry::of::<unbind::Unbind>(),
    Entry::of::<plan::PlanArgs>(),
    Entry::of::<Version>(),
];
