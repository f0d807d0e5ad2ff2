// SPDX-License-Identifier: Apache-2.0
//! What happens to a pool whose NVMe-oF target goes silent, dies or hangs up, with and without
//! writes in flight: every operation ends, nothing hangs, and once the target is back the pool
//! opens within a bound, with everything that was acknowledged. As in `spdk_faults.rs`, SPDK has no
//! open requests then.
//!
//! Each test starts a target of its own; it is skipped, with a message, where that is not possible.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::common::faulty::Bench;
use crate::common::{Pattern, save, save_disturbed};
use stanchion_testing::internals::device::OpenMode;
use stanchion_testing::internals::device::sim::SimRng;
use stanchion_testing::internals::device::{self, Command, DmaSlice, Operation, SubmitError, spdk};
use stanchion_testing::internals::ring::codes;
use stanchion_testing::{CheckpointName, Error, ErrorKind, IoError};

const MIB: u64 = 1 << 20;
/// The keep-alive timeout and a margin, and the opening itself on a busy machine.
const REOPENED_WITHIN: Duration = Duration::from_secs(18 + 17);

fn new() -> (CheckpointName, Pattern) {
    ("new@1".parse().unwrap(), Pattern::new(3, 48 * MIB))
}

fn assert_lost(error: &Error) {
    assert!(matches!(error, Error::DriveUnfit { why: "is lost", .. }), "{error}");
    assert!(error.to_string().contains("STNDRIVE"), "{error}");
}

/// Checks the pool once its drives are back; prints how long that took.
fn reopens(bench: &Bench) {
    let start = Instant::now();
    drop(bench.open());
    let took = start.elapsed();
    eprintln!("opened {took:?} after the drives were back");
    assert!(took < REOPENED_WITHIN, "{took:?}");
    bench.check();
}

#[test]
fn a_target_that_dies_under_load_and_comes_back() {
    let Some(mut bench) = Bench::new(2) else { return };
    for _ in 0..2 {
        let pool = bench.open();
        bench.save(&pool, 6 * MIB);
        let (name, pattern) = new();
        let ended = save_disturbed(&pool, &name, &pattern, || bench.target.kill()).unwrap();
        assert_eq!(ended.status(), Err((codes::REMOVED, 0)));
        assert!(ended.commit.result < 0);
        assert_lost(&save(&pool, &name, &pattern).unwrap_err());
        drop(pool);
        bench.target.restart();
        reopens(&bench);
    }
}

#[test]
fn a_target_that_is_silent_and_then_carries_out_what_it_was_sent() {
    let Some(mut bench) = Bench::new(2) else { return };
    bench.set_timeout(2);
    let pool = bench.open();
    bench.save(&pool, 6 * MIB);
    let (name, pattern) = new();
    let start = Instant::now();
    let ended = save_disturbed(&pool, &name, &pattern, || bench.target.freeze()).unwrap();
    assert_eq!(ended.status(), Err((codes::REMOVED, 0)));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_lost(&save(&pool, &name, &pattern).unwrap_err());
    drop(pool);
    assert_eq!((spdk::unaccounted_requests(), spdk::registered_regions()), (0, 0));
    // The target now holds the writes for which no thread waits any more. A process that opens the
    // pool for writing gets the same places for the next checkpoint.
    bench.target.thaw();
    bench.set_timeout(30);
    reopens(&bench);
    let pool = bench.open();
    bench.save(&pool, 48 * MIB);
    bench.close(pool);
}

#[test]
fn a_target_that_goes_silent_is_detected_while_idle() {
    let Some(bench) = Bench::new(1) else { return };
    bench.set_timeout(2);
    let mut device = device::open(&bench.target.drives[0], OpenMode::ReadWrite, Some(4)).unwrap();
    bench.target.freeze();
    // A keep-alive is sent every 7.5 s. It is late after 2 s more, or from SPDK v26.01 on after the
    // keep-alive timeout, 15 s. Nothing else is in flight.
    let end = Instant::now() + Duration::from_secs(28);
    while Instant::now() < end {
        assert_eq!(device.poll(&mut []), 0);
        std::thread::sleep(Duration::from_millis(10));
    }
    let flush =
        Command { operation: Operation::Flush, offset_bytes: 0, memory: DmaSlice::EMPTY, tag: 0 };
    // SAFETY: a flush names no memory.
    let refused = unsafe { device.submit(flush) };
    assert_eq!(refused, Err(SubmitError::Failed(IoError::Removed)), "not detected");
    drop(device);
    bench.target.thaw();
    bench.set_timeout(30);
    // Nothing was lost with it: no process has to wait.
    let start = Instant::now();
    drop(bench.open());
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    bench.check();
}

#[test]
fn connections_that_break_under_load() {
    let Some(mut bench) = Bench::new(2) else { return };
    let pool = bench.open();
    bench.save(&pool, 6 * MIB);
    let (name, pattern) = new();
    // Each drive has one connection for commands to its controller and one for the rest.
    let cut = || assert_eq!(cut_connections(bench.target.port()), 4);
    let ended = save_disturbed(&pool, &name, &pattern, cut).unwrap();
    assert_eq!(ended.status(), Err((codes::REMOVED, 0)));
    assert_lost(&save(&pool, &name, &pattern).unwrap_err());
    drop(pool);
    reopens(&bench);
}

/// Breaks this process's connections to a port of its own machine; returns how many.
fn cut_connections(port: u16) -> usize {
    let mut cut = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: only to make another descriptor of it, which fails if it was closed meanwhile.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        let Ok(own) = borrowed.try_clone_to_owned() else { continue };
        let stream = std::net::TcpStream::from(own);
        if stream.peer_addr().is_ok_and(|peer| peer.port() == port) {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
            cut += 1;
        }
    }
    cut
}

#[test]
fn opening_a_target_that_hangs_ends() {
    let Some(bench) = Bench::new(1) else { return };
    let address = &bench.target.drives[0];
    let open = || device::open(address, OpenMode::ReadOnly, Some(4));
    let start = Instant::now();
    drop(open().unwrap());
    let usual = start.elapsed();
    let mut numbers = SimRng::new(11);
    let (mut failed, mut longest) = (0, Duration::ZERO);
    for _ in 0..4 {
        let instant = usual.mul_f64((numbers.next_u64() % 1000) as f64 / 1000.0);
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                let start = Instant::now();
                (open(), start.elapsed())
            });
            std::thread::sleep(instant);
            bench.target.freeze();
            let (opened, took) = opening.join().unwrap();
            failed += usize::from(opened.is_err());
            longest = longest.max(took);
            if let Err(error) = opened {
                // Before or after the controller answered: it is absent, or gives no queue pair.
                let expected = [ErrorKind::NotFound, ErrorKind::Environment, ErrorKind::Failed];
                assert!(expected.contains(&error.kind()), "{error}");
            }
            bench.target.thaw();
        });
    }
    eprintln!("usually {usual:?}; {failed} of 4 failed, after {longest:?} at most");
    assert!(longest < Duration::from_secs(45), "{longest:?}");
    bench.check();
}
