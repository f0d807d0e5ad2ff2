// SPDX-License-Identifier: Apache-2.0
//! Where the command takes its drives from; and docs/configuration.md, compared with the sources.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Outcome, Place, run};

fn list(place: &Place, arguments: &[&str], environment: &str) -> Outcome {
    let mut command = place.bare(&["list", "--json", "--huge-pages", "off"]);
    command.args(arguments).env("STANCHION_DRIVES", environment);
    run(command)
}

#[test]
fn a_named_file_overrides_the_environment() {
    let place = Place::empty();
    place.file("b.toml", b"drives = ['b.img']\n");
    let mut format = place.bare(&["format", "--config", "b.toml", "--size", "48MiB", "--yes"]);
    format.env("STANCHION_DRIVES", "a.img");
    run(format).ok();
    assert_eq!(place.names("."), ["b.img", "b.toml"], "the drive of the environment was formatted");
    list(&place, &["--config", "b.toml"], "a.img").ok();
    list(&place, &["--config", "b.toml", "--drive", "c.img"], "b.img")
        .fails_as_json(10, &["c.img"]);
    list(&place, &[], "b.img").ok();
    // A mistake in a named file is an error, whatever overrides it.
    place.file("bad.toml", b"drive = ['b.img']\n");
    list(&place, &["--config", "bad.toml", "--drive", "b.img"], "")
        .fails_as_json(2, &["bad.toml", "unknown field"]);
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let place = Place::with_pool(1);
    fs::create_dir_all(place.path("etc/pools")).unwrap();
    place.file("etc/pools/p.toml", b"drives = ['../../a.img']\n");
    list(&place, &["--config", "etc/pools/p.toml"], "").ok();
    let mut elsewhere = place.bare(&["list", "--huge-pages", "off", "--config", "p.toml"]);
    elsewhere.current_dir(place.path("etc/pools"));
    run(elsewhere).ok();
    // From another folder, by an absolute path.
    let path = place.path("etc/pools/p.toml");
    let mut absolute = place.bare(&["list", "--huge-pages", "off", "--config"]);
    absolute.arg(path).current_dir("/");
    run(absolute).ok();
}

/// Kills a command that does not end by itself, and fails: it would hang the test.
fn ends_soon(mut command: Command) -> Outcome {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Outcome::new(child.wait_with_output().unwrap())
}

#[test]
fn what_is_not_a_configuration_file_is_refused_at_once() {
    let place = Place::with_pool(1);
    assert!(Command::new("mkfifo").arg(place.path("fifo")).status().unwrap().success());
    symlink("/dev/zero", place.path("zeros")).unwrap();
    fs::create_dir(place.path("folder")).unwrap();
    place.sparse_file("large.toml", 2 << 20);
    place.file("latin.toml", b"drives = ['\xe9.img']\n");
    place.file("empty.toml", b"");
    for (file, code, text) in [
        ("fifo", 2, "not a regular file"),
        ("zeros", 2, "not a regular file"),
        ("/dev/zero", 2, "not a regular file"),
        ("folder", 2, "not a regular file"),
        ("large.toml", 2, "larger than"),
        ("latin.toml", 2, "not UTF-8"),
        ("empty.toml", 2, "missing field"),
        ("none.toml", 10, "no such file"),
        ("a.img/none.toml", 1, "Not a directory"),
    ] {
        ends_soon(place.bare(&["list", "--config", file])).fails(code, &[file, text]);
    }
}

#[test]
fn sizes_of_two_to_the_63_are_too_large() {
    let place = Place::empty();
    for size in ["8EiB", "9223372036854775808", "99999999999999999999999"] {
        let arguments = ["format", "--drive", "a.img", "--yes", "--size", size];
        let outcome = place.run_bare(&arguments);
        assert!(outcome.code == 2 && outcome.stderr.contains("too large"), "{outcome:?}");
        assert!(place.names(".").is_empty());
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn page() -> String {
    fs::read_to_string(root().join("docs/configuration.md")).unwrap()
}

/// The words of a text that start with this, in capitals.
fn variables(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.split(|c| !is_part(c))
        .filter(|word| word.strip_prefix("STANCHION_").is_some_and(|rest| rest.len() > 1))
        .map(str::to_owned)
        .collect()
}

fn variables_below(path: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.contains("tests") {
            variables_below(&path, found);
        } else if name.ends_with(".rs") && !name.contains("tests") {
            found.extend(variables(&fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn the_page_has_every_variable_of_the_sources_and_no_other() {
    let mut found = BTreeSet::new();
    for folder in ["engine/src", "cli/src", "src", "spdk-sys/src"] {
        variables_below(&root().join(folder), &mut found);
    }
    assert!(found.len() >= 4, "{found:?}");
    assert_eq!(variables(&page()), found);
}

#[test]
fn the_page_has_every_key_and_every_shared_option() {
    let page = page();
    let source = fs::read_to_string(root().join("cli/src/config.rs")).unwrap();
    let keys = source.split("struct Keys {").nth(1).unwrap().split("\n}").next().unwrap();
    let keys: BTreeSet<&str> = keys
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//"))
        .filter_map(|line| line.split_once(": ").map(|(key, _)| key))
        .collect();
    let table = page.split("## The configuration file").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let documented: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(key, _)| key))
        .collect();
    assert_eq!(documented, keys);

    let help = Place::empty().run_bare(&["save", "--help"]).ok().stdout;
    let engine = help.split("Engine options:").nth(1).unwrap();
    let engine = engine.split("Output options:").next().unwrap();
    let options = engine.split_whitespace().filter(|word| word.starts_with("--"));
    let options: Vec<&str> = options.collect();
    assert!(options.len() >= 5, "{options:?}");
    for option in options {
        assert!(page.contains(&format!("| `{option}` |")), "{option}");
    }
}

#[test]
fn every_address_of_the_page_is_one() {
    use stanchion_engine::DriveAddress;
    let page = page();
    let table = page.split("## Addresses").nth(1).unwrap().split("\n## ").next().unwrap();
    let forms: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(form, _)| form))
        .collect();
    assert!(forms.len() >= 5, "{forms:?}");
    for form in forms {
        let address: DriveAddress = form.parse().unwrap();
        assert_eq!(matches!(address, DriveAddress::Path(_)), form == "PATH", "{form}");
        if form != "PATH" {
            let with_namespace = format!("{form} ns:2").parse::<DriveAddress>().unwrap();
            assert!(with_namespace.to_string().ends_with(" ns:2"));
        }
    }
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let place = Place::with_pool(1);
    let mut command = place.command(&["list"]);
    for variable in variables(&page()) {
        command.env(variable, "");
    }
    run(command).ok();
    for (variable, value) in [("STANCHION_KERNEL_IO", "kernel"), ("STANCHION_KERNEL_IO", "spdk")] {
        let mut command = place.command(&["list"]);
        command.env(variable, value);
        run(command).fails(2, &[variable, "io_uring or threads"]);
    }
}
