// SPDX-License-Identifier: Apache-2.0
//! Every subcommand's output with `--json`, also that of failures, against the schemas of
//! docs/json; and the naming rules that docs/json/README.md states.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use common::places::Places;
use common::schema::Schemas;
use common::{MIB, Outcome, Place, page_options};
use serde_json::Value;

/// The subcommands, as the help lists them.
fn subcommands(place: &Place) -> BTreeSet<String> {
    let help = place.run_bare(&["-h"]).ok().stdout;
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Runs of one place, each validated.
struct Runs<'a> {
    place: &'a Place,
    schemas: &'a mut Schemas,
}

impl Runs<'_> {
    /// Every line of stderr is a message; stdout is empty or a document of this subcommand.
    #[track_caller]
    fn checked(&mut self, arguments: &[&str], outcome: Outcome) -> Outcome {
        for line in outcome.stderr.lines() {
            let message: Value =
                serde_json::from_str(line).unwrap_or_else(|_| panic!("{arguments:?}: {line}"));
            assert_eq!(self.schemas.check(&message), "message", "{arguments:?}");
        }
        if outcome.code != 0 {
            assert_eq!(outcome.error()["exit_code"], outcome.code, "{arguments:?}: {outcome:?}");
        }
        if !outcome.stdout.is_empty() {
            let name = self.schemas.check(&outcome.json());
            assert!(
                arguments.iter().any(|word| name.starts_with(word.trim_start_matches("--"))),
                "{name}: {arguments:?}"
            );
        }
        outcome
    }

    #[track_caller]
    fn run(&mut self, code: i32, arguments: &[&str]) -> Outcome {
        let words = [&["--json"], arguments].concat();
        let outcome = self.place.run(&words);
        assert_eq!(outcome.code, code, "{arguments:?}: {outcome:?}");
        self.checked(arguments, outcome)
    }

    #[track_caller]
    fn bare(&mut self, code: i32, arguments: &[&str]) -> Outcome {
        let words = [&["--json"], page_options(arguments), arguments].concat();
        let outcome = self.place.run_bare(&words);
        assert_eq!(outcome.code, code, "{arguments:?}: {outcome:?}");
        self.checked(arguments, outcome)
    }
}

#[test]
fn every_subcommand_prints_what_its_schema_says() {
    let mut schemas = Schemas::read();
    let mut place = Place::empty();
    place.drives = vec!["a.img".into(), "b.img".into()];
    place.file("model", &[1; 3 << 20]);
    let mut runs = Runs { place: &place, schemas: &mut schemas };
    runs.run(0, &["format", "--size", "48MiB", "--dry-run"]);
    runs.run(10, &["format", "--yes"]);
    runs.run(0, &["format", "--size", "48MiB", "--yes"]);
    runs.run(12, &["format"]);
    let empty = runs.run(0, &["list"]);
    assert_eq!(empty.json()["checkpoints"], serde_json::json!([]));
    runs.run(0, &["save", "llama@1", "model"]);
    runs.run(1, &["save", "llama@1", "model"]);
    runs.run(10, &["save", "llama@2", "nowhere"]);
    runs.run(0, &["list"]);
    runs.run(2, &["list", "bad name"]);
    runs.run(0, &["show"]);
    runs.run(0, &["show", "llama"]);
    runs.run(10, &["show", "llama@9"]);
    runs.run(0, &["restore", "llama", "-o", "out"]);
    runs.run(12, &["restore", "llama", "-o", "out"]);
    place.deep_file("tree/sub/file", b"x");
    place.link("tree/link", "sub/file");
    runs.run(0, &["save", "tree@1", "tree", "--allow-changing"]);
    runs.run(0, &["show", "tree"]);
    runs.run(0, &["restore", "tree", "-o", "trees"]);
    runs.run(10, &["restore", "tree", "-o", "none", "--shard", "tree", "--shard", "typo"]);
    let shown = runs.run(0, &["rm", "--dry-run", "tree@1"]).json();
    assert_eq!(
        (&shown["removed"], &shown["would_remove"][0]["step"]),
        (&Value::Array(vec![]), &1.into())
    );
    runs.run(10, &["rm", "--dry-run", "tree@1", "tree@2"]);
    runs.run(0, &["rm", "--yes", "tree@1"]);
    runs.run(0, &["verify"]);
    runs.run(10, &["verify", "llama@9"]);
    runs.run(0, &["drives"]);
    let partly = runs.run(4, &["drives", "--drive", "pcie:ffff:ff:1f.7"]);
    assert_eq!(partly.json()["surveys"].as_array().unwrap().len(), 2);
    assert_eq!(partly.error()["kind"], "partial");
    runs.run(0, &["bench", "write", "--size", "2MiB", "--runs", "1"]);
    runs.run(0, &["bench", "read", "--size", "2MiB", "--runs", "1"]);
    runs.run(1, &["bench", "write", "--size", "1GiB", "--runs", "1"]);
    runs.run(0, &["bench", "ladder", "--size", "2MiB", "--runs", "1", "--ranks", "2"]);
    runs.run(0, &["doctor"]);
    runs.bare(0, &["plan", "--size", "14GB", "--iteration", "2"]);
    runs.bare(0, &["plan", "--size", "140GB", "--iteration", "1", "--drives", "1"]);
    runs.bare(0, &["version"]);
    runs.bare(0, &["--version"]);
    runs.bare(2, &["bind"]);
    runs.run(2, &["unbind"]);
    runs.run(12, &["rm", "llama@1"]);
    runs.run(0, &["rm", "--yes", "llama@1"]);
    runs.run(10, &["rm", "--yes", "llama@1"]);
    for subcommand in subcommands(&place) {
        runs.bare(2, &[&subcommand, "--nonsense"]);
    }
    // What bind and unbind print of a drive is checked by unit tests: this machine may have none.
    let mut missing = schemas.names();
    missing.retain(|name| !schemas.used.contains(name));
    assert_eq!(missing, ["bind", "unbind"].map(str::to_owned).into());
}

