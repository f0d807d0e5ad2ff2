// SPDX-License-Identifier: Apache-2.0
//! Many small checkpoints in one pool: how long each takes from `begin` to durable, and whether the
//! thousandth takes longer than the first.
//!
//! `cargo bench --bench commits -- COUNT BYTES KEEP DRIVE...` makes a pool of new files and prints
//! one JSON document. The newest KEEP checkpoints stay; older ones are removed now and then,
//! outside the clock, as retention would. With KEEP >= COUNT the catalogue grows to COUNT entries.

#![allow(missing_docs, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use stanchion::HugePages;
use stanchion::ring::{CompleteEntry, SubmitEntry, Transfer};
use stanchion::{
    CheckpointName, CheckpointSpec, FormatOptions, Pool, PoolOptions, Session, SessionBuffer,
    SessionOptions, format_pool,
};

const WRITE: u64 = 1;
const COMMIT: u64 = 2;
/// A commit that takes longer than this has failed.
const LONGEST: Duration = Duration::from_secs(60);

/// Milliseconds of one checkpoint: from `begin` to durable, and of that from the end of the data.
struct Times {
    whole_ms: f64,
    tail_ms: f64,
}

fn save(session: &mut Session, buffer: &SessionBuffer, name: CheckpointName, bytes: u64) -> Times {
    let started = Instant::now();
    let handle = session
        .begin(&CheckpointSpec {
            name,
            participants: 1,
            participant: 0,
            len_bytes: bytes,
            shards: Vec::new(),
        })
        .unwrap();
    let transfer = Transfer {
        checkpoint: handle,
        buffer: buffer.key(),
        buffer_offset_bytes: 0,
        len_bytes: bytes,
        segment_offset_bytes: 0,
    };
    // Both at once: in the engine the commit waits for the write.
    let entries = [SubmitEntry::write(transfer, WRITE), SubmitEntry::commit(handle, COMMIT)];
    assert_eq!(session.submit(&entries), entries.len());
    let (mut written, mut committed) = (None, None);
    let mut out = [CompleteEntry::default(); 2];
    while committed.is_none() {
        let count = session.wait(&mut out, 1, LONGEST);
        assert!(count > 0, "no completion within {LONGEST:?}");
        let now = Instant::now();
        for done in &out[..count] {
            assert!(done.result >= 0, "entry {} failed: {}", done.user_data, done.result);
            if done.user_data == WRITE {
                written = Some(now);
            } else {
                committed = Some(now);
            }
        }
    }
    session.close(handle).unwrap();
    let (written, committed) = (written.unwrap(), committed.unwrap());
    Times {
        whole_ms: (committed - started).as_secs_f64() * 1e3,
        tail_ms: (committed - written).as_secs_f64() * 1e3,
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [count, bytes, keep, drives @ ..] = &words[..] else {
        eprintln!("commits: COUNT BYTES KEEP DRIVE... (drives are files that do not exist)");
        // Without arguments, as in `cargo bench` of all benches, there is nothing to do.
        return;
    };
    let (count, bytes, keep): (u64, u64, u64) =
        (count.parse().unwrap(), bytes.parse().unwrap(), keep.parse().unwrap());
    let mut addresses = Vec::new();
    for drive in drives {
        addresses.push(drive.parse().unwrap());
    }
    let per_drive =
        (keep + 8).min(count + 8) * bytes.next_multiple_of(1 << 20) * 2 / drives.len() as u64;
    let size = (per_drive + (512 << 20)).next_multiple_of(1 << 20);
    let formatted =
        FormatOptions { create_bytes: Some(size), ..FormatOptions::new(addresses.clone()) };
    format_pool(&formatted).unwrap();
    let options = PoolOptions { huge_pages: HugePages::Preferred, ..PoolOptions::new(addresses) };
    let pool = Pool::open(&options).unwrap();
    let memory_bytes = bytes.next_multiple_of(1 << 20);
    let mut session = pool.session(&SessionOptions { memory_bytes, ring_entries: 8 }).unwrap();
    let mut buffer = session.alloc(memory_bytes).unwrap();
    for (i, byte) in buffer.as_mut_slice().unwrap().iter_mut().enumerate() {
        *byte = (i * 31 % 251) as u8;
    }
    let name = |step| CheckpointName::new("bench", step).unwrap();
    let mut times = Vec::new();
    for step in 0..count {
        times.push(save(&mut session, &buffer, name(step), bytes));
        if step >= keep {
            pool.remove(&name(step - keep)).unwrap();
        }
    }
    let whole: Vec<f64> = times.iter().map(|time| time.whole_ms).collect();
    let tail: Vec<f64> = times.iter().map(|time| time.tail_ms).collect();
    println!("{{\"bytes\":{bytes},\"whole_ms\":{whole:?},\"tail_ms\":{tail:?}}}");
}
