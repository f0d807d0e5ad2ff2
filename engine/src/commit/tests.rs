// SPDX-License-Identifier: Apache-2.0
//! The committer over simulated drives: who may do what during a commit, and the state after a
//! drive fails.

use std::cell::RefCell;

use uuid::Uuid;

use super::plan::Plan;
use super::*;
use crate::device::sim::{Effect, Fault, SimConfig, SimDrive, When};
use crate::device::{Device, DriveInfo, Operation};
use crate::direct::DirectDrives;
use crate::drives::{DriveCommand, Drives};
use crate::error::{Error, IoError};
use crate::format::testing::striped_label;
use crate::format::{DriveState, Label, Layout, Root, Zone};
use crate::limits::BLOCK_BYTES;
use crate::memory::HugePages;
use crate::name::CheckpointName;
use crate::state::{CheckpointSpec, Readiness, State};
use crate::units::{DriveIndex, Generation};

const CHUNK: u64 = 1 << 20;
const CAPACITY_BYTES: u64 = 64 << 20;
const FAILED: IoError = IoError::Nvme { sct: 0, sc: 0x06, dnr: true };

fn label(drives: usize) -> Label {
    striped_label(CAPACITY_BYTES, CHUNK, drives)
}

/// A new pool.
struct Pool {
    sims: Vec<SimDrive>,
    drives: DirectDrives,
    state: RefCell<State>,
}

fn pool(drives: usize) -> Pool {
    let label = label(drives);
    let config = |number| SimConfig {
        capacity_bytes: CAPACITY_BYTES,
        serial: format!("SIM{number}"),
        ..SimConfig::default()
    };
    let sims: Vec<_> = (0..drives).map(|number| SimDrive::new(config(number)).unwrap()).collect();
    let open = |sim: &SimDrive| Box::new(sim.open().unwrap()) as Box<dyn Device>;
    let mut drives = DirectDrives::new(sims.iter().map(open).collect(), HugePages::Off).unwrap();
    make_pool(&mut drives, &label).unwrap();
    let root = Plan::first(&label).change.root;
    let state = State::new(label, root, None, Generation(1), Vec::new());
    Pool { sims, drives, state: RefCell::new(state) }
}

impl Pool {
    fn generation(&self) -> u64 {
        self.state.borrow().root().generation.0
    }

    fn free_chunks(&self) -> u64 {
        self.state.borrow().free_slots().iter().sum()
    }

    fn fail(&self, operation: Operation) {
        self.sims[0].inject(Fault::new(operation, When::Nth(0), Effect::Fail(FAILED))).unwrap();
    }
}

fn spec(step: u64, chunks: u64) -> CheckpointSpec {
    let name = CheckpointName::new("run", step).unwrap();
    let len_bytes = chunks * CHUNK;
    CheckpointSpec { name, participants: 1, participant: 0, len_bytes, shards: Vec::new() }
}

fn no_reclaim() -> Result<(), Error> {
    panic!("there is nothing to reclaim")
}

fn sums(_: u64, _: u32) -> Vec<u64> {
    vec![0; 64]
}

/// Begins a checkpoint and makes it ready.
fn make_ready(
    committer: &mut Committer<&RefCell<State>>,
    state: &RefCell<State>,
    spec: &CheckpointSpec,
) -> u64 {
    let id = Uuid::from_u128(spec.name.step.into());
    let open = begin(state, spec, id, no_reclaim).unwrap();
    assert_eq!(committer.set_whole(open, 0), Readiness::Ready);
    open
}

/// Drives that record their commands, and let a test act before each batch.
struct Recorded<'a> {
    drives: &'a mut DirectDrives,
    batches: Vec<Vec<String>>,
    before: &'a mut dyn FnMut(),
}

impl Drives for Recorded<'_> {
    fn info(&self) -> &[DriveInfo] {
        self.drives.info()
    }

    fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), IoError>> {
        (self.before)();
        let name = |command: &DriveCommand<'_>| match command {
            DriveCommand::Write { drive, offset_bytes, durable: true, .. } => {
                format!("{drive}: durable {offset_bytes:#x}")
            }
            other => format!("{}: {}", other.drive(), other.what()),
        };
        self.batches.push(batch.iter().map(name).collect());
        self.drives.run(batch)
    }
}

