//! Saves bytes as a checkpoint and restores them.
//!
//! `cargo run --example save -- DRIVE...`, on drives that `stanchion format` made a pool of.

use stanchion::ring::{CompleteEntry, SubmitEntry, Transfer};
use stanchion::{CheckpointSpec, Error, Pool, PoolOptions, SessionOptions};
use std::time::Duration;

/// The example of README.md.
fn save(drives: &[&str], weights: &[u8]) -> Result<(), Error> {
    let drives = drives.iter().map(|drive| drive.parse()).collect::<Result<_, _>>()?;
    let pool = Pool::open(&PoolOptions::new(drives))?;
    let mut session = pool.session(&SessionOptions::default())?;
    let mut buffer = session.alloc(weights.len() as u64)?; // huge pages; the only copy is the next line
    buffer.as_mut_slice()?[..weights.len()].copy_from_slice(weights);
    let (participants, participant, len_bytes) = (1, 0, weights.len() as u64);
    let name = "llama@100".parse()?;
    let spec = CheckpointSpec { name, participants, participant, len_bytes, shards: vec![] };
    let checkpoint = session.begin(&spec)?; // space is reserved, or this fails
    let (buffer, buffer_offset_bytes, segment_offset_bytes) = (buffer.key(), 0, 0);
    let len_bytes = len_bytes;
    let all = Transfer { checkpoint, buffer, buffer_offset_bytes, len_bytes, segment_offset_bytes };
    session.submit(&[SubmitEntry::write(all, 1), SubmitEntry::commit(checkpoint, 2)]);
    let mut done = [CompleteEntry::default(); 2];
    session.wait(&mut done, 2, Duration::from_secs(60)); // train on, then wait: durable and visible
    assert!(done.iter().all(|entry| entry.result >= 0));
    Ok(())
}

fn restore(drives: &[&str], len_bytes: u64) -> Result<Vec<u8>, Error> {
    let drives = drives.iter().map(|drive| drive.parse()).collect::<Result<_, _>>()?;
    let pool = Pool::open(&PoolOptions::new(drives))?;
    let mut session = pool.session(&SessionOptions::default())?;
    let opened = session.open(&"llama@100".parse()?, 0)?;
    let buffer = session.alloc(len_bytes)?;
    let all = Transfer {
        checkpoint: opened.handle,
        buffer: buffer.key(),
        buffer_offset_bytes: 0,
        len_bytes,
        segment_offset_bytes: 0,
    };
    session.submit(&[SubmitEntry::read(all, 1)]);
    let mut done = [CompleteEntry::default(); 1];
    session.wait(&mut done, 1, Duration::from_secs(60));
    assert!(done[0].result >= 0, "what came back is verified, or an error");
    Ok(buffer.as_slice()?[..len_bytes as usize].to_vec())
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let drives: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let weights: Vec<u8> = (0..10_000_000_u32).map(|i| (i ^ (i >> 8)) as u8).collect();
    save(&drives, &weights)?;
    assert!(restore(&drives, weights.len() as u64)? == weights);
    println!("saved and restored {} bytes", weights.len());
    Ok(())
}
