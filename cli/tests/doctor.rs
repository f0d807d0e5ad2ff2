// SPDX-License-Identifier: Apache-2.0
//! `stanchion doctor`, `bind` and `unbind` on the machine that runs the test, whatever it has. What
//! they do with real drives is tested in the machine of scripts/qemu-rig.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs::File;

use common::Place;

#[test]
fn every_check_of_a_pool_in_files() {
    let place = Place::with_pool(2);
    let outcome = place.run(&["doctor", "--json"]).ok();
    let document = outcome.json();
    let mut statuses: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for check in document["checks"].as_array().unwrap() {
        assert!(!check["evidence"].as_str().unwrap().is_empty(), "{check}");
        let name = check["name"].as_str().unwrap();
        statuses.entry(name).or_default().push(check["status"].as_str().unwrap());
    }
    for name in ["huge_pages", "hugetlbfs", "locked_memory", "iommu", "vfio_modules", "cores"] {
        assert_eq!(statuses[name].len(), 1, "{name}");
    }
    for name in ["owner", "direct_io", "contents"] {
        assert_eq!(statuses[name], ["ok", "ok"], "{name}");
    }
    assert_eq!(statuses["health"], ["skip", "skip"]);
    let table = place.run(&["doctor"]).ok().stdout;
    assert!(
        table.starts_with("STATUS") && table.contains("of 2 drives, checkpoints: 0"),
        "{table}"
    );
}

#[test]
fn a_drive_in_use_is_busy() {
    let place = Place::with_pool(1);
    let held = File::open(place.path(&place.drives[0])).unwrap();
    held.lock().unwrap();
    let outcome = place.run(&["doctor"]).fails(11, &["1 check failed"]);
    assert!(outcome.stdout.contains(&format!("(pid {})", std::process::id())), "{outcome:?}");
    assert!(outcome.stdout.contains("To fix it:"), "{outcome:?}");
    drop(held);
    place.run(&["doctor"]).ok();
}

#[test]
fn a_controller_that_does_not_exist_is_not_found() {
    let place = Place::empty();
    let arguments = ["doctor", "--json", "--drive", "pcie:ffff:ff:1f.7"];
    let outcome = place.run_bare(&arguments);
    // A machine that lacks huge pages fails more than one check.
    let code = if outcome.stderr.contains("1 check failed") { 10 } else { 13 };
    let outcome = outcome.fails_as_json(code, &["failed"]);
    let document = outcome.json();
    let checks = document["checks"].as_array().unwrap();
    let driver = checks.iter().find(|check| check["name"] == "driver").unwrap();
    assert_eq!(
        (driver["status"].as_str(), driver["subject"].as_str()),
        (Some("fail"), Some("pcie:ffff:ff:1f.7"))
    );
}

#[test]
fn only_nvme_drives_on_pcie_are_bound() {
    let place = Place::with_pool(1);
    for command in ["bind", "unbind"] {
        place.run(&[command]).fails(2, &["a.img", "not a block device"]);
        let missing = [command, "--drive", "pcie:ffff:ff:1f.7"];
        place.run_bare(&missing).fails(10, &["ffff:ff:1f.7", "no such PCI function"]);
        place.run_bare(&[command]).fails(2, &["no drive was named"]);
    }
    let outcome = place.run(&["bind", "--serial", "X"]);
    assert!(outcome.code == 2 && outcome.stderr.contains("--force"), "{outcome:?}");
}
