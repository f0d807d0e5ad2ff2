// SPDX-License-Identifier: Apache-2.0
//! Recovery in cases that a crash alone does not produce: failed reads, forked histories, large
//! drives.

use uuid::Uuid;

use super::act::Act;
use super::check::same_names;
use super::explorer::{Explorer, Tally};
use super::lab::{self, Base, Lab, Shape, open_as};
use super::live::Live;
use super::model::Expected;
use crate::device::Operation;
use crate::device::sim::{Effect, Fault, SimConfig, SimDrive, When};
use crate::error::{Error, IoError};
use crate::format::{Label, Layout};
use crate::limits::BLOCK_BYTES;
use crate::pool::Notice;
use crate::recover::opening::Opening;
use crate::state::State;
use crate::units::Generation;

/// A status that a bad cable or a controller reset may give any read.
pub(super) const PASSING: IoError = IoError::Nvme { sct: 0, sc: 0x06, dnr: false };
pub(super) const UNREADABLE: IoError = IoError::Nvme { sct: 2, sc: 0x81, dnr: true };

/// An explorer that explores nothing.
pub(super) fn explorer<'a>(lab: &'a Lab, tally: &'a Tally, base: &Base) -> Explorer<'a> {
    let expected = Expected {
        history: [(base.generation, base.contents.clone())].into(),
        acknowledged: base.generation,
        promised: base.generation,
        pending: None,
    };
    Explorer::new(lab, tally, base.sims.iter().map(SimDrive::fork).collect(), expected, 1)
}

/// A pool with two checkpoints; returns the expected contents of its drives.
pub(super) fn saved(lab: &Lab, drives: usize) -> (Vec<SimDrive>, Expected) {
    saved_in(lab, Shape { drives, copies: 1 })
}

pub(super) fn saved_in(lab: &Lab, shape: Shape) -> (Vec<SimDrive>, Expected) {
    let base = Base::new(lab, shape).unwrap();
    let tally = Tally::default();
    let mut live = Live::start(explorer(lab, &tally, &base), &base).unwrap();
    assert!(live.perform(Act::SaveSmall).unwrap());
    assert!(live.perform(Act::SaveSmall).unwrap());
    live.end()
}

pub(super) fn open(
    lab: &Lab,
    sims: &[SimDrive],
    writable: bool,
) -> Result<(State, Vec<Notice>), Error> {
    open_with(lab, sims, Opening { writable, ..plain() })
}

/// Opens for reading, and allows nothing.
pub(super) fn plain() -> Opening {
    Opening { now_unix_ns: 1, ..Opening::default() }
}

pub(super) fn open_with(
    lab: &Lab,
    sims: &[SimDrive],
    opening: Opening,
) -> Result<(State, Vec<Notice>), Error> {
    let mut notices = Vec::new();
    let mut drives = lab.drive(sims)?;
    let state = open_as(&mut drives, opening, &mut notices)?;
    Ok((state, notices))
}

/// Opens an older generation where the newest one cannot be read.
pub(super) fn falling_back(writable: bool) -> Opening {
    Opening { writable, fall_back: true, ..plain() }
}

/// Neither a reader nor a writer gets the generation before the newest one unasked.
pub(super) fn is_opened_on_request_only(lab: &Lab, sims: &[SimDrive], newest: u64) {
    for writable in [false, true] {
        let refused = open(lab, sims, writable).map(|_| ()).unwrap_err();
        assert!(
            matches!(&refused, Error::NewestUnreadable { lost, older, .. }
                if lost.0 == newest && older.0 == newest - 1),
            "{refused}"
        );
    }
}

pub(super) fn fail_reads(sim: &SimDrive, offset_bytes: u64, error: IoError) {
    let fault = Fault::new(Operation::Read, When::From(0), Effect::Fail(error));
    sim.inject(fault.within(offset_bytes..offset_bytes + BLOCK_BYTES)).unwrap();
}

pub(super) fn label_of(lab: &Lab, sims: &[SimDrive]) -> Label {
    open(lab, sims, false).unwrap().0.label().clone()
}

#[test]
fn a_failed_read_does_not_open_an_older_generation() {
    let lab = Lab::default();
    let (sims, expected) = saved(&lab, 1);
    let layout = label_of(&lab, &sims).layout;
    let catalogue = layout.catalogue_offset(Generation(expected.acknowledged));
    fail_reads(&sims[0], catalogue, PASSING);
    for writable in [false, true] {
        let error = open(&lab, &sims, writable).unwrap_err();
        assert!(matches!(error, Error::Io { what: "read", source: PASSING, .. }), "{error}");
    }
    // The next try finds all of it: nothing was written meanwhile.
    sims[0].clear_faults();
    let (state, notices) = open(&lab, &sims, true).unwrap();
    assert_eq!(notices, []);
    assert_eq!(state.root().generation.0, expected.acknowledged + 1);
    same_names(&state, expected.contents()).unwrap();
}

