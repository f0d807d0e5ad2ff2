// SPDX-License-Identifier: Apache-2.0
//! Pools over the SPDK back end and real NVMe-oF targets on loopback: on 1 to 8 drives, with a
//! target that dies, and from one back end to the other with the same bytes.
//!
//! Each test starts a target of its own; it is skipped, with a message, where that is not possible.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::common::target::Target;
use crate::common::{BackEnd, Pattern, restore, save, write};
use stanchion_testing::DriveAddress;
use stanchion_testing::internals::ring::{CompleteEntry, SubmitEntry, codes};
use stanchion_testing::{
    CheckpointName, CheckpointSpec, Error, FormatOptions, Pool, PoolMode, PoolOptions, Redundancy,
    SessionOptions, format_pool,
};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn name(text: &str) -> CheckpointName {
    text.parse().unwrap()
}

/// A pool on `drives` drives: saved checkpoints are restored, also after reopening.
fn a_pool_on(drives: usize) {
    let Some(back_end) = BackEnd::spdk(drives) else { return };
    back_end.format();
    let pattern = Pattern::new(drives as u64, 20 * MIB + 777);
    {
        let pool = back_end.open();
        assert_eq!(pool.info().drives.len(), drives);
        save(&pool, &name("run@1"), &pattern).unwrap();
        assert_eq!(restore(&pool, &name("run@1"), &pattern), Ok(()));
    }
    let pool = back_end.open_read_only();
    assert_eq!(restore(&pool, &name("run@1"), &pattern), Ok(()));
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.data_bytes, pattern.len_bytes());
}

#[test]
fn a_pool_on_one_drive() {
    a_pool_on(1);
}

#[test]
fn a_pool_on_two_drives() {
    a_pool_on(2);
}

#[test]
fn a_pool_on_four_drives() {
    a_pool_on(4);
}

#[test]
fn a_pool_on_eight_drives() {
    a_pool_on(8);
}

#[test]
fn a_target_that_dies_during_a_save_fails_it_and_nothing_hangs() {
    let Some(mut back_end) = BackEnd::spdk(2) else { return };
    back_end.format();
    let pool = back_end.open();
    save(&pool, &name("old@1"), &Pattern::new(5, 3 * MIB)).unwrap();
    let mut session = pool.session(&SessionOptions::default()).unwrap();
    let spec = CheckpointSpec {
        name: name("new@2"),
        participants: 1,
        participant: 0,
        len_bytes: 40 * MIB,
        shards: Vec::new(),
    };
    let handle = session.begin(&spec).unwrap();
    let buffer = session.alloc(40 * MIB).unwrap();
    let at = |at: u64| {
        SubmitEntry::write(
            stanchion_testing::internals::ring::Transfer {
                checkpoint: handle,
                buffer: buffer.key(),
                buffer_offset_bytes: at,
                len_bytes: MIB,
                segment_offset_bytes: at,
            },
            at,
        )
    };
    let mut out = [CompleteEntry::default(); 64];
    for number in 0..10 {
        assert_eq!(session.submit(&[at(number * MIB)]), 1);
    }
    assert_eq!(session.wait(&mut out[..1], 1, PATIENCE), 1);
    assert!(out[0].result > 0);
    let BackEnd::Spdk { target } = &mut back_end else { unreachable!() };
    let start = Instant::now();
    target.kill();
    for number in 10..40 {
        assert_eq!(session.submit(&[at(number * MIB)]), 1);
    }
    assert_eq!(session.submit(&[SubmitEntry::commit(handle, u64::MAX)]), 1);
    let (mut ended, mut failed) = (1, 0);
    while ended < 41 {
        let count = session.wait(&mut out, 1, PATIENCE);
        assert!(count > 0, "{ended} of 41 operations have ended");
        ended += count;
        for entry in &out[..count] {
            if entry.user_data == u64::MAX {
                assert!(entry.result < 0, "a commit without drives");
            } else if entry.result < 0 {
                assert_eq!(entry.result, codes::REMOVED);
                failed += 1;
            }
        }
    }
    assert!(failed >= 29, "{failed}");
    drop((buffer, session));
    drop(pool);
    eprintln!("{failed} writes failed; all was over {:?} after the kill", start.elapsed());
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn a_pool_closed_with_writes_in_flight_opens_again() {
    let Some(back_end) = BackEnd::spdk(2) else { return };
    back_end.format();
    let pattern = Pattern::new(6, 5 * MIB);
    {
        let pool = back_end.open();
        save(&pool, &name("old@1"), &pattern).unwrap();
        let mut session = pool.session(&SessionOptions::default()).unwrap();
        let spec = CheckpointSpec {
            name: name("new@2"),
            participants: 1,
            participant: 0,
            len_bytes: 16 * MIB,
            shards: Vec::new(),
        };
        let handle = session.begin(&spec).unwrap();
        let buffer = session.alloc(16 * MIB).unwrap();
        assert_eq!(session.submit(&[write(handle, buffer.key(), 16 * MIB, 0, 1)]), 1);
    }
    let pool = back_end.open();
    assert_eq!(pool.list().len(), 1);
    assert_eq!(restore(&pool, &name("old@1"), &pattern), Ok(()));
}

/// The same bytes on the same files, once through the kernel and once through SPDK.
struct BothWays {
    directory: tempfile::TempDir,
    paths: Vec<DriveAddress>,
}

impl BothWays {
    const DRIVES: usize = 3;

    fn new() -> BothWays {
        let directory = tempfile::tempdir().unwrap();
        let path = |number| directory.path().join(format!("drive{number}.img"));
        let paths = (0..Self::DRIVES).map(|number| DriveAddress::Path(path(number))).collect();
        BothWays { directory, paths }
    }

    fn target(&self) -> Option<Target> {
        let backing = format!("aio:{}", self.directory.path().display());
        let drives = Self::DRIVES.to_string();
        let sizes = ["--size", "48M", "--drives", &drives, "--backing", &backing];
        Target::start(&[&sizes[..], &["--block-size", "512"]].concat())
    }
}

fn make_pool(drives: &[DriveAddress]) {
    format_pool(&FormatOptions {
        create_bytes: Some(48 * MIB),
        ..FormatOptions::new(drives.to_vec())
    })
    .unwrap();
}

/// Drives in another order than when they were formatted.
fn open_turned(drives: &[DriveAddress], mode: PoolMode) -> Pool {
    let mut drives = drives.to_vec();
    drives.rotate_left(1);
    drives.swap(0, 1);
    Pool::open(&PoolOptions { mode, ..PoolOptions::new(drives) }).unwrap()
}

fn check(pool: &Pool, checkpoints: &[(&str, &Pattern)]) {
    assert_eq!(pool.list().len(), checkpoints.len());
    for (checkpoint, pattern) in checkpoints {
        assert_eq!(restore(pool, &name(checkpoint), pattern), Ok(()));
    }
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.data_bytes, checkpoints.iter().map(|(_, p)| p.len_bytes()).sum::<u64>());
}

