// SPDX-License-Identifier: Apache-2.0
//! The workload of `scripts/qemu-rig`: one process that saves checkpoint after checkpoint and logs
//! the result of each, or that restores all of them.
//!
//! The bytes of a checkpoint follow from its name, so the log alone defines what must be on the
//! drives: the word of 8 bytes at place `i` is `fnv1a_32(name) << 32 | i`, little-endian.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use stanchion_engine::{
    CheckpointName, CheckpointSpec, Pool, PoolOptions, Session, SessionBuffer, SessionOptions,
};
use stanchion_engine::{CompleteEntry, SubmitEntry, Transfer, codes};

const USAGE: &str = "\
Usage: save_loop save FIRST_STEP MAX_BYTES KEEP LOG DRIVE...
       save_loop restore DIRECTORY DRIVE...

  save      saves run@FIRST_STEP, run@FIRST_STEP+1 ... forever, each of 1 to MAX_BYTES bytes, and removes
            run@N-KEEP after saving run@N. Before and after each step a line is appended to LOG:
            \"saving NAME BYTES\", \"saved NAME BYTES\", \"removing NAME\", \"removed NAME\"; \"saved\" and
            \"removed\" are acknowledgements, also printed on stdout.
  restore   writes every checkpoint to DIRECTORY/NAME";

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    // The engine's warnings say which drive failed.
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).without_time().init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["save", first, max, keep, log, ref drives @ ..] => save(first, max, keep, log, drives),
        ["restore", directory, ref drives @ ..] => restore(Path::new(directory), drives),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("save_loop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn fnv1a_32(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn fill(bytes: &mut [u8], name: &str) {
    let base = u64::from(fnv1a_32(name)) << 32;
    for (word, place) in bytes.chunks_mut(8).zip(base..) {
        word.copy_from_slice(&place.to_le_bytes()[..word.len()]);
    }
}

fn open(drives: &[&str]) -> Fallible<Pool> {
    let drives = drives.iter().map(|drive| drive.parse()).collect::<Result<_, _>>()?;
    Ok(Pool::open(&PoolOptions::new(drives))?)
}

/// One transfer of a whole segment.
fn whole(checkpoint: u64, buffer: &SessionBuffer, len_bytes: u64) -> Transfer {
    let (buffer, buffer_offset_bytes, segment_offset_bytes) = (buffer.key(), 0, 0);
    Transfer { checkpoint, buffer, buffer_offset_bytes, len_bytes, segment_offset_bytes }
}

/// Waits until `count` entries have completed, and returns the first failure.
fn ended(session: &mut Session, count: usize) -> Fallible<()> {
    let mut done = [CompleteEntry::default(); 2];
    let mut left = count;
    while left > 0 {
        let taken = session.wait(&mut done[..left], 1, Duration::from_secs(600));
        for entry in &done[..taken] {
            if entry.result < 0 {
                return Err(codes::describe_with_status(entry.result, entry.detail).into());
            }
        }
        left -= taken;
    }
    Ok(())
}

fn save(first: &str, max: &str, keep: &str, log: &str, drives: &[&str]) -> Fallible<()> {
    let (first, max_bytes, keep): (u64, u64, u64) = (first.parse()?, max.parse()?, keep.parse()?);
    let mut log = OpenOptions::new().append(true).create(true).open(log)?;
    let mut append = |line: String, is_acknowledged: bool| -> Fallible<()> {
        log.write_all(format!("{line}\n").as_bytes())?;
        if is_acknowledged {
            println!("{line}");
        }
        Ok(())
    };
    let pool = open(drives)?;
    let options = SessionOptions { memory_bytes: 2 * max_bytes, ..SessionOptions::default() };
    let mut session = pool.session(&options)?;
    let mut buffer = session.alloc(max_bytes)?;
    for step in first.. {
        let name: CheckpointName = format!("run@{step}").parse()?;
        let len_bytes = 1 + u64::from(fnv1a_32(&format!("length of {name}"))) % max_bytes;
        append(format!("saving {name} {len_bytes}"), false)?;
        fill(&mut buffer.as_mut_slice()?[..len_bytes as usize], &name.to_string());
        let (participants, participant) = (1, 0);
        let spec = CheckpointSpec {
            name: name.clone(),
            participants,
            participant,
            len_bytes,
            shards: vec![],
        };
        let checkpoint = session.begin(&spec)?;
        let write = whole(checkpoint, &buffer, len_bytes);
        session.submit(&[SubmitEntry::write(write, 1), SubmitEntry::commit(checkpoint, 2)]);
        ended(&mut session, 2).map_err(|error| format!("{name}: {error}"))?;
        session.close(checkpoint)?;
        append(format!("saved {name} {len_bytes}"), true)?;
        if let Some(old) = step.checked_sub(keep) {
            let old: CheckpointName = format!("run@{old}").parse()?;
            if pool.find(&old).is_ok() {
                append(format!("removing {old}"), false)?;
                pool.remove(&old)?;
                append(format!("removed {old}"), true)?;
            }
        }
    }
    Ok(())
}

fn restore(directory: &Path, drives: &[&str]) -> Fallible<()> {
    let pool = open(drives)?;
    let found = pool.list();
    let largest = found.iter().map(|info| info.bytes).max().unwrap_or(1);
    let options = SessionOptions { memory_bytes: 2 * largest, ..SessionOptions::default() };
    let mut session = pool.session(&options)?;
    let buffer = session.alloc(largest)?;
    for info in found {
        let opened = session.open(&info.name, 0)?;
        let read = whole(opened.handle, &buffer, opened.len_bytes);
        session.submit(&[SubmitEntry::read(read, 1)]);
        ended(&mut session, 1).map_err(|error| format!("{}: {error}", info.name))?;
        session.close(opened.handle)?;
        let mut file = File::create(directory.join(info.name.to_string()))?;
        file.write_all(&buffer.as_slice()?[..opened.len_bytes as usize])?;
    }
    println!("restored everything");
    Ok(())
}
