//! The structure that ARCHITECTURE.md draws, held by a test: which layer may use which, where
//! `unsafe` may stand, and how long a file may be.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom up. A module may use its own layer and those above it in this list. The longest
/// prefix of a module's path decides.
const LAYERS: &[&[&str]] = &[
    &["limits"],
    &["units"],
    &["error"],
    &["name", "address", "drive_info", "notice", "planted"],
    &["format", "extent", "placement"],
    &["drives", "state"],
    &["commit"],
    &["recover"],
    &["memory"],
    &["ring", "backoff"],
    &["host"],
    &["device"],
    &["direct"],
    // What passes between the threads, and what stands at its ends.
    &[
        "checksum",
        "reactor/answer",
        "reactor/control",
        "reactor/drive_queue",
        "reactor/mailbox",
        "reactor/queues",
        "reactor/remote_drive",
        "reactor/segment",
    ],
    &["reactor"],
    // The threads of an open pool and what they work with; sessions; the pool as callers see it.
    &["pool/context", "pool/keeper", "pool/open_pool", "pool/options", "pool/threads"],
    &["session"],
    &["pool"],
    &["bulk"],
];

/// The crash explorer, the fuzzers and the benches drive the engine from outside; they are part of no layer.
const OUTSIDE: &[&str] = &["internals", "lib"];

/// Where `unsafe` may stand. Three files outside of memory, ring and devices: `direct` and the
/// reactor's drive queue hand memory to devices, and a remote drive is itself a device.
const UNSAFE: &[&str] =
    &["memory/", "ring/", "device/", "direct", "reactor/drive_queue", "reactor/remote_drive"];

const MAX_LINES: usize = 600;

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).unwrap().with_extension("");
                let name = name.to_str().unwrap().trim_end_matches("/mod").to_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 50, "the sources were not found");
    found
}

fn is_below(module: &str, prefix: &str) -> bool {
    module == prefix || module.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
}

fn layer(module: &str) -> Option<usize> {
    let prefixes =
        LAYERS.iter().enumerate().flat_map(|(rank, l)| l.iter().map(move |p| (rank, *p)));
    let matching = prefixes.filter(|(_, prefix)| is_below(module, prefix));
    matching.max_by_key(|(_, prefix)| prefix.len()).map(|(rank, _)| rank)
}

/// Code without comments and without what only tests see.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Paths below `crate::` that the code names, as module paths.
fn uses(code: &str) -> Vec<String> {
    code.match_indices("crate::")
        .map(|(at, _)| {
            let rest = &code[at + "crate::".len()..];
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            rest[..end.unwrap_or(rest.len())].trim_end_matches(':').replace("::", "/")
        })
        .filter(|path| path.starts_with(|c: char| c.is_lowercase()))
        .collect()
}

#[test]
fn layers_use_only_what_stands_above_them() {
    let mut wrong = Vec::new();
    for (module, text) in sources() {
        if OUTSIDE.iter().any(|outside| is_below(&module, outside)) || module.contains("test") {
            continue;
        }
        let Some(own) = layer(&module) else {
            wrong.push(format!("{module} is in no layer"));
            continue;
        };
        for used in uses(&code(&text)) {
            if layer(&used).is_some_and(|rank| rank > own) {
                wrong.push(format!("{module} uses {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let mut wrong = Vec::new();
    for (module, text) in sources() {
        let has_unsafe =
            code(&text).split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|w| w == "unsafe");
        if has_unsafe
            && !UNSAFE.iter().any(|allowed| module.starts_with(allowed))
            && module != "device"
            && module != "memory"
        {
            wrong.push(module);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn files_stay_short_and_are_in_the_architecture() {
    let architecture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let architecture = fs::read_to_string(architecture).unwrap();
    for (module, text) in sources() {
        assert!(text.lines().count() <= MAX_LINES, "{module} has {} lines", text.lines().count());
        let top = module.split('/').next().unwrap();
        assert!(
            top == "lib" || architecture.contains(&format!("`{top}`")),
            "ARCHITECTURE.md lacks {top}"
        );
    }
}

#[test]
fn every_test_file_is_in_a_test_binary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let main = fs::read_to_string(root.join("tests/main.rs")).unwrap();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    for entry in fs::read_dir(root.join("tests")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let runs = main.contains(&format!("\nmod {name};\n"))
            || manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
        assert!(name == "main" || runs, "no binary has tests/{name}.rs: name it in tests/main.rs");
    }
}
