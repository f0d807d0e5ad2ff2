// SPDX-License-Identifier: Apache-2.0
//! What SPDK and DPDK print appears in the command's log and nowhere else. Needs `--features
//! spdk`.

#![cfg(feature = "spdk")]
#![allow(clippy::unwrap_used)]

mod common;

use std::net::TcpListener;

use common::{Outcome, Place};
use serde_json::Value;

/// A port that nothing listens to.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn list(json: &[&str]) -> Option<Outcome> {
    let address = format!(
        "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{} subnqn:nqn.2016-06.io.spdk:none",
        closed_port()
    );
    let arguments = [&["list", "--drive", &address][..], json].concat();
    let outcome = Place::empty().run_bare(&arguments);
    // Also when SPDK fails to start.
    for line in outcome.stderr.lines() {
        let is_json = serde_json::from_str(line).is_ok_and(|message: Value| {
            message["schema"] == "stanchion/message/1" && message["message"].is_string()
        });
        assert_eq!(is_json, json.contains(&"--json"), "{outcome:?}");
        assert!(is_json || line.starts_with("stanchion: "), "{outcome:?}");
    }
    if outcome.stderr.contains("SPDK did not start") {
        eprintln!("skipped: SPDK cannot start here: {outcome:?}");
        return None;
    }
    Some(outcome)
}

#[test]
fn the_lines_of_spdk_are_lines_of_the_log() {
    list(&["--json"]);
    let Some(outcome) = list(&[]) else { return };
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
    assert!(outcome.stderr.contains("stanchion: warning: SPDK: "), "{outcome:?}");
    outcome.fails(10, &["no NVMe controller answered"]);

    // Nothing receives the log: then only the error is printed.
    let Some(quiet) = list(&["--quiet"]) else { return };
    assert_eq!(quiet.stderr.lines().count(), 1, "{quiet:?}");
}
