// SPDX-License-Identifier: Apache-2.0
//! What is saved can be restored, and the command prints what its documents say.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use common::participants::{self, Participant};
use common::{MIB, Numbers, Place, run};
use stanchion_testing::Shard;

#[test]
fn files_of_every_size_come_back() {
    let place = Place::with_pool(3);
    let chunk = MIB as usize;
    let sizes = [0, 1, 4095, 4096, 4097, chunk - 1, chunk, chunk + 1, 9 * chunk + 12_345, 0];
    let mut numbers = Numbers(1);
    let mut arguments = vec!["save".to_owned(), "all@7".to_owned()];
    for (index, size) in sizes.iter().enumerate() {
        let name = format!("file {index}.bin");
        place.file(&name, &numbers.bytes(*size));
        arguments.push(name);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // The smallest memory: two buffers of one chunk.
    place.run(&[&arguments[..], &["--buffer-size", "1"]].concat()).ok();
    for buffer_size in ["1", "64MiB"] {
        let out = format!("out-{buffer_size}");
        place.run(&["restore", "all@7", "-o", &out, "--buffer-size", buffer_size]).ok();
        assert_eq!(place.names(&out).len(), sizes.len());
        for name in &arguments[2..] {
            assert!(place.read(name) == place.read(&format!("{out}/{name}")), "{name}");
        }
    }
    let report = place.run(&["verify", "--json"]).ok().json();
    assert_eq!(report["clean"], true);
    assert_eq!(report["data_bytes"], sizes.iter().sum::<usize>());
}

#[test]
fn a_checkpoint_of_empty_files_comes_back() {
    let place = Place::with_pool(2);
    place.file("e1", b"");
    place.file("e2", b"");
    let saved = place.run(&["save", "empty@1", "e1", "e2", "--json"]).ok().json();
    assert_eq!(saved["data_bytes"], 0);
    place.run(&["restore", "empty", "-o", "out"]).ok();
    assert_eq!(place.names("out"), ["e1", "e2"]);
    assert_eq!(place.read("out/e2"), b"");
    place.run(&["verify"]).ok();
}

#[test]
fn the_newest_step_is_restored_and_existing_files_are_kept() {
    let place = Place::with_pool(2);
    place.file("model", b"old");
    place.run(&["save", "llama@9", "model"]).ok();
    place.file("model", b"new");
    place.run(&["save", "llama@10", "model"]).ok();
    place.run(&["restore", "llama", "-o", "deep/er"]).ok();
    assert_eq!(place.read("deep/er/model"), b"new");
    let refused = place.run(&["restore", "llama@9", "-o", "deep/er"]);
    refused.fails(12, &["deep/er/model exists", "--force"]);
    assert_eq!(place.read("deep/er/model"), b"new");
    place.run(&["restore", "llama@9", "-o", "deep/er", "--force"]).ok();
    assert_eq!(place.read("deep/er/model"), b"old");
    let mode = fs::metadata(place.path("deep/er/model")).unwrap().permissions().mode();
    place.file("plain", b"");
    let usual = fs::metadata(place.path("plain")).unwrap().permissions().mode();
    assert_eq!(mode, usual, "restored files have the permissions of new files");
}

#[test]
fn some_shards_can_be_restored() {
    let place = Place::with_pool(2);
    let mut numbers = Numbers(2);
    for (name, size) in [("a.bin", 3 << 20), ("b.txt", 5000), ("c.bin", 1 << 20), ("d.txt", 0)] {
        place.file(name, &numbers.bytes(size));
    }
    place.run(&["save", "x@1", "a.bin", "b.txt", "c.bin", "d.txt"]).ok();
    place.run(&["restore", "x", "-o", "out", "--shard", "*.txt", "--shard", "c*"]).ok();
    assert_eq!(place.names("out"), ["b.txt", "c.bin", "d.txt"]);
    for name in ["b.txt", "c.bin", "d.txt"] {
        assert!(place.read(name) == place.read(&format!("out/{name}")), "{name}");
    }
    let none = place.run(&["restore", "x", "-o", "none", "--shard", "z*"]);
    none.fails(10, &["no shard of x@1 matches z*"]);
    assert_eq!(place.run(&["restore", "x", "-o", "none", "--shard", "[z"]).code, 2);
}

#[test]
fn json_has_the_promised_shape() {
    let place = Place::with_pool(2);
    let empty = place.run(&["list", "--json"]).ok().json();
    assert_eq!(empty, serde_json::json!({"schema": "stanchion/list/1", "checkpoints": []}));
    place.file("model", &[1; 3 << 20]);
    let saved = place.run(&["save", "run/llama@100", "model", "--json"]).ok().json();
    assert_eq!((&saved["name"], &saved["step"]), (&"run/llama".into(), &100.into()));
    assert_eq!(saved["data_bytes"], 3 << 20);
    for key in ["seconds", "gb_per_s", "commit_tail_seconds"] {
        assert!(saved[key].as_f64().unwrap() > 0.0, "{key}: {saved}");
    }
    let by_drive = saved["drives"].as_array().unwrap();
    assert_eq!(by_drive.len(), 2);
    assert_eq!(by_drive.iter().map(|d| d["data_bytes"].as_u64().unwrap()).sum::<u64>(), 3 << 20);

    let listed = place.run(&["list", "--json"]).ok().json();
    assert_eq!(listed["schema"], "stanchion/list/1");
    let one = listed["checkpoints"][0].as_object().unwrap();
    let mut keys: Vec<_> = one.keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = [
        "availability",
        "committed_at",
        "data_bytes",
        "generation",
        "name",
        "needed_serials",
        "participant_count",
        "step",
        "uuid",
    ];
    assert_eq!(keys, expected);
    assert_eq!(one["availability"], "whole");
    assert_eq!((&one["name"], &one["participant_count"]), (&"run/llama".into(), &1.into()));
    assert_eq!(one["generation"], saved["generation"]);
    let time = one["committed_at"].as_str().unwrap();
    assert!(time.len() == 30 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
    assert_eq!(place.run(&["list", "other", "--json"]).ok().json(), empty);

    let shown = place.run(&["show", "run/llama", "--json"]).ok().json();
    assert_eq!(shown["checkpoint"]["shards"][0]["name"], "model");
    assert_eq!(shown["checkpoint"]["shards"][0]["len_bytes"], 3 << 20);
    let (free, capacity) = place.free_and_capacity();
    assert_eq!(capacity - free, 3 << 20);

    let removed = place.run(&["rm", "--yes", "run/llama@100", "--json"]).ok().json();
    assert_eq!(removed["removed"][0]["step"], 100);
    let version = place.run_bare(&["version", "--json"]).ok().json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["features"]["spdk"], cfg!(feature = "spdk"));
    let drives = place.run(&["drives", "--json"]).ok().json();
    assert_eq!(drives["surveys"][0]["content"], "pool");
    assert_eq!(drives["surveys"][0]["checkpoint_count"], 0);
}

#[test]
fn text_for_people_names_what_there_is() {
    let place = Place::with_pool(2);
    place.file("model", &[1; 3 << 20]);
    let saved = place.run(&["save", "llama@100", "model"]).ok().stdout;
    assert!(saved.contains("saved llama@100: 3145728 bytes (3.0 MiB) in 1 shard,"), "{saved}");
    assert!(saved.contains("GB/s") && saved.contains("commit tail"), "{saved}");
    assert!(place.run(&["save", "llama@101", "model", "-q"]).ok().stdout.is_empty());
    let listed = place.run(&["list"]).ok().stdout;
    assert!(listed.lines().count() == 3 && listed.contains("llama@101"), "{listed}");
    let shown = place.run(&["show"]).ok().stdout;
    assert!(shown.contains("2 of at most") && shown.contains("a.img"), "{shown}");
    let verified = place.run(&["verify"]).ok();
    assert!(verified.stdout.contains("all sound"), "{verified:?}");
    assert!(verified.stderr.is_empty(), "{verified:?}");
    let drives = place.run(&["drives"]).ok().stdout;
    assert!(drives.contains("checkpoints: 2"), "{drives}");
}

#[test]
fn drives_come_from_flags_then_file_then_environment() {
    let place = Place::with_pool(2);
    let list = |arguments: &[&str], environment: &str| {
        let mut command = place.bare(&["list", "--json", "--huge-pages", "off"]);
        command.args(arguments).env("STANCHION_DRIVES", environment);
        run(command)
    };
    place.file("good.toml", b"drives = ['a.img', 'b.img']\n");
    place.file("bad.toml", b"drive = ['a.img', 'b.img']\n");
    let good = ["--config", "good.toml"];
    list(&good, "").ok();
    list(&["--config", "bad.toml"], "").fails_as_json(2, &["bad.toml", "unknown field"]);
    list(&["--config", "none.toml"], "").fails_as_json(10, &["none.toml"]);
    list(&[], "a.img\n\n b.img \n").ok();
    list(&[], "c.img").fails_as_json(10, &["c.img"]);
    // A file that is named overrides the environment, and flags override both.
    list(&good, "c.img").ok();
    list(&[&good[..], &["--drive", "b.img", "--drive", "a.img"]].concat(), "c.img").ok();
    // On both sides of the subcommand.
    run(place.bare(&["--drive", "a.img", "--huge-pages", "off", "list", "--drive", "b.img"])).ok();
}

/// Bytes in free huge pages.
fn free_huge_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|pages| pages.trim().parse::<u64>().ok()).unwrap_or(0) * 2 * MIB
}

