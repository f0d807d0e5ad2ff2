// SPDX-License-Identifier: Apache-2.0
//! A mirror loses a drive, is written without it, takes in another drive or the same one, and fills
//! it; each step is crashed at each of its batches. A drive that was only not named is not replaced
//! unasked.

use std::cell::RefCell;
use std::rc::Rc;

use uuid::Uuid;

use super::act::Act;
use super::check::has_names;
use super::contents::verify_checkpoint;
use super::explorer::{Explorer, Judge, Watched};
use super::images::Effort;
use super::lab::{Base, Lab, Without, open_as, spare_drive};
use super::live::Live;
use super::model::{Contents, Expected};
use super::repair::verify;
use super::trainer::{Save, write_chunks};
use crate::commit::{self, Committer};
use crate::device::sim::SimDrive;
use crate::drives::Drives;
use crate::error::Error;
use crate::format::{DriveState, Label};
use crate::pool::{Content, read_content};
use crate::recover::labels::read_labels;
use crate::recover::opening::{Identified, Opening, identify};
use crate::recover::vacancy::{Choice, Vacancy, past_of};
use crate::state::{Availability, State};
use crate::units::DriveIndex;

const LATER_UNIX_NS: u64 = 1 << 61;
const SMALL_BYTES: u64 = 5000;
const EFFORT: Effort = Effort { exhaustive: 2, structured: true, random: 1, units: true };

fn opening(writable: bool, degraded: bool) -> Opening {
    Opening { writable, degraded, now_unix_ns: LATER_UNIX_NS, ..Opening::default() }
}

/// Which drive takes the place of the lost one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Newcomer {
    Blank,
    /// The drive itself, as it was when it was lost.
    Returning,
}

/// Runs the life of a mirror that loses a drive; returns the images.
pub(super) fn lose_and_replace<'a>(
    explorer: Explorer<'a>,
    base: &Base,
    gone: DriveIndex,
    newcomer: Newcomer,
) -> Result<u64, String> {
    let mut explorer = saved(explorer, base)?;
    explorer.effort = EFFORT;
    lose(&mut explorer, gone)
        .and_then(|()| replace(&mut explorer, gone, newcomer))
        .map_err(|what| format!("{:?}, {newcomer:?} for drive {gone}: {what}", base.shape))?;
    Ok(explorer.images)
}

/// A pool with one more checkpoint; two more fit in.
fn saved<'a>(explorer: Explorer<'a>, base: &Base) -> Result<Explorer<'a>, String> {
    let mut live = Live::start(explorer, base)?;
    live.perform(Act::SavePair).map_err(|stop| stop.to_string())?;
    let (mut explorer, _) = live.into_parts();
    explorer.sims.iter().for_each(|sim| sim.crash_keeping(&[], None));
    explorer.protected.clear();
    Ok(explorer)
}

/// The pool is opened and written without the drive.
fn lose(explorer: &mut Explorer<'_>, gone: DriveIndex) -> Result<(), String> {
    let lab = explorer.lab;
    explorer.judge = Some(Rc::new(WithoutDrive { lab, gone, must_take_part: false }));
    let state = open(explorer, Some(gone))?;
    save(explorer, Some(gone), &state, 101)
}

/// A drive takes the place, the pool is written, and the drive is filled.
fn replace(
    explorer: &mut Explorer<'_>,
    gone: DriveIndex,
    newcomer: Newcomer,
) -> Result<(), String> {
    let lab = explorer.lab;
    if newcomer == Newcomer::Blank {
        explorer.sims[gone.as_usize()] = spare_drive().map_err(|error| error.to_string())?;
    }
    let choice = Choice { degraded: true, ..Choice::default() };
    let newcomer = explorer.sims[gone.as_usize()].fork();
    let admission = plan_admission(lab, &explorer.sims, &[gone], &newcomer, choice)?;
    // As in a format, a unit that is lost while labels are erased may hold anyone's bytes.
    explorer.effort.units = false;
    run(explorer, None, |drives| admission.carry_out(drives))?;
    explorer.effort.units = true;
    explorer.judge = Some(Rc::new(WithoutDrive { lab, gone, must_take_part: true }));
    explorer.explore(&[]);
    let state = open(explorer, None)?;
    save(explorer, None, &state, 102)?;
    let verified = run(explorer, None, |drives| verify(drives, &state, true))?;
    explorer.explore(&[]);
    explorer.verdict()?;
    if !verified.damaged.is_empty() {
        return Err(format!("the drive was not filled: {:?}", verified.damaged));
    }
    if state.borrow().label().members().count() != explorer.sims.len() {
        return Err("the drive was filled, and is no member".into());
    }
    lose_another(explorer, gone)
}

