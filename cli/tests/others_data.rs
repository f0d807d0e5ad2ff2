// SPDX-License-Identifier: Apache-2.0
//! Files and drives that another program uses, or that are a drive by another name: refused.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use common::{DRIVE_BYTES, MIB, Place};

/// A pool of one drive with a checkpoint whose file has this name.
fn saved(shard: &str) -> Place {
    let place = Place::with_pool(1);
    fs::create_dir(place.path("source")).unwrap();
    place.file(&format!("source/{shard}"), &[7; 5000]);
    place.run(&["save", "llama@1", &format!("source/{shard}")]).ok();
    place
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// A loop device over a file of the place; detached when dropped.
struct Loop(String);

impl Loop {
    fn over(place: &Place, file: &str, options: &[&str]) -> Option<Loop> {
        let path = place.path(file).display().to_string();
        // With options: another part of the file, or the same bytes again.
        let overlap: &[&str] = if options.is_empty() { &["--nooverlap"] } else { options };
        let mut losetup = tool("losetup");
        let made = losetup.args(["--find", "--show"]).args(overlap).arg(&path).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            eprintln!("skipped: no loop device can be made; run as root");
            return None;
        };
        Some(Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = tool("losetup").args(["--detach", &self.0]).status();
    }
}

struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = tool("umount").arg(&self.0).status();
    }
}

#[test]
fn the_file_behind_a_loop_device_is_not_written() {
    let place = saved("model.bin");
    let Some(device) = Loop::over(&place, "a.img", &[]) else { return };
    let before = place.read("a.img");
    let writes: [&[&str]; 4] = [
        &["save", "llama@2", "source/model.bin"],
        &["rm", "--yes", "llama@1"],
        &["verify", "--repair"],
        &["verify", "--repair", "--force"],
    ];
    for command in writes {
        place.run(command).fails(12, &["a.img", "held", &device.0, "nothing overrides"]);
    }
    assert!(place.read("a.img") == before);
    assert_eq!(place.checkpoints(), 1);
    place.run(&["restore", "llama@1", "-o", "out"]).ok();

    // A file system that is mounted from it.
    if !tool("mkfs.ext4").args(["-q", "-F", &device.0]).status().is_ok_and(|s| s.success()) {
        eprintln!("skipped: mkfs.ext4 cannot be run");
        return;
    }
    fs::create_dir(place.path("mount")).unwrap();
    let target = place.path("mount").display().to_string();
    let mounted = tool("mount").args([&device.0, &target]).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("skipped: the loop device cannot be mounted");
        return;
    }
    let unmount = Mounted(target.clone());
    let save = ["save", "llama@2", "source/model.bin"];
    place.run(&save).fails(12, &["held", &device.0]);
    place.run_on(&[&device.0], &save).fails(12, &["mounted", &target]);
    // Another way to the same bytes.
    if let Some(other) = Loop::over(&place, "a.img", &["--offset", "0"]) {
        place.run_on(&[&other.0], &save).fails(12, &["mounted", &target]);
        place.run_on(&[&other.0], &["format", "--yes", "--force"]).fails(12, &["mounted"]);
    }
    drop(unmount);
    drop(device);
    place.run(&save).fails(12, &["refused", "ext4 file system"]);
}

#[test]
fn one_file_by_two_loop_devices_is_one_drive() {
    let place = Place::empty();
    place.sparse_file("disk.img", 2 * DRIVE_BYTES);
    let Some(whole) = Loop::over(&place, "disk.img", &[]) else { return };
    let Some(again) = Loop::over(&place, "disk.img", &["--offset", "0"]) else { return };
    let format = ["format", "--yes", "--force"];
    place.run_on(&[&whole.0, &again.0], &format).fails(2, &[&again.0, "is named twice"]);
    place.run_on(&[&whole.0, "disk.img"], &format).fails(12, &["held"]);
    assert!(place.read("disk.img").iter().all(|byte| *byte == 0));
    drop(again);
    let half = DRIVE_BYTES.to_string();
    let upper = Loop::over(&place, "disk.img", &["--offset", &half]).unwrap();
    place.run_on(&[&whole.0, &upper.0], &format).fails(2, &["is named twice"]);
    drop(whole);
    // Two parts of one file are two drives; a mirror of them does not outlive it.
    let lower = Loop::over(&place, "disk.img", &["--sizelimit", &half]).unwrap();
    let drives = [&lower.0[..], &upper.0];
    let mirror = ["format", "--yes", "--redundancy", "mirror"];
    place.run_on(&drives, &mirror).fails(12, &[&upper.0, "does not outlive", "--force"]);
    assert!(place.read("disk.img").iter().all(|byte| *byte == 0));
    place.run_on(&drives, &["format", "--yes"]).ok();
    place.run_on(&drives, &[&mirror[..], &["--force"]].concat()).ok();
}

