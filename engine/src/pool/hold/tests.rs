// SPDX-License-Identifier: Apache-2.0
//! Restores, verifications and removals of one checkpoint, in every order that matters. A removal
//! that has begun is set by hand, so that each order comes about every time.

use std::thread;
use std::time::Duration;

use crate::commit::StateCell as _;
use crate::device::Device;
use crate::device::sim::{SimConfig, SimDrive};
use crate::error::Error;
use crate::memory::HugePages;
use crate::name::CheckpointName;
use crate::pool::{FormatOptions, Pool, PoolOptions, format_on};
use crate::session::SessionOptions;
use crate::state::{CheckpointSpec, Use};

const MIB: u64 = 1 << 20;
/// Long enough for what could happen, if it did not wait.
const A_MOMENT: Duration = Duration::from_millis(100);

fn pool() -> Pool {
    let config = SimConfig { capacity_bytes: 48 * MIB, ..SimConfig::default() };
    let sim = SimDrive::new(config).unwrap();
    let devices = || vec![Box::new(sim.open().unwrap()) as Box<dyn Device>];
    format_on(devices(), &FormatOptions::new(Vec::new())).unwrap();
    let options = PoolOptions { huge_pages: HugePages::Off, ..PoolOptions::new(Vec::new()) };
    Pool::open_on(devices(), &options).unwrap()
}

fn name(step: u64) -> CheckpointName {
    CheckpointName::new("run", step).unwrap()
}

fn save(pool: &Pool, step: u64, byte: u8, chunks: u64) -> Result<(), Error> {
    let bytes = vec![byte; (chunks * MIB) as usize];
    pool.save(&CheckpointSpec::single(name(step), bytes.len() as u64), &bytes).map(|_| ())
}

fn small() -> SessionOptions {
    SessionOptions { memory_bytes: 0, ring_entries: 8 }
}

#[test]
fn who_comes_during_a_removal_learns_how_it_ended() {
    for fails in [true, false] {
        let pool = pool();
        save(&pool, 1, 1, 2).unwrap();
        let context = &pool.open.context;
        let removal = context.with_state(|state| state.begin_removal(&name(1))).unwrap();
        thread::scope(|scope| {
            let restore = scope.spawn(|| {
                let mut session = pool.session(&small()).unwrap();
                session.open(&name(1), 0).map(|_| ())
            });
            let list = scope.spawn(|| pool.segments(&name(1)));
            let verify = scope.spawn(|| pool.verify(None, true, &mut |_, _| ()));
            thread::sleep(A_MOMENT);
            let waits = [restore.is_finished(), list.is_finished(), verify.is_finished()];
            if fails {
                context.with_state(|state| state.end_removal(removal));
            } else {
                pool.remove(&name(1)).unwrap();
            }
            let restored = restore.join().unwrap();
            let listed = list.join().unwrap();
            let verified = verify.join().unwrap().unwrap();
            assert_eq!(waits, [false; 3], "it is not known yet whether the checkpoint is there");
            if fails {
                restored.unwrap();
                assert_eq!(listed.unwrap().len(), 1);
                assert_eq!((verified.checkpoints, verified.removed), (1, 0));
            } else {
                assert!(matches!(restored, Err(Error::NoSuchCheckpoint(_))), "{restored:?}");
                assert!(matches!(listed, Err(Error::NoSuchCheckpoint(_))), "{listed:?}");
                assert_eq!((verified.checkpoints, verified.removed), (0, 1));
            }
        });
    }
}

#[test]
fn a_restore_refuses_a_removal_and_a_verification_does_not() {
    let pool = pool();
    save(&pool, 1, 1, 2).unwrap();
    let mut session = pool.session(&small()).unwrap();
    let opened = session.open(&name(1), 0).unwrap();
    let inspected = pool.open.hold(&name(1), Use::Inspect).unwrap();
    assert!(matches!(pool.remove(&name(1)), Err(Error::Busy { .. })));
    assert!(inspected.is_current());
    session.close(opened.handle).unwrap();
    pool.remove(&name(1)).unwrap();
    assert!(!inspected.is_current());
}

#[test]
fn a_session_that_ends_ends_its_holds() {
    let pool = pool();
    save(&pool, 1, 1, 2).unwrap();
    let mut session = pool.session(&small()).unwrap();
    session.open(&name(1), 0).unwrap();
    session.open(&name(1), 0).unwrap();
    assert!(matches!(pool.remove(&name(1)), Err(Error::Busy { .. })));
    drop(session);
    pool.remove(&name(1)).unwrap();
}

#[test]
fn an_open_that_fails_leaves_no_hold() {
    let pool = pool();
    save(&pool, 1, 1, 2).unwrap();
    let mut session = pool.session(&small()).unwrap();
    assert!(matches!(session.open(&name(1), 5), Err(Error::Usage(_))));
    pool.remove(&name(1)).unwrap();
}

/// The last one of these is what a reader needs: while it holds, no one else's bytes come into its
/// slots, however much the others need them.
#[test]
fn the_slots_of_what_is_held_are_given_to_nobody() {
    let pool = pool();
    let free_chunks = pool.info().free_bytes.unwrap() / MIB;
    save(&pool, 1, 1, free_chunks).unwrap();
    let held = pool.open.hold(&name(1), Use::Inspect).unwrap();
    pool.remove(&name(1)).unwrap();
    for step in 2..5 {
        assert!(matches!(save(&pool, step, 2, 1), Err(Error::NoSpace { .. })), "step {step}");
    }
    drop(held);
    save(&pool, 9, 9, free_chunks).unwrap();
    let mut bytes = vec![0; (free_chunks * MIB) as usize];
    pool.restore(&name(9), 0, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 9));
}

/// A reader that holds a checkpoint and then finds another one of its name in its place.
#[test]
fn a_checkpoint_saved_again_under_its_name_is_not_what_was_listed() {
    let pool = pool();
    save(&pool, 1, 1, 2).unwrap();
    save(&pool, 2, 2, 2).unwrap();
    let mut calls = 0;
    let report = pool.verify(None, true, &mut |_, _| {
        calls += 1;
        // Before the first checkpoint is read: the second one becomes another.
        if calls == 1 {
            pool.remove(&name(2)).unwrap();
            save(&pool, 2, 3, 3).unwrap();
        }
    });
    let report = report.unwrap();
    assert!(calls > 1, "{report:?}");
    assert_eq!((report.checkpoints, report.removed), (1, 1), "{report:?}");
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.data_bytes, 2 * MIB);
}