/// After the drive was filled, every other drive may be lost. What was saved while it was missing
/// has one copy in a mirror of two.
fn lose_another(explorer: &Explorer<'_>, filled: DriveIndex) -> Result<(), String> {
    let sims: Vec<SimDrive> = explorer.sims.iter().map(SimDrive::fork).collect();
    sims.iter().for_each(|sim| sim.crash_keeping(&[], None));
    let contents = explorer.expected.contents();
    for other in (0..sims.len() as u16).map(DriveIndex).filter(|drive| *drive != filled) {
        let mut drives = explorer.lab.drive(&sims).map_err(|error| error.to_string())?;
        let mut without = Without { drives: &mut drives, gone: other };
        let state = open_as(&mut without, opening(false, false), &mut Vec::new())
            .map_err(|error| format!("without drive {other}, the pool does not open: {error}"))?;
        has_names(&state, contents)?;
        let has_one_copy = |step: u64| step == 101 && sims.len() == 2;
        let mut left = state.checkpoints().filter(|c| !has_one_copy(c.entry.step));
        left.try_for_each(|committed| {
            let availability = committed.holding.spread.availability(state.label());
            if matches!(availability, Availability::Lost { .. }) {
                return Err(format!("without drive {other}, {} is lost", committed.name()));
            }
            let (label, stored) = (state.label(), &contents[&committed.name()]);
            match verify_checkpoint(&mut without, &sims, label, committed, stored)? {
                Some(damage) => Err(format!("without drive {other}: {damage}")),
                None => Ok(()),
            }
        })?;
    }
    Ok(())
}

/// Does something with the drives, all or without one, while the explorer watches.
fn run<R>(
    explorer: &mut Explorer<'_>,
    hidden: Option<DriveIndex>,
    work: impl FnOnce(&mut dyn Drives) -> Result<R, Error>,
) -> Result<R, String> {
    let mut drives = explorer.lab.drive(&explorer.sims).map_err(|error| error.to_string())?;
    let mut watched = Watched { drives: &mut drives, explorer };
    let done = match hidden {
        Some(gone) => work(&mut Without { drives: &mut watched, gone }),
        None => work(&mut watched),
    };
    explorer.verdict()?;
    done.map_err(|error| error.to_string())
}

/// Makes a generation.
fn generation(
    explorer: &mut Explorer<'_>,
    hidden: Option<DriveIndex>,
    contents: Contents,
    work: impl FnOnce(&mut dyn Drives) -> Result<u64, Error>,
) -> Result<(), String> {
    explorer.expected.begin(explorer.expected.acknowledged + 1, contents);
    let made = run(explorer, hidden, work)?;
    if !explorer.expected.was_made(made) {
        return Err(format!("generation {made} is made"));
    }
    explorer.expected.acknowledge(made);
    explorer.explore(&[]);
    explorer.verdict()
}

fn open(
    explorer: &mut Explorer<'_>,
    hidden: Option<DriveIndex>,
) -> Result<Rc<RefCell<State>>, String> {
    let contents = explorer.expected.contents().clone();
    let mut opened = None;
    generation(explorer, hidden, contents, |drives| {
        let state = open_as(drives, opening(true, hidden.is_some()), &mut Vec::new())?;
        let made = state.root().generation.0;
        opened = Some(Rc::new(RefCell::new(state)));
        Ok(made)
    })?;
    opened.ok_or_else(|| "no state".into())
}