#[test]
fn a_look_then_metadata_then_flush_then_a_look_then_front_roots_then_back_roots() {
    let Pool { mut drives, state, .. } = pool(2);
    let mut committer = Committer::new(&state);
    make_ready(&mut committer, &state, &spec(1, 3));
    make_ready(&mut committer, &state, &spec(2, 1));
    let mut recorded = Recorded { drives: &mut drives, batches: Vec::new(), before: &mut || {} };
    let Ended { open, result } = committer.commit_ready(&mut recorded, &sums, 0);
    assert_eq!((open.len(), result.unwrap()), (2, Generation(2)));
    let layout = label(2).layout;
    let roots = |zone| {
        let offset = layout.root_offset(zone, Generation(2), CAPACITY_BYTES);
        vec![format!("0: durable {offset:#x}"), format!("1: durable {offset:#x}")]
    };
    // A table, a list and a manifest of each, and the catalogue.
    let metadata: Vec<String> = recorded.batches[1].clone();
    for drive in ["0: write", "1: write"] {
        assert_eq!(metadata.iter().filter(|write| *write == drive).count(), 7);
    }
    let flush = vec!["0: flush".to_owned(), "1: flush".to_owned()];
    // At the slots of this generation and of the one before, on one drive.
    let look = vec!["0: read".to_owned(); 2];
    let roots = [roots(Zone::Front), roots(Zone::Back)];
    assert_eq!(recorded.batches, [&[look.clone(), metadata, flush, look][..], &roots].concat());
}

#[test]
fn trainers_begin_during_a_commit_and_get_no_space_that_it_frees() {
    let Pool { mut drives, state, .. } = pool(1);
    let mut committer = Committer::new(&state);
    let all = state.borrow().free_slots()[0];
    make_ready(&mut committer, &state, &spec(1, all - 6));
    committer.commit_ready(&mut drives, &sums, 0).result.unwrap();
    committer.remove(&mut drives, &spec(1, 0).name, 0).unwrap();

    let mut step = 10;
    let mut before = || {
        assert_eq!(state.borrow().root().generation, Generation(3), "not durable yet");
        step += 1;
        begin(&state, &spec(step, 1), Uuid::from_u128(step.into()), no_reclaim).unwrap();
        // The space of what the generation before removed is still in use.
        let too_much = begin(&state, &spec(99, 6), Uuid::nil(), || Err(Error::ReadOnly));
        assert!(matches!(too_much, Err(Error::ReadOnly)), "{too_much:?}");
    };
    let mut busy = Recorded { drives: &mut drives, batches: Vec::new(), before: &mut before };
    assert_eq!(committer.reclaim(&mut busy, 0).unwrap(), Generation(4));
    assert_eq!(step, 16, "one in each step of the order");
    assert_eq!(state.borrow().free_slots()[0], all - 6);
}

#[test]
fn a_failure_before_the_flush_leaves_the_pool_as_it_was() {
    let mut pool = pool(2);
    let free = pool.free_chunks();
    let mut committer = Committer::new(&pool.state);
    let open = make_ready(&mut committer, &pool.state, &spec(1, 3));
    pool.fail(Operation::Write);
    let ended = committer.commit_ready(&mut pool.drives, &sums, 0);
    assert_eq!(ended.open, [open]);
    assert!(matches!(ended.result, Err(Error::Io { source: FAILED, .. })));
    assert!(!committer.is_ready());
    assert_eq!((pool.generation(), pool.free_chunks()), (1, free));
    make_ready(&mut committer, &pool.state, &spec(1, 3));
    let again = committer.commit_ready(&mut pool.drives, &sums, 0).result.unwrap();
    assert_eq!(again, Generation(2));
}

/// A state that a trainer checks after every loan, to begin as soon as there is room.
struct Hurried {
    state: RefCell<State>,
    chunks: u64,
    begun: RefCell<usize>,
}

impl StateCell for Hurried {
    fn with_state<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let result = work(&mut self.state.borrow_mut());
        let begun = begin(&self.state, &spec(2, self.chunks), Uuid::nil(), no_reclaim);
        *self.begun.borrow_mut() += usize::from(begun.is_ok());
        result
    }
}