#[test]
fn an_unrecoverable_read_error_is_damage() {
    let lab = Lab::default();
    let (sims, expected) = saved(&lab, 1);
    let layout = label_of(&lab, &sims).layout;
    let lost = Generation(expected.acknowledged);
    fail_reads(&sims[0], layout.catalogue_offset(lost), UNREADABLE);
    let refused = open(&lab, &sims, false).map(|_| ());
    assert!(matches!(refused, Err(Error::NewestUnreadable { .. })), "{refused:?}");
    let (state, notices) = open_with(&lab, &sims, falling_back(false)).unwrap();
    let opened = Generation(lost.0 - 1);
    assert!(notices.contains(&Notice::FellBack { lost, opened }), "{notices:?}");
    same_names(&state, &expected.history[&opened.0]).unwrap();
}

#[test]
fn space_of_a_checkpoint_that_was_not_read_is_not_taken() {
    let lab = Lab::default();
    let (sims, _) = saved(&lab, 2);
    let (state, _) = open(&lab, &sims, false).unwrap();
    let manifest = state.latest("c").unwrap().entry.manifest.offset_bytes;
    sims.iter().for_each(|sim| fail_reads(sim, manifest, PASSING));
    assert!(matches!(open(&lab, &sims, true).unwrap_err(), Error::Io { source: PASSING, .. }));
    // One drive that can be read is enough.
    sims[1].clear_faults();
    let (state, notices) = open(&lab, &sims, true).unwrap();
    assert!(state.checkpoints().all(|committed| committed.damage.is_none()));
    assert!(
        notices
            .iter()
            .all(|notice| matches!(notice, Notice::DamagedCopy(d) if d.what == "manifest"))
    );
}

#[test]
fn a_generation_that_was_given_up_does_not_come_back() {
    let lab = Lab::default();
    let (sims, expected) = saved(&lab, 1);
    let layout = label_of(&lab, &sims).layout;
    // The newest catalogue is unreadable; the pool continues from the generation before.
    let given_up = expected.acknowledged;
    let catalogue = layout.catalogue_offset(Generation(given_up));
    let good = sims[0].peek_durable(catalogue, BLOCK_BYTES).unwrap();
    sims[0].zero(catalogue, BLOCK_BYTES);
    let (state, _) = open_with(&lab, &sims, falling_back(true)).unwrap();
    assert_eq!(state.root().generation.0, given_up + 1);
    // Its bytes come back, and the catalogue of its successor is damaged. The successor was made
    // from the generation before both: the space of the one given up may be in use again.
    sims[0].overwrite(catalogue, &good);
    sims[0].zero(layout.catalogue_offset(Generation(given_up + 1)), BLOCK_BYTES);
    let (state, notices) = open_with(&lab, &sims, falling_back(false)).unwrap();
    assert_eq!(state.root().generation.0, given_up - 1, "{notices:?}");
    same_names(&state, &expected.history[&(given_up - 1)]).unwrap();
}

/// Commands and bytes that opening an empty pool on one drive of this capacity takes.
fn cost_of_opening(lab: &Lab, capacity_bytes: u64) -> (usize, u64) {
    let config = SimConfig { capacity_bytes, serial: "SIM0".into(), ..SimConfig::default() };
    let sims = [SimDrive::new(config).unwrap()];
    let mut drives = lab.drive(&sims).unwrap();
    let mut label = lab::label(Shape { drives: 1, copies: 1 }).unwrap();
    label.drives[0].capacity_bytes = capacity_bytes;
    label.layout = Layout::plan(&[capacity_bytes], 1 << 20).unwrap();
    label.drives[0].uuid = Uuid::from_u128(5);
    crate::commit::make_pool(&mut drives, &label).unwrap();
    drop(drives);
    sims[0].start_trace(1 << 12);
    open(lab, &sims, true).unwrap();
    let submitted: Vec<_> =
        sims[0].take_trace().into_iter().filter(|event| event.ended.is_none()).collect();
    (submitted.len(), submitted.iter().map(|event| u64::from(event.len_bytes)).sum())
}

#[test]
fn opening_costs_the_same_on_small_and_large_drives() {
    let lab = Lab::default();
    let small = cost_of_opening(&lab, 1 << 30);
    let large = cost_of_opening(&lab, 4 << 40);
    assert!(large.0 as f64 <= small.0 as f64 * 1.2, "commands: {small:?} {large:?}");
    assert!(large.1 as f64 <= small.1 as f64 * 1.2, "bytes: {small:?} {large:?}");
    assert!(large.0 < 400 && large.1 < 2 << 20, "{large:?}");
}