fn save(
    explorer: &mut Explorer<'_>,
    hidden: Option<DriveIndex>,
    state: &Rc<RefCell<State>>,
    step: u64,
) -> Result<(), String> {
    let save = Save { step, lengths_bytes: vec![SMALL_BYTES] };
    let mut contents = explorer.expected.contents().clone();
    contents.insert(save.name(), save.stored());
    generation(explorer, hidden, contents, |drives| {
        let no_room = || Err(Error::NoMetadataSpace);
        let number = commit::begin(&**state, &save.spec(0), save.id(), no_room)?;
        let sums = write_chunks(drives, state, number, &save)?;
        let mut committer = Committer::new(Rc::clone(state));
        committer.set_whole(number, 0);
        let sums = |_, participant: u32| sums[participant as usize].clone();
        committer.commit_ready(drives, &sums, LATER_UNIX_NS).result.map(|made| made.0)
    })
}

/// An admission that the rules allow.
struct Admission {
    label: Label,
    place: DriveIndex,
    there: Vec<DriveIndex>,
}

impl Admission {
    /// On drives of which the newcomer is the one in its place.
    fn carry_out(&self, drives: &mut dyn Drives) -> Result<(), Error> {
        commit::take_in(drives, &self.label, self.place, &self.there)
    }
}

/// Chooses the place as [`crate::pool::admit`] does; one or two drives are not named.
fn plan_admission(
    lab: &Lab,
    sims: &[SimDrive],
    unnamed: &[DriveIndex],
    newcomer: &SimDrive,
    choice: Choice<'_>,
) -> Result<Admission, String> {
    let text = |error: Error| format!("the admission: {error}");
    let forks: Vec<SimDrive> = sims.iter().map(SimDrive::fork).collect();
    let mut direct = lab.drive(&forks).map_err(text)?;
    let (first, last) = (unnamed[0], unnamed[unnamed.len() - 1]);
    let mut others = Without { drives: &mut direct, gone: first };
    let mut others = Without { drives: &mut others, gone: last };
    let mut alone = lab.drive(&[newcomer.fork()]).map_err(text)?;
    let Identified { membership, .. } =
        identify(&mut others, true, &mut Vec::new()).map_err(text)?;
    let content = read_content(&mut alone, 0).map_err(text)?;
    let own = match &content {
        Content::Pool { pool, .. } if *pool == membership.label.pool => {
            Some(read_labels(&mut alone, 0).map_err(text)?.label)
        }
        _ => None,
    };
    let past = match &own {
        Some(own) => past_of(own, &membership, &mut others, &mut alone, choice).map_err(text)?,
        None => None,
    };
    let info = alone.info()[0].clone();
    let vacancy = Vacancy::find(&membership, past.as_ref(), &info, choice).map_err(text)?;
    if !vacancy.returning && content != Content::Blank {
        return Err(format!("the admission: the newcomer holds {content:?}"));
    }
    let uuid = Uuid::from_u128(0xf00 + u128::from(membership.label.epoch));
    let label = vacancy.label(&membership, uuid, info.serial.clone());
    Ok(Admission { label, place: vacancy.place, there: vacancy.there(&membership) })
}

/// The rules while a drive is lost or being filled: without it everything is there. With it, too,
/// where it takes part; where it does not, it can be admitted.
struct WithoutDrive<'a> {
    lab: &'a Lab,
    gone: DriveIndex,
    /// It was admitted, and opens with the others.
    must_take_part: bool,
}

impl Judge for WithoutDrive<'_> {
    fn rules(&self) -> String {
        format!("without drive {}, {}", self.gone, self.must_take_part)
    }

    fn judge(&self, image: &[SimDrive], expected: &Expected) -> Result<(), String> {
        for writable in [false, true] {
            let copy: Vec<SimDrive> = image.iter().map(SimDrive::fork).collect();
            self.open(&copy, expected, writable, true)
                .map_err(|what| format!("without drive {}: {what}", self.gone))?;
        }
        let copy: Vec<SimDrive> = image.iter().map(SimDrive::fork).collect();
        match self.open(&copy, expected, true, false) {
            Ok(()) => return Ok(()),
            Err(Failure::IsOut(_)) if !self.must_take_part => {}
            Err(failure) => return Err(format!("with drive {}: {failure}", self.gone)),
        }
        // Nothing was written, so the drive is as it was, and can be admitted.
        let choice = Choice { degraded: true, ..Choice::default() };
        let newcomer = copy[self.gone.as_usize()].fork();
        let admission = plan_admission(self.lab, &copy, &[self.gone], &newcomer, choice)?;
        let mut drives = self.lab.drive(&copy).map_err(|error| error.to_string())?;
        admission.carry_out(&mut drives).map_err(|error| format!("admitted again: {error}"))?;
        drop(drives);
        self.open(&copy, expected, true, false).map_err(|what| format!("admitted again: {what}"))
    }
}

