// SPDX-License-Identifier: Apache-2.0
//! A restore writes all or nothing: what is in the way, full disks, signals, kills, and file
//! systems that lack a kind of rename.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{MIB, Numbers, Place, run, signal, wait_for_io};

/// A pool with two steps of one tree, and an output directory with the older one.
fn two_steps() -> Place {
    let place = Place::with_pool(1);
    for step in ["old", "new"] {
        for name in ["run/a", "run/b/c", "run/z"] {
            place.deep_file(name, format!("{step} {name}").as_bytes());
        }
        let name = format!("{step}@1");
        place.run(&["save", &name, "run"]).ok();
    }
    place.run(&["restore", "old", "-o", "out"]).ok();
    place
}

fn partials(place: &Place) -> usize {
    let mut command = Command::new("find");
    command.args([".", "-name", "*.partial*"]).current_dir(place.directory());
    run(command).ok().stdout.lines().count()
}

#[test]
fn what_is_in_the_way_is_found_before_anything_is_written() {
    let place = two_steps();
    let unchanged = place.listing("out");
    place.run(&["restore", "new", "-o", "out"]).fails(12, &["out/run/a exists", "--force"]);
    // A directory where the last file is to be.
    fs::remove_file(place.path("out/run/z")).unwrap();
    fs::create_dir(place.path("out/run/z")).unwrap();
    let before = place.listing("out");
    let refused = place.run(&["restore", "new", "-o", "out", "--force"]);
    refused.fails(12, &["out/run/z is a directory"]);
    assert_eq!((place.read("out/run/a"), place.listing("out")), (b"old run/a".into(), before));
    fs::remove_dir(place.path("out/run/z")).unwrap();
    // A file where a directory is to be.
    fs::remove_dir_all(place.path("out/run/b")).unwrap();
    place.file("out/run/b", b"mine");
    let refused = place.run(&["restore", "new", "-o", "out", "--force"]);
    refused.fails(12, &["out/run/b is not a directory"]);
    assert_eq!(
        (place.read("out/run/a"), place.read("out/run/b")),
        (b"old run/a".into(), b"mine".into())
    );
    place.run(&["restore", "new", "-o", "run/a"]).fails(12, &["run/a is not a directory"]);
    assert_eq!(partials(&place), 0);
    // A link in place of a file is replaced, and what it leads to stays.
    fs::remove_file(place.path("out/run/b")).unwrap();
    place.file("precious", b"precious");
    fs::remove_file(place.path("out/run/a")).unwrap();
    place.link("out/run/a", "../../precious");
    place.run(&["restore", "new", "-o", "out", "--force"]).ok();
    assert_eq!(
        (place.read("precious"), place.read("out/run/a")),
        (b"precious".into(), b"new run/a".into())
    );
    assert_ne!(place.listing("out"), unchanged);
}

#[test]
fn a_new_output_directory_appears_at_once_and_leaves_nothing_when_it_fails() {
    let place = two_steps();
    place.run(&["restore", "new", "-o", "deep/er/out"]).ok();
    place.same_trees("run", "deep/er/out/run");
    // The place is taken while the restore runs: nothing is replaced, what was made goes.
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "inject=renameat2:error=EEXIST"]);
    let inner = place.command(&["restore", "new", "-o", "other/out"]);
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(place.directory());
    let Some(outcome) = traced(command) else { return };
    outcome.fails(12, &["other/out was made by another program"]);
    assert!(!place.path("other").exists());
    assert_eq!(partials(&place), 0);
}

/// Runs under strace, if it can trace here.
fn traced(mut command: Command) -> Option<common::Outcome> {
    let mut probe = Command::new("strace");
    probe.args(["-qq", "-o", "/dev/null", "true"]).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: strace is missing, or may not trace");
        return None;
    }
    Some(common::Outcome::new(command.output().unwrap()))
}

#[test]
fn file_systems_without_links_and_without_a_safe_rename() {
    let place = two_steps();
    let restore = |injections: &[&str], arguments: &[&str]| {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null"]);
        for injection in injections {
            command.args(["-e", &format!("inject={injection}")]);
        }
        let inner = place.command(&[&["restore", "new"][..], arguments].concat());
        command.arg(inner.get_program()).args(inner.get_args()).current_dir(place.directory());
        traced(command)
    };
    let no_rename = "renameat2:error=EINVAL";
    let no_link = "linkat:error=EPERM";
    for (index, injections) in [&[no_rename][..], &[no_rename, no_link]].iter().enumerate() {
        let new = format!("new-{index}");
        let Some(outcome) = restore(injections, &["-o", &new]) else { return };
        outcome.ok();
        place.same_trees("run", &format!("{new}/run"));
        let there = format!("there-{index}");
        fs::create_dir(place.path(&there)).unwrap();
        restore(injections, &["-o", &there]).unwrap().ok();
        place.same_trees("run", &format!("{there}/run"));
        place.run(&["restore", "old", "-o", &there, "--force"]).ok();
        restore(injections, &["-o", &there, "--force"]).unwrap().ok();
        assert_eq!(place.read(&format!("{there}/run/b/c")), b"new run/b/c");
        restore(injections, &["-o", &there]).unwrap().fails(12, &["exists"]);
    }
    // Nothing works: the cause is named, and what was done is undone.
    let nothing = [no_rename, no_link, "renameat:error=EROFS"];
    let failed = restore(&nothing, &["-o", "failed"]).unwrap();
    failed.fails(1, &["writing failed", "Read-only file system"]);
    assert!(!place.path("failed").exists());
    let before = place.listing("out");
    for injections in
        [&nothing[..], &["renameat2:error=EIO:when=3"], &[no_rename, "renameat:error=EIO:when=4"]]
    {
        let failed = restore(injections, &["-o", "out", "--force"]).unwrap();
        failed.fails(1, &["writing out/run/"]);
        // Times of directories change when something in them is moved.
        let files = |listing: &str| -> Vec<String> {
            listing.lines().filter(|line| line.contains(" f ")).map(str::to_owned).collect()
        };
        assert_eq!(files(&place.listing("out")), files(&before));
        for name in ["run/a", "run/b/c", "run/z"] {
            assert_eq!(place.read(&format!("out/{name}")), format!("old {name}").as_bytes());
        }
    }
    assert_eq!(partials(&place), 0);
}

