// SPDX-License-Identifier: Apache-2.0
//! Two owners that nothing keeps apart: a second one opens the pool, and saves, before a batch of
//! the first one's act. That is after the first one looked, at every moment in which both may pass.
//!
//! One acknowledged commit of the race may be lost, or damaged and reported as such. What was
//! acknowledged before stays, the next commit of one of the two fails, and the next opening reports
//! a loss.

use std::cell::RefCell;
use std::rc::Rc;

use uuid::Uuid;

use super::act::{Act, Stop};
use super::contents::verify_checkpoint;
use super::lab::open_as;
use super::live::Live;
use super::model::{Contents, Stored};
use super::trainer::{Save, write_chunks};
use crate::commit::{self, Committer};
use crate::device::sim::SimDrive;
use crate::drives::Drives;
use crate::error::Error;
use crate::format::{Owner, OwnerProcess};
use crate::name::CheckpointName;
use crate::pool::Notice;
use crate::recover::opening::Opening;
use crate::state::State;

const LATER_UNIX_NS: u64 = 1 << 61;
const SMALL_BYTES: u64 = 5000;
/// No act has more batches.
const MOST_BATCHES: u64 = 16;

/// The acts during which a second owner comes.
pub(super) const RACES: [Act; 5] =
    [Act::SaveSmall, Act::SaveSpanning, Act::Remove, Act::Reclaim, Act::Reopen];

/// The second owner.
struct Rival {
    state: Rc<RefCell<State>>,
    committer: Committer<Rc<RefCell<State>>>,
    /// What it saved, acknowledged.
    saved: Option<(CheckpointName, Stored)>,
}

impl Rival {
    /// Opens the pool as another host would, and saves a checkpoint or none.
    fn enter(drives: &mut dyn Drives, saves: bool) -> Result<Rival, Error> {
        let owner = Owner::new(Uuid::from_u128(2), OwnerProcess::default(), "other", "trainer");
        let now_unix_ns = LATER_UNIX_NS;
        let opening = Opening { writable: true, now_unix_ns, owner, ..Opening::default() };
        let state = open_as(drives, opening, &mut Vec::new())?;
        let state = Rc::new(RefCell::new(state));
        let committer = Committer::new(Rc::clone(&state));
        let mut rival = Rival { state, committer, saved: None };
        if saves {
            match rival.save(drives) {
                Ok(()) | Err(Error::NoSpace { .. } | Error::NoMetadataSpace) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rival)
    }

    fn save(&mut self, drives: &mut dyn Drives) -> Result<(), Error> {
        let save = Save { step: 900, lengths_bytes: vec![SMALL_BYTES] };
        let no_room = || Err(Error::NoMetadataSpace);
        let number = commit::begin(&*self.state, &save.spec(0), save.id(), no_room)?;
        let sums = write_chunks(drives, &self.state, number, &save)?;
        self.committer.set_whole(number, 0);
        let sums = |_, participant: u32| sums[participant as usize].clone();
        self.committer.commit_ready(drives, &sums, LATER_UNIX_NS).result?;
        self.saved = Some((save.name(), save.stored()));
        Ok(())
    }
}

/// Lets a second owner come before each batch of an act. Returns the races.
pub(super) fn race_at_every_batch<'a>(
    start: &dyn Fn() -> Result<Live<'a>, String>,
    act: Act,
    saves: bool,
) -> Result<u64, String> {
    let mut races = 0;
    for batch in 0..MOST_BATCHES {
        for first_continues in [true, false] {
            let context = |what: String| {
                format!("{act:?}, another owner before batch {batch}, saving {saves}: {what}")
            };
            if !race(start()?, act, batch, saves, first_continues).map_err(context)? {
                return Ok(races);
            }
            races += 1;
        }
    }
    Err(format!("{act:?} has more than {MOST_BATCHES} batches"))
}

