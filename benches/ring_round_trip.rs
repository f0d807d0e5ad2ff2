// SPDX-License-Identifier: Apache-2.0
//! What a no-op costs from submit to completion, by the Rust path and by the C path.
//!
//! Both paths take turns, many short runs each, on pools of their own. What other programs do to
//! a run only makes it slower, so the paths are compared by the fastest hundredth of their runs.
//! Fails when the C path costs more than 5 % more, or makes fewer than 5 million round trips in a
//! second, unless `--report-only` is given. The trainer's thread has one core and the reactor
//! another.
//!
//! Batches are of the size that a trainer's chunks come in. `cargo bench --bench ring_round_trip`.

#![allow(unsafe_code, clippy::unwrap_used, missing_docs)]

use std::ffi::CString;
use std::hint::black_box;
use std::time::Instant;

use stanchion::HugePages;
use stanchion::c::*;
use stanchion::ring::{CompleteEntry, SubmitEntry};
use stanchion::{FormatOptions, Pool, PoolOptions, Session, SessionOptions, format_pool};

const ROUND_TRIPS: u64 = 10_000;
const PAIRS: usize = 3000;
const BATCH: usize = 32;
const ENTRIES: u32 = 256;

/// Submits and takes this many no-ops; nanoseconds for each.
fn run(
    mut submit: impl FnMut(&[SubmitEntry]) -> usize,
    mut peek: impl FnMut(&mut [CompleteEntry]) -> usize,
) -> f64 {
    let entries = [SubmitEntry::nop(7); BATCH];
    let mut out = [CompleteEntry::default(); 2 * BATCH];
    let (mut submitted, mut done) = (0, 0);
    let started = Instant::now();
    while done < ROUND_TRIPS {
        let wanted = (ROUND_TRIPS - submitted).min(BATCH as u64) as usize;
        submitted += submit(black_box(&entries[..wanted])) as u64;
        let taken = peek(&mut out);
        if taken == 0 {
            std::hint::spin_loop();
        }
        done += taken as u64;
    }
    black_box(&out);
    started.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64
}

fn rust_path(session: &std::cell::RefCell<Session>) -> f64 {
    run(|entries| session.borrow_mut().submit(entries), |out| session.borrow_mut().peek(out))
}

fn c_path(session: u64) -> f64 {
    // As from C: by a pointer, not inlined.
    let submit = black_box(stn_submit as unsafe extern "C" fn(u64, *const stn_sqe, u32) -> i32);
    let peek = black_box(stn_peek as unsafe extern "C" fn(u64, *mut stn_cqe, u32) -> i32);
    run(
        // SAFETY: the pointers are those of slices.
        |entries| unsafe { submit(session, entries.as_ptr(), entries.len() as u32) } as usize,
        // SAFETY: as above.
        |out| unsafe { peek(session, out.as_mut_ptr(), out.len() as u32) } as usize,
    )
}

/// The value that a hundredth of the runs is below.
fn fast_hundredth(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 100]
}

fn main() {
    let report_only = std::env::args().any(|argument| argument == "--report-only");
    let directory = tempfile::tempdir().unwrap();
    let paths = ["rust", "c"].map(|name| directory.path().join(name));
    for path in &paths {
        format_pool(&FormatOptions {
            create_bytes: Some(64 << 20),
            ..FormatOptions::new(vec![path.to_str().unwrap().parse().unwrap()])
        })
        .unwrap();
    }
    let mut options = PoolOptions::new(vec![paths[0].to_str().unwrap().parse().unwrap()]);
    options.huge_pages = HugePages::Off;
    let pool = Pool::open(&options).unwrap();
    let session_options = SessionOptions { memory_bytes: 0, ring_entries: ENTRIES };
    let session = std::cell::RefCell::new(pool.session(&session_options).unwrap());

    let name = CString::new(paths[1].to_str().unwrap()).unwrap();
    let drives = [name.as_ptr()];
    let opts = stn_pool_opts {
        size: size_of::<stn_pool_opts>() as u32,
        flags: 0,
        drives: drives.as_ptr(),
        cores: std::ptr::null(),
        drive_count: 1,
        core_count: 0,
        huge_pages: STN_HUGE_OFF,
        reactors: 0,
        queue_depth: 0,
        checksum_threads: 0,
    };
    let c_options = stn_session_opts {
        size: size_of::<stn_session_opts>() as u32,
        flags: STN_SESSION_NO_MEMORY,
        memory_bytes: 0,
        entries: ENTRIES,
        reserved: 0,
    };
    let (mut c_pool, mut c_session) = (0, 0);
    // SAFETY: all that the options point to is readable.
    unsafe {
        assert_eq!(stn_pool_open(&raw const opts, &raw mut c_pool), 0);
        assert_eq!(stn_session_create(c_pool, &raw const c_options, &raw mut c_session), 0);
    }

    // Once each to warm up.
    rust_path(&session);
    c_path(c_session);
    let (mut rust, mut c) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        // The order alternates, too.
        if pair % 2 == 0 {
            rust.push(rust_path(&session));
            c.push(c_path(c_session));
        } else {
            c.push(c_path(c_session));
            rust.push(rust_path(&session));
        }
    }
    let (rust, c) = (fast_hundredth(rust), fast_hundredth(c));
    let (ratio, millions) = (c / rust, 1e3 / c);
    println!("Rust path: {rust:.1} ns each, {:.2} million round trips a second", 1e3 / rust);
    println!("C path:    {c:.1} ns each, {millions:.2} million round trips a second");
    println!("C / Rust:  {ratio:.3}, of {PAIRS} interleaved runs of {ROUND_TRIPS} round trips");
    assert_eq!(stn_session_destroy(c_session), 0);
    assert_eq!(stn_pool_close(c_pool), 0);
    if !report_only {
        assert!(ratio <= 1.05, "the C path costs more than 5 % more");
        assert!(millions >= 5.0, "fewer than 5 million round trips a second");
    }
}
