// SPDX-License-Identifier: Apache-2.0
//! What holds for the files of the repository, whatever they are: a licence line in every source
//! file, and links between documents that lead somewhere.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const LICENCE: &str = "SPDX-License-Identifier: Apache-2.0";
const SOURCES: &[&str] = &["c", "cpp", "h", "py", "rs", "sh"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Every file except built and hidden ones and the fuzzers' inputs.
fn files() -> Vec<PathBuf> {
    let root = root();
    let mut directories = vec![root.clone(), root.join(".ci")];
    let mut found = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let kind = entry.file_type().unwrap();
            if name.starts_with('.') || ["target", "corpus", "artifacts"].contains(&name.as_str()) {
                continue;
            } else if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    assert!(found.len() > 100, "the files were not found");
    found
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

#[test]
fn every_source_file_has_its_licence_line() {
    let mut without = Vec::new();
    for path in files() {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        let is_source = SOURCES.contains(&extension(&path)) || text.starts_with("#!/");
        if is_source && !text.lines().take(3).any(|line| line.contains(LICENCE)) {
            without.push(path);
        }
    }
    assert!(without.is_empty(), "run python3 scripts/lib/licence_lines.py: {without:#?}");
}

/// The targets of links `[text](target)`, without those in code.
fn links(text: &str) -> Vec<String> {
    let mut in_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            // Every other piece is between backticks.
            let prose = line.split('`').step_by(2).collect::<Vec<_>>().join("_");
            let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            found.extend(targets.map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// The anchors of a document's headings, derived from their text.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let words = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    words.map(|text| text.chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for document in files().into_iter().filter(|path| extension(path) == "md") {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => document.clone(),
                _ => document.parent().unwrap().join(path),
            };
            let leads = target.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor));
            if !leads {
                wrong.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(count > 5, "links were not found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn links_and_anchors_are_parsed() {
    let text = "# A b: `c` d\n[one](x.md#a) `[no](y)` [two](z)\n```\n[no](w)\n```\n";
    assert_eq!(links(text), ["x.md#a", "z"]);
    assert!(anchors(text).contains("a-b-c-d"));
}
