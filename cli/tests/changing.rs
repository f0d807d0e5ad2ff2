// SPDX-License-Identifier: Apache-2.0
//! What was saved is what was there: files that change while they are saved are noticed.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use common::{MIB, Outcome, Place, wait_for_io};

/// A pool, and a tree whose first file takes long.
fn place() -> Place {
    let place = Place::with_pool_of(1, 512 * MIB);
    fs::create_dir(place.path("run")).unwrap();
    place.sparse_file("run/a", 300 * MIB);
    place.deep_file("run/b", b"second");
    place.deep_file("run/d/e", b"in a directory");
    place.deep_file("run/z", b"");
    place
}

/// Saves the tree, and changes it once the first file is being read.
fn save_while(place: &Place, options: &[&str], change: impl Fn(&Place)) -> Outcome {
    let child = place.start(&[&["save", "x@1", "run"][..], options].concat());
    wait_for_io(&child, "rchar", 8 * MIB);
    change(place);
    place.finish(child)
}

fn append(place: &Place, name: &str) {
    OpenOptions::new().append(true).open(place.path(name)).unwrap().write_all(b"more").unwrap();
}

/// What is changed, and by what.
type Change = (&'static str, fn(&Place));

#[test]
fn every_kind_of_change_is_noticed() {
    let place = place();
    let changes: [Change; 8] = [
        ("run/z changed", |place| append(place, "run/z")),
        ("run/z", |place| fs::remove_file(place.path("run/z")).unwrap()),
        ("run/b changed", |place| {
            // In place, and with its time set back.
            let modified = fs::metadata(place.path("run/b")).unwrap().modified().unwrap();
            let file = OpenOptions::new().write(true).open(place.path("run/b")).unwrap();
            file.write_all_at(b"X", 0).unwrap();
            file.set_modified(modified).unwrap();
        }),
        ("run/b became shorter", |place| place.file("run/b", b"s")),
        // The file that is being read, and where it was read already.
        ("run/a changed", |place| {
            let file = OpenOptions::new().write(true).open(place.path("run/a")).unwrap();
            file.write_all_at(b"X", 0).unwrap();
        }),
        ("run/a changed", |place| append(place, "run/a")),
        ("run/d changed", |place| place.deep_file("run/d/new", b"new")),
        ("run/d/e", |place| {
            fs::rename(place.path("run/d/e"), place.path("run/moved")).unwrap();
        }),
    ];
    for (text, change) in changes {
        let failed = save_while(&place, &[], change);
        failed.fails(1, &[text, "while it was being saved", "was not saved"]);
        assert_eq!(place.checkpoints(), 0, "{text}");
        let (free, capacity) = place.free_and_capacity();
        assert_eq!(free, capacity);
        let _ = fs::remove_dir_all(place.path("run"));
        fs::create_dir(place.path("run")).unwrap();
        place.sparse_file("run/a", 300 * MIB);
        place.deep_file("run/b", b"second");
        place.deep_file("run/d/e", b"in a directory");
        place.deep_file("run/z", b"");
    }
    save_while(&place, &[], |_| ()).ok();
}

#[test]
fn files_that_may_change_are_saved_as_they_are_read_and_noted() {
    let place = place();
    let saved = save_while(&place, &["--allow-changing"], |place| {
        append(place, "run/z");
        append(place, "run/b");
    });
    saved.ok();
    place.run(&["restore", "x", "-o", "out", "--shard", "run/b", "--shard", "run/z"]).ok();
    assert_eq!((place.read("out/run/b"), place.read("out/run/z")), (b"second".into(), b"".into()));
    let shown = place.run(&["show", "x", "--json"]).ok().json();
    let shards = shown["checkpoint"]["shards"].as_array().unwrap();
    for shard in shards {
        assert_eq!(shard["may_have_changed"], shard["kind"] == "file", "{shard}");
    }
    place.run(&["rm", "x@1", "--yes"]).ok();
    let shorter = save_while(&place, &["--allow-changing"], |place| place.file("run/b", b"s"));
    shorter.fails(1, &["run/b became shorter"]);
}

#[test]
fn files_without_a_size_are_not_saved_as_empty() {
    let place = Place::with_pool(1);
    for paths in [&["/proc/version"][..], &["a", "/proc/version"]] {
        place.file("a", b"a");
        let arguments = [&["save", "x@1"][..], paths].concat();
        place.run(&arguments).fails(1, &["/proc/version has more bytes than its size", "/proc"]);
    }
    assert_eq!(place.checkpoints(), 0);
}
