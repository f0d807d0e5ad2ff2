// SPDX-License-Identifier: Apache-2.0
//! What the command refuses, each with its own message and exit code.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use common::places::Places;
use common::{DRIVE_BYTES, MIB, Place, run, wait_for_io};
use stanchion_testing::{Pool, PoolOptions};

fn saved(drives: usize) -> Place {
    let place = Place::with_pool(drives);
    place.file("model.bin", &[7; 5000]);
    place.run(&["save", "llama@100", "model.bin"]).ok();
    place
}

#[test]
fn drives_that_hold_data_are_not_formatted() {
    let mut place = Place::empty();
    place.drives = vec!["data.img".into()];
    let mut bytes = vec![0; DRIVE_BYTES as usize];
    bytes[..8].copy_from_slice(b"precious");
    place.file("data.img", &bytes);
    let outcome = place.run(&["format", "--yes"]);
    outcome.fails(12, &["data.img", "file-", "refused", "--force destroys it"]);
    assert!(place.read("data.img") == bytes, "a refusal wrote to the drive");
    place.run(&["format", "--dry-run"]).fails(12, &["refused"]);
    place.run(&["format", "--force", "--yes"]).ok();
    assert_eq!(place.checkpoints(), 0);
}

#[test]
fn a_pool_with_checkpoints_is_data_and_one_without_is_not() {
    let place = saved(2);
    let outcome = place.run(&["format", "--yes"]);
    outcome.fails(12, &["holds checkpoints (1)", "--force destroys them"]);
    assert_eq!(place.checkpoints(), 1);
    place.run(&["rm", "llama@100", "--yes"]).ok();
    place.run(&["format", "--yes"]).ok();
}

#[test]
fn formatting_needs_yes_where_there_is_no_terminal() {
    let place = Place::with_pool(1);
    place.run(&["format"]).fails(12, &["--yes"]);
    let shown = place.run(&["format", "--dry-run", "--json"]).ok().json();
    assert_eq!(shown["surveys"][0]["content"], "pool");
    assert!(shown["pool"].is_null());
}

#[test]
fn a_missing_file_needs_a_size() {
    let mut place = Place::empty();
    place.drives = vec!["new.img".into()];
    place.run(&["format", "--yes"]).fails(10, &["new.img", "--size"]);
    assert!(place.names(".").is_empty());
    // Too small for a pool: the file that was made for it is removed again.
    place.run(&["format", "--yes", "--size", "1MiB"]).fails(2, &[]);
    assert!(place.names(".").is_empty());
}

