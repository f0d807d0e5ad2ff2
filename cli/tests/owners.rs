// SPDX-License-Identifier: Apache-2.0
//! Two hosts and one pool behind an NVMe-oF target: the short form of `scripts/soak owners`.
//! Skipped, with a message, where that cannot run.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

const INSTANTS: &str = "6";

#[test]
fn nothing_is_lost_when_two_hosts_write_one_pool() {
    let prefix = std::env::var_os("STANCHION_SPDK_PREFIX");
    let prefix = prefix.map_or_else(|| "/opt/stanchion-spdk".into(), std::path::PathBuf::from);
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !cfg!(feature = "spdk") || !is_root || !prefix.join("bin/nvmf_tgt").exists() {
        eprintln!("skipped: it needs root, the feature spdk, and nvmf_tgt in {}", prefix.display());
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/soak");
    let folder = tempfile::tempdir().unwrap();
    let seed = std::env::var("STANCHION_TEST_SEED").unwrap_or_else(|_| {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap();
        now.subsec_nanos().to_string()
    });
    let ended = Command::new(script)
        .args(["owners", "--instants", INSTANTS, "--seed", &seed])
        .args(["--binary", env!("CARGO_BIN_EXE_stanchion")])
        .arg("--state")
        .arg(folder.path().join("state.json"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    eprintln!("{said}{errors}");
    assert!(ended.status.success() && said.contains("0 violations"), "seed {seed}");
}
