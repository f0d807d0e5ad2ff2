// SPDX-License-Identifier: Apache-2.0
//! Which features the packages are built with: the engine's internals, and bugs to plant, are never
//! part of the command, also not when tests are built with it.

use std::process::Command;

use crate::repository;

/// The features that `packages`, built in one command with their tests, give to `package`.
fn features_of(package: &str, packages: &[&str]) -> String {
    let selected = packages.iter().flat_map(|package| ["-p", package]);
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--quiet", "--edges", "features", "--prefix", "none"])
        .args(selected)
        .args(["--invert", package])
        .current_dir(repository())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    let prefix = format!("{package} feature ");
    tree.lines().filter(|line| line.starts_with(&prefix)).collect::<Vec<_>>().join("\n")
}

/// The packages that scripts/test builds and tests in one command, without SPDK.
fn packages_of_the_suite() -> Vec<String> {
    let script = std::fs::read_to_string(repository().join("scripts/test")).expect("it is there");
    let members = script.split_once("members=(").expect("the script names its packages").1;
    let members = members.split_once(')').expect("the list ends").0;
    members.split_whitespace().filter(|word| *word != "-p").map(str::to_owned).collect()
}

#[test]
fn the_command_that_tests_run_has_no_internals_and_no_bugs() {
    let suite = packages_of_the_suite();
    let suite: Vec<&str> = suite.iter().map(String::as_str).collect();
    assert!(suite.contains(&"stanchion-cli") && suite.contains(&"stanchion-engine"), "{suite:?}");
    for packages in [&suite[..], &["stanchion-cli"], &["stanchion"]] {
        let features = features_of("stanchion-engine", packages);
        assert!(features.contains("\"default\""), "{packages:?}: {features}");
        for forbidden in ["\"internals\"", "\"planted-bugs\""] {
            assert!(!features.contains(forbidden), "{packages:?} give the command {forbidden}");
        }
    }
    // The tests themselves use the engine through another package.
    let features = features_of("stanchion-testing", &suite);
    assert!(features.contains("\"internals\"") && !features.contains("\"planted-bugs\""));
}

#[test]
fn only_tests_depend_on_the_opened_engine() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--quiet", "--workspace", "--edges", "no-dev"])
        .args(["--prefix", "none", "--invert", "stanchion-testing"])
        .current_dir(repository())
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    let users: Vec<&str> = tree.lines().collect();
    assert!(users.len() == 1 && users[0].starts_with("stanchion-testing "), "{users:?}");
}