/// Its root may be durable all the same, and the next opening may find it.
#[test]
fn after_a_failed_flush_or_root_write_the_space_of_what_failed_is_not_reused() {
    for (operation, failed) in
        [(Operation::Flush, "flush"), (Operation::WriteDurable, "root write")]
    {
        let mut pool = pool(1);
        let all = pool.free_chunks();
        let id = Uuid::from_u128(1);
        let open = begin(&pool.state, &spec(1, all - 1), id, no_reclaim).unwrap();
        pool.fail(operation);
        let hurried = Hurried { state: pool.state, chunks: 2, begun: RefCell::default() };
        let mut committer = Committer::new(&hurried);
        committer.set_whole(open, 0);
        assert!(committer.commit_ready(&mut pool.drives, &sums, 0).result.is_err());
        assert_eq!(*hurried.begun.borrow(), 0, "{failed}");
        let refused =
            |error: &Error| matches!(error, Error::Poisoned { what, .. } if *what == failed);
        assert!(committer.reclaim(&mut pool.drives, 0).is_err_and(|error| refused(&error)));
        let next = begin(&hurried.state, &spec(3, 0), id, no_reclaim);
        assert!(next.is_err_and(|error| refused(&error)));
        assert_eq!(hurried.state.borrow().root().generation, Generation(1));
    }
}

#[test]
fn an_aborted_checkpoint_is_not_committed() {
    let mut pool = pool(1);
    let free = pool.free_chunks();
    let mut committer = Committer::new(&pool.state);
    let gone = make_ready(&mut committer, &pool.state, &spec(1, 3));
    let kept = make_ready(&mut committer, &pool.state, &spec(2, 1));
    committer.give_up(gone, Some(0));
    let ended = committer.commit_ready(&mut pool.drives, &sums, 0);
    assert_eq!(ended.open, [kept]);
    assert_eq!(pool.free_chunks(), free - 1);
    assert_eq!(committer.set_whole(gone, 0), Readiness::Aborted);
    assert!(!committer.is_ready());
}

#[test]
fn beginning_reclaims_once_and_only_where_that_may_help() {
    let mut pool = pool(1);
    let all = pool.free_chunks();
    let mut committer = Committer::new(&pool.state);
    make_ready(&mut committer, &pool.state, &spec(1, all));
    committer.commit_ready(&mut pool.drives, &sums, 0).result.unwrap();
    let full = begin(&pool.state, &spec(2, 1), Uuid::nil(), no_reclaim);
    assert!(matches!(full, Err(Error::NoSpace { .. })));

    committer.remove(&mut pool.drives, &spec(1, 0).name, 0).unwrap();
    let mut reclaims = 0;
    let in_vain = || {
        reclaims += 1;
        Ok::<_, Error>(())
    };
    let full = begin(&pool.state, &spec(2, 1), Uuid::nil(), in_vain);
    assert!(matches!(full, Err(Error::NoSpace { .. })));
    assert_eq!(reclaims, 1);
    let reclaim = || committer.reclaim(&mut pool.drives, 0).map(|_| ());
    begin(&pool.state, &spec(2, all), Uuid::nil(), reclaim).unwrap();
}

#[test]
fn the_state_adopts_a_label_once_every_drive_has_it() {
    let mut pool = pool(2);
    let mut committer = Committer::new(&pool.state);
    let mut changed = label(2);
    changed.drives[1].state = DriveState::Rebuilding;
    changed.follow(&label(2));
    pool.fail(Operation::WriteDurable);
    assert!(committer.change_label(&mut pool.drives, changed.clone()).is_err());
    assert_eq!(*pool.state.borrow().label(), label(2));
    committer.change_label(&mut pool.drives, changed.clone()).unwrap();
    assert_eq!(*pool.state.borrow().label(), changed);

    let none = committer.finish_rebuilding(&mut pool.drives, &[DriveIndex(0)]).unwrap();
    assert_eq!(none, Vec::<String>::new(), "the other one lacks something");
    let places = [DriveIndex(0), DriveIndex(1)];
    let mut recorded =
        Recorded { drives: &mut pool.drives, batches: Vec::new(), before: &mut || {} };
    assert_eq!(committer.finish_rebuilding(&mut recorded, &places).unwrap(), ["SIM1"]);
    assert_eq!(recorded.batches[0], ["0: flush", "1: flush"], "what was copied, before its label");
    let ancestors = vec![changed.id(), label(2).id()];
    let rebuilt = Label { epoch: 3, ancestors, ..label(2) };
    assert_eq!(*pool.state.borrow().label(), rebuilt);
    for (index, sim) in (0..).map(DriveIndex).zip(&pool.sims) {
        for offset in Layout::label_offsets(CAPACITY_BYTES) {
            let own = Label { index, ..rebuilt.clone() };
            assert_eq!(sim.peek_durable(offset, BLOCK_BYTES).unwrap(), own.encode(offset));
        }
    }
    assert_eq!(
        committer.finish_rebuilding(&mut pool.drives, &places).unwrap(),
        Vec::<String>::new()
    );
}

