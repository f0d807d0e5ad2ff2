// SPDX-License-Identifier: Apache-2.0
//! Faulty drives: all damage is reported, and nothing wrong is shown as right.
//!
//! All faults of a run are on one drive. A pool of two or more has sound copies of all metadata on
//! the other drives, so it must open at the right generation and may lose only data of that drive.
//! A pool of one drive may lose anything, as long as it reports it.

use std::cell::RefCell;
use std::rc::Rc;

use super::act::{Act, Stop};
use super::check::{has_names, same_names};
use super::contents::verify_checkpoint;
use super::lab::{Lab, open_as, open_pool};
use super::live::Live;
use super::repair::verify;
use crate::device::Operation;
use crate::device::sim::{Effect, Fault, SimDrive, SimRng, When};
use crate::drives::Drives;
use crate::error::{Error, IoError};
use crate::format::{Layout, Zone};
use crate::limits::BLOCK_BYTES;
use crate::pool::Notice;
use crate::recover::opening::Opening;
use crate::units::Generation;

/// Acts of one run.
const ACTS: usize = 40;
/// The status of a drive that cannot carry out a command.
const INTERNAL_ERROR: IoError = IoError::Nvme { sct: 0, sc: 0x06, dnr: true };

/// Acts with a fault in most of them; after each act, the pool is opened from the drives' contents.
pub(super) fn faulty_run(mut live: Live<'_>, rng: &mut SimRng) -> Result<u64, String> {
    let drives = live.explorer.sims.len();
    let victim = rng.index(drives);
    let serial = format!("SIM{victim}");
    let mut done: Vec<String> = Vec::new();
    let mut opened = 0;
    for _ in 0..ACTS {
        let fault = arm(&live, victim, rng);
        // A pool of one drive may not open any more.
        let choices = if drives == 1 { &[Act::SaveSmall, Act::Remove][..] } else { &Act::ALL };
        let act = choices[rng.index(choices.len())];
        done.push(format!("{act:?} with {fault}"));
        let ended = live.perform(act);
        live.explorer.sims[victim].clear_faults();
        match ended {
            Ok(_) | Err(Stop::Refused(_)) => {}
            Err(stop) => return Err(format!("{}: {stop}", done.join(", "))),
        }
        if rng.one_in(2) {
            done.push(flip(&mut live, victim, rng));
        }
        let image: Vec<SimDrive> = live.explorer.sims.iter().map(SimDrive::fork).collect();
        image.iter().for_each(|sim| sim.crash_keeping(&[], None));
        opened += 1;
        let found = reported_or_right(&live, &image, &serial).map_err(|what| {
            format!("{drives} drives, {serial} at fault: {what}\n  after {}", done.join(", "))
        })?;
        if found == Found::Lost {
            break;
        }
        if drives > 1 && rng.one_in(4) {
            verified(&live, &image).map_err(|what| {
                let done = done.join(", ");
                format!("{drives} drives, {serial} at fault, verified: {what}\n  after {done}")
            })?;
        }
    }
    Ok(opened)
}

/// Sets a fault for the next act; returns its description.
fn arm(live: &Live<'_>, victim: usize, rng: &mut SimRng) -> String {
    let layout = live.state().label().layout.clone();
    let sim = &live.explorer.sims[victim];
    let operation = if rng.one_in(3) { Operation::WriteDurable } else { Operation::Write };
    let when = When::Nth(rng.below(8));
    let effect = match rng.below(3) {
        0 => return "no fault".into(),
        1 => Effect::Lose,
        _ => {
            let (start, end) = match rng.below(3) {
                0 => (layout.catalogue_offset(Generation(0)), layout.meta_offset()),
                1 => (layout.meta_offset(), layout.meta_unit_offset(4)),
                _ => (layout.slot_offset(0), layout.slot_offset(400)),
            };
            let block = rng.below((end - start) / BLOCK_BYTES);
            Effect::Misdirect { offset_bytes: start + block * BLOCK_BYTES }
        }
    };
    let what = format!("{effect:?} of {operation:?} {when:?}");
    match sim.inject(Fault::new(operation, when, effect)) {
        Ok(()) => what,
        Err(error) => format!("no fault ({error})"),
    }
}

/// Flips a bit that the newest generation needs; returns where.
fn flip(live: &mut Live<'_>, victim: usize, rng: &mut SimRng) -> String {
    let label = live.state().label().clone();
    let layout: &Layout = &label.layout;
    let generation = live.state().root().generation;
    let capacity = label.drives[victim].capacity_bytes;
    let (what, offset, len) = match rng.below(5) {
        // One copy of several on the same drive; a second flip there may undo the first.
        0 => ("a label", Layout::front_label_offsets()[0], 400),
        1 if label.drives.len() > 1 => {
            ("a root", layout.root_offset(Zone::Front, generation, capacity), 152)
        }
        2 => ("a catalogue", layout.catalogue_offset(generation), 300),
        kind => match live.some_extent(victim, kind == 3, rng) {
            Some((offset, len)) => (if kind == 3 { "metadata" } else { "data" }, offset, len),
            None => return "no flip".into(),
        },
    };
    let at = offset + rng.below(len);
    live.explorer.sims[victim].flip_bit(at, rng.below(8) as u8);
    format!("a bit of {what} flipped at {at:#x}")
}

