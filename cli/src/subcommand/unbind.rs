// SPDX-License-Identifier: Apache-2.0
//! `stanchion unbind`: gives drives back to the kernel.

use std::path::Path;

use clap::Args;
use stanchion_engine::host::binding::Binder;

use super::Subcommand;
use crate::binding;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;

const EXAMPLES: &str = "\
Examples:
  stanchion unbind --drive pcie:0000:05:00.0      back to the kernel's driver, as /dev/nvme...

Ends when the block device is back.";

/// Arguments of `stanchion unbind`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Unbind {
    /// Show what would be written to sysfs; write nothing
    #[arg(long)]
    dry_run: bool,
}

impl Subcommand for Unbind {
    const NAME: &'static str = "unbind";
    const ABOUT: &'static str = "Give drives back to the kernel";
    const GROUPS: &'static [Group] = &[Group::Drives, Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let root = Path::new("/");
        let functions = binding::functions(root, &context.required_drives()?)?;
        let binder = Binder::below(root);
        let plan = binder.plan_unbind(&functions)?;
        binding::apply(Self::NAME, &binder, &plan, self.dry_run, context.output)
    }
}
