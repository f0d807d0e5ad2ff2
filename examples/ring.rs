// SPDX-License-Identifier: Apache-2.0
//! Saves bytes through the ring of a session, so that the caller can go on while drives write.
//!
//! `cargo run --example ring -- DRIVE...`, on drives that `stanchion format` made a pool of.

use std::time::Duration;

use stanchion::ring::{CompleteEntry, SubmitEntry, Transfer, codes};
use stanchion::{
    CheckpointName, CheckpointSpec, Error, Pool, PoolOptions, Session, SessionOptions,
};

/// Takes the completions of `COUNT` entries; each must arrive in time and succeed.
fn wait<const COUNT: usize>(session: &mut Session, timeout: Duration) -> Result<(), Error> {
    let mut done = [CompleteEntry::default(); COUNT];
    let count = session.wait(&mut done, COUNT, timeout);
    let failed = done[..count].iter().find(|completion| completion.result < 0);
    let reason = match failed {
        Some(completion) => codes::describe(completion.result).to_owned(),
        None if count < COUNT => format!("{count} of {COUNT} entries ended in {timeout:?}"),
        None => return Ok(()),
    };
    Err(Error::NotCommitted { checkpoint: "the checkpoint".into(), reason })
}

fn main() -> Result<(), Error> {
    let drives: Result<_, _> = std::env::args().skip(1).map(|drive| drive.parse()).collect();
    let pool = Pool::open(&PoolOptions::new(drives?))?;
    let weights: Vec<u8> = (0..10_000_000_u32).map(|i| (i ^ (i >> 8)) as u8).collect();

    let mut session = pool.session(&SessionOptions::default())?;
    let mut buffer = session.alloc(weights.len() as u64)?;
    buffer.as_mut_slice()?[..weights.len()].copy_from_slice(&weights); // the only copy

    let step = pool.latest("ring").map_or(1, |newest| newest.name.step + 1);
    let spec = CheckpointSpec::single(CheckpointName::new("ring", step)?, weights.len() as u64);
    let checkpoint = session.begin(&spec)?; // space is reserved, or this fails
    let whole = Transfer {
        checkpoint,
        buffer: buffer.key(),
        buffer_offset_bytes: 0,
        len_bytes: spec.len_bytes,
        segment_offset_bytes: 0,
    };
    let entries = [SubmitEntry::write(whole, 1), SubmitEntry::commit(checkpoint, 2)];
    assert_eq!(session.submit(&entries), entries.len(), "an empty ring has room");
    // A trainer computes its next step here.
    wait::<2>(&mut session, Duration::from_secs(60))?;
    session.close(checkpoint)?;
    println!("saved {}", spec.name);

    buffer.as_mut_slice()?.fill(0);
    let opened = session.open(&spec.name, 0)?;
    let whole = Transfer { checkpoint: opened.handle, ..whole };
    assert_eq!(session.submit(&[SubmitEntry::read(whole, 3)]), 1, "an empty ring has room");
    wait::<1>(&mut session, Duration::from_secs(60))?;
    assert!(buffer.as_slice()?[..weights.len()] == weights);
    println!("restored {} bytes", opened.len_bytes);
    Ok(())
}
