// SPDX-License-Identifier: Apache-2.0
//! A pool that is open for reading while its owner goes on: what is read counts only while one of
//! the two newest generations has it.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::common::{BackEnd, Pattern, restore, save};
use stanchion_testing::internals::ring::{CompleteEntry, SubmitEntry, Transfer};
use stanchion_testing::{CheckpointName, Error, Pool, SessionOptions};

const MIB: u64 = 1 << 20;
const LEN_BYTES: u64 = 12 * MIB;

fn name(text: &str) -> CheckpointName {
    text.parse().unwrap()
}

/// Reads the first chunk: whether the read ended well, and what closing the segment says. Does
/// something between opening it and reading.
fn read(
    pool: &Pool,
    checkpoint: &CheckpointName,
    meanwhile: impl FnOnce(),
) -> (bool, Result<(), Error>) {
    let options = SessionOptions { memory_bytes: MIB, ..SessionOptions::default() };
    let mut session = pool.session(&options).unwrap();
    let buffer = session.alloc(MIB).unwrap();
    let opened = match session.open(checkpoint, 0) {
        Ok(opened) => opened,
        Err(error) => return (false, Err(error)),
    };
    meanwhile();
    let transfer = Transfer {
        checkpoint: opened.handle,
        buffer: buffer.key(),
        buffer_offset_bytes: 0,
        len_bytes: MIB,
        segment_offset_bytes: 0,
    };
    assert_eq!(session.submit(&[SubmitEntry::read(transfer, 5)]), 1);
    let mut out = [CompleteEntry::default(); 4];
    assert_eq!(session.wait(&mut out, 1, Duration::from_secs(30)), 1);
    (out[0].result >= 0, session.close(opened.handle))
}

#[test]
fn what_was_removed_is_stale_and_what_was_not_is_whole() {
    let drives = BackEnd::files(2);
    drives.format();
    let owner = drives.open();
    let (kept, gone, next) =
        (Pattern::new(1, LEN_BYTES), Pattern::new(2, LEN_BYTES), Pattern::new(3, 3 * LEN_BYTES));
    save(&owner, &name("kept@1"), &kept).unwrap();
    save(&owner, &name("gone@1"), &gone).unwrap();
    let reader = drives.open_read_only();
    // The owner goes on, also beyond the ring of 64 roots and the four catalogues.
    for step in 2..72 {
        save(&owner, &name(&format!("small@{step}")), &Pattern::new(step, MIB)).unwrap();
        owner.remove(&name(&format!("small@{step}"))).unwrap();
        if step % 23 == 0 {
            assert_eq!(restore(&reader, &name("kept@1"), &kept), Ok(()));
        }
    }
    let (is_read, closed) = read(&reader, &name("kept@1"), || ());
    assert!(is_read && closed.is_ok(), "{closed:?}");
    // Removed, but the generation before still has it: its space is not used.
    let (is_read, closed) = read(&reader, &name("gone@1"), || {
        owner.remove(&name("gone@1")).unwrap();
    });
    assert!(is_read && closed.is_ok(), "{closed:?}");
    // Now other bytes lie there, or may.
    for step in 1..4 {
        save(&owner, &name(&format!("next@{step}")), &next).unwrap();
        let (_, closed) = read(&reader, &name("gone@1"), || ());
        assert!(matches!(closed, Err(Error::Stale(_))), "{closed:?}");
        owner.remove(&name(&format!("next@{step}"))).unwrap();
    }
    let error = reader.segments(&name("gone@1")).map(|_| ()).map_or_else(Some, |()| None);
    // Its tables may still be there, or be something else's; they are never called damaged.
    assert!(error.is_none_or(|error| matches!(error, Error::Stale(_))));
    assert_eq!(restore(&reader, &name("kept@1"), &kept), Ok(()));
    // A reader keeps its generation; another opening, in the same process too, shows the newest.
    let newest = (name("newest@1"), Pattern::new(7, MIB));
    save(&owner, &newest.0, &newest.1).unwrap();
    assert!(matches!(reader.find(&newest.0), Err(Error::NoSuchCheckpoint(_))));
    let later = drives.open_read_only();
    assert!(matches!(later.find(&name("gone@1")), Err(Error::NoSuchCheckpoint(_))));
    assert_eq!(restore(&later, &newest.0, &newest.1), Ok(()));
    assert_eq!(restore(&reader, &name("kept@1"), &kept), Ok(()));
}

#[test]
fn a_pool_that_was_formatted_anew_is_stale() {
    let drives = BackEnd::files(1);
    drives.format();
    let owner = drives.open();
    save(&owner, &name("a@1"), &Pattern::new(1, LEN_BYTES)).unwrap();
    drop(owner);
    let reader = drives.open_read_only();
    let (_, closed) = read(&reader, &name("a@1"), || drives.format_again());
    assert!(matches!(closed, Err(Error::Stale(_))), "{closed:?}");
}
