// SPDX-License-Identifier: Apache-2.0
//! Damage, and places that cannot be read, in a pool that is repaired while it is open; the repair
//! is crashed at each of its batches. It repairs what another copy has, and writes nothing where it
//! could not read.

use std::cell::RefCell;
use std::rc::Rc;

use super::act::Act;
use super::check::same_names;
use super::contents::verify_checkpoint;
use super::explorer::{Explorer, Judge, Watched};
use super::images::Effort;
use super::lab::{Base, Lab, open_pool};
use super::live::Live;
use super::model::Expected;
use super::repair::verify;
use crate::device::Operation;
use crate::device::sim::{Effect, Fault, SimDrive, SimRng, When};
use crate::error::IoError;
use crate::format::{Label, Layout, Zone};
use crate::limits::BLOCK_BYTES;
use crate::units::Generation;

const LATER_UNIX_NS: u64 = 1 << 61;
/// A failed read that says nothing about the bytes.
const UNREAD: IoError = IoError::Nvme { sct: 0, sc: 0x06, dnr: false };

/// What is wrong before the repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// No copy of the root before the newest can be read for a while.
    ParentUnread,
    /// No copy of the newest root can.
    NewestUnread,
    /// The root rings of one drive cannot.
    RingsUnread,
    /// One copy of everything is damaged, on one drive.
    Damaged,
}

impl Wrong {
    pub(super) const ALL: [Wrong; 4] =
        [Wrong::ParentUnread, Wrong::NewestUnread, Wrong::RingsUnread, Wrong::Damaged];
}

/// Explores a repair; returns the images.
pub(super) fn crash_repair(
    explorer: Explorer<'_>,
    base: &Base,
    wrong: Wrong,
    seed: u64,
) -> Result<u64, String> {
    let shape = base.shape;
    let mut rng = SimRng::new(seed);
    let mut live = Live::start(explorer, base)?;
    for act in [Act::SaveSpanning, Act::SaveSmall] {
        live.perform(act).map_err(|stop| stop.to_string())?;
    }
    let damaged = rng.index(shape.drives);
    if wrong == Wrong::Damaged {
        damage(&mut live, damaged, &mut rng);
    }
    let (mut explorer, state) = live.into_parts();
    let label = state.borrow().label().clone();
    let newest = state.borrow().root().generation;
    explorer.protected.clear();
    explorer.effort = Effort { exhaustive: 2, structured: true, random: 1, units: true };
    match wrong {
        Wrong::ParentUnread => unread(&explorer.sims, &label, Generation(newest.0 - 1)),
        Wrong::NewestUnread => unread(&explorer.sims, &label, newest),
        Wrong::RingsUnread => {
            let all = &explorer.sims[damaged];
            fail_reads(all, 0..label.layout.catalogue_offset(Generation(0)));
        }
        Wrong::Damaged => {
            explorer.judge = Some(Rc::new(CanBeMended { lab: explorer.lab }));
        }
    }
    let lab = explorer.lab;
    let context = |what: String| format!("{shape:?}, repair, {wrong:?} (drive {damaged}): {what}");
    let mut drives = lab.drive(&explorer.sims).map_err(|error| error.to_string())?;
    let mut watched = Watched { drives: &mut drives, explorer: &mut explorer };
    let verified = verify(&mut watched, &state, true).map_err(|e| context(e.to_string()))?;
    drop(drives);
    explorer.explore(&[]);
    explorer.verdict().map_err(context)?;
    if wrong == Wrong::Damaged && !verified.damaged.is_empty() {
        return Err(context(format!("not repaired: {:?}", verified.damaged)));
    }
    // Everything can be read again: nothing is lost, and the generation before can be opened.
    let sims: Vec<SimDrive> = explorer.sims.iter().map(SimDrive::fork).collect();
    sims.iter().for_each(|sim| sim.crash_keeping(&[], None));
    let checker = explorer.checker(&explorer.expected, seed);
    checker.fall_back(&sims, newest.0).map_err(context)?;
    CanBeMended { lab }.open(&sims, &explorer.expected, false).map_err(context)?;
    Ok(explorer.images)
}

/// Reads of all copies of a root fail.
fn unread(sims: &[SimDrive], label: &Label, generation: Generation) {
    for (sim, entry) in sims.iter().zip(&label.drives) {
        for zone in [Zone::Front, Zone::Back] {
            let at = label.layout.root_offset(zone, generation, entry.capacity_bytes);
            fail_reads(sim, at..at + BLOCK_BYTES);
        }
    }
}

fn fail_reads(sim: &SimDrive, range_bytes: std::ops::Range<u64>) {
    let fault = Fault::new(Operation::Read, When::From(0), Effect::Fail(UNREAD));
    // A simulated drive that is not dense takes every fault of reads.
    let _ = sim.inject(fault.within(range_bytes));
}

/// Damages a label, a root and, where another drive has a copy, a catalogue, metadata and data.
fn damage(live: &mut Live<'_>, drive: usize, rng: &mut SimRng) {
    let label = live.state().label().clone();
    let newest = live.state().root().generation;
    let capacity_bytes = label.drives[drive].capacity_bytes;
    let zone = [Zone::Front, Zone::Back][rng.index(2)];
    let mut places = vec![
        (Layout::label_offsets(capacity_bytes)[rng.index(4)], 400),
        (label.layout.root_offset(zone, newest, capacity_bytes), 152),
    ];
    if label.drives.len() > 1 {
        places.push((label.layout.catalogue_offset(newest), 300));
        places.extend(live.some_extent(drive, true, rng));
    }
    if label.copies > 1 {
        places.extend(live.some_extent(drive, false, rng));
    }
    for (offset, len_bytes) in places {
        let at = offset + rng.below(len_bytes);
        live.explorer.sims[drive].flip_bit(at, rng.below(8) as u8);
    }
}

/// The rules while damage is mended: the newest generation opens, and a repair makes all of it
/// right.
struct CanBeMended<'a> {
    lab: &'a Lab,
}

impl Judge for CanBeMended<'_> {
    fn rules(&self) -> String {
        "can be repaired".into()
    }

    fn judge(&self, image: &[SimDrive], expected: &Expected) -> Result<(), String> {
        self.open(image, expected, true)
    }
}

impl CanBeMended<'_> {
    fn open(&self, image: &[SimDrive], expected: &Expected, repair: bool) -> Result<(), String> {
        let mut drives = self.lab.drive(image).map_err(|error| error.to_string())?;
        let state = open_pool(&mut drives, true, LATER_UNIX_NS, &mut Vec::new())
            .map_err(|error| format!("the pool does not open: {error}"))?;
        let generation = state.root().generation.0 - 1;
        if !expected.allows(generation) {
            return Err(format!("generation {generation} is visible"));
        }
        let contents = &expected.history[&generation];
        same_names(&state, contents)?;
        let state = Rc::new(RefCell::new(state));
        let verified = verify(&mut drives, &state, repair).map_err(|error| error.to_string())?;
        if !verified.damaged.is_empty() {
            return Err(format!("damaged after a repair: {:?}", verified.damaged));
        }
        let state = state.borrow();
        image.iter().for_each(|sim| sim.crash_keeping(&[], None));
        drop(drives);
        let mut drives = self.lab.drive(image).map_err(|error| error.to_string())?;
        for committed in state.checkpoints() {
            let (label, stored) = (state.label(), &contents[&committed.name()]);
            if let Some(damage) = verify_checkpoint(&mut drives, image, label, committed, stored)? {
                return Err(format!("after a repair: {damage}"));
            }
        }
        Ok(())
    }
}
