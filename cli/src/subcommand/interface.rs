// SPDX-License-Identifier: Apache-2.0
//! What every subcommand is.

use clap::Args;

use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;

/// One subcommand: the type is its own arguments.
pub trait Subcommand: Args {
    /// Its name on the command line.
    const NAME: &'static str;
    /// What it does, in one line.
    const ABOUT: &'static str;
    /// The shared options that it uses; those of output are always among them.
    const GROUPS: &'static [Group];

    /// Runs it.
    ///
    /// # Errors
    /// Why it did not do all of what was asked.
    fn run(&self, context: &Context) -> Result<(), CommandError>;
}
