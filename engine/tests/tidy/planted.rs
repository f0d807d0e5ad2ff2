// SPDX-License-Identifier: Apache-2.0
//! Bad imports planted into a copy of the sources: each kind must be found.

use std::collections::BTreeMap;

use crate::engine;
use crate::imports::{Parsed, Source};
use crate::layers::complaints;

/// A copy of the sources that bad code is added to.
struct Copy {
    texts: BTreeMap<String, String>,
    parsed: Parsed,
}

impl Copy {
    fn new() -> Copy {
        let sources = engine();
        let parsed = Parsed::of(&sources);
        let texts = sources.into_iter().map(|source| (source.file, source.text)).collect();
        Copy { texts, parsed }
    }

    /// The complaints after code was added to files.
    fn with(&self, added: &[(&str, &str)]) -> Vec<String> {
        let mut parsed = self.parsed.clone();
        for (file, code) in added {
            let text = format!("{}\n{code}", self.texts[*file]);
            parsed.set(&Source { file: (*file).to_owned(), text });
        }
        complaints(&parsed)
    }

    /// Adding the code must give a complaint that has all the words.
    fn finds(&self, added: &[(&str, &str)], words: &[&str]) {
        let found = self.with(added);
        let is_named = found.iter().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(is_named, "{added:?}: {found:?}");
    }
}

#[test]
fn every_form_of_an_import_that_runs_up_a_layer_is_found() {
    let copy = Copy::new();
    for code in [
        "use crate::pool::Pool;",
        "use super::super::pool::Pool;",
        "use super::super::{limits, pool::{self as house, Pool as Villa}};",
        "use crate::{units::Generation as G, pool::Pool as Bad};",
        "pub(crate) use crate::pool::Pool as Hidden;",
        "use crate::pool::handle::*;",
        "use crate::Pool as FromTheRoot;",
        "fn bad() -> Option<crate::pool::Pool> { None }",
        "use crate::pool; fn bad(_: &pool::Pool) {}",
        "fn bad() { assert!(crate::pool::Pool::open(&options).is_ok()); }",
        "mod inner { fn bad(_: super::super::super::pool::Pool) {} }",
        "#[cfg(feature = \"spdk\")] use crate::pool::Pool;",
    ] {
        copy.finds(&[("format/root", code)], &["format/root uses pool/handle"]);
    }
    for (file, code, complaint) in [
        ("format/root", "use crate::session::Session;", "format/root uses session/"),
        ("pool/context", "use crate::session::Session;", "pool/context uses session/"),
        ("session/mod", "use crate::pool::Pool as Up;", "session/mod uses pool/handle"),
        ("pool/handle", "use crate::bulk::Saved;", "pool/handle uses bulk/save"),
        ("pool/handle", "use crate::internals::fuzz::label;", "uses internals/fuzz"),
    ] {
        copy.finds(&[(file, code)], &[complaint]);
    }
}

#[test]
fn circles_are_found_within_a_layer() {
    let copy = Copy::new();
    copy.finds(
        &[
            ("extent", "use crate::placement::capacity as _;"),
            ("placement", "use self::super::extent::ExtentMap as _;"),
        ],
        &["a circle", "extent uses placement", "placement uses extent"],
    );
    // A mod.rs that re-exports a file that uses what the mod.rs defines.
    copy.finds(
        &[("format/mod", "pub(crate) fn here() {}"), ("format/root", "use super::here;")],
        &["a circle", "format/mod uses format/root", "format/root uses format/mod"],
    );
}

#[test]
fn what_is_in_no_layer_or_cannot_be_followed_is_found() {
    let copy = Copy::new();
    let nowhere = "use crate::nowhere::Thing;";
    copy.finds(&[("units", nowhere)], &["units: crate::nowhere::Thing names nothing"]);
    copy.finds(&[("units", "use crate::{")], &["units: "]);
    let mut parsed = copy.parsed.clone();
    parsed.set(&Source { file: "stray".into(), text: String::new() });
    assert!(complaints(&parsed).contains(&"stray is in no layer".to_owned()));
}

#[test]
fn tests_may_use_everything() {
    let code = "#[cfg(test)] mod more_tests { use crate::pool::Pool; }
        #[cfg(all(test, not(loom)))] fn check(_: &crate::pool::Pool) {}";
    assert_eq!(Copy::new().with(&[("format/root", code)]), Vec::<String>::new());
}
