// SPDX-License-Identifier: Apache-2.0
//! While operations flow, no thread allocates, and neither the trainer's thread nor a reactor makes
//! a system call.
//!
//! The test runs itself again under strace. The inner run marks the window by looking for two files
//! that do not exist and prints which thread is which; the outer run counts the calls in between.
//! Allocations are counted inside, over all threads.

#![allow(unsafe_code, clippy::unwrap_used)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::{BTreeMap, HashMap};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use stanchion_testing::HugePages;
use stanchion_testing::internals::device::Device;
use stanchion_testing::internals::device::sim::{SimConfig, SimDrive};
use stanchion_testing::internals::format_pool_on;
use stanchion_testing::internals::ring::{CompleteEntry, SubmitEntry, Transfer};
use stanchion_testing::{
    CheckpointName, CheckpointSpec, FormatOptions, Pool, PoolOptions, Session, SessionBuffer,
    SessionOptions,
};

/// Writes, then reads; nine tenths of them lie in the windows.
const WRITES: u64 = 20_000;
const READS: u64 = 95_000;
const CHUNK_BYTES: u64 = 4096;
const BEGIN: &str = "/stanchion-window-begins";
const END: &str = "/stanchion-window-ends";
const INNER: &str = "STANCHION_TEST_HOT_PATH_INNER";

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_allocation_and_no_system_call_while_operations_flow() {
    if std::env::var_os(INNER).is_some() {
        inner();
        return;
    }
    // On a busy machine the trainer may be preempted for longer than an idle reactor spins: then
    // operations do not flow, and the reactor rests. The test needs one run without that.
    let made_calls: Vec<_> = (0..20).map_while(|_| system_calls_of_one_run()).collect();
    assert!(made_calls.len() < 20, "each run had system calls: {made_calls:?}");
}

/// Runs the flow under strace; returns the calls of the trainer or a reactor, if there were any.
fn system_calls_of_one_run() -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let run = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "no_allocation_and_no_system_call_while_operations_flow", "--nocapture"])
        .env(INNER, "1")
        .output();
    let output = match run {
        Ok(output) => output,
        Err(error) => {
            eprintln!("system calls are not counted: strace cannot be run: {error}");
            inner();
            return None;
        }
    };
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    let threads: HashMap<&str, &str> =
        printed.lines().filter_map(|line| line.strip_prefix("thread ")?.split_once(' ')).collect();
    assert!(threads.values().any(|name| name.starts_with("stn-reactor")), "{printed}");
    let counts = count_calls(&std::fs::read_to_string(&trace).unwrap());
    let watched = |name: &str| name == "trainer" || name.starts_with("stn-reactor");
    let called = threads.iter().filter(|(_, name)| watched(name)).filter_map(|(id, name)| {
        counts.get(*id).map(|calls| {
            // When the flow runs dry a reactor rests, and the trainer wakes it. No other call is
            // allowed.
            let rest = |call: &String| {
                call == "futex" || (call == "clock_nanosleep" && *name != "trainer")
            };
            assert!(calls.keys().all(rest), "{name} made system calls: {calls:?}");
            format!("{name}: {calls:?}")
        })
    });
    let called: Vec<_> = called.collect();
    (!called.is_empty()).then(|| called.join(", "))
}

/// System calls by thread and name inside the windows.
fn count_calls(trace: &str) -> HashMap<String, BTreeMap<String, u64>> {
    let mut counts: HashMap<String, BTreeMap<String, u64>> = HashMap::new();
    let (mut inside, mut windows) = (false, 0);
    for line in trace.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        if line.contains(BEGIN) {
            (inside, windows) = (true, windows + 1);
        } else if line.contains(END) {
            inside = false;
        } else if inside && !call.trim_start().starts_with(['<', '+', '-']) {
            let name = call.trim_start().split('(').next().unwrap_or_default().to_owned();
            *counts.entry(thread.to_owned()).or_default().entry(name).or_default() += 1;
        }
    }
    assert_eq!(windows, 2, "the window of the writes and the window of the reads");
    counts
}