/// Why an image is not what it must be.
enum Failure {
    /// A drive does not take part: it is stale, or has no label.
    IsOut(String),
    Wrong(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Failure::IsOut(what) | Failure::Wrong(what)) = self;
        f.write_str(what)
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::Wrong(what)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let what = format!("the pool does not open: {error}");
        match error {
            Error::StaleDrive { .. } | Error::NotFormatted { .. } => Failure::IsOut(what),
            _ => Failure::Wrong(what),
        }
    }
}

impl WithoutDrive<'_> {
    /// Opens the image with all drives or without one, and compares everything.
    fn open(
        &self,
        image: &[SimDrive],
        expected: &Expected,
        writable: bool,
        hidden: bool,
    ) -> Result<(), Failure> {
        let mut direct = self.lab.drive(image)?;
        let mut without;
        let drives: &mut dyn Drives = if hidden {
            without = Without { drives: &mut direct, gone: self.gone };
            &mut without
        } else {
            &mut direct
        };
        let state = open_as(drives, opening(writable, writable && hidden), &mut Vec::new())?;
        let found = state.root().generation.0 - u64::from(writable);
        if !expected.allows(found) {
            return Err(format!("generation {found} is visible").into());
        }
        let contents = &expected.history[&found];
        has_names(&state, contents)?;
        // What a drive lacks that is being filled, another one has.
        let mut label = state.label().clone();
        let rebuilding = label.drives.iter_mut().filter(|d| d.state == DriveState::Rebuilding);
        rebuilding.for_each(|drive| drive.state = DriveState::Absent);
        for committed in state.checkpoints() {
            if let Availability::Lost { .. } = committed.holding.spread.availability(&label) {
                return Err(format!("{} is lost", committed.name()).into());
            }
            let stored = &contents[&committed.name()];
            if let Some(damage) = verify_checkpoint(drives, image, &label, committed, stored)? {
                return Err(damage.to_string().into());
            }
        }
        Ok(())
    }
}

/// A mirror of three has lost a drive, and a sound one was not named. A newcomer gets the place of
/// the lost one where that is named, and otherwise none.
pub(super) fn only_not_named(
    explorer: Explorer<'_>,
    base: &Base,
    lost: DriveIndex,
    unnamed: DriveIndex,
) -> Result<u64, String> {
    let explorer = saved(explorer, base)?;
    let lab = explorer.lab;
    let text = |error: Error| error.to_string();
    let spare = spare_drive().map_err(text)?;
    let serial = format!("SIM{lost}");
    for replaces in [None, Some(serial.as_str())] {
        let choice = Choice { replaces, degraded: true, force: false };
        let hidden = [unnamed, lost];
        let admission = match plan_admission(lab, &explorer.sims, &hidden, &spare, choice) {
            Ok(admission) => admission,
            Err(_) if replaces.is_none() => continue,
            Err(what) => return Err(what),
        };
        let mut sims: Vec<SimDrive> = explorer.sims.iter().map(SimDrive::fork).collect();
        sims[admission.place.as_usize()] = spare.fork();
        let mut drives = lab.drive(&sims).map_err(text)?;
        admission.carry_out(&mut drives).map_err(text)?;
        drop(drives);
        // The sound drive is named again, if it still has a place; the lost one stays lost.
        let rules = WithoutDrive { lab, gone: lost, must_take_part: true };
        rules
            .open(&sims, &explorer.expected, false, true)
            .map_err(|what| format!("drive {lost} is lost, {unnamed} was not named: {what}"))?;
    }
    Ok(1)
}
