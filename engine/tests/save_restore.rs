// SPDX-License-Identifier: Apache-2.0
//! A checkpoint is saved through the ring and restored: the same body on simulated drives, on files
//! and, where SPDK can run, over SPDK.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::common::{self, BackEnd, Pattern, restore, save};
use stanchion_testing::internals::ring::{CompleteEntry, SubmitEntry, codes};
use stanchion_testing::{CheckpointName, CheckpointSpec, Error, SessionOptions};

const MIB: u64 = 1 << 20;

fn name(text: &str) -> CheckpointName {
    text.parse().unwrap()
}

fn everywhere(drives: usize, body: impl Fn(&mut BackEnd)) {
    for mut back_end in BackEnd::all(drives) {
        back_end.format();
        body(&mut back_end);
    }
}

#[test]
fn committed_checkpoints_are_restored() {
    everywhere(3, |back_end| {
        let pattern = Pattern::new(1, 7 * MIB + 4321);
        {
            let pool = back_end.open();
            save(&pool, &name("llama@1"), &pattern).unwrap();
            assert_eq!(restore(&pool, &name("llama@1"), &pattern), Ok(()));
        }
        let pool = back_end.open_read_only();
        assert_eq!(pool.list().len(), 1);
        assert_eq!(restore(&pool, &name("llama@1"), &pattern), Ok(()));
        let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.data_bytes, pattern.len_bytes());
    });
}

#[test]
fn an_uncommitted_checkpoint_is_absent_and_its_space_is_free() {
    everywhere(2, |back_end| {
        let pool = back_end.open();
        let free = pool.info().free_bytes;
        {
            let mut session = pool.session(&SessionOptions::default()).unwrap();
            let spec = CheckpointSpec {
                name: name("a@1"),
                participants: 1,
                participant: 0,
                len_bytes: 5 * MIB,
                shards: Vec::new(),
            };
            session.begin(&spec).unwrap();
            assert!(pool.info().free_bytes < free);
        }
        assert_eq!(pool.info().free_bytes, free);
        assert!(pool.list().is_empty());
    });
}

#[test]
fn a_commit_waits_for_every_byte_and_every_participant() {
    everywhere(2, |back_end| {
        let pool = back_end.open();
        let mut sessions: Vec<_> =
            (0..2).map(|_| pool.session(&SessionOptions::default()).unwrap()).collect();
        let mut handles = Vec::new();
        let mut buffers = Vec::new();
        for (participant, session) in sessions.iter_mut().enumerate() {
            let spec = CheckpointSpec {
                name: name("multi@9"),
                participants: 2,
                participant: participant as u32,
                len_bytes: 2 * MIB,
                shards: Vec::new(),
            };
            handles.push(session.begin(&spec).unwrap());
            buffers.push(session.alloc(2 * MIB).unwrap());
        }
        let mut out = [CompleteEntry::default(); 4];
        // Nothing is written yet.
        assert_eq!(sessions[0].submit(&[SubmitEntry::commit(handles[0], 7)]), 1);
        assert_eq!(sessions[0].wait(&mut out, 1, Duration::from_secs(10)), 1);
        assert_eq!((out[0].user_data, out[0].result, out[0].aux), (7, codes::INCOMPLETE, 2));
        for index in [0, 1] {
            let write = common::write(handles[index], buffers[index].key(), 2 * MIB, 0, 1);
            let commit = SubmitEntry::commit(handles[index], 2);
            assert_eq!(sessions[index].submit(&[write, commit]), 2);
            if index == 0 {
                // The write ends, the commit waits for the other participant.
                assert_eq!(sessions[0].wait(&mut out, 2, Duration::from_millis(200)), 1);
                assert_eq!((out[0].user_data, out[0].result), (1, 2 * MIB as i64));
                assert!(pool.list().is_empty());
            }
        }
        assert_eq!(sessions[1].wait(&mut out, 2, Duration::from_secs(10)), 2);
        assert_eq!(out[1].result, 0);
        let generation = out[1].aux;
        assert_eq!(sessions[0].wait(&mut out, 1, Duration::from_secs(10)), 1);
        assert_eq!((out[0].result, out[0].aux), (0, generation));
        let found = pool.find(&name("multi@9")).unwrap();
        assert_eq!((found.participants, found.bytes), (2, 4 * MIB));
        assert_eq!(found.generation.0, generation);
    });
}

#[test]
fn one_participant_that_leaves_ends_it_for_all() {
    everywhere(2, |back_end| {
        let pool = back_end.open();
        let spec = |participant| CheckpointSpec {
            name: name("multi@9"),
            participants: 2,
            participant,
            len_bytes: MIB,
            shards: Vec::new(),
        };
        let mut stays = pool.session(&SessionOptions::default()).unwrap();
        let mut leaves = pool.session(&SessionOptions::default()).unwrap();
        let handle = stays.begin(&spec(0)).unwrap();
        leaves.begin(&spec(1)).unwrap();
        let buffer = stays.alloc(MIB).unwrap();
        let entries =
            [common::write(handle, buffer.key(), MIB, 0, 1), SubmitEntry::commit(handle, 2)];
        assert_eq!(stays.submit(&entries), 2);
        let mut out = [CompleteEntry::default(); 4];
        assert_eq!(stays.wait(&mut out, 1, Duration::from_secs(10)), 1);
        drop(leaves);
        assert_eq!(stays.wait(&mut out, 1, Duration::from_secs(10)), 1);
        assert_eq!((out[0].user_data, out[0].result), (2, codes::CANCELED));
        drop(stays);
        assert!(pool.list().is_empty());
        assert_eq!(pool.info().free_bytes, Some(pool.info().capacity_bytes));
    });
}

#[test]
fn space_is_free_two_generations_later_and_a_full_pool_is_reported() {
    everywhere(2, |back_end| {
        let pool = back_end.open();
        let capacity = pool.info().capacity_bytes;
        let pattern = Pattern::new(3, capacity / 4 * 3);
        for step in 0..4 {
            let checkpoint = CheckpointName::new("big", step).unwrap();
            save(&pool, &checkpoint, &pattern).unwrap();
            let error = save(&pool, &name("other@1"), &pattern).unwrap_err();
            assert!(matches!(error, Error::NoSpace { .. }), "{error}");
            assert_eq!(restore(&pool, &checkpoint, &pattern), Ok(()));
            pool.remove(&checkpoint).unwrap();
        }
        assert!(pool.list().is_empty());
    });
}

#[test]
fn names_are_unique_and_unknown_ones_are_reported() {
    everywhere(1, |back_end| {
        let pool = back_end.open();
        let pattern = Pattern::new(4, MIB);
        save(&pool, &name("a@1"), &pattern).unwrap();
        save(&pool, &name("a@10"), &pattern).unwrap();
        save(&pool, &name("ab@99"), &pattern).unwrap();
        let error = save(&pool, &name("a@1"), &pattern).unwrap_err();
        assert!(matches!(error, Error::CheckpointExists(_)), "{error}");
        assert!(matches!(pool.remove(&name("a@2")), Err(Error::NoSuchCheckpoint(_))));
        assert_eq!(pool.latest("a").unwrap().name, name("a@10"));
        assert!(pool.latest("b").is_none());
    });
}