/// The flow under test.
fn inner() {
    let drives: Vec<SimDrive> = (0..2)
        .map(|number| {
            SimDrive::new(SimConfig {
                capacity_bytes: 64 << 20,
                serial: format!("SIM{number}"),
                dense: true,
                volatile_cache: false,
                ..SimConfig::default()
            })
            .unwrap()
        })
        .collect();
    let open = || drives.iter().map(|d| Box::new(d.open().unwrap()) as Box<dyn Device>).collect();
    let options =
        FormatOptions { chunk_bytes: Some(CHUNK_BYTES), ..FormatOptions::new(Vec::new()) };
    format_pool_on(open(), &options).unwrap();
    let options = PoolOptions { huge_pages: HugePages::Off, ..PoolOptions::new(Vec::new()) };
    let pool = Pool::open_on(open(), &options).unwrap();
    let mut session =
        pool.session(&SessionOptions { memory_bytes: 4 << 20, ring_entries: 64 }).unwrap();
    let name = CheckpointName::new("hot", 1).unwrap();
    let spec = CheckpointSpec {
        name: name.clone(),
        participants: 1,
        participant: 0,
        len_bytes: WRITES * CHUNK_BYTES,
        shards: Vec::new(),
    };
    let handle = session.begin(&spec).unwrap();
    let buffer = session.alloc(64 * CHUNK_BYTES).unwrap();
    print_threads();

    flow(&mut session, &buffer, WRITES, |n, place| {
        SubmitEntry::write(transfer(handle, &buffer, n, place), place)
    });
    let mut out = [CompleteEntry::default(); 1];
    assert_eq!(session.submit(&[SubmitEntry::commit(handle, 0)]), 1);
    assert_eq!(session.wait(&mut out, 1, std::time::Duration::from_secs(60)), 1);
    assert_eq!(out[0].result, 0);
    let handle = session.open(&name, 0).unwrap().handle;
    flow(&mut session, &buffer, READS, |n, place| {
        SubmitEntry::read(transfer(handle, &buffer, n % WRITES, place), place)
    });
}

fn transfer(handle: u64, buffer: &SessionBuffer, chunk: u64, place: u64) -> Transfer {
    Transfer {
        checkpoint: handle,
        buffer: buffer.key(),
        buffer_offset_bytes: place * CHUNK_BYTES,
        len_bytes: CHUNK_BYTES,
        segment_offset_bytes: chunk * CHUNK_BYTES,
    }
}

/// Keeps up to 64 operations of one chunk in flight until `count` are done. The window begins after
/// the first tenth, when all threads are awake.
fn flow(
    session: &mut Session,
    buffer: &SessionBuffer,
    count: u64,
    entry: impl Fn(u64, u64) -> SubmitEntry,
) {
    assert_eq!(buffer.len_bytes(), 64 * CHUNK_BYTES);
    let mut free: Vec<u64> = (0..64).collect();
    let mut out = [CompleteEntry::default(); 64];
    let (mut next, mut done, mut before) = (0, 0, None);
    while done < count {
        if before.is_none() && done > count / 10 {
            let _ = std::fs::metadata(BEGIN);
            before = Some(ALLOCATIONS.load(Ordering::SeqCst));
        }
        while next < count
            && let Some(place) = free.last().copied()
        {
            if session.submit(&[entry(next, place)]) == 0 {
                break;
            }
            free.pop();
            next += 1;
        }
        let taken = session.peek(&mut out);
        for completion in &out[..taken] {
            assert_eq!(completion.result, CHUNK_BYTES as i64);
            free.push(completion.user_data);
        }
        done += taken as u64;
        std::hint::spin_loop();
        // The last operations drain; the flow has ended by then.
        if next == count && before.is_some_and(|before| before != u64::MAX) {
            let allocations = ALLOCATIONS.load(Ordering::SeqCst) - before.unwrap();
            let _ = std::fs::metadata(END);
            assert_eq!(allocations, 0, "allocations while operations flowed");
            before = Some(u64::MAX);
        }
    }
    println!("{count} operations flowed");
}

fn print_threads() {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let own = own.file_name().unwrap().to_str().unwrap().to_owned();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let id = task.unwrap().file_name().into_string().unwrap();
        let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).unwrap();
        let name = if id == own { "trainer" } else { name.trim() };
        println!("thread {id} {name}");
    }
}
