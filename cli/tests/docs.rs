// SPDX-License-Identifier: Apache-2.0

//! The documents are true: every command and sample of README.md runs as written there, in order,
//! and figures are those of the committed report.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Numbers, Place};
use serde_json::Value;

/// At most this many blocks may be left out: otherwise nothing is tested.
const MAX_BLOCKS_NOT_RUN: usize = 3;

/// What a fenced block of README.md is, from the words behind its fence.
#[derive(PartialEq, Eq, Debug)]
enum Kind {
    /// Not a program: a diagram.
    Text,
    Shell,
    Rust,
    C,
    /// ```` ```sh no-test: REASON ````
    NotRun {
        reason: String,
    },
}

struct Block {
    kind: Kind,
    /// Of README.md, for messages.
    line: usize,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Where cargo puts what it builds for this test: the library in all its forms, too.
fn artifacts() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn kind(info: &str) -> Kind {
    if let Some((_, reason)) = info.split_once(" no-test: ") {
        return Kind::NotRun { reason: reason.to_owned() };
    }
    match info {
        "" => Kind::Text,
        "sh" => Kind::Shell,
        "rust" => Kind::Rust,
        "c" => Kind::C,
        other => panic!("README.md has a block of {other:?}, which no test runs"),
    }
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in markdown.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                open = Some(Block { kind: kind(info), line: index + 1, text: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "README.md ends inside a block");
    found
}

#[track_caller]
fn succeeds(mut command: Command, block: &Block) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "the block at line {} of README.md failed: {}\n{}\n{stdout}\n{stderr}",
        block.line,
        output.status,
        block.text
    );
    stdout.into_owned()
}

fn run_shell(place: &Place, block: &Block) -> String {
    let stanchion = Path::new(env!("CARGO_BIN_EXE_stanchion")).parent().unwrap();
    let path = format!("{}:{}", stanchion.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-x", "-c", &block.text]);
    command.current_dir(place.directory()).env("PATH", path).env_remove("STANCHION_DRIVES");
    succeeds(command, block)
}

fn run_rust(place: &Place, block: &Block) -> String {
    let source = place.path("sample.rs");
    fs::write(&source, &block.text).unwrap();
    let artifacts = artifacts();
    // From the repository, so that rustup takes the compiler that built the library.
    let mut compiler = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    compiler.current_dir(root()).args(["--edition", "2024", "-D", "warnings", "-o"]);
    compiler.arg(place.path("sample-rust")).arg(&source);
    compiler.arg("--extern");
    compiler.arg(format!("stanchion={}", artifacts.join("libstanchion.rlib").display()));
    compiler.arg("-L").arg(format!("dependency={}", artifacts.display()));
    for directory in native_directories() {
        compiler.arg("-L").arg(format!("native={directory}"));
    }
    succeeds(compiler, block);
    let mut sample = Command::new(place.path("sample-rust"));
    sample.current_dir(place.directory());
    succeeds(sample, block)
}

/// Where the archives of SPDK are, which the library does not carry inside.
fn native_directories() -> Vec<String> {
    if !cfg!(feature = "spdk") {
        return Vec::new();
    }
    let mut command = Command::new("pkg-config");
    command.args(["--variable=libdir", "spdk_nvme"]);
    if std::env::var_os("PKG_CONFIG_PATH").is_none() {
        command.env("PKG_CONFIG_PATH", "/opt/stanchion-spdk/lib/pkgconfig");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    vec![String::from_utf8(output.stdout).unwrap().trim().to_owned()]
}

fn run_c(place: &Place, block: &Block) -> String {
    let source = place.path("sample.c");
    fs::write(&source, &block.text).unwrap();
    let library = artifacts().join("libstanchion.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]);
    compiler.arg(place.path("sample-c")).arg(&source).arg("-I").arg(root().join("include"));
    compiler.arg(&library);
    succeeds(compiler, block);
    // The program asks for the library by its soname, which an installation would have as a link.
    let soname = concat!(
        "libstanchion.so.",
        env!("CARGO_PKG_VERSION_MAJOR"),
        ".",
        env!("CARGO_PKG_VERSION_MINOR")
    );
    std::os::unix::fs::symlink(library, place.path(soname)).unwrap();
    let mut sample = Command::new(place.path("sample-c"));
    sample.current_dir(place.directory()).env("LD_LIBRARY_PATH", place.directory());
    succeeds(sample, block)
}

#[test]
fn what_the_readme_shows_runs_in_order() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let place = Place::empty();
    let mut numbers = Numbers(7);
    place.file("model.safetensors", &numbers.bytes(3_000_001));
    place.file("optimizer.pt", &numbers.bytes(6_000_002));
    let (mut shell, mut rust, mut c, mut not_run) = (0, 0, 0, 0);
    let mut printed = String::new();
    for block in blocks(&readme) {
        let count = match &block.kind {
            Kind::Text => continue,
            Kind::NotRun { reason } => {
                assert!(reason.len() > 10, "line {}: say why it is not run", block.line);
                &mut not_run
            }
            Kind::Shell => {
                printed = run_shell(&place, &block);
                &mut shell
            }
            Kind::Rust => {
                assert!(run_rust(&place, &block).contains("saved"));
                &mut rust
            }
            Kind::C => {
                assert!(run_c(&place, &block).contains("saved"));
                &mut c
            }
        };
        *count += 1;
    }
    assert!(shell >= 2 && rust >= 1 && c >= 1, "{shell} {rust} {c}");
    assert!(not_run <= MAX_BLOCKS_NOT_RUN, "{not_run} blocks are not run");
    for name in ["llama@300", "llama@400", "llama@500"] {
        assert!(printed.contains(name), "the last block does not list {name}: {printed}");
    }
}

/// As the report's tables have it: three significant digits.
fn three_digits(value: f64) -> String {
    let decimals = (2.0 - value.abs().log10().floor()).max(0.0) as usize;
    format!("{value:.decimals$}")
}

#[test]
fn figures_of_the_readme_are_those_of_the_report() {
    let report = fs::read_to_string(root().join("docs/charts/last-run.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut compared = 0;
    for line in readme.lines().filter(|line| line.starts_with('|') && line.ends_with("` |")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells.last().unwrap().trim_matches('`');
        let row = rows.iter().find(|row| row["name"] == name);
        let row = row.unwrap_or_else(|| panic!("the report has no row {name}"));
        let figure = match row["ratio"].as_f64() {
            Some(ratio) => three_digits(ratio),
            None => format!("{} %", three_digits(row["value"].as_f64().unwrap())),
        };
        assert_eq!(cells[1], figure, "{name}");
        compared += 1;
    }
    assert_eq!(compared, 6, "README.md shows six rows");
}

#[test]
fn the_results_page_and_its_charts_are_what_the_report_generates() {
    let mut command = Command::new("python3");
    command.current_dir(root()).args(["scripts/bench", "--check"]);
    command.args(["--from", "docs/charts/last-run.json", "--charts", "docs/charts"]);
    command.args(["--results", "docs/performance/results.md"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