/// Undoes what a test did to the machine, also when the test fails.
struct Undo(&'static str, String);

impl Drop for Undo {
    fn drop(&mut self) {
        let arguments: &[&str] = if self.0 == "losetup" { &["--detach"] } else { &[] };
        let _ = tool(self.0).args(arguments).arg(&self.1).status();
    }
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

#[test]
fn held_and_mounted_drives_are_never_formatted() {
    let mut place = Place::empty();
    place.file("disk.img", &vec![0; DRIVE_BYTES as usize]);
    let image = place.path("disk.img").display().to_string();
    let made = tool("losetup").args(["--find", "--show", "--nooverlap", &image]).output();
    let Some(made) = made.ok().filter(|output| output.status.success()) else {
        eprintln!("skipped: no loop device can be made; run as root");
        return;
    };
    let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let _detach = Undo("losetup", device.clone());
    place.drives = vec!["disk.img".into()];
    let held = place.run(&["format", "--yes", "--force"]);
    held.fails(12, &["disk.img", "held", &device, "nothing overrides"]);

    if !tool("mkfs.ext4").args(["-q", &device]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: mkfs.ext4 cannot be run");
        return;
    }
    place.drives = vec![device.clone()];
    let outcome = place.run(&["format", "--yes"]);
    outcome.fails(12, &[&device, "ext", "--force destroys it"]);
    fs::create_dir(place.path("mount")).unwrap();
    let target = place.path("mount").display().to_string();
    if !tool("mount").args([&device, &target]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: the loop device cannot be mounted");
        return;
    }
    let unmount = Undo("umount", target.clone());
    let mounted = place.run(&["format", "--yes", "--force"]);
    mounted.fails(12, &[&device, "mounted", &target, "nothing overrides"]);
    drop(unmount);
}

/// A block of ours must be whole sectors: it is what a drive writes at once.
#[test]
fn sectors_larger_than_a_block_are_refused() {
    for (sector, code) in [("512", 0), ("4096", 0), ("8192", 13)] {
        let mut place = Place::empty();
        place.file("disk.img", &vec![0; DRIVE_BYTES as usize]);
        let image = place.path("disk.img").display().to_string();
        let made = tool("losetup").args(["--find", "--show", "-b", sector, &image]).output();
        let Some(made) = made.ok().filter(|output| output.status.success()) else {
            eprintln!("skipped: no loop device with sectors of {sector} bytes can be made");
            continue;
        };
        let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let _detach = Undo("losetup", device.clone());
        place.drives = vec![device.clone()];
        let formatted = place.run(&["format", "--yes"]);
        if code == 0 {
            formatted.ok();
            continue;
        }
        formatted.fails(code, &[&device, "8192", "use another drive"]);
        place.run(&["format", "--yes", "--force"]).fails(code, &[&device]);
        assert!(place.read("disk.img").iter().all(|byte| *byte == 0), "a refusal wrote to it");
    }
}

#[test]
fn the_drives_must_be_those_of_one_pool() {
    let place = saved(2);
    let other = Place::with_pool(1);
    let foreign = other.path("a.img").display().to_string();
    // A command that writes: for reading, drives may be missing.
    let run_on = |drives: &[&str]| {
        let mut command = place.bare(&["rm", "--yes", "llama@100", "--huge-pages", "off"]);
        drives.iter().for_each(|drive| {
            command.args(["--drive", drive]);
        });
        run(command)
    };
    run_on(&["a.img", "b.img", &foreign]).fails(12, &[&foreign, "belongs to pool"]);
    let missing = Places::find(&place).serial(1).to_owned();
    run_on(&["a.img"]).fails(10, &["1 of its 2 drives missing", &missing]);
    run_on(&["a.img", "nowhere.img"]).fails(10, &["nowhere.img", "not found"]);
    fs::write(place.path("blank.img"), vec![0; DRIVE_BYTES as usize]).unwrap();
    run_on(&["blank.img"]).fails(10, &["blank.img", "not formatted"]);
    run_on(&[]).fails(2, &["no drive was named", "--drive"]);
    run_on(&["pcie:0000:04:00.9"]).fails(2, &["not a PCI function"]);
    // SPDK on Debian has no RDMA; where it has, or cannot start, another message says so.
    run_on(&["trtype:RDMA traddr:127.0.0.1 trsvcid:1 subnqn:nqn.2016-06.io:x"])
        .fails(13, &["SPDK"]);
    if !cfg!(feature = "spdk") {
        run_on(&["pcie:0000:04:00.0"]).fails(13, &["built without SPDK"]);
    }
}

#[test]
fn one_drive_named_twice_is_refused() {
    let place = saved(2);
    let mut command = place.command(&["save", "x@1", "model.bin"]);
    command.args(["--drive", "./a.img"]);
    run(command).fails(2, &["drive ./a.img is named twice"]);
    let mut place = Place::empty();
    place.drives = vec!["new.img".into(), "new.img".into()];
    let outcome = place.run(&["format", "--yes", "--size", "48MiB"]);
    outcome.fails(2, &["drive new.img is named twice"]);
    assert!(place.names(".").is_empty());
}

#[test]
fn the_order_and_the_names_of_drives_do_not_matter() {
    let mut place = saved(3);
    fs::rename(place.path("a.img"), place.path("other")).unwrap();
    fs::rename(place.path("b.img"), place.path("a.img")).unwrap();
    place.drives = vec!["c.img".into(), "./other".into(), "a.img".into()];
    place.run(&["restore", "llama@100", "-o", "out"]).ok();
    assert_eq!(place.read("out/model.bin"), [7; 5000]);
    place.run(&["verify"]).ok();
    place.run(&["save", "llama@101", "model.bin"]).ok();
}

#[test]
fn a_full_pool_says_so_before_it_writes() {
    let place = saved(2);
    place.sparse_file("huge.bin", 200 * MIB);
    let before = place.read("a.img");
    let outcome = place.run(&["save", "huge@1", "huge.bin"]);
    outcome.fails(1, &["no space", "209715200 bytes needed", "stanchion rm"]);
    // Opening it for writing commits an empty generation; no data slot is touched.
    let data = Places::find(&place).labels[0].layout.slot_offset(0) as usize;
    let end = before.len() - 4 * MIB as usize;
    assert!(before[data..end] == place.read("a.img")[data..end]);
    assert_eq!(place.checkpoints(), 1);
}

#[test]
fn a_pool_that_a_live_process_owns_is_busy() {
    let place = saved(2);
    let addresses = place.drives.iter().map(|d| place.path(d).to_str().unwrap().parse().unwrap());
    let mut options = PoolOptions::new(addresses.collect());
    options.huge_pages = stanchion_testing::HugePages::Off;
    let pool = Pool::open(&options).unwrap();
    let owner = format!("(pid {})", std::process::id());
    for arguments in [
        vec!["save", "llama@101", "model.bin"],
        vec!["rm", "--yes", "llama@100"],
        vec!["verify", "--repair"],
        vec!["format", "--yes", "--force"],
    ] {
        place.run(&arguments).fails(11, &[&owner]);
    }
    for arguments in [vec!["list"], vec!["restore", "llama", "-o", "out"], vec!["verify"]] {
        place.run(&arguments).ok();
    }
    drop(pool);
    assert_eq!(place.checkpoints(), 1);
}

#[test]
fn the_second_of_two_commands_names_the_first() {
    let place = Place::with_pool_of(1, 512 * MIB);
    place.sparse_file("big.bin", 400 * MIB);
    let busy = place.start(&["save", "big@1", "big.bin"]);
    wait_for_io(&busy, "rchar", 8 * MIB);
    // It must not end before the others have looked.
    common::signal(&busy, "STOP");
    place.run(&["rm", "--yes", "big@1"]).fails(11, &[&format!("(pid {})", busy.id())]);
    assert_eq!(place.checkpoints(), 0, "readers are not kept out");
    common::signal(&busy, "INT");
    common::signal(&busy, "CONT");
    assert_eq!(place.finish(busy).code, 130);
}

#[test]
fn checkpoints_are_not_overwritten_and_unknown_ones_are_reported() {
    let place = saved(1);
    place.run(&["save", "llama@100", "model.bin"]).fails(1, &["llama@100 exists"]);
    place.run(&["restore", "llama@99", "-o", "out"]).fails(10, &["no checkpoint llama@99"]);
    place.run(&["restore", "other", "-o", "out"]).fails(10, &["no checkpoint other"]);
    place.run(&["verify", "llama@99"]).fails(10, &["no checkpoint llama@99"]);
    place.run(&["show", "llama@99"]).fails(10, &["no checkpoint llama@99"]);
    // All or none.
    place.run(&["rm", "llama@100", "llama@99"]).fails(10, &["no checkpoint llama@99"]);
    assert_eq!(place.checkpoints(), 1);
    place.run(&["save", "bad name@1", "model.bin"]).fails(2, &["is not a checkpoint name"]);
    place.run(&["save", "llama", "model.bin"]).fails(2, &["NAME@STEP"]);
    assert!(!place.path("out").exists());
}

#[test]
fn a_drive_file_that_was_cut_is_damage() {
    let place = saved(2);
    let serial = Places::find(&place).serial(1).to_owned();
    let file = fs::OpenOptions::new().write(true).open(place.path("b.img")).unwrap();
    file.set_len(DRIVE_BYTES - MIB).unwrap();
    for arguments in [vec!["list"], vec!["restore", "llama", "-o", "out"], vec!["verify"]] {
        place.run(&arguments).fails(3, &["b.img", &serial, "shorter than the 50331648 bytes"]);
    }
    place.run(&["format", "--yes"]).fails(12, &["refused"]);
}

#[test]
fn a_newer_format_is_left_alone() {
    let place = saved(2);
    let places = Places::find(&place);
    for at in places.label_offsets(0) {
        places.rewrite((0, at), |block| block[24..26].copy_from_slice(&99_u16.to_le_bytes()));
    }
    for arguments in [vec!["list"], vec!["save", "llama@101", "model.bin"], vec!["verify"]] {
        place.run(&arguments).fails(12, &["a.img", "newer", "use a newer stanchion"]);
    }
    place.run(&["format", "--yes"]).fails(12, &["refused", "newer"]);
}

/// A drive file with the labels of a pool of format 1.0, as the release before wrote them on a file
/// of 48 MiB.
fn format_1_drive(place: &Place) -> std::path::PathBuf {
    let path = place.path("a.img");
    let file = fs::File::create(&path).unwrap();
    file.set_len(DRIVE_BYTES).unwrap();
    for offset in [MIB, 2 * MIB, DRIVE_BYTES - 2 * MIB, DRIVE_BYTES - MIB] {
        let written = include_bytes!("../../engine/src/format/golden/label-1.0.bin");
        let mut label = written.to_vec();
        label.resize(4096, 0);
        label[32..40].copy_from_slice(&offset.to_le_bytes());
        let hash = stanchion_testing::internals::format::hash128(&label[24..]);
        label[8..24].copy_from_slice(&hash);
        assert!(offset != MIB || label[..written.len()] == written[..], "the hash is the old one");
        file.write_all_at(&label, offset).unwrap();
    }
    path
}

#[test]
fn a_pool_of_format_1_is_refused_with_the_remedy() {
    let mut place = Place::empty();
    place.drives = vec!["a.img".into()];
    let path = format_1_drive(&place);
    place.file("model.bin", b"model");
    let before = fs::read(&path).unwrap();
    let remedy = ["a.img", "1.0", "older", "with the release", "stanchion format --force"];
    for arguments in [
        vec!["list"],
        vec!["show", "llama@1"],
        vec!["restore", "llama@1", "-o", "out"],
        vec!["save", "llama@1", "model.bin"],
        vec!["rm", "llama@1", "--yes"],
        vec!["verify"],
        vec!["verify", "--repair"],
        vec!["format", "--yes"],
    ] {
        place.run(&arguments).fails(12, &remedy);
    }
    assert!(fs::read(&path).unwrap() == before, "a command wrote to it");
    // One label is enough, wherever it is.
    for erased in [vec![0, 1, 2], vec![1, 2, 3]] {
        fs::write(&path, &before).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let offsets = [MIB, 2 * MIB, DRIVE_BYTES - 2 * MIB, DRIVE_BYTES - MIB];
        for label in erased {
            file.write_all_at(&[0; 4096], offsets[label]).unwrap();
        }
        place.run(&["format", "--yes"]).fails(12, &remedy);
    }
    place.run(&["format", "--yes", "--force"]).ok();
    assert_eq!(place.checkpoints(), 0);
}

#[test]
fn what_cannot_be_saved_is_refused() {
    let place = saved(1);
    place.run(&["save", "x@1", "nowhere.bin"]).fails(10, &["nowhere.bin", "no such file"]);
    fs::create_dir(place.path("sub")).unwrap();
    place.file("sub/model.bin", b"other");
    let outcome = place.run(&["save", "x@1", "model.bin", "sub/model.bin"]);
    outcome.fails(2, &["both be saved as model.bin"]);
    assert_eq!(place.checkpoints(), 1);
}

#[test]
fn a_file_that_shrinks_or_changes_while_it_is_saved_is_noticed() {
    let place = Place::with_pool_of(1, 512 * MIB);
    place.sparse_file("first.bin", 300 * MIB);
    place.file("second.bin", &[1; 4096]);
    let change = |change: fn(&fs::File), text: &str| {
        let child = place.start(&["save", "x@1", "first.bin", "second.bin"]);
        wait_for_io(&child, "rchar", 8 * MIB);
        change(&fs::OpenOptions::new().append(true).open(place.path("second.bin")).unwrap());
        place.finish(child).fails(1, &["second.bin", text, "was not saved"]);
        assert_eq!(place.checkpoints(), 0);
        let (free, capacity) = place.free_and_capacity();
        assert_eq!(free, capacity);
    };
    change(|file| file.set_len(100).unwrap(), "became shorter while it was being saved");
    change(|file| file.set_len(5000).unwrap(), "changed while it was being saved");
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    let place = saved(1);
    let error = |arguments: &[&str]| -> serde_json::Value {
        let outcome = place.run(arguments);
        assert!(outcome.stdout.is_empty(), "{outcome:?}");
        let error = outcome.error();
        assert_eq!(error["exit_code"], outcome.code);
        error["kind"].clone()
    };
    assert_eq!(error(&["restore", "other", "-o", "out", "--json"]), "not_found");
    assert_eq!(error(&["format", "--yes", "--json"]), "refused");
    assert_eq!(error(&["--json", "save", "x", "model.bin"]), "usage");
    assert_eq!(error(&["save", "--json", "--nonsense"]), "usage");
}
