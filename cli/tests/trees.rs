// SPDX-License-Identifier: Apache-2.0
//! Directories are saved with all that is in them, and come back as they were.

#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use common::{Numbers, Outcome, Place};

/// Runs the command with bytes on standard input.
fn with_input(place: &Place, arguments: &[&str], input: &[u8]) -> Outcome {
    let mut command = place.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    place.finish(child)
}

/// Trees as training frameworks lay them out; their files have other bytes here.
fn layouts(place: &Place) {
    let mut numbers = Numbers(3);
    let mut file = |path: &str| {
        let len_bytes = numbers.below(9000) as usize;
        place.deep_file(path, &numbers.bytes(len_bytes));
    };
    // DeepSpeed: equal names in many directories, a script to run, a file with the newest step.
    for rank in 0..2 {
        file(&format!("deepspeed/global_step100/mp_rank_0{rank}/model_states.pt"));
        file(&format!("deepspeed/global_step100/bf16_zero_pp_rank_{rank}_optim_states.pt"));
    }
    place.deep_file("deepspeed/latest", b"global_step100");
    place.deep_file("deepspeed/zero_to_fp32.py", b"#!/usr/bin/env python3\n");
    place.chmod("deepspeed/zero_to_fp32.py", 0o755);
    // Megatron.
    for rank in ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000"] {
        file(&format!("megatron/iter_0001000/{rank}/model_optim_rng.pt"));
    }
    place.deep_file("megatron/latest_checkpointed_iteration.txt", b"1000");
    place.link("megatron/newest", "iter_0001000/mp_rank_00_000");
    // PyTorch DCP: its metadata is in a file whose name starts with a dot.
    for step in ["step-1", "step-2"] {
        file(&format!("dcp/{step}/.metadata"));
        file(&format!("dcp/{step}/__0_0.distcp"));
        file(&format!("dcp/{step}/__1_0.distcp"));
    }
    // A cache of Hugging Face: its snapshots are links to its blobs.
    for (name, blob) in [("model.safetensors.index.json", "1f"), ("model-00001.safetensors", "2e")]
    {
        file(&format!("hf/models--org--llama/blobs/{blob}"));
        let link = format!("hf/models--org--llama/snapshots/abc/{name}");
        place.link(&link, &format!("../../blobs/{blob}"));
    }
    place.deep_file("hf/models--org--llama/refs/main", b"abc");
    fs::create_dir_all(place.path("hf/.locks/empty")).unwrap();
    place.chmod("hf/.locks", 0o750);
    place.chmod("hf/.locks/empty", 0o1777);
    place.touch("hf/.locks/empty", "1999-12-31T23:59:59.123456789Z");
    place.touch("deepspeed/latest", "1969-07-20T20:17:40.5Z");
    place.touch("megatron/newest", "2020-02-02T02:02:02Z");
    place.touch("megatron/iter_0001000", "2021-01-01T00:00:00.000000001Z");
    place.chmod("dcp/step-1/.metadata", 0o400);
    place.chmod("dcp/step-2", 0o555);
}

#[test]
fn trees_come_back_with_modes_times_and_links() {
    let place = Place::with_pool(2);
    layouts(&place);
    let trees = ["deepspeed", "megatron", "dcp", "hf"];
    place.run(&[&["save", "all@1"][..], &trees].concat()).ok();
    place.run(&["restore", "all", "-o", "out"]).ok();
    assert_eq!(place.names("out"), ["dcp", "deepspeed", "hf", "megatron"]);
    // A second time, into directories that exist.
    fs::create_dir(place.path("there")).unwrap();
    place.run(&["restore", "all", "-o", "there"]).ok();
    for tree in trees {
        place.same_trees(tree, &format!("out/{tree}"));
        place.same_trees(tree, &format!("there/{tree}"));
    }
    assert_eq!(place.listing("out"), place.listing("there"));
    let replaced = place.run(&["restore", "all", "-o", "there", "--force", "--json"]).ok().json();
    assert_eq!(place.listing("out"), place.listing("there"));
    assert_eq!(replaced["link_count"], 3);
    // One of its directories, with the modes of those above it; one file.
    place.run(&["restore", "all", "-o", "part", "--shard", "hf/.locks", "--shard", "*.txt"]).ok();
    assert_eq!(place.names("part"), ["hf", "megatron"]);
    place.same_trees("hf/.locks", "part/hf/.locks");
    let shown = place.run(&["show", "all"]).ok().stdout;
    assert!(shown.contains("megatron/newest -> iter_0001000/mp_rank_00_000"), "{shown}");
    assert!(shown.contains("hf/.locks/empty/"), "{shown}");
    let shown = place.run(&["show", "all", "--json"]).ok().json();
    let shards = shown["checkpoint"]["shards"].as_array().unwrap();
    let script = shards.iter().find(|shard| shard["name"] == "deepspeed/zero_to_fp32.py").unwrap();
    assert_eq!((&script["kind"], &script["mode"]), (&"file".into(), &"0755".into()));
    assert!(place.names(".").iter().all(|name| !name.contains("partial")));
}

