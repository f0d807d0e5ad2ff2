// SPDX-License-Identifier: Apache-2.0
//! Commits that wait for other participants: any number of them, at no cost to others; and what may
//! be done with a segment before its commit.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::common::{self, Pattern};
use stanchion_testing::internals::device::Device;
use stanchion_testing::internals::device::Operation;
use stanchion_testing::internals::device::sim::{Effect, Fault, SimConfig, SimDrive, When};
use stanchion_testing::internals::error::IoError;
use stanchion_testing::internals::format_pool_on;
use stanchion_testing::internals::ring::{CompleteEntry, SubmitEntry, Transfer, codes};
use stanchion_testing::{
    CheckpointSpec, FormatOptions, HugePages, Pool, PoolOptions, Session, SessionOptions,
};

const CHUNK_BYTES: u64 = 4096;
const LONG: Duration = Duration::from_secs(120);

/// A pool of two drives and one reactor.
fn pool() -> (Vec<SimDrive>, Pool) {
    let config = |number| SimConfig {
        capacity_bytes: 4 << 30,
        serial: format!("SIM{number}"),
        // So that a begin does not look for another owner on the drives.
        reservations: true,
        ..SimConfig::default()
    };
    let drives: Vec<_> = (0..2).map(|number| SimDrive::new(config(number)).unwrap()).collect();
    let open = || drives.iter().map(|d| Box::new(d.open().unwrap()) as Box<dyn Device>).collect();
    let options = FormatOptions {
        chunk_bytes: Some(CHUNK_BYTES),
        metadata_bytes: Some(1 << 30),
        ..FormatOptions::new(Vec::new())
    };
    format_pool_on(open(), &options).unwrap();
    let options = PoolOptions {
        huge_pages: HugePages::Off,
        reactors: Some(1),
        ..PoolOptions::new(Vec::new())
    };
    let pool = Pool::open_on(open(), &options).unwrap();
    (drives, pool)
}

fn session(pool: &Pool) -> Session {
    pool.session(&SessionOptions { memory_bytes: 2 << 20, ring_entries: 1024 }).unwrap()
}

fn begin(session: &mut Session, name: &str, participants: u32, participant: u32) -> u64 {
    let spec = CheckpointSpec {
        name: name.parse().unwrap(),
        participants,
        participant,
        len_bytes: CHUNK_BYTES,
        shards: Vec::new(),
    };
    session.begin(&spec).unwrap()
}

/// Takes completions until there are `count`; each must be a success. Returns them.
fn take(session: &mut Session, count: usize) -> Vec<CompleteEntry> {
    let mut taken = Vec::new();
    let mut out = [CompleteEntry::default(); 256];
    while taken.len() < count {
        let got = session.wait(&mut out, 1, LONG);
        assert!(got > 0, "{} of {count} are answered", taken.len());
        assert!(out[..got].iter().all(|entry| entry.result >= 0), "{:?}", &out[..got]);
        taken.extend_from_slice(&out[..got]);
    }
    taken
}

/// Processor time of each of the engine's threads, by name.
fn engine_threads() -> Vec<(String, Duration)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let times = tasks.filter_map(|task| {
        let task = task.unwrap().path();
        let name = std::fs::read_to_string(task.join("comm")).ok()?.trim().to_owned();
        let stat = std::fs::read_to_string(task.join("schedstat")).ok()?;
        let nanos = stat.split_whitespace().next()?.parse().ok()?;
        name.starts_with("stn-").then(|| (name, Duration::from_nanos(nanos)))
    });
    let mut times: Vec<_> = times.collect();
    times.sort();
    times
}

/// The engine's share of a core during a second.
fn busy_share() -> f64 {
    let (start, before) = (Instant::now(), engine_threads());
    std::thread::sleep(Duration::from_secs(1));
    let (time, after) = (start.elapsed(), engine_threads());
    let spent: f64 =
        after.iter().zip(&before).map(|((_, new), (_, old))| (*new - *old).as_secs_f64()).sum();
    spent / time.as_secs_f64()
}

