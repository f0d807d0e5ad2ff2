// SPDX-License-Identifier: Apache-2.0
//! How long opening a full pool takes, and how much memory.
//!
//! `cargo bench --bench opening -- fill FOLDER DRIVES SIZE CHUNK BYTES PARTICIPANTS SHARDS` makes a
//! pool of new sparse files in FOLDER, and fills it with checkpoints of BYTES until none fits; see
//! `fill_pool` for what is written. `-- open FOLDER DRIVES read|write` opens it once, in a process
//! of its own, so that the peak of its memory is that of the opening. Each prints a JSON document.

#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::time::Instant;

use stanchion_testing::internals::bench::{Job, fill_pool};
use stanchion_testing::{DriveAddress, FormatOptions, HugePages, Pool, PoolMode, PoolOptions};

fn drives(folder: &str, count: usize) -> Vec<DriveAddress> {
    let path = |number| Path::new(folder).join(format!("drive{number}"));
    (0..count).map(|number| DriveAddress::Path(path(number))).collect()
}

/// The value of a line of /proc/self/status, in bytes.
fn status_bytes(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn fill(words: &[String]) {
    let [folder, count, size, chunk, bytes, participants, shards] = words else { return usage() };
    let number = |word: &String| word.parse::<u64>().unwrap();
    let options = FormatOptions {
        create_bytes: Some(number(size)),
        chunk_bytes: Some(number(chunk)),
        ..FormatOptions::new(drives(folder, number(count) as usize))
    };
    let job = Job {
        bytes: number(bytes),
        participants: number(participants) as u32,
        shards_each: number(shards),
    };
    let started = Instant::now();
    let filled = fill_pool(&options, &job).unwrap();
    println!(
        "{{\"checkpoints\":{},\"commits\":{},\"seconds\":{}}}",
        filled.checkpoints,
        filled.commits,
        started.elapsed().as_secs_f64()
    );
}

fn open(words: &[String]) {
    let [folder, count, mode] = words else { return usage() };
    let mode = if mode == "write" { PoolMode::ReadWrite } else { PoolMode::ReadOnly };
    let drives = drives(folder, count.parse().unwrap());
    let options = PoolOptions { mode, huge_pages: HugePages::Off, ..PoolOptions::new(drives) };
    let (before, started) = (status_bytes("VmRSS:"), Instant::now());
    let pool = Pool::open(&options).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    let (peak, after) = (status_bytes("VmHWM:") - before, status_bytes("VmRSS:") - before);
    assert!(pool.notices().is_empty(), "{:?}", pool.notices());
    println!(
        "{{\"checkpoints\":{},\"seconds\":{seconds},\"peak_bytes\":{peak},\
         \"after_bytes\":{after}}}",
        pool.list().len()
    );
}

fn usage() {
    eprintln!("opening: fill FOLDER DRIVES SIZE CHUNK BYTES PARTICIPANTS SHARDS");
    eprintln!("         open FOLDER DRIVES read|write");
    // Without arguments, as in `cargo bench` of all benches, there is nothing to do.
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match words.split_first() {
        Some((what, rest)) if what == "fill" => fill(rest),
        Some((what, rest)) if what == "open" => open(rest),
        _ => usage(),
    }
}