#[derive(PartialEq, Eq)]
enum Found {
    /// The newest generation opens.
    Opened,
    /// The pool does not open, or only an older generation: the run ends here.
    Lost,
}

/// Opens the image for reading and reads everything.
fn reported_or_right(live: &Live<'_>, image: &[SimDrive], serial: &str) -> Result<Found, String> {
    let alone = image.len() == 1;
    let lab: &Lab = live.explorer.lab;
    let expected = &live.explorer.expected;
    let mut drives = lab.drive(image).map_err(|error| error.to_string())?;
    let mut notices = Vec::new();
    let opening = Opening { fall_back: true, ..Opening::default() };
    let state = match open_as(&mut drives, opening, &mut notices) {
        Ok(state) => state,
        Err(_) if alone => return Ok(Found::Lost),
        Err(error) => return Err(format!("the pool does not open: {error}")),
    };
    let generation = state.root().generation.0;
    let fell_back = notices.iter().any(|notice| matches!(notice, Notice::FellBack { .. }));
    if fell_back && !alone {
        return Err(format!("fell back to {generation}, with a sound copy on another drive"));
    }
    let newest = expected.allows(generation);
    let reported_older = fell_back && generation + 1 == expected.acknowledged;
    if !newest && !reported_older {
        return Err(format!("generation {generation} opens, not {}", expected.acknowledged));
    }
    let contents = expected.history.get(&generation).ok_or("a generation that was never made")?;
    same_names(&state, contents)?;
    for committed in state.checkpoints() {
        let stored = &contents[&committed.name()];
        match verify_checkpoint(&mut drives, image, state.label(), committed, stored)? {
            None => {}
            Some(_) if alone => {}
            Some(Error::Damaged(damage)) if damage.what == "data" && damage.serial == serial => {}
            Some(error) => return Err(format!("lost with a sound copy on another drive: {error}")),
        }
    }
    Ok(if newest { Found::Opened } else { Found::Lost })
}

/// Opens the image for writing, and verifies it: what a restore would find damaged is found. A
/// repair restores everything that another drive has.
fn verified(live: &Live<'_>, image: &[SimDrive]) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let mut drives = live.explorer.lab.drive(image).map_err(text)?;
    let state = open_pool(&mut drives, true, 1 << 61, &mut Vec::new()).map_err(text)?;
    let contents = live.explorer.expected.history.values();
    let contents = contents.rev().find(|contents| has_names(&state, contents).is_ok());
    let contents = contents.ok_or("a generation that was never made")?;
    let state = Rc::new(RefCell::new(state));
    let is_damaged = |drives: &mut dyn Drives| -> Result<bool, String> {
        let state = state.borrow();
        for committed in state.checkpoints() {
            let (label, stored) = (state.label(), &contents[&committed.name()]);
            if verify_checkpoint(drives, image, label, committed, stored)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let found = verify(&mut drives, &state, false).map_err(text)?;
    if is_damaged(&mut drives)? && found.damaged.is_empty() {
        return Err("damage was not found".into());
    }
    let mended = verify(&mut drives, &state, true).map_err(text)?;
    let left = verify(&mut drives, &state, false).map_err(text)?;
    let is_mirror = state.borrow().label().copies > 1;
    if left.damaged != mended.damaged || is_mirror && !left.damaged.is_empty() {
        return Err(format!("{:?}, after a repair that left {:?}", left.damaged, mended.damaged));
    }
    match is_damaged(&mut drives)? && left.damaged.is_empty() {
        true => Err("damage was not found after a repair".into()),
        false => Ok(()),
    }
}

/// Fails the Nth command of an act, for every N: once, and from there on. The result of the act
/// must be true, and the pool must continue.
pub(super) fn fail_each_command<'a>(
    start: &dyn Fn() -> Result<Live<'a>, String>,
    act: Act,
    victim: usize,
    forever: bool,
) -> Result<u64, String> {
    for number in 0.. {
        let mut live = start()?;
        // One checkpoint to remove, and one that must not be lost.
        for _ in 0..2 {
            live.perform(Act::SaveSmall).map_err(|stop| stop.to_string())?;
        }
        let when = if forever { When::From(number) } else { When::Nth(number) };
        let fault = Fault {
            operation: None,
            range_bytes: None,
            when,
            effect: Effect::Fail(INTERNAL_ERROR),
        };
        let sim = live.explorer.sims[victim].clone();
        sim.inject(fault).map_err(|error| error.to_string())?;
        sim.start_trace(1024);
        let ended = live.perform(act);
        sim.clear_faults();
        let failed = sim.take_trace().iter().any(|event| matches!(event.ended, Some(Err(_))));
        let context =
            |what: String| format!("{act:?}, {INTERNAL_ERROR} of SIM{victim} {when:?}: {what}");
        match ended {
            Ok(_) if !failed => return Ok(number),
            Ok(_) => {}
            Err(Stop::Refused(error)) if failed => {
                if live.state().check_poison().is_ok() {
                    live.save_again().map_err(|what| context(format!("{what}, after {error}")))?;
                }
            }
            Err(stop) => return Err(context(stop.to_string())),
        }
        // Whatever the result, opening finds what was acknowledged, and saving works.
        live.power_cut().map_err(|stop| context(stop.to_string()))?;
        live.save_again().map_err(context)?;
    }
    Ok(0)
}