#[test]
fn a_snapshot_of_links_is_saved_whole() {
    let place = Place::with_pool(1);
    layouts(&place);
    let snapshot = "hf/models--org--llama/snapshots/abc";
    place.run(&["save", "hf@1", snapshot]).ok();
    place.run(&["restore", "hf", "-o", "out"]).ok();
    let restored = place.path("out/abc/model-00001.safetensors");
    assert!(fs::symlink_metadata(&restored).unwrap().is_file());
    assert!(fs::read(restored).unwrap() == place.read("hf/models--org--llama/blobs/2e"));
    let refused = place.run(&["save", "hf@2", snapshot, "--outside-links", "refuse"]);
    refused.fails(12, &["model-00001.safetensors is a link to ../../blobs/2e", "--outside-links"]);
    // A PATH that is a link is what it leads to.
    let one = format!("{snapshot}/model-00001.safetensors");
    place.run(&["save", "hf@3", &one, "--outside-links", "refuse"]).ok();
    // Directories that links lead to, and links in them that stay there.
    place.deep_file("data/d/x", b"x");
    place.link("data/d/y", "./x");
    place.link("data/d/up", "../z");
    place.file("data/z", b"z");
    place.link("tree/in", "../data/d");
    place.link("tree/absolute", place.path("data/z").to_str().unwrap());
    place.run(&["save", "links@1", "tree"]).ok();
    place.run(&["restore", "links", "-o", "followed"]).ok();
    let kinds = place.listing("followed/tree");
    let kinds: Vec<_> =
        kinds.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(kinds, ["absolute f", "in d", "in/up f", "in/x f", "in/y l"]);
}

#[test]
fn links_without_an_end_and_special_files_are_refused() {
    let place = Place::with_pool(1);
    place.deep_file("ends/a/file", b"x");
    place.link("ends/a/loop", "../../ends");
    place.run(&["save", "x@1", "ends"]).fails(12, &["ends/a/loop", "leads back"]);
    place.run(&["save", "x@1", "ends", "--exclude", "loop"]).ok();
    place.link("dead/link", "/nowhere/at/all");
    place.run(&["save", "x@2", "dead"]).fails(10, &["dead/link is a link to /nowhere/at/all"]);
    // A link that leads nowhere in its own tree is a link like others.
    fs::remove_file(place.path("dead/link")).unwrap();
    place.link("dead/link", "later");
    place.run(&["save", "x@3", "dead"]).ok();
    place.run(&["restore", "x@3", "-o", "out"]).ok();
    place.same_trees("dead", "out/dead");
    fs::create_dir(place.path("special")).unwrap();
    let fifo = place.path("special/fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    place.run(&["save", "x@4", "special"]).fails(2, &["special/fifo is not a regular file"]);
    fs::create_dir(place.path("names")).unwrap();
    fs::write(place.path("names").join(OsStr::from_bytes(b"caf\xe9")), b"x").unwrap();
    place.run(&["save", "x@5", "names"]).fails(2, &["not UTF-8", "--exclude"]);
    place.deep_file("one/model.bin", b"1");
    place.deep_file("two/model.bin", b"2");
    let both = ["save", "x@6", "one/model.bin", "two/model.bin"];
    place.run(&both).fails(2, &["both be saved as model.bin", "--relative"]);
    place.run(&[&both[..], &["--relative"]].concat()).ok();
    place.run(&["restore", "x@6", "-o", "relative"]).ok();
    assert_eq!(place.read("relative/two/model.bin"), b"2");
    place.run(&["save", "x@7", "/etc/hostname", "--relative"]).fails(2, &["absolute"]);
    place.run(&["save", "x@7", "one", "--exclude", "*"]).fails(2, &["nothing is left to save"]);
    // `a` as a link, and something below it.
    place.link("a", "one");
    let through = with_input(&place, &["save", "x@7", "--files-from", "-"], b"a\na/model.bin\n");
    through.fails(2, &["a/model.bin would be saved below a, which is not a directory"]);
    assert_eq!(place.checkpoints(), 3);
}

#[test]
fn a_file_that_cannot_be_read_fails_wherever_it_stands() {
    let place = Place::with_pool(1);
    for name in ["a", "b", "c"] {
        place.deep_file(&format!("tree/{name}"), b"");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--clear-groups", "true"]);
    if !command.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: another user cannot be taken; run as root");
        return;
    }
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        place.chmod(&format!("tree/{name}"), 0o000);
        let inner = place.command(&["save", &format!("x@{index}"), "tree"]);
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", "--inh-caps=-all"]);
        command.arg(inner.get_program()).args(inner.get_args()).current_dir(place.directory());
        fs::set_permissions(place.directory(), fs::Permissions::from_mode(0o755)).unwrap();
        let outcome = common::run(command);
        assert!(outcome.code == 1 || outcome.code == 126, "{outcome:?}");
        if outcome.code == 1 {
            assert!(outcome.stderr.contains(&format!("reading tree/{name}")), "{outcome:?}");
        }
        place.chmod(&format!("tree/{name}"), 0o644);
    }
}

