// SPDX-License-Identifier: Apache-2.0
//! Whatever a pool calls its shards, nothing is written outside of the output directory, and
//! nothing is restored by halves.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::participants::{self, Participant};
use common::{Numbers, Place};
use stanchion_testing::{AttributeType, Attributes, Shard};

/// A file, directory (1) or link (2) as a shard of one block, or of none.
fn shard(name: &str, kind: u8, target: &[u8], number: u64) -> Shard {
    let mut attributes = Attributes::default();
    if kind > 0 {
        attributes.push(AttributeType::FILE_KIND, &[kind]).unwrap();
    }
    if !target.is_empty() {
        attributes.push(AttributeType::LINK_TARGET, target).unwrap();
    }
    Shard {
        name: name.to_owned(),
        offset_bytes: 4096 * number,
        len_bytes: if kind == 0 { 4096 } else { 0 },
        attributes,
        ..Shard::default()
    }
}

fn save(place: &Place, name: &str, shards: Vec<Shard>) {
    let drives: Vec<&str> = place.drives.iter().map(String::as_str).collect();
    let bytes = vec![7; 4096 * shards.len()];
    participants::save(place, &drives, name, vec![Participant { shards, bytes }]);
}

/// Names that are no paths below a directory: each is refused, and says why.
fn bad_names() -> Vec<String> {
    let mut names: Vec<String> = ["/", "..", ".", "a/", "/a", "a//b", "a\0b", "a/.", "./a"]
        .into_iter()
        .map(str::to_owned)
        .collect();
    names.push("../x/evil".to_owned());
    names.push("x".repeat(256));
    names.push("x/".repeat(200) + "..");
    let mut numbers = Numbers(11);
    let parts = ["..", ".", "", "a", "\x1b[2J", "\u{202e}b", "etc", "passwd"];
    while names.len() < 60 {
        let count = 1 + numbers.below(6);
        let parts: Vec<&str> =
            (0..count).map(|_| parts[numbers.below(parts.len() as u64) as usize]).collect();
        let name = parts.join("/");
        let is_bad = parts.iter().any(|part| ["..", ".", ""].contains(part));
        if is_bad && !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Targets that may lead out of the output directory, for a link two directories down.
const BAD_TARGETS: [&str; 14] = [
    "/",
    "/etc/passwd",
    "../../..",
    "../../../x",
    "x/../y",
    "./../../../../x",
    "a/../../../../x",
    "..//../../..",
    "x/..",
    "x\0y",
    "../x/../../../../y",
    "/../x",
    "//x",
    "../../../../../../../../../../../tmp/stanchion-evil",
];

#[test]
fn no_name_and_no_target_leads_out() {
    let place = Place::with_pool(1);
    let names = bad_names();
    let mut shards = vec![shard("good", 0, b"", 0)];
    shards.extend(names.iter().enumerate().map(|(n, name)| shard(name, 0, b"", n as u64 + 1)));
    let end = shards.len() as u64;
    let links = BAD_TARGETS.iter().enumerate();
    shards.extend(links.map(|(n, to)| shard(&format!("d/e/link{n}"), 2, to.as_bytes(), end)));
    shards.push(shard("no-target", 2, b"", end));
    let links: Vec<String> = (0..BAD_TARGETS.len()).map(|n| format!("d/e/link{n}")).collect();
    save(&place, "evil@1", shards);
    let before = place.listing(".");
    let mut count = 0;
    // `\0` cannot stand in an argument, so its shard is chosen by a pattern.
    let patterns = names.iter().map(|name| name.replace('\0', "?"));
    for pattern in patterns.chain(links).chain(["no-target".to_owned(), "*".to_owned()]) {
        let refused = place.run(&["restore", "evil", "-o", "out", "--shard", &pattern]);
        assert!(!refused.stderr.contains(['\0', '\x1b', '\u{202e}']), "{refused:?}");
        refused.fails(12, &["cannot be a file below the output directory", "--shard"]);
        assert!(!place.path("out").exists(), "{pattern:?}");
        count += 1;
    }
    assert!(count > 70, "{count}");
    assert_eq!(place.listing("."), before);
    let shown = place.run(&["show", "evil"]).ok().stdout;
    assert!(!shown.contains(['\0', '\x1b', '\u{202e}']), "{shown:?}");
    place.run(&["restore", "evil", "-o", "out", "--shard", "good"]).ok();
    assert_eq!(place.names("out"), ["good"]);
    assert!(!std::path::Path::new("/tmp/stanchion-evil").exists());
}

#[test]
fn nothing_is_written_through_a_link_or_a_file() {
    let place = Place::with_pool(1);
    fs::create_dir(place.path("victim")).unwrap();
    save(&place, "link@1", vec![shard("d", 2, b"good", 0), shard("d/x", 0, b"", 0)]);
    save(&place, "file@1", vec![shard("d", 0, b"", 0), shard("d/e/x", 0, b"", 1)]);
    save(&place, "full@1", vec![Shard { len_bytes: 4096, ..shard("d", 1, b"", 0) }]);
    for name in ["link", "file"] {
        place.run(&["restore", name, "-o", "out"]).fails(12, &["\"d\" of", "directory, too"]);
        assert!(!place.path("out").exists());
    }
    place.run(&["restore", "full", "-o", "out"]).fails(12, &["and has bytes"]);
    // Through a link that is there.
    save(&place, "through@1", vec![shard("before", 0, b"", 0), shard("d/x", 0, b"", 1)]);
    fs::create_dir(place.path("out")).unwrap();
    place.link("out/d", "../victim");
    for options in
        [&["restore", "through", "-o", "out"][..], &["restore", "through", "-o", "out", "--force"]]
    {
        place.run(options).fails(12, &["out/d is a link"]);
    }
    assert!(place.names("victim").is_empty());
    assert_eq!(place.names("out"), ["d"]);
    // A link of the user's own as the output directory is the directory that it leads to.
    place.link("named", "victim");
    place.run(&["restore", "through", "-o", "named"]).ok();
    assert_eq!(place.names("victim"), ["before", "d"]);
    place.link("dead", "nowhere");
    place.run(&["restore", "through", "-o", "dead"]).fails(12, &["a link to where nothing is"]);
}

#[test]
fn modes_that_give_rights_away_are_not_restored() {
    let place = Place::with_pool(1);
    let mut program = shard("program", 0, b"", 0);
    program.attributes.push(AttributeType::FILE_MODE, &0o6755_u32.to_le_bytes()).unwrap();
    let mut odd = shard("odd", 0, b"", 1);
    odd.attributes.push(AttributeType::FILE_MODE, &u32::MAX.to_le_bytes()).unwrap();
    odd.attributes.push(AttributeType::FILE_MODIFIED, &i64::MIN.to_le_bytes()).unwrap();
    save(&place, "modes@1", vec![program, odd]);
    place.run(&["restore", "modes", "-o", "out"]).ok();
    let listing = place.listing("out");
    assert!(listing.contains("program f 755 ") && listing.contains("odd f 777 "), "{listing}");
    place.run(&["show", "modes", "--json"]).ok();
}
