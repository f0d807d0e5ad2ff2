// SPDX-License-Identifier: Apache-2.0
//! The `stanchion` command, on the engine's public API only.
//!
//! Results go to stdout, everything else to stderr; [`error`] has the exit codes.

mod ask;
mod binding;
mod checkpoint;
mod command_line;
mod config;
mod context;
mod drive_files;
mod error;
mod interrupt;
mod log;
mod options;
mod output;
mod pages;
mod progress_bar;
mod record;
mod subcommand;
mod survey;
mod text;
mod tree;
mod values;

use std::process::ExitCode;

use crate::context::Context;
use crate::error::CommandError;
use crate::interrupt::Interrupt;
use crate::output::Output;

fn main() -> ExitCode {
    if let Some(code) = pages::made_if_asked(command_line::command) {
        return code;
    }
    let words: Vec<_> = std::env::args_os().collect();
    let invocation = match command_line::parse(words.clone()) {
        Ok(invocation) => invocation,
        Err(error) => return command_line::report(&error, &words),
    };
    let options = invocation.options.clone();
    let output = Output { json: options.output.json, quiet: options.output.quiet };
    log::start(output, options.output.verbose);
    let result = Interrupt::install()
        .map_err(|error| CommandError::os("catching signals", error))
        .and_then(|interrupt| invocation.run(&Context::new(options, output, interrupt)));
    output.end(result)
}
