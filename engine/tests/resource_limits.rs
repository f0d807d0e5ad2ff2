// SPDX-License-Identifier: Apache-2.0
//! Memory, descriptors and threads that cannot be allocated: each failure is an error to the
//! caller, never the end of the process; what was held is freed, and without the limit everything
//! works.
//!
//! The kernel is made to refuse by limits that grow from nothing until everything succeeds, so that
//! each request in turn is the one that is refused.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::fs;

use crate::common::kept::Kept;
use crate::common::{self, Pattern, restore, save};
use stanchion_testing::DriveAddress;
use stanchion_testing::internals::memory::{HugePages, Region};
use stanchion_testing::{Error, Pool, PoolOptions, SessionOptions};

const MIB: u64 = 1 << 20;

fn limit(what: libc::__rlimit_resource_t, soft: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain calls with a local.
    unsafe {
        assert_eq!(libc::getrlimit(what, &raw mut limit), 0);
        limit.rlim_cur = soft.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(what, &raw const limit), 0);
    }
}

/// Bytes of address space in use, and the numbers of descriptors and of mappings of the engine.
fn in_use() -> (u64, usize, usize) {
    let pages: u64 =
        fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    (pages * 4096, descriptors, maps.matches("memfd:stanchion").count())
}

struct Bench {
    kept: Kept,
    options: PoolOptions,
    _directory: tempfile::TempDir,
}

impl Bench {
    /// `None`, with a message, where limits would hit other tests.
    fn new() -> Option<Bench> {
        if !common::is_alone() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |number| DriveAddress::Path(directory.path().join(format!("drive{number}")));
        let drives: Vec<_> = (0..2).map(path).collect();
        let mut kept = Kept::format(drives.clone(), Some(48 * MIB));
        let pool = kept.open();
        kept.save(&pool, 3 * MIB);
        drop(pool);
        let options = PoolOptions { huge_pages: HugePages::Off, ..PoolOptions::new(drives) };
        Some(Bench { kept, options, _directory: directory })
    }

    /// Everything that allocates: a pool, sessions, a descriptor, buffers, a save, a restore.
    fn use_everything(&self) -> Result<(), Error> {
        let pool = Pool::open(&self.options)?;
        let mut session = pool.session(&SessionOptions::default())?;
        session.event_fd()?;
        drop(session.alloc(MIB)?);
        let region = std::sync::Arc::new(Region::new(2 * MIB, HugePages::Off)?);
        let buffer = session.register(region)?;
        assert!(session.unregister(buffer).is_ok());
        drop(session);
        let (name, pattern) = ("new@1".parse().unwrap(), Pattern::new(9, 5 * MIB));
        save(&pool, &name, &pattern)?;
        pool.remove(&name)?;
        let (name, pattern) = self.kept.newest();
        // Restores in a session of its own.
        drop(pool.session(&SessionOptions::default())?);
        assert_eq!(restore(&pool, &name, &pattern), Ok(()));
        Ok(())
    }

    /// Raises a limit step by step until everything succeeds; returns how often it did not.
    fn until_it_succeeds(&self, mut raise: impl FnMut(u64), lift: impl Fn()) -> u64 {
        for step in 0.. {
            let (_, descriptors, mappings) = in_use();
            raise(step);
            let result = self.use_everything();
            lift();
            let (_, descriptors_after, mappings_after) = in_use();
            assert_eq!(
                (descriptors, mappings),
                (descriptors_after, mappings_after),
                "kept, {step}"
            );
            match result {
                Ok(()) => return step,
                Err(error) => {
                    let kind = matches!(error, Error::Os { .. } | Error::Environment(_));
                    assert!(kind, "at {step}: {error:?}");
                    eprintln!("{step}: {error}");
                }
            }
            assert!(step < 1000, "it never succeeds");
        }
        unreachable!()
    }
}

#[test]
fn descriptors() {
    let Some(bench) = Bench::new() else { return };
    bench.use_everything().unwrap();
    let (_, open, _) = in_use();
    let failures = bench.until_it_succeeds(
        |step| limit(libc::RLIMIT_NOFILE, open as u64 + step),
        || limit(libc::RLIMIT_NOFILE, 1024),
    );
    assert!(failures >= 8, "{failures} descriptors at most were refused");
    bench.kept.check();
}

#[test]
fn address_space() {
    let Some(bench) = Bench::new() else { return };
    // Memory that the allocator and the threads' stacks have taken once is reused.
    bench.use_everything().unwrap();
    let (used, ..) = in_use();
    // The allocator of Rust programs ends the process when it gets no memory, so leave it some
    // room.
    let failures = bench.until_it_succeeds(
        |step| limit(libc::RLIMIT_AS, used + (8 + 2 * step) * MIB),
        || limit(libc::RLIMIT_AS, libc::RLIM_INFINITY),
    );
    assert!(failures >= 8, "{failures} sizes were refused");
    bench.kept.check();
}

#[test]
fn locked_memory() {
    // io_uring then maps each command's memory by itself, which is reported and works.
    let Some(bench) = Bench::new() else { return };
    limit(libc::RLIMIT_MEMLOCK, 0);
    bench.use_everything().unwrap();
    bench.kept.check();
}

#[test]
fn huge_pages_that_are_not_there() {
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    let pages: u64 = free.map_or(0, |text| text.trim().parse().unwrap());
    let too_many = (pages + 1) * (2 * MIB);
    let before = in_use();
    let error = Region::new(too_many, HugePages::Required).unwrap_err();
    assert!(matches!(error, Error::Environment(_)), "{error}");
    assert!(error.to_string().contains("scripts/hugepages"), "{error}");
    assert_eq!((before.1, before.2), (in_use().1, in_use().2));
    let error = Region::new(u64::MAX - MIB, HugePages::Off).unwrap_err();
    assert!(matches!(error, Error::Usage(_) | Error::Os { .. }), "{error}");
    let ordinary = Region::new(MIB, HugePages::Preferred).unwrap();
    assert_eq!(ordinary.len_bytes(), 2 * MIB);
}
