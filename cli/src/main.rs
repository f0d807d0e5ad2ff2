//! The `stanchion` command, on the engine's public API only.
//!
//! Data goes to stdout, everything else to stderr; [`exit`] has the exit codes.

mod args;
mod bench;
mod bind;
mod config;
mod doctor;
mod drives;
mod exit;
mod format;
mod interrupt;
mod ladder;
mod list;
mod log;
mod output;
mod pages;
mod plan;
mod progress;
mod restore;
mod rm;
mod save;
mod show;
mod verify;
mod version;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use crate::args::{Cli, Command};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;

fn main() -> ExitCode {
    if let Some(code) = pages::made_if_asked(Cli::command) {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return told_by_clap(&error),
    };
    let later = match &cli.command {
        Command::Drives(with) => &with.common,
        Command::Format(with) => &with.common,
        Command::List(with) => &with.common,
        Command::Show(with) => &with.common,
        Command::Save(with) => &with.common,
        Command::Restore(with) => &with.common,
        Command::Verify(with) => &with.common,
        Command::Rm(with) => &with.common,
        Command::Bench(with) => &with.common,
        Command::Doctor(with) => &with.common,
        Command::Bind(with) => &with.common,
        Command::Unbind(with) => &with.common,
        Command::Plan(with) => &with.common,
        Command::Version(with) => &with.common,
    };
    let common = cli.common.clone().and_then(later);
    let output = Output { json: common.json, quiet: common.quiet };
    log::start(common.verbose, common.quiet);
    let result = Interrupt::install()
        .map_err(|error| Failure::os("catching signals", error))
        .and_then(|interrupt| match &cli.command {
            Command::Drives(with) => drives::run(&with.own, &common, output),
            Command::Format(with) => format::run(&with.own, &common, output),
            Command::List(with) => list::run(&with.own, &common, output),
            Command::Show(with) => show::run(&with.own, &common, output),
            Command::Save(with) => save::run(&with.own, &common, output, &interrupt),
            Command::Restore(with) => restore::run(&with.own, &common, output, &interrupt),
            Command::Verify(with) => verify::run(&with.own, &common, output),
            Command::Rm(with) => rm::run(&with.own, &common, output),
            Command::Bench(with) => bench::run(&with.own, &common, output, &interrupt),
            Command::Doctor(with) => doctor::run(&with.own, &common, output),
            Command::Bind(with) => bind::bind(&with.own, &common, output),
            Command::Unbind(with) => bind::unbind(&with.own, &common, output),
            Command::Plan(with) => plan::run(&with.own, output),
            Command::Version(with) => version::run(&with.own, output),
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.tell(output.json)),
    }
}

/// Help, the version, and mistakes on the command line.
fn told_by_clap(error: &clap::Error) -> ExitCode {
    let helps = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
    let as_json = std::env::args_os().any(|argument| argument == "--json");
    if as_json && !helps.contains(&error.kind()) {
        let text = error.render().to_string();
        let text = text.trim().trim_start_matches("error: ").to_owned();
        return ExitCode::from(Failure::Usage(text).tell(true));
    }
    // A reader that has gone away has seen what it wanted to see.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
