// SPDX-License-Identifier: Apache-2.0
//! Readers beside a writer: neither stops the other, and what a reader gets is whole or nothing.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use common::{MIB, Outcome, Place};

const SAVES: u32 = 40;
const KEPT: u32 = 3;
const NOT_FOUND: i32 = 10;
const STALE: i32 = 11;
/// Another user, where the tests run as root.
const NOBODY: u32 = 65534;

fn contents(step: u32) -> Vec<u8> {
    (0..3 * MIB as u32 / 4).flat_map(|word| (word ^ (step << 20)).to_le_bytes()).collect()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A reader of another user, if there can be one. The arguments name no drive. The folders above
/// the drives and the command may be closed to others, so a mount namespace shows both elsewhere.
fn read_as_another(place: &Place, arguments: &[&str]) -> Outcome {
    let mut inner = place.bare(arguments);
    inner.args(common::page_options(arguments));
    inner.args(place.drives.iter().flat_map(|drive| ["--drive", drive.as_str()]));
    if !is_root() {
        return Outcome::new(inner.output().unwrap());
    }
    let script = format!(
        "mount -t tmpfs tmpfs /mnt && mkdir /mnt/place /mnt/bin && \
         mount --bind \"$1\" /mnt/place && mount --bind \"${{2%/*}}\" /mnt/bin && \
         cd /mnt/place && name=${{2##*/}} && shift 2 && \
         exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups /mnt/bin/\"$name\" \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "-"]).arg(place.directory());
    command.arg(inner.get_program()).args(inner.get_args()).env_remove("STANCHION_DRIVES");
    Outcome::new(command.output().unwrap())
}

fn open_to_all(place: &Place) {
    let open = |path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(place.directory().to_path_buf(), 0o777);
    place.drives.iter().for_each(|drive| open(place.path(drive), 0o644));
}

#[test]
fn saves_succeed_beside_readers_and_restores_are_whole() {
    let place = Place::with_pool_of(2, 40 * MIB);
    open_to_all(&place);
    let saved = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    let (lists, whole, gone) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                read_as_another(&place, &["list", "--json"]).ok();
                lists.fetch_add(1, Ordering::SeqCst);
            }
        });
        scope.spawn(|| {
            for round in 0.. {
                if done.load(Ordering::SeqCst) {
                    return;
                }
                // The oldest that is there, which may be removed at any moment, or the newest.
                let newest = saved.load(Ordering::SeqCst);
                let step = if round % 2 == 0 { newest } else { newest.saturating_sub(KEPT - 1) };
                if step == 0 {
                    continue;
                }
                let (name, folder) = (format!("run@{step}"), format!("out{round}"));
                let outcome = read_as_another(&place, &["restore", &name, "-o", &folder]);
                let is_removable = saved.load(Ordering::SeqCst) >= step + KEPT - 1;
                let files = fs::read_dir(place.path(&folder)).map_or(0, Iterator::count);
                match outcome.code {
                    0 => {
                        let bytes = place.read(&format!("{folder}/model{step}.bin"));
                        assert!(bytes == contents(step), "{name} has other bytes");
                        whole.fetch_add(1, Ordering::SeqCst);
                    }
                    STALE | NOT_FOUND if is_removable => {
                        assert_eq!(files, 0, "{outcome:?}");
                        gone.fetch_add(1, Ordering::SeqCst);
                    }
                    _ => panic!("{name}, newest {newest}: {outcome:?}"),
                }
                fs::remove_dir_all(place.path(&folder)).ok();
            }
        });
        let writer = scope.spawn(|| {
            for step in 1..=SAVES {
                let file = format!("model{step}.bin");
                place.file(&file, &contents(step));
                place.run(&["save", &format!("run@{step}"), &file]).ok();
                fs::remove_file(place.path(&file)).unwrap();
                saved.store(step, Ordering::SeqCst);
                if step >= KEPT {
                    place.run(&["rm", "--yes", &format!("run@{}", step + 1 - KEPT)]).ok();
                }
            }
        });
        let ended = writer.join();
        done.store(true, Ordering::SeqCst);
        ended.unwrap();
    });
    let [lists, whole, gone] = [lists, whole, gone].map(AtomicU32::into_inner);
    eprintln!("{SAVES} saves beside {lists} lists and {whole} whole restores; {gone} were removed");
    assert!(lists > 0 && whole > 0);
}

#[test]
fn readers_need_no_folder_of_lock_files() {
    if !is_root() {
        eprintln!("skipped: it mounts, which needs root");
        return;
    }
    let place = Place::with_pool(1);
    open_to_all(&place);
    place.file("model.bin", &contents(1));
    place.run(&["save", "run@1", "model.bin"]).ok();
    let script = "mount -t tmpfs -o ro tmpfs /run && exec \"$@\"";
    let in_read_only_run = |arguments: &[&str]| {
        let inner = place.bare(arguments);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "-"]).arg(inner.get_program());
        command.args(inner.get_args()).args(common::page_options(arguments));
        command.args(["--drive", "a.img"]).current_dir(place.directory());
        Outcome::new(command.output().unwrap())
    };
    in_read_only_run(&["list"]).ok();
    in_read_only_run(&["restore", "run@1", "-o", "out"]).ok();
    // A file is locked itself: its writer needs none either.
    in_read_only_run(&["rm", "--yes", "run@1"]).ok();
}

#[test]
fn a_reader_does_not_keep_its_user_out() {
    let place = Place::with_pool(1);
    open_to_all(&place);
    // The reader comes first: the owner of the drive writes afterwards.
    place.run(&["list"]).ok();
    read_as_another(&place, &["list"]).ok();
    place.file("model.bin", &contents(1));
    place.run(&["save", "run@1", "model.bin"]).ok();
}