/// All participants but the last wait; then other sessions are served as before, the engine rests,
/// and the last one's commit ends all of them.
fn commit_together(participants: u32, per_session: u32) {
    let started = Instant::now();
    let (drives, pool) = pool();
    let mut sessions: Vec<(Session, usize)> = Vec::new();
    let mut buffers = Vec::new();
    let mut last = None;
    for participant in 0..participants {
        if participant % per_session == 0 {
            let mut session = session(&pool);
            buffers.push(session.alloc(CHUNK_BYTES).unwrap());
            sessions.push((session, 0));
        }
        let (session, entries) = sessions.last_mut().unwrap();
        let key = buffers.last().unwrap().key();
        let handle = begin(session, "all@1", participants, participant);
        let both = [common::write(handle, key, CHUNK_BYTES, 0, 1), SubmitEntry::commit(handle, 2)];
        let count = if participant + 1 == participants { 1 } else { 2 };
        assert_eq!(session.submit(&both[..count]), count);
        *entries += count;
        last = Some(handle);
    }
    println!("{participants} participants have begun after {:?}", started.elapsed());
    let mut other = session(&pool);
    let nop = Instant::now();
    assert_eq!(other.submit(&[SubmitEntry::nop(7)]), 1);
    take(&mut other, 1);
    println!("another session's no-op took {:?}", nop.elapsed());
    common::save(&pool, &"other@1".parse().unwrap(), &Pattern::new(1, 5 * CHUNK_BYTES)).unwrap();
    // The first second has the end of the work before it.
    let share = (0..3).map(|_| busy_share()).fold(f64::MAX, f64::min);
    println!("idle with {} commits waiting: {:.2} % of a core", participants - 1, 100.0 * share);
    assert!(share < 0.02);
    let (session, entries) = sessions.last_mut().unwrap();
    let commit = Instant::now();
    assert_eq!(session.submit(&[SubmitEntry::commit(last.unwrap(), 2)]), 1);
    *entries += 1;
    let mut ended = 0;
    for (session, entries) in &mut sessions {
        ended += take(session, *entries).iter().filter(|entry| entry.user_data == 2).count();
    }
    println!("all commits were answered {:?} after the last one", commit.elapsed());
    assert_eq!(ended, participants as usize);
    assert_eq!(pool.find(&"all@1".parse().unwrap()).unwrap().participants, participants);
    // To open one segment reads the manifest, that segment's table and its list, not all tables.
    let submitted = || drives.iter().map(|drive| drive.world().submitted()).sum::<u64>();
    let (before, opening) = (submitted(), Instant::now());
    let (session, _) = &mut sessions[0];
    session.open(&"all@1".parse().unwrap(), participants / 2).unwrap();
    let commands = submitted() - before;
    println!(
        "one of {participants} segments was opened with {commands} reads in {:?}",
        opening.elapsed()
    );
    // The manifest is one structure of several pieces.
    assert!(commands < 16, "{commands}");
}

#[test]
fn more_participants_than_a_reactor_has_tasks_commit_together() {
    commit_together(1025, 64);
}

#[test]
fn four_thousand_participants_commit_together() {
    commit_together(4096, 512);
}

#[test]
fn a_write_of_several_chunks_that_failed_may_be_repeated() {
    let (drives, pool) = pool();
    let mut session = session(&pool);
    const CHUNKS: u64 = 64;
    let handle = session
        .begin(&CheckpointSpec {
            name: "again@1".parse().unwrap(),
            participants: 1,
            participant: 0,
            len_bytes: CHUNKS * CHUNK_BYTES,
            shards: Vec::new(),
        })
        .unwrap();
    let mut buffer = session.alloc(CHUNKS * CHUNK_BYTES).unwrap();
    let pattern = Pattern::new(3, CHUNKS * CHUNK_BYTES);
    let mut out = [CompleteEntry::default(); 2];
    let mut run = |session: &mut Session, entry: SubmitEntry| {
        assert_eq!(session.submit(&[entry]), 1);
        assert_eq!(session.wait(&mut out, 1, LONG), 1);
        (out[0].result, out[0].aux)
    };
    let write = |key, from: u64, count: u64| {
        let at = from * CHUNK_BYTES;
        let transfer = Transfer {
            checkpoint: handle,
            buffer: key,
            buffer_offset_bytes: at,
            len_bytes: count * CHUNK_BYTES,
            segment_offset_bytes: at,
        };
        SubmitEntry::write(transfer, 1)
    };
    // The first attempt's bytes must not survive in the chunks that were written.
    buffer.as_mut_slice().unwrap().fill(0xee);
    // No place of this drive can be written: more than a save moves to other places.
    let refused = IoError::Nvme { sct: 2, sc: 0x80, dnr: true };
    let fault = Fault::new(Operation::Write, When::From(0), Effect::Fail(refused));
    drives[0].inject(fault).unwrap();
    let (result, aux) = run(&mut session, write(buffer.key(), 0, CHUNKS));
    assert_eq!(result, codes::IO);
    assert!(aux < CHUNKS * CHUNK_BYTES && aux.is_multiple_of(CHUNK_BYTES), "{aux}");
    drives[0].clear_faults();
    let commit = SubmitEntry::commit(handle, 2);
    assert_eq!(run(&mut session, commit), (codes::INCOMPLETE, CHUNKS), "all of it is missing");
    pattern.copy_to(buffer.as_mut_slice().unwrap());
    // In other pieces than before; and nothing is written twice after success.
    assert_eq!(run(&mut session, write(buffer.key(), 0, 5)).0, 5 * CHUNK_BYTES as i64);
    assert_eq!(run(&mut session, write(buffer.key(), 4, 2)).0, codes::EXISTS);
    assert_eq!(run(&mut session, commit), (codes::INCOMPLETE, CHUNKS - 5));
    let rest = (CHUNKS - 5) * CHUNK_BYTES;
    assert_eq!(run(&mut session, write(buffer.key(), 5, CHUNKS - 5)).0, rest as i64);
    assert_eq!(run(&mut session, commit).0, 0);
    common::restore(&pool, &"again@1".parse().unwrap(), &pattern).unwrap();
}