#[test]
fn ordinary_pages_are_used_only_when_asked_for_and_reported() {
    let place = Place::with_pool(1);
    place.file("model", &[1; 5000]);
    let buffer_bytes = free_huge_bytes() + 256 * MIB;
    let save = |name: &str, pages: &[&str]| {
        let mut command = place.bare(&["save", name, "model", "--drive", "a.img"]);
        command.args(["--buffer-size", &buffer_bytes.to_string()]).args(pages);
        run(command)
    };
    save("x@1", &["--huge-pages", "required"]).fails(13, &["huge pages", "scripts/hugepages"]);
    if buffer_bytes > 1024 * MIB {
        eprintln!("skipped: to want more than the free huge pages would take {buffer_bytes} bytes");
        return;
    }
    let preferred = save("x@1", &[]).ok();
    let warnings = preferred.stderr.lines().filter(|line| line.contains("no huge pages"));
    assert_eq!(warnings.count(), 1, "{preferred:?}");
    let off = save("x@2", &["--huge-pages", "off"]).ok();
    assert!(!off.stderr.contains("huge pages"), "{off:?}");
}

#[test]
fn help_teaches() {
    let place = Place::empty();
    let help = place.run_bare(&["--help"]).ok().stdout;
    for text in ["Examples:", "STANCHION_DRIVES", "Exit codes", "restore", "--queue-depth"] {
        assert!(help.contains(text), "{text:?} is not in {help}");
    }
    let commands =
        ["drives", "format", "list", "show", "save", "restore", "verify", "rm", "bench", "version"];
    for command in commands {
        let help = place.run_bare(&[command, "--help"]).ok().stdout;
        assert!(help.contains("Examples:") && help.contains("--json"), "{help}");
    }
    let nothing = place.run_bare(&[]);
    assert_eq!(nothing.code, 2, "{nothing:?}");
    assert!(nothing.stderr.contains("Usage:"), "{nothing:?}");
    assert!(place.run_bare(&["--version"]).ok().stdout.contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let place = Place::with_pool(1);
    place.file("model", &[1; 5000]);
    for arguments in [
        vec!["save", "llama@1", "model", "--json"],
        vec!["show", "llama", "--json"],
        vec!["drives"],
        vec!["--help"],
    ] {
        let mut command = place.command(&[]);
        command.args(&arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        place.finish(child).ok();
    }
    assert_eq!(place.checkpoints(), 1);
}

#[test]
fn bench_measures_and_leaves_nothing() {
    let place = Place::with_pool(2);
    for what in ["write", "read"] {
        let report = place.run(&["bench", what, "--size", "9MiB", "--runs", "2", "--json"]);
        let report = report.ok().json();
        assert_eq!(report["data_bytes"], 9 << 20);
        let runs = report["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        for run in runs {
            assert!(run["gb_per_s"].as_f64().unwrap() > 0.0, "{run}");
            assert!(run["cpu_seconds"].as_f64().unwrap() > 0.0, "{run}");
            assert_eq!(run["commit_tail_seconds"].is_null(), what == "read");
            assert_eq!(run["drives"].as_array().unwrap().len(), 2);
        }
        assert_eq!(place.checkpoints(), 0);
    }
    place.run(&["bench", "write", "--size", "1GiB"]).fails(1, &["no space"]);
    assert_eq!(place.checkpoints(), 0);
    let text = place.run(&["bench", "write", "--size", "2MiB", "--runs", "1"]).ok().stdout;
    assert!(text.contains("run 1:") && text.contains("median"), "{text}");
}

/// Saves a checkpoint of several participants with the engine: each has shards of these names, one
/// block each.
fn save_with_engine(place: &Place, name: &str, participants: &[&[&str]]) {
    let one = |(participant, names): (usize, &&[&str])| Participant {
        shards: names
            .iter()
            .enumerate()
            .map(|(index, name)| Shard {
                name: (*name).to_owned(),
                offset_bytes: 4096 * index as u64,
                len_bytes: 4096,
                dtype: "bf16".into(),
                shape: vec![2, 1024],
                ..Shard::default()
            })
            .collect(),
        bytes: (0..names.len())
            .flat_map(|index| [(10 * participant + index) as u8; 4096])
            .collect(),
    };
    let drives: Vec<&str> = place.drives.iter().map(String::as_str).collect();
    participants::save(place, &drives, name, participants.iter().enumerate().map(one).collect());
}

#[test]
fn participants_share_a_directory_where_names_allow_it() {
    let place = Place::with_pool(2);
    save_with_engine(&place, "unique@1", &[&["a", "b"], &["c"]]);
    save_with_engine(&place, "same@1", &[&["a", "b"], &["a"]]);
    place.run(&["restore", "unique", "-o", "flat"]).ok();
    assert_eq!(place.names("flat"), ["a", "b", "c"]);
    assert_eq!(place.read("flat/b"), [1; 4096]);
    assert_eq!(place.read("flat/c"), [10; 4096]);
    place.run(&["restore", "same", "-o", "ranks"]).ok();
    assert_eq!(place.names("ranks"), ["rank0", "rank1"]);
    assert_eq!(place.read("ranks/rank0/b"), [1; 4096]);
    assert_eq!(place.read("ranks/rank1/a"), [10; 4096]);
    let shown = place.run(&["show", "same@1"]).ok().stdout;
    assert!(shown.contains("2 participants") && shown.contains("2x1024"), "{shown}");
    assert!(shown.contains("bf16"), "{shown}");
}

#[test]
fn names_from_a_drive_lead_nowhere() {
    let place = Place::with_pool(2);
    let evil: [(&str, &str); 4] = [
        ("up@1", "../evil"),
        ("root@1", "/tmp/stanchion-evil"),
        ("dots@1", ".."),
        ("nul@1", "a\0b"),
    ];
    for (checkpoint, name) in evil {
        save_with_engine(&place, checkpoint, &[&["good\x1b[2J", name]]);
        let refused = place.run(&["restore", checkpoint, "-o", "out"]);
        assert!(!refused.stderr.contains('\0') && !refused.stderr.contains('\x1b'), "{refused:?}");
        refused.fails(12, &["cannot be a file below the output directory"]);
        assert!(!place.path("out").exists() && !place.path("evil").exists(), "{name}");
        let shown = place.run(&["show", checkpoint]).ok().stdout;
        assert!(!shown.contains('\x1b') && !shown.contains('\0'), "{shown:?}");
        place.run(&["restore", checkpoint, "-o", "out", "--shard", "good*"]).ok();
        assert_eq!(place.names("out").len(), 1);
        fs::remove_dir_all(place.path("out")).unwrap();
    }
    assert!(!std::path::Path::new("/tmp/stanchion-evil").exists());
}

#[test]
fn the_ladder_reports_each_rung_and_leaves_nothing() {
    let place = Place::with_pool(2);
    let before = place.names(".");
    let ladder = ["bench", "ladder", "--size", "6MiB", "--runs", "1", "--ranks", "3", "--json"];
    let report = place.run(&ladder).ok().json();
    let rungs = report["rungs"].as_array().unwrap();
    let names: Vec<&str> = rungs.iter().map(|rung| rung["rung"].as_str().unwrap()).collect();
    let expected = ["buffered", "direct", "double_buffered", "striped", "divided", "overlapped"];
    assert_eq!(names, expected);
    for rung in rungs {
        assert!(rung["seconds"].as_f64().unwrap() > 0.0, "{rung}");
        assert!(rung["stall_seconds"].as_f64().unwrap() >= 0.0, "{rung}");
    }
    let train = &report["train"];
    let seconds = |key: &str| train[key].as_f64().unwrap();
    assert!(seconds("iteration_seconds") > 0.0 && seconds("compute_seconds") > 0.0, "{train}");
    assert_eq!(place.names("."), before);
    assert_eq!(place.checkpoints(), 0);
    place.file("precious", b"x");
    let refused = place.run(&["bench", "ladder", "--size", "6MiB", "--scratch", "precious"]);
    refused.fails(12, &["precious exists"]);
    assert_eq!(place.read("precious"), b"x");
}
