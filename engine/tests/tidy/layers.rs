// SPDX-License-Identifier: Apache-2.0
//! The layers of `engine/src`: which may use which, and which circles are allowed.

use std::collections::BTreeSet;

use crate::imports::{Arrows, Parsed, arrows, circles};

/// From the bottom up. A file may use its own layer and those above it in this list. The longest
/// prefix of its path decides; a folder's `mod.rs` counts as the folder.
pub const LAYERS: &[&[&str]] = &[
    &["limits"],
    &["units"],
    &["error"],
    &["name", "address", "drive_info", "notice", "planted"],
    &["drives"],
    &["format", "extent", "placement"],
    &["state"],
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
        "reactor/token",
    ],
    &["reactor"],
    // The threads of an open pool and what they work with; sessions; the pool as callers see it.
    &[
        "pool/context",
        "pool/hold",
        "pool/keeper",
        "pool/open_pool",
        "pool/options",
        "pool/ownership",
        "pool/threads",
    ],
    &["session"],
    &["pool"],
    &["bulk"],
];

/// The crash explorer, the fuzzers and the benches drive the engine from outside: they may use
/// every layer, and no layer may use them.
pub const OUTSIDE: &[&str] = &["internals"];

/// Circles that are allowed: the explorer checks an image by exploring its recovery.
const MEANT_CIRCLES: &[&[&str]] = &[&[
    "internals/crash/check",
    "internals/crash/explorer",
    "internals/crash/late",
    "internals/crash/live",
]];

/// What is wrong with the imports of the engine's sources.
pub fn complaints(sources: &Parsed) -> Vec<String> {
    let (arrows, mut wrong) = arrows(sources);
    for (file, uses) in arrows.iter().filter(|(file, _)| !is_outside(file)) {
        let Some(own) = layer(file) else {
            if file != "lib" {
                wrong.push(format!("{file} is in no layer"));
            }
            continue;
        };
        for (used, path) in uses {
            if is_outside(used) || layer(used).is_some_and(|rank| rank > own) {
                wrong.push(format!("{file} uses {used}, which is above it: {path}"));
            }
        }
    }
    let mut meant: Vec<BTreeSet<String>> =
        MEANT_CIRCLES.iter().map(|c| c.iter().map(|file| (*file).to_owned()).collect()).collect();
    for circle in circles(&arrows) {
        match meant.iter().position(|other| *other == circle) {
            Some(at) => drop(meant.remove(at)),
            None => wrong.push(describe(&circle, &arrows)),
        }
    }
    wrong.extend(meant.iter().map(|circle| format!("no such circle any more: {circle:?}")));
    wrong
}

/// The circle, with a path for each of its arrows.
pub fn describe(circle: &BTreeSet<String>, arrows: &Arrows) -> String {
    let mut text = String::from("a circle:");
    for from in circle {
        for (to, path) in arrows[from].iter().filter(|(to, _)| circle.contains(*to)) {
            text.push_str(&format!("\n    {from} uses {to}: {path}"));
        }
    }
    text
}

fn is_outside(file: &str) -> bool {
    OUTSIDE.iter().any(|outside| is_below(file, outside))
}

fn is_below(file: &str, prefix: &str) -> bool {
    file.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn layer(file: &str) -> Option<usize> {
    let prefixes =
        LAYERS.iter().enumerate().flat_map(|(rank, l)| l.iter().map(move |p| (rank, *p)));
    let matching = prefixes.filter(|(_, prefix)| is_below(file, prefix));
    matching.max_by_key(|(_, prefix)| prefix.len()).map(|(rank, _)| rank)
}