#[test]
fn a_pool_made_by_the_kernel_is_used_through_spdk_and_back() {
    let both = BothWays::new();
    let (first, second) = (Pattern::new(11, 9 * MIB + 5), Pattern::new(12, 6 * MIB));
    make_pool(&both.paths);
    save(&Pool::open(&PoolOptions::new(both.paths.clone())).unwrap(), &name("a@1"), &first)
        .unwrap();
    {
        let Some(target) = both.target() else { return };
        check(&open_turned(&target.drives, PoolMode::ReadOnly), &[("a@1", &first)]);
        let pool = open_turned(&target.drives, PoolMode::ReadWrite);
        check(&pool, &[("a@1", &first)]);
        save(&pool, &name("b@2"), &second).unwrap();
    }
    let pool = open_turned(&both.paths, PoolMode::ReadWrite);
    check(&pool, &[("a@1", &first), ("b@2", &second)]);
}

#[test]
fn a_pool_made_through_spdk_is_used_by_the_kernel_and_back() {
    let both = BothWays::new();
    let (first, second) = (Pattern::new(13, 9 * MIB + 5), Pattern::new(14, 6 * MIB));
    {
        let Some(target) = both.target() else { return };
        make_pool(&target.drives);
        let pool = Pool::open(&PoolOptions::new(target.drives.clone())).unwrap();
        save(&pool, &name("a@1"), &first).unwrap();
    }
    {
        let pool = open_turned(&both.paths, PoolMode::ReadWrite);
        check(&pool, &[("a@1", &first)]);
        save(&pool, &name("b@2"), &second).unwrap();
    }
    let Some(target) = both.target() else { return };
    check(&open_turned(&target.drives, PoolMode::ReadWrite), &[("a@1", &first), ("b@2", &second)]);
}

/// A second portal of the first drive's subsystem, and a second namespace in it.
#[test]
fn one_drive_by_two_portals_and_two_namespaces_of_one_drive() {
    let Some(BackEnd::Spdk { target }) = BackEnd::spdk(1) else { return };
    let (nqn, port) = (Target::nqn(0), target.port().to_string());
    let listener = ["-t", "tcp", "-f", "ipv4", "-a", "127.0.0.2", "-s", &port];
    target.rpc(&[&["nvmf_subsystem_add_listener", &nqn][..], &listener].concat());
    target.rpc(&["bdev_malloc_create", "-b", "second", "64", "4096"]);
    target.rpc(&["nvmf_subsystem_add_ns", &nqn, "second"]);
    let first = target.drives[0].to_string();
    let address = |text: String| -> DriveAddress { text.parse().unwrap() };
    let (one, portal) = (address(first.clone()), address(first.replace("127.0.0.1", "127.0.0.2")));
    let second = address(format!("{first} ns:2"));

    let mut options = FormatOptions::new(vec![one.clone(), portal.clone()]);
    options.force = true;
    let error = format_pool(&options).unwrap_err();
    assert!(matches!(error, Error::DuplicateDrive { .. }), "{error}");

    let mut options = FormatOptions::new(vec![one.clone(), second]);
    options.redundancy = Redundancy::Mirror;
    let error = format_pool(&options).unwrap_err();
    assert!(error.to_string().contains("does not outlive"), "{error}");
    options.force = true;
    format_pool(&options).unwrap();
    options = FormatOptions { drives: vec![portal], ..FormatOptions::new(Vec::new()) };
    format_pool(&options).unwrap();
}