#[test]
fn no_drive_is_made_among_devices() {
    let place = Place::empty();
    let typo = "/dev/stanchion-no-such-device";
    for command in [
        &["format", "--yes", "--size", "64MiB"][..],
        &["format", "--yes"],
        &["format", "--dry-run", "--size", "64MiB"],
    ] {
        place.run_on(&[typo], command).fails(10, &[typo, "no such device", "stanchion drives"]);
    }
    assert!(fs::symlink_metadata(typo).is_err());
    symlink("/dev", place.path("link")).unwrap();
    let linked = "link/stanchion-no-such-device";
    place.run_on(&[linked], &["format", "--yes", "--size", "64MiB"]).fails(10, &["no such device"]);
    assert!(fs::symlink_metadata(typo).is_err());

    // One that `dd of=/dev/TYPO` made.
    let file = format!("/dev/stanchion-test-{}", std::process::id());
    let Ok(made) = fs::File::create(&file) else {
        eprintln!("skipped: /dev cannot be written; run as root");
        return;
    };
    made.set_len(64 * MIB).unwrap();
    let outcome = place.run_on(&[&file], &["format", "--yes", "--force"]);
    fs::remove_file(&file).unwrap();
    outcome.fails(12, &[&file, "regular file below /dev", "nothing overrides"]);
}

#[test]
fn a_drive_in_memory_is_warned_of() {
    let place = Place::empty();
    let kind = tool("stat").args(["--file-system", "--format=%T", "/dev/shm"]).output().unwrap();
    if kind.stdout != b"tmpfs\n" {
        eprintln!("skipped: /dev/shm is no tmpfs");
        return;
    }
    let file = "/dev/shm/stanchion-no-such-file";
    let outcome = place.run_on(&[file], &["format", "--dry-run", "--size", "64MiB"]).ok();
    assert!(outcome.stderr.contains("tmpfs, in memory"), "{outcome:?}");
    let outcome = place.run_on(&[file], &["doctor"]);
    assert!(outcome.stdout.contains("tmpfs, in memory"), "{outcome:?}");
}

#[test]
fn restore_does_not_replace_a_drive() {
    let place = saved("a.img");
    let before = place.read("a.img");
    let restore = ["restore", "llama@1", "-o", ".", "--force"];
    place.run(&restore).fails(12, &["./a.img", "a drive of this pool", "nothing overrides"]);
    // By a link, or by the name of a link that is the drive's address.
    fs::create_dir(place.path("links")).unwrap();
    symlink("../a.img", place.path("links/a.img")).unwrap();
    let into_links = ["restore", "llama@1", "-o", "links", "--force"];
    place.run(&into_links).fails(12, &["a drive of this pool"]);
    place.run_on(&["links/a.img"], &into_links).fails(12, &["a drive of this pool"]);
    fs::create_dir(place.path("hard")).unwrap();
    fs::hard_link(place.path("a.img"), place.path("hard/a.img")).unwrap();
    place.run(&["restore", "llama@1", "-o", "hard", "--force"]).fails(12, &["of this pool"]);
    assert!(place.read("a.img") == before);
    // Of another pool.
    let other = Place::with_pool(1);
    let elsewhere = other.directory().display().to_string();
    let kept = other.read("a.img");
    let outcome = place.run(&["restore", "llama@1", "-o", &elsewhere, "--force"]);
    outcome.fails(12, &["a drive of pool"]);
    assert!(other.read("a.img") == kept);
    // A large file that is no drive.
    fs::create_dir(place.path("out")).unwrap();
    place.sparse_file("out/a.img", DRIVE_BYTES);
    place.run(&["restore", "llama@1", "-o", "out", "--force"]).ok();
    assert_eq!(place.read("out/a.img"), [7; 5000]);
}