/// One race; false: the act has fewer batches.
fn race(
    mut live: Live<'_>,
    act: Act,
    batch: u64,
    saves: bool,
    first_continues: bool,
) -> Result<bool, String> {
    live.perform(Act::SaveSmall).map_err(|stop| stop.to_string())?;
    live.explorer.guards = false;
    live.explorer.protected.clear();
    let before = live.explorer.expected.contents().clone();
    let entered = Rc::new(RefCell::new(None));
    let kept = Rc::clone(&entered);
    let enter = move |drives: &mut dyn Drives| {
        *kept.borrow_mut() = Some(Rival::enter(drives, saves));
    };
    live.explorer.before_batch = Some((batch, Box::new(enter)));
    let first = live.perform(act);
    let Some(rival) = entered.borrow_mut().take() else { return Ok(false) };
    let mut rival = rival.map_err(|error| format!("the other owner: {error}"))?;
    let first = match first {
        Ok(_) => Some(live.explorer.expected.contents().clone()),
        Err(Stop::Refused(_)) => None,
        Err(stop) => return Err(stop.to_string()),
    };
    let mut go_on = [false; 2];
    for is_first in [first_continues, !first_continues] {
        go_on[usize::from(is_first)] = if is_first {
            live.perform(Act::Reclaim).is_ok()
        } else {
            rival.committer.reclaim(live.drives(), LATER_UNIX_NS).is_ok()
        };
    }
    if go_on == [true, true] {
        return Err("both owners go on".into());
    }
    let is_removal = act == Act::Remove;
    compare(&live, &before, is_removal, first.as_ref(), rival.saved.as_ref())?;
    Ok(true)
}

/// Opens the drives, and counts what is lost of what each owner had acknowledged in the race.
fn compare(
    live: &Live<'_>,
    before: &Contents,
    is_removal: bool,
    first: Option<&Contents>,
    second: Option<&(CheckpointName, Stored)>,
) -> Result<(), String> {
    let sims: Vec<SimDrive> = live.explorer.sims.iter().map(SimDrive::fork).collect();
    sims.iter().for_each(|sim| sim.crash_keeping(&[], None));
    let mut drives = live.explorer.lab.drive(&sims).map_err(|error| error.to_string())?;
    let mut notices = Vec::new();
    // An owner may have overwritten the other one's newest catalogue; that is reported.
    let opening = Opening { fall_back: true, ..Opening::default() };
    let state = open_as(&mut drives, opening, &mut notices)
        .map_err(|error| format!("the pool does not open: {error}"))?;
    let mut sound = |name: &CheckpointName, stored: &Stored| -> Result<bool, String> {
        let Some(committed) = state.find(name) else { return Ok(false) };
        let committed = committed.clone();
        let found = verify_checkpoint(&mut drives, &sims, state.label(), &committed, stored)?;
        Ok(found.is_none())
    };
    let mut lost = Vec::new();
    let removed = |name: &CheckpointName| first.is_some_and(|first| !first.contains_key(name));
    for (name, stored) in before {
        if removed(name) {
            if state.find(name).is_some() {
                lost.push(format!("the removal of {name}"));
            }
        } else if state.find(name).is_none() && is_removal {
            // The first owner was refused, and its generation is visible all the same.
        } else if !sound(name, stored)? {
            return Err(format!("{name}, saved before, is lost or damaged"));
        }
    }
    let added = first.iter().flat_map(|first| first.iter());
    let added = added.filter(|(name, _)| !before.contains_key(name));
    for (name, stored) in added.chain(second.map(|(name, stored)| (name, stored))) {
        if !sound(name, stored)? {
            lost.push(name.to_string());
        }
    }
    let is_reported = notices
        .iter()
        .any(|notice| matches!(notice, Notice::OtherOwner { .. } | Notice::FellBack { .. }));
    // What is there and damaged is reported by its checksums.
    let is_there = |name: &String| state.checkpoints().any(|c| c.name().to_string() == *name);
    match lost.as_slice() {
        [] => Ok(()),
        [one] if is_reported || is_there(one) => Ok(()),
        [one] => Err(format!("{one} is lost, and the opening reports {notices:?}")),
        _ => Err(format!("lost: {}", lost.join(", "))),
    }
}
