// SPDX-License-Identifier: Apache-2.0
//! Ctrl-C in the middle of an operation leaves nothing behind.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MIB, Place, signal, wait_for_io};

const BIG_BYTES: u64 = 400 * MIB;

fn place() -> Place {
    let place = Place::with_pool_of(1, 512 * MIB);
    place.sparse_file("big.bin", BIG_BYTES);
    place
}

#[test]
fn an_interrupted_save_leaves_no_trace() {
    let place = place();
    for name in ["INT", "TERM", "HUP", "QUIT", "USR1"] {
        let child = place.start_with_hup("default", &["save", "big@1", "big.bin"]);
        wait_for_io(&child, "rchar", 8 * MIB);
        signal(&child, name);
        let outcome = place.finish(child);
        assert!(outcome.stdout.is_empty(), "{outcome:?}");
        outcome.fails(130, &["interrupted", "big@1 was not saved"]);
        assert_eq!(place.checkpoints(), 0);
        let (free, capacity) = place.free_and_capacity();
        assert_eq!(free, capacity);
    }
    // Its space is usable: twice the size would not fit.
    place.run(&["save", "big@1", "big.bin"]).ok();
    place.run(&["verify"]).ok();
}

#[test]
fn a_terminal_that_goes_away_does_not_end_what_nohup_started() {
    let place = place();
    let child = place.start_with_hup("ignore", &["save", "big@1", "big.bin"]);
    wait_for_io(&child, "rchar", 8 * MIB);
    signal(&child, "HUP");
    place.finish(child).ok();
    assert_eq!(place.checkpoints(), 1);
}

#[test]
fn an_interrupted_restore_leaves_no_files() {
    let place = place();
    place.file("small.bin", b"small");
    place.run(&["save", "big@1", "small.bin", "big.bin"]).ok();
    let child = place.start(&["restore", "big", "-o", "out"]);
    wait_for_io(&child, "wchar", 8 * MIB);
    assert!(!place.path("out").exists());
    assert!(place.names(".").iter().any(|name| name.ends_with(".partial")));
    signal(&child, "INT");
    place.finish(child).fails(130, &["interrupted", "big@1 was not restored"]);
    assert_eq!(place.names("."), ["a.img", "big.bin", "small.bin"]);
    place.run(&["restore", "big", "-o", "out"]).ok();
    assert!(place.read("out/big.bin") == place.read("big.bin"));
}

#[test]
fn an_interrupted_bench_removes_its_checkpoint() {
    let place = place();
    let child = place.start(&["bench", "read", "--size", "50MiB", "--runs", "1000"]);
    // The buffers are filled, so the scratch checkpoint is being written or read.
    wait_for_io(&child, "rchar", 64 * MIB);
    std::thread::sleep(std::time::Duration::from_millis(800));
    signal(&child, "INT");
    place.finish(child).fails(130, &["interrupted"]);
    assert_eq!(place.checkpoints(), 0);
}

#[test]
fn an_interrupted_verification_ends_at_once() {
    let place = place();
    place.run(&["save", "big@1", "big.bin"]).ok();
    let child = place.start(&["verify"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    signal(&child, "INT");
    let outcome = place.finish(child);
    // A fast machine may have finished by then.
    assert!([0, 130].contains(&outcome.code), "{outcome:?}");
    place.run(&["verify"]).ok();
}