#[test]
fn contents_lists_exclusions_and_standard_input() {
    let place = Place::with_pool(1);
    place.deep_file("run/a.pt", b"a");
    place.deep_file("run/.hidden", b"h");
    place.deep_file("run/logs/x.tmp", b"t");
    place.deep_file("run/logs/keep/y", b"y");
    place.run(&["save", "c@1", "run/."]).ok();
    place.run(&["restore", "c@1", "-o", "contents"]).ok();
    place.same_trees("run", "contents");
    place.run(&["save", "c@2", "run/", "--exclude", "*.tmp", "--exclude", "run/logs/ke*"]).ok();
    place.run(&["restore", "c@2", "-o", "some"]).ok();
    assert_eq!(place.names("some/run"), [".hidden", "a.pt", "logs"]);
    assert!(place.names("some/run/logs").is_empty());

    place.file("list", b"run/a.pt\nrun/logs\n\n");
    place.run(&["save", "c@3", "--files-from", "list"]).ok();
    let zeros = b"run\0run/a.pt\0./run/logs\0run/logs/x.tmp";
    with_input(&place, &["save", "c@4", "--files-from", "-"], zeros).ok();
    place.run(&["restore", "c@3", "-o", "listed"]).ok();
    assert_eq!(place.names("listed/run"), ["a.pt", "logs"]);
    place.run(&["restore", "c@4", "-o", "zeros"]).ok();
    place.same_trees("run", "zeros/run");

    let piped = with_input(&place, &["save", "c@5", "-", "--as", "in/tar", "run/a.pt"], b"piped");
    piped.ok();
    place.run(&["restore", "c@5", "-o", "piped"]).ok();
    assert_eq!(
        (place.read("piped/in/tar"), place.read("piped/a.pt")),
        (b"piped".into(), b"a".into())
    );
    place.run(&["save", "c@6", "-"]).fails(2, &["--as NAME"]);
    place.run(&["save", "c@6", "run", "--as", "x"]).fails(2, &["pass - as PATH"]);
    place.run(&["save", "c@6", "-", "--as", "../x"]).fails(2, &["a part that is . or .."]);
    let twice = ["save", "c@6", "-", "--as", "x", "--files-from", "-"];
    place.run(&twice).fails(2, &["standard input is named twice"]);
    place.run(&["save", "c@6", "--files-from", "none"]).fails(10, &["none"]);
    place.run(&["save", "c@6"]).fails_usage();
}

trait Usage {
    fn fails_usage(self);
}

impl Usage for Outcome {
    #[track_caller]
    fn fails_usage(self) {
        assert_eq!(self.code, 2, "{self:?}");
        assert!(self.stderr.contains("PATH"), "{self:?}");
    }
}

#[test]
fn many_small_files_come_back() {
    let place = Place::with_pool_of(1, 128 << 20);
    let mut numbers = Numbers(5);
    for index in 0..300 {
        place.deep_file(&format!("many/{}/{index}", index % 7), &numbers.bytes(index));
    }
    place.run(&["save", "many@1", "many"]).ok();
    place.run(&["restore", "many", "-o", "out"]).ok();
    place.same_trees("many", "out/many");
}
