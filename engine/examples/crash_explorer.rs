// SPDX-License-Identifier: Apache-2.0
//! The program behind `scripts/crash-test`: explores crash images and prints what it found.

use std::process::ExitCode;

use stanchion_engine::internals::crash::{CrashOptions, explore};

const USAGE: &str = "\
Usage: crash_explorer [--images N] [--seed S] [--threads T] [--only ROUND.ITEM] [--bug NAME]

  --images N          stop after N distinct crash images (default 100000)
  --seed S            where all choices come from (default 1)
  --threads T         worker threads (default: one for each core); the result does not depend on it
  --only ROUND.ITEM   only this item, for repeating a violation
  --bug NAME          plant a bug (a build with the feature planted-bugs)
  --list-bugs         print the bugs";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("crash_explorer: {message}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = CrashOptions { images: 100_000, seed: 1, threads, only: None };
    let mut bug = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--images" => options.images = number(&value()?)?,
            "--seed" => options.seed = number(&value()?)?,
            "--threads" => options.threads = number(&value()?)? as usize,
            "--only" => {
                let value = value()?;
                let (round, item) = value.split_once('.').ok_or("--only takes ROUND.ITEM")?;
                options.only = Some((number(round)?, number(item)? as usize));
            }
            "--bug" => bug = Some(value()?),
            "--list-bugs" => {
                for bug in stanchion_engine::internals::planted::Bug::ALL {
                    println!("{}", bug.name());
                }
                return Ok(ExitCode::SUCCESS);
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if let Some(name) = &bug {
        plant(name)?;
    }
    let CrashOptions { images, seed, .. } = options;
    match explore(options) {
        Ok(report) => {
            println!(
                "crash-test: {} images ({} distinct), {} sequences, 0 violations, seed {seed}",
                report.images, report.distinct, report.sequences
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(violation) => {
            let (round, item) = violation.at;
            let bug = bug.map_or_else(String::new, |name| format!(" --bug {name}"));
            println!("crash-test: violation: {}", violation.what);
            println!(
                "replay: scripts/crash-test --images {images} --seed {seed} --only {round}.{item}{bug}"
            );
            Ok(ExitCode::FAILURE)
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

#[cfg(feature = "planted-bugs")]
fn plant(name: &str) -> Result<(), String> {
    use stanchion_engine::internals::planted::{Bug, plant};

    let bug = Bug::ALL.into_iter().find(|bug| bug.name() == name);
    plant(Some(bug.ok_or(format!("{name} is not a bug that can be planted"))?));
    Ok(())
}

#[cfg(not(feature = "planted-bugs"))]
fn plant(_: &str) -> Result<(), String> {
    Err("built without the feature planted-bugs".into())
}
