// SPDX-License-Identifier: Apache-2.0
//! Checkpoints of several participants, which the command does not make itself.

use std::time::Duration;

use stanchion_testing::{CheckpointSpec, HugePages, Pool, PoolOptions, SessionOptions, Shard};
use stanchion_testing::{CompleteEntry, SubmitEntry, Transfer};

use super::Place;

/// What one participant saves: its shards, and the bytes of its segment.
pub struct Participant {
    pub shards: Vec<Shard>,
    pub bytes: Vec<u8>,
}

/// Saves a checkpoint to the pool on these drives with the engine.
pub fn save(place: &Place, drives: &[&str], name: &str, participants: Vec<Participant>) {
    let addresses = drives.iter().map(|d| place.path(d).to_str().unwrap().parse().unwrap());
    let mut options = PoolOptions::new(addresses.collect());
    options.huge_pages = HugePages::Off;
    let pool = Pool::open(&options).unwrap();
    let count = participants.len() as u32;
    let mut sessions = Vec::new();
    for (participant, Participant { shards, bytes }) in (0..).zip(participants) {
        let mut session = pool.session(&SessionOptions::default()).unwrap();
        let (name, len_bytes) = (name.parse().unwrap(), bytes.len() as u64);
        let spec = CheckpointSpec { name, participants: count, participant, len_bytes, shards };
        let handle = session.begin(&spec).unwrap();
        let mut buffer = session.alloc(len_bytes).unwrap();
        buffer.as_mut_slice().unwrap()[..bytes.len()].copy_from_slice(&bytes);
        let transfer = Transfer {
            checkpoint: handle,
            buffer: buffer.key(),
            buffer_offset_bytes: 0,
            len_bytes,
            segment_offset_bytes: 0,
        };
        let entries = [SubmitEntry::write(transfer, 1), SubmitEntry::commit(handle, 2)];
        assert_eq!(session.submit(&entries), 2);
        sessions.push((session, buffer));
    }
    for (session, _) in &mut sessions {
        let mut out = [CompleteEntry::default(); 2];
        assert_eq!(session.wait(&mut out, 2, Duration::from_secs(30)), 2);
        assert!(out.iter().all(|completion| completion.result >= 0), "{out:?}");
    }
}
