// SPDX-License-Identifier: Apache-2.0
//! How commands choose and end: waiting for a pool, each `--shard`, a stdout that is full.

#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use common::{MIB, Place, run, signal, wait_for_io};

#[test]
fn a_command_waits_for_a_pool_in_use() {
    let place = Place::with_pool_of(1, 512 * MIB);
    place.sparse_file("big.bin", 300 * MIB);
    place.file("small.bin", b"small");
    let start = || {
        let child = place.start(&["save", "big@1", "big.bin"]);
        wait_for_io(&child, "rchar", 8 * MIB);
        child
    };
    let child = start();
    let owner = format!("process {}", child.id());
    signal(&child, "STOP");
    let started = Instant::now();
    let busy = place.run(&["save", "s@1", "small.bin", "--wait", "0.5"]);
    assert!(started.elapsed() >= Duration::from_millis(500));
    assert!(busy.stderr.contains("waiting up to"), "{busy:?}");
    assert!(busy.stderr.contains(&child.id().to_string()), "{owner}: {busy:?}");
    busy.fails(11, &["in use by"]);
    let waiting = place.start(&["save", "s@1", "small.bin", "--wait", "60"]);
    signal(&child, "CONT");
    place.finish(waiting).ok();
    place.finish(child).ok();
    assert_eq!(place.checkpoints(), 2);
    place.run(&["list", "--wait", "-1"]).ended_with(2);
}

trait Ended {
    fn ended_with(self, code: i32);
}

impl Ended for common::Outcome {
    #[track_caller]
    fn ended_with(self, code: i32) {
        assert_eq!(self.code, code, "{self:?}");
    }
}

#[test]
fn each_shard_that_is_named_must_exist_and_names_come_before_patterns() {
    let place = Place::with_pool(1);
    for name in ["1.bin", "[1].bin", "a"] {
        place.file(name, name.as_bytes());
    }
    place.run(&["save", "x@1", "1.bin", "[1].bin", "a"]).ok();
    let typo = place.run(&["restore", "x", "-o", "out", "--shard", "a", "--shard", "typo"]);
    typo.fails(10, &["no shard of x@1 matches typo"]);
    assert!(!place.path("out").exists());
    place.run(&["restore", "x", "-o", "out", "--shard", "[1].bin"]).ok();
    assert_eq!(place.names("out"), ["[1].bin"]);
    place.run(&["restore", "x", "-o", "no", "--shard", "[z"]).fails(2, &["nor a pattern"]);
}

#[test]
fn work_that_is_done_stays_done_when_stdout_is_full() {
    let place = Place::with_pool(1);
    place.file("model", b"model");
    let full = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        // Opened for each run: the write fails, not the open.
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        run(command).ok()
    };
    for json in [&[][..], &["--json"]] {
        let saved = full(&[&["save", "a@1", "model"][..], json].concat());
        assert!(saved.stderr.contains("a@1 was saved, in generation"), "{saved:?}");
        full(&[&["save", "b@1", "model"][..], json].concat());
        let restored = full(&[&["restore", "a", "-o", "out", "--force"][..], json].concat());
        assert!(restored.stderr.contains("a@1 was restored"), "{restored:?}");
        assert_eq!(place.read("out/model"), b"model");
        let removed = full(&[&["rm", "a@1", "b@1", "--yes"][..], json].concat());
        assert!(removed.stderr.contains("removed"), "{removed:?}");
        assert_eq!(place.checkpoints(), 0);
    }
    // What only reports has not done its work.
    let mut command = place.command(&["list", "--json"]);
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(run(command).code, 1);
}

#[test]
fn names_that_are_no_text_are_shown_and_do_not_break_json() {
    let place = Place::with_pool(1);
    place.file("model", b"model");
    place.run(&["save", "a@1", "model"]).ok();
    let out = OsStr::from_bytes(b"caf\xe9\x1b[2J");
    let restore = |options: &[&str]| {
        let mut command = place.command(&["restore", "a", "-o"]);
        // The output directory follows its option.
        let inner: Vec<_> = command.get_args().map(OsStr::to_owned).collect();
        command = place.bare(&["restore", "a", "--drive", "a.img", "--huge-pages", "off", "-o"]);
        assert!(inner.len() > 3);
        command.arg(out).args(options);
        run(command)
    };
    let report = restore(&["--json"]).ok().json();
    assert_eq!(report["files"].as_array().unwrap().len(), 1);
    let refused = restore(&[]);
    assert!(!refused.stderr.contains('\x1b'), "{refused:?}");
    refused.fails(12, &["exists"]);
    assert_eq!(fs::read(place.directory().join(out).join("model")).unwrap(), b"model");
    let blank = place.run_on(&["a.img "], &["list"]);
    blank.fails(2, &["\"a.img \"", "blank"]);
}

#[test]
fn a_pool_that_is_full_of_checkpoints_says_how_to_make_room() {
    let place = Place::with_pool(1);
    place.file("e", b"");
    let most = place.run(&["show", "--json"]).ok().json()["pool"]["max_checkpoint_count"].take();
    let most = most.as_u64().unwrap();
    assert!(most < 100, "{most}");
    for step in 0..most {
        place.run(&["save", &format!("e@{step}"), "e"]).ok();
    }
    let full = place.run(&["save", "more@1", "e"]);
    assert!(!full.stderr.contains("close"), "{full:?}");
    full.fails(1, &["the limit is", "stanchion rm"]);
}
