// SPDX-License-Identifier: Apache-2.0
//! A pool that loses a drive, by the commands that a user types.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::{Numbers, Place};

const SIZE: &str = "48MiB";

/// A mirror of three drives with one checkpoint, and its content.
fn mirrored() -> (Place, Vec<u8>) {
    let place = Place::empty();
    let mut arguments = vec!["format", "--redundancy", "mirror", "--size", SIZE, "--yes"];
    for drive in ["a.img", "b.img", "c.img"] {
        arguments.extend(["--drive", drive]);
    }
    place.run_bare(&arguments).ok();
    let content = Numbers(11).bytes(7_000_001);
    place.file("model.bin", &content);
    place.run_bare(&with(&["a.img", "b.img", "c.img"], &["save", "llama@1", "model.bin"])).ok();
    (place, content)
}

fn with<'a>(drives: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    let drives = drives.iter().flat_map(|drive| ["--drive", drive]);
    command.iter().copied().chain(drives).collect()
}

#[track_caller]
fn restores(place: &Place, drives: &[&str], name: &str, content: &[u8]) {
    let _ = fs::remove_dir_all(place.path("out"));
    place.run_bare(&with(drives, &["restore", name, "-o", "out"])).ok();
    assert!(place.read("out/model.bin") == content, "{name} was restored with other bytes");
}

#[test]
fn a_mirror_goes_on_without_a_drive_and_is_whole_again() {
    let (place, content) = mirrored();
    let (all, left) = (["a.img", "b.img", "c.img"], ["a.img", "c.img"]);
    fs::rename(place.path("b.img"), place.path("away.img")).unwrap();

    restores(&place, &all, "llama@1", &content);
    let listed = place.run_bare(&with(&left, &["list", "--json"])).ok().json();
    assert_eq!(listed["checkpoints"][0]["availability"], "one_copy");
    let save = ["save", "llama@2", "model.bin"];
    place.run_bare(&with(&left, &save)).fails(10, &["missing", "--degraded"]);
    place.run_bare(&with(&left, &[&save[..], &["--degraded"]].concat())).ok();
    // The pool keeps the decision: from now on no flag is needed.
    place.run_bare(&with(&left, &["save", "llama@3", "model.bin"])).ok();

    let back = ["away.img", "a.img", "c.img"];
    place.run_bare(&with(&back, &["list"])).fails(12, &["out of date", "--replacement"]);
    place.sparse_file("new.img", 48 << 20);
    let repair = ["verify", "--repair", "--replacement", "new.img", "--json"];
    let report = place.run_bare(&with(&left, &repair)).ok().json();
    assert_eq!(report["rebuilt_serials"].as_array().unwrap().len(), 1);
    let whole = ["new.img", "a.img", "c.img"];
    place.run_bare(&with(&whole, &["verify"])).ok();
    let listed = place.run_bare(&with(&whole, &["list", "--json"])).ok().json();
    for checkpoint in listed["checkpoints"].as_array().unwrap() {
        assert_eq!(checkpoint["availability"], "whole", "{checkpoint}");
    }
    // Any other drive may be lost now.
    restores(&place, &["new.img", "c.img"], "llama@1", &content);
    restores(&place, &["new.img", "a.img"], "llama@2", &content);
    restores(&place, &["new.img", "a.img"], "llama@3", &content);
}

#[test]
fn rot_on_one_drive_of_a_mirror_is_read_past_and_repaired() {
    let (place, content) = mirrored();
    let drives = ["a.img", "b.img", "c.img"];
    // The data area, from behind the metadata to before the last labels.
    let mut bytes = place.read("a.img");
    bytes[8 << 20..40 << 20].iter_mut().for_each(|byte| *byte ^= 0x5A);
    fs::write(place.path("a.img"), bytes).unwrap();
    restores(&place, &drives, "llama@1", &content);
    place.run_bare(&with(&drives, &["verify"])).fails(3, &["--repair"]);
    let repaired = place.run_bare(&with(&drives, &["verify", "--repair"])).ok();
    assert!(repaired.stdout.contains("repaired from its copy"), "{repaired:?}");
    place.run_bare(&with(&drives, &["verify"])).ok();
}

#[test]
fn without_copies_what_is_lost_is_named_and_the_rest_restores() {
    let place = Place::empty();
    let drives = ["a.img", "b.img"];
    place.run_bare(&with(&drives, &["format", "--size", SIZE, "--yes"])).ok();
    let small = Numbers(3).bytes(1000);
    place.file("model.bin", &small);
    place.run_bare(&with(&drives, &["save", "small@1", "model.bin"])).ok();
    place.file("model.bin", &Numbers(4).bytes(5 << 20));
    place.run_bare(&with(&drives, &["save", "large@1", "model.bin"])).ok();
    let listed = place.run_bare(&with(&["a.img"], &["list"])).ok();
    let line = |name: &str| listed.stdout.lines().find(|line| line.contains(name)).unwrap();
    assert!(
        line("large@1").contains("lost with") && line("small@1").contains("whole"),
        "{listed:?}"
    );
    restores(&place, &["a.img"], "small@1", &small);
    let restore = ["restore", "large@1", "-o", "out2"];
    place.run_bare(&with(&["a.img"], &restore)).fails(1, &["the drive is gone"]);
    assert!(place.names("out2").is_empty());
}

#[test]
fn a_drive_that_was_not_named_keeps_its_place() {
    let (place, content) = mirrored();
    let all = ["a.img", "b.img", "c.img"];
    let shown = place.run_bare(&with(&all, &["show", "--json"])).ok().json();
    // In the order of the format.
    let drives = &shown["pool"]["drives"];
    let serial = |number: usize| drives[number]["serial"].as_str().unwrap().to_owned();
    let (lost, unnamed) = (serial(0), serial(1));
    fs::rename(place.path("a.img"), place.path("away.img")).unwrap();
    place.sparse_file("new.img", 48 << 20);
    let repair = ["verify", "--repair", "--replacement", "new.img"];
    let unclear = place.run_bare(&with(&["c.img"], &repair));
    unclear.fails(2, &["--replaces", &lost, &unnamed]);
    let named = [&repair[..], &["--replaces", &lost]].concat();
    place.run_bare(&with(&["c.img"], &named)).fails(10, &["missing", &unnamed]);
    // Nothing was written: the drive that was away is a member as before.
    fs::rename(place.path("away.img"), place.path("a.img")).unwrap();
    place.run_bare(&with(&all, &["verify"])).ok();
    fs::remove_file(place.path("a.img")).unwrap();
    place.run_bare(&with(&["c.img", "b.img"], &named)).ok();
    restores(&place, &["new.img", "c.img"], "llama@1", &content);
    restores(&place, &["new.img", "b.img"], "llama@1", &content);
}

#[test]
fn mistakes_are_reported() {
    let place = Place::empty();
    let mirror = ["format", "--redundancy", "mirror", "--size", SIZE, "--yes"];
    place.run_bare(&with(&["a.img"], &mirror)).fails(2, &["two drives"]);
    let (place, _) = mirrored();
    let drives = ["a.img", "b.img", "c.img"];
    let usage = place.run_bare(&with(&drives, &["verify", "--replacement", "x.img"]));
    assert!(usage.stderr.contains("--repair"), "{usage:?}");
    place.sparse_file("x.img", 48 << 20);
    let unneeded = ["verify", "--repair", "--replacement", "x.img"];
    place.run_bare(&with(&drives, &unneeded)).fails(2, &["no drive is missing"]);
}
