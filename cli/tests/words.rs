// SPDX-License-Identifier: Apache-2.0
//! Words that help, errors and docs do not use: each has a plain word that means the same.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::Place;

/// Each with what to write instead.
const RETIRED: [(&str, &str); 15] = [
    ("told", "reported, sent"),
    ("tell", "report, send"),
    ("tells", "reports, sends"),
    ("whoever", "the caller, the user, a process"),
    ("somebody", "a user, a process"),
    ("at hand", "present, available"),
    ("so many", "this many"),
    ("anew", "again"),
    ("found out", "detected"),
    ("mend", "repair"),
    ("mended", "repaired"),
    ("mends", "repairs"),
    ("telling", "reporting, sending"),
    ("nobody", "no process, no thread"),
    ("beside", "next to, compared with, in addition to"),
];

/// The retired words of a text, as words of their own.
fn retired(text: &str) -> Vec<&'static str> {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let text = format!(" {} ", words.join(" "));
    let found = RETIRED.iter().filter(|(word, _)| text.contains(&format!(" {word} ")));
    found.map(|(word, _)| *word).collect()
}

fn files_below(path: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, extension, found);
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
}

/// The string literals of Rust code, without those of comments.
fn literals(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '\'', '/']) {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        rest = match &rest[at..=at] {
            "/" if after.starts_with('/') => after.split_once('\n').map_or("", |(_, next)| next),
            "/" => after,
            // A character; a lifetime has no second quotation mark as close.
            "'" if after.starts_with('\\') => after.get(2..).unwrap_or_default(),
            "'" => after.strip_prefix("\"'").unwrap_or(after),
            _ => {
                let hashes = before.len() - before.trim_end_matches('#').len();
                let is_raw = before[..before.len() - hashes].ends_with('r');
                let len_bytes = match is_raw {
                    true => after.find(&format!("\"{}", "#".repeat(hashes))),
                    false => end_of_literal(after),
                };
                let len_bytes = len_bytes.unwrap_or(after.len());
                found.push(&after[..len_bytes]);
                after.get(len_bytes + 1..).unwrap_or_default()
            }
        };
    }
    found
}

/// Where a literal with escapes ends.
fn end_of_literal(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn the_check_sees_words() {
    assert_eq!(retired("Nobody was Told; tell\n it"), ["told", "tell", "nobody"]);
    assert_eq!(retired("It is at\nhand, untold"), ["at hand"]);
    assert!(retired("amended means reported").is_empty());
    let source = r##"let a = "one"; // "two"
        let b = '"'; let c = "th\"ree"; let d = r"\4\"; let e = r#"a "quoted" one"#; fn f<'a>() {}
        let g = '\''; let h = "last";"##;
    assert_eq!(literals(source), ["one", "th\\\"ree", r"\4\", r#"a "quoted" one"#, "last"]);
}

#[test]
fn help_uses_plain_words() {
    let place = Place::empty();
    let help = place.run_bare(&["--help"]).ok().stdout;
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let subcommands = list.lines().filter_map(|line| line.split_whitespace().next());
    let mut texts = vec![help.clone()];
    for subcommand in subcommands.filter(|name| *name != "help") {
        texts.push(place.run_bare(&[subcommand, "--help"]).ok().stdout);
    }
    assert!(texts.len() > 10);
    for text in texts {
        let found = retired(&text);
        assert!(found.is_empty(), "{found:?} in {text}; see RETIRED");
    }
}

#[test]
fn errors_and_docs_use_plain_words() {
    let mut sources = Vec::new();
    for folder in ["engine/src", "cli/src", "src"] {
        files_below(&root().join(folder), "rs", &mut sources);
    }
    assert!(sources.len() > 100);
    let mut wrong = Vec::new();
    for path in sources {
        let text = fs::read_to_string(&path).unwrap();
        for literal in literals(&text) {
            wrong.extend(
                retired(literal).iter().map(|word| format!("{word}: {literal:?} in {path:?}")),
            );
        }
    }
    let mut pages =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|p| root().join(p)).to_vec();
    files_below(&root().join("docs"), "md", &mut pages);
    for path in pages {
        let text = fs::read_to_string(&path).unwrap();
        wrong.extend(retired(&text).iter().map(|word| format!("{word} in {path:?}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}; see RETIRED");
}