/// What a drive would hold after a power cut now: the epochs of labels of this pool, by place, and
/// whether it has both copies of the first generation's root.
fn after_a_cut(sim: &SimDrive, pool: Uuid, drive: Uuid) -> (Vec<Option<u64>>, bool) {
    let cut = sim.fork();
    cut.crash_keeping(&[], None);
    let block = |offset| cut.peek_durable(offset, BLOCK_BYTES).unwrap();
    let epoch = |offset| Label::decode(&block(offset), offset).ok().filter(|l| l.pool == pool);
    let labels = Layout::label_offsets(CAPACITY_BYTES).into_iter();
    let has_root = [Zone::Front, Zone::Back].into_iter().all(|zone| {
        let offset = label(2).layout.root_offset(zone, Generation(1), CAPACITY_BYTES);
        Root::decode(&block(offset), pool, drive, offset).is_ok()
    });
    (labels.map(|offset| epoch(offset).map(|label| label.epoch)).collect(), has_root)
}

#[test]
fn old_labels_are_erased_first_and_new_labels_written_last() {
    let Pool { sims, mut drives, .. } = pool(2);
    let old = label(2);
    let new = Label { pool: Uuid::from_u128(10), ..label(2) };
    let mut seen = [0; 3];
    let mut before = || {
        for (sim, entry) in sims.iter().zip(&old.drives) {
            let (old_labels, has_old_root) = after_a_cut(sim, old.pool, entry.uuid);
            let (new_labels, has_new_root) = after_a_cut(sim, new.pool, entry.uuid);
            let [has_old, has_new] =
                [old_labels, new_labels].map(|labels| labels.iter().any(Option::is_some));
            assert!(!has_old || has_old_root, "the old pool lost its root before its labels");
            assert!(!has_new || has_new_root, "a label of a pool that has no root");
            assert!(!(has_old && has_new));
            seen[0] += usize::from(has_old);
            seen[1] += usize::from(!has_old && !has_new);
            seen[2] += usize::from(has_new);
        }
    };
    let mut recorded = Recorded { drives: &mut drives, batches: Vec::new(), before: &mut before };
    make_pool(&mut recorded, &new).unwrap();
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    for (sim, entry) in sims.iter().zip(&old.drives) {
        assert_eq!(after_a_cut(sim, new.pool, entry.uuid), (vec![Some(1); 4], true));
    }
}

#[test]
fn an_admitted_drive_has_lost_its_old_roots_before_a_label_names_it() {
    let Pool { sims, mut drives, .. } = pool(2);
    let mut with = label(2);
    with.drives[1].state = DriveState::Rebuilding;
    with.follow(&label(2));
    let uuid = with.drives[1].uuid;
    let mut before = || {
        let (labels, has_root) = after_a_cut(&sims[1], with.pool, uuid);
        assert!(!labels.contains(&Some(2)) || !has_root, "a root of another time");
        let (others, _) = after_a_cut(&sims[0], with.pool, with.drives[0].uuid);
        let is_erased = labels.iter().all(Option::is_none) && !has_root;
        assert!(!others.contains(&Some(2)) || is_erased || labels.contains(&Some(2)));
    };
    let mut recorded = Recorded { drives: &mut drives, batches: Vec::new(), before: &mut before };
    let both = [DriveIndex(0), DriveIndex(1)];
    take_in(&mut recorded, &with, DriveIndex(1), &both).unwrap();
    assert_eq!(after_a_cut(&sims[0], with.pool, with.drives[0].uuid), (vec![Some(2); 4], true));
    assert_eq!(after_a_cut(&sims[1], with.pool, uuid), (vec![Some(2); 4], false));
}