#[test]
fn damage_and_lost_drives_are_documents_too() {
    let mut schemas = Schemas::read();
    let mut place = Place::empty();
    let drives = ["--drive", "a.img", "--drive", "b.img"];
    let format = ["format", "--redundancy", "mirror", "--size", "48MiB", "--yes"];
    place.run_bare(&[&format[..], &drives].concat()).ok();
    place.file("model", &[7; 2 << 20]);
    place.run_bare(&[&["save", "llama@1", "model"][..], &drives].concat()).ok();
    place.drives = vec!["a.img".into(), "b.img".into()];
    let places = Places::find(&place);
    let ((drive, offset_bytes), _) = places.chunk(0);
    places.flip((drive, offset_bytes));
    let mut runs = Runs { place: &place, schemas: &mut schemas };
    // The other copy is read, with a line in the log.
    let restored = runs.bare(0, &[&["restore", "llama", "-o", "out"][..], &drives].concat());
    assert!(restored.stderr.contains(r#""level":"warning","kind":"log""#), "{restored:?}");
    assert!(place.read("out/model") == [7; 2 << 20]);
    let damaged = runs.bare(3, &[&["verify"][..], &drives].concat()).json();
    let damage = &damaged["damages"][0];
    assert_eq!((&damage["kind"], &damage["offset_bytes"]), (&"data".into(), &offset_bytes.into()));
    assert_eq!(damage["checkpoint"], serde_json::json!({"name": "llama", "step": 1}));
    let repaired = runs.bare(0, &[&["verify", "--repair"][..], &drives].concat()).json();
    assert_eq!(repaired["repaired"].as_array().unwrap().len(), 1);

    fs::rename(place.path("b.img"), place.path("away.img")).unwrap();
    let listed = runs.bare(0, &[&["list"][..], &drives].concat());
    assert_eq!(listed.json()["checkpoints"][0]["availability"], "one_copy");
    let kinds: Vec<String> = listed
        .stderr
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].as_str().unwrap().into())
        .collect();
    assert!(kinds.contains(&"drive_missing".to_owned()), "{listed:?}");
    let shown = runs.bare(0, &[&["show"][..], &drives].concat()).json();
    let states = shown["pool"]["drives"].as_array().unwrap().iter().map(|drive| &drive["back_end"]);
    assert!(states.clone().any(|back_end| back_end == "none"), "{shown}");
    runs.bare(10, &[&["rm", "--yes", "llama@1"][..], &drives].concat());
    runs.bare(0, &[&["rm", "--yes", "--degraded", "llama@1"][..], &drives].concat());
    place.sparse_file("new.img", 48 * MIB);
    let replace = ["verify", "--repair", "--replacement", "new.img", "--drive", "a.img"];
    assert_eq!(runs.bare(0, &replace).json()["rebuilt_serials"].as_array().unwrap().len(), 1);
}

/// A property of any schema: its name, its type, and the schema that it is in.
fn properties<'a>(schema: &'a Value, found: &mut Vec<(&'a str, &'a Value)>) {
    if let Some(object) = schema["properties"].as_object() {
        for (name, value) in object {
            found.push((name, value));
            properties(value, found);
        }
    }
    if schema["items"].is_object() {
        properties(&schema["items"], found);
    }
}

/// The type without `null`.
fn kind(property: &Value) -> String {
    match &property["type"] {
        Value::Array(kinds) => kinds[0].as_str().unwrap().to_owned(),
        kind => kind.as_str().unwrap_or("string").to_owned(),
    }
}

#[test]
fn names_keep_their_rules_and_their_types() {
    let schemas = Schemas::read();
    let mut kinds: BTreeMap<&str, (String, &str)> = BTreeMap::new();
    for (schema, text) in schemas.all() {
        let mut found = Vec::new();
        properties(text, &mut found);
        assert!(found.len() > 1, "{schema}");
        for (name, property) in found {
            let is_snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(is_snake), "{schema}: {name}");
            let kind = kind(property);
            if name.ends_with("_bytes") || name.ends_with("_count") {
                assert_eq!(kind, "integer", "{schema}: {name}");
            }
            if name.ends_with("_at") {
                assert_eq!(property["format"], "date-time", "{schema}: {name}");
            }
            if name.ends_with("_serials") {
                assert_eq!(kind, "array", "{schema}: {name}");
            }
            assert!(!name.ends_with("_ms") && name != "bytes", "{schema}: {name}");
            let (known, first) = kinds.entry(name).or_insert((kind.clone(), schema));
            assert_eq!(*known, kind, "{name} in {first} and in {schema}");
        }
    }
}

#[test]
fn the_page_names_every_schema() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json");
    let page = fs::read_to_string(folder.join("README.md")).unwrap();
    for name in Schemas::read().names() {
        assert!(page.contains(&format!("({name}.schema.json)")), "{name}");
    }
}