#[test]
fn a_full_disk_leaves_nothing() {
    let place = Place::with_pool_of(1, 96 * MIB);
    let mut numbers = Numbers(9);
    for index in 0..20 {
        place.deep_file(&format!("run/{index}"), &numbers.bytes(1 << 20));
    }
    place.run(&["save", "run@1", "run"]).ok();
    fs::create_dir(place.path("small")).unwrap();
    let small = place.path("small");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=8m,mode=755", "tmpfs"]).arg(&small);
    if !mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: tmpfs cannot be mounted; run as root");
        return;
    }
    fs::create_dir(place.path("small/there")).unwrap();
    place.file("small/there/1", b"mine");
    let before = place.listing("small");
    let new = place.run(&["restore", "run", "-o", "small/a/b"]);
    let there = place.run(&["restore", "run", "-o", "small/there", "--force"]);
    let after = place.listing("small");
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    new.fails(1, &["writing small/a/b/run/", "No space left"]);
    there.fails(1, &["writing small/there/run/", "No space left"]);
    let without_times = |listing: &str| {
        listing
            .lines()
            .map(|line| line.split(' ').take(3).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    assert_eq!(without_times(&after), without_times(&before));
}

#[test]
fn signals_at_any_instant_leave_nothing_and_kills_what_the_next_restore_removes() {
    let place = Place::with_pool_of(1, 128 * MIB);
    let mut numbers = Numbers(21);
    for index in 0..60 {
        place.deep_file(&format!("run/{}/{index}", index % 5), &numbers.bytes(1 << 19));
    }
    place.run(&["save", "run@1", "run"]).ok();
    place.run(&["save", "old@1", "run/0"]).ok();
    let started = Instant::now();
    place.run(&["restore", "run", "-o", "out"]).ok();
    let usual_ms = started.elapsed().as_millis() as u64;
    fs::remove_dir_all(place.path("out")).unwrap();
    let (mut ended, mut whole, mut killed, mut early) = (0, 0, 0, 0);
    let names = ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "ALRM", "PWR", "34", "KILL"];
    for round in 0..50 {
        let name = names[round % names.len()];
        let is_there = round % 3 == 0;
        if is_there {
            fs::create_dir(place.path("out")).unwrap();
        }
        let child = place.start_with_hup("default", &["restore", "run", "-o", "out"]);
        std::thread::sleep(Duration::from_millis(numbers.below(usual_ms + 1)));
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        match (output.status.code(), output.status.signal()) {
            (Some(0), None) => {
                place.same_trees("run", "out/run");
                whole += 1;
            }
            (Some(130), None) => {
                assert!(place.names("out").is_empty(), "{name}: {:?}", place.names("out"));
                assert_eq!(place.path("out").exists(), is_there, "{name}");
                ended += 1;
            }
            (None, Some(9)) => {
                assert!(is_there || !place.path("out").exists() || place.path("out/run").exists());
                // Another restore of less removes what is left.
                place.run(&["restore", "old", "-o", if is_there { "out" } else { "other" }]).ok();
                let _ = fs::remove_dir_all(place.path("other"));
                killed += 1;
            }
            // Before the handlers are there, it ends as any process; nothing was made.
            (None, Some(_)) => {
                assert!(place.names("out").is_empty(), "{name}");
                early += 1;
            }
            other => panic!("{name}: {other:?} {}", String::from_utf8_lossy(&output.stderr)),
        }
        assert_eq!(partials(&place), 0, "{name}");
        let _ = fs::remove_dir_all(place.path("out"));
    }
    let counts = format!("{ended} ended, {whole} whole, {killed} killed, {early} early");
    eprintln!("{counts}");
    assert!(killed > 0 && ended > 5, "{counts}");
}

#[test]
fn a_restore_that_runs_keeps_its_folder() {
    let place = Place::with_pool_of(1, 512 * MIB);
    place.sparse_file("big.bin", 300 * MIB);
    place.file("small.bin", b"small");
    place.run(&["save", "big@1", "small.bin", "big.bin"]).ok();
    let child = place.start(&["restore", "big", "-o", "one"]);
    wait_for_io(&child, "wchar", 8 * MIB);
    place.run(&["restore", "big", "-o", "two", "--shard", "small.bin"]).ok();
    place.finish(child).ok();
    assert_eq!(place.names("one"), ["big.bin", "small.bin"]);
    assert_eq!(partials(&place), 0);
}
