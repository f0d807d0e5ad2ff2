// SPDX-License-Identifier: Apache-2.0
//! On a terminal the command asks before it destroys data, and shows its progress. `script` makes
//! the terminal.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write as _;
use std::process::{Command, Stdio};

use common::{Place, page_options};

/// Exit code and screen of a run on a terminal where this is typed; `None`, with a message,
/// where there is no `script`.
fn on_terminal(place: &Place, arguments: &[&str], typed: &str) -> Option<(i32, String)> {
    let drives: Vec<String> = place.drives.iter().map(|drive| format!("--drive {drive}")).collect();
    let line = format!(
        "{} {} {} {}",
        env!("CARGO_BIN_EXE_stanchion"),
        arguments.join(" "),
        drives.join(" "),
        page_options(arguments).join(" ")
    );
    let started = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .current_dir(place.directory())
        .env_remove("STANCHION_DRIVES")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        eprintln!("skipped: there is no `script` to make a terminal");
        return None;
    };
    // Kept open until the end: closing the terminal would end the command.
    let mut keyboard = child.stdin.take().unwrap();
    keyboard.write_all(typed.as_bytes()).unwrap();
    keyboard.flush().unwrap();
    let output = child.wait_with_output().unwrap();
    drop(keyboard);
    let screen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!screen.contains("panicked"), "{screen}");
    Some((output.status.code().unwrap(), screen))
}

#[test]
fn format_asks_for_the_end_of_each_serial() {
    let place = Place::with_pool(2);
    let shown = place.run(&["show", "--json"]).ok().json();
    let before = shown["pool"]["uuid"].clone();
    let serial = |drive: usize| shown["pool"]["drives"][drive]["serial"].as_str().unwrap();
    let end = |drive: usize| &serial(drive)[serial(drive).len() - 4..];
    let wrong = format!("{}\n{}\n", end(0), "none");
    let Some((code, screen)) = on_terminal(&place, &["format"], &wrong) else { return };
    assert_eq!(code, 12, "{screen}");
    assert!(screen.contains("will be lost") && screen.contains(serial(1)), "{screen}");
    assert!(screen.contains("nothing was written"), "{screen}");
    assert_eq!(place.run(&["show", "--json"]).ok().json()["pool"]["uuid"], before);

    let right = format!("{}\n{}\n", end(0), end(1));
    let Some((code, screen)) = on_terminal(&place, &["format"], &right) else { return };
    assert_eq!(code, 0, "{screen}");
    assert_ne!(place.run(&["show", "--json"]).ok().json()["pool"]["uuid"], before);
}

#[test]
fn rm_asks_unless_yes_is_given() {
    let place = Place::with_pool(1);
    place.file("model", &[1; 5000]);
    place.run(&["save", "a@1", "model"]).ok();
    place.run(&["rm", "a@1"]).fails(12, &["a@1 would be removed", "--yes"]);
    assert_eq!(place.checkpoints(), 1);
    let Some((code, screen)) = on_terminal(&place, &["rm", "a@1"], "n\n") else { return };
    assert_eq!(code, 12, "{screen}");
    assert!(screen.contains("a@1 (4.9 KiB, committed"), "{screen}");
    assert_eq!(place.checkpoints(), 1);
    let Some((code, screen)) = on_terminal(&place, &["rm", "a@1"], "y\n") else { return };
    assert_eq!((code, place.checkpoints()), (0, 0), "{screen}");
    place.run(&["save", "a@2", "model"]).ok();
    let Some((code, screen)) = on_terminal(&place, &["rm", "--yes", "a@2"], "") else { return };
    assert_eq!((code, place.checkpoints()), (0, 0), "{screen}");
}

#[test]
fn progress_is_for_terminals_only() {
    let place = Place::with_pool_of(1, 256 * common::MIB);
    place.sparse_file("big", 150 * common::MIB);
    let quiet = place.run(&["save", "a@1", "big"]).ok();
    assert!(quiet.stderr.is_empty(), "{quiet:?}");
    place.run(&["rm", "--yes", "a@1"]).ok();
    let Some((code, screen)) = on_terminal(&place, &["save", "a@1", "big"], "") else { return };
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains("saving a@1 [") && screen.contains("left"), "{screen}");
}
