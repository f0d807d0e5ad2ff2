// SPDX-License-Identifier: Apache-2.0
//! Late writes: an owner is killed with a batch in flight, a successor opens the pool, and what was
//! in flight lands at some later instant of the successor's life.
//!
//! The writes of one batch are in flight together; nothing of a later batch was sent. A process
//! that is killed costs no cache: what had completed stays.
//!
//! - Late roots: nothing changes for the successor, and every later opening finds what it
//!   acknowledged.
//! - Late metadata and data may hit what the successor wrote in the same places. Hashes and
//!   checksums report that; no byte of it is taken for right, and the pool opens.

use super::act::{Act, Stop};
use super::check::{has_names, same_names};
use super::contents::verify_checkpoint;
use super::lab::open_as;
use super::live::Live;
use crate::device::sim::{SimDrive, SimRng};
use crate::drives::{DriveCommand, Drives};
use crate::error::{Error, IoError};
use crate::format::{Label, Owner, Zone};
use crate::recover::opening::Opening;
use crate::units::DriveIndex;

/// A write that was sent and has not landed.
#[derive(Clone, Debug)]
pub(super) struct Held {
    drive: DriveIndex,
    offset_bytes: u64,
    data: Vec<u8>,
    durable: bool,
    /// Batches of the successor after which it lands.
    after_batches: u64,
}

impl Held {
    /// The writes of a batch.
    pub(super) fn of(batch: &[DriveCommand<'_>]) -> Vec<Held> {
        let held = |command: &DriveCommand<'_>| match command {
            DriveCommand::Write { drive, offset_bytes, data, durable } => Some(Held {
                drive: *drive,
                offset_bytes: *offset_bytes,
                data: data.to_vec(),
                durable: *durable,
                after_batches: 0,
            }),
            _ => None,
        };
        batch.iter().filter_map(held).collect()
    }

    /// One batch of the successor is about to run: lands what is due.
    pub(super) fn land_due(held: &mut Vec<Held>, drives: &mut dyn Drives) -> Result<(), IoError> {
        let due: Vec<Held> = held.extract_if(.., |write| write.after_batches == 0).collect();
        held.iter_mut().for_each(|write| write.after_batches -= 1);
        let mut batch: Vec<_> = due
            .iter()
            .map(|write| DriveCommand::Write {
                drive: write.drive,
                offset_bytes: write.offset_bytes,
                data: &write.data,
                durable: write.durable,
            })
            .collect();
        drives.run(&mut batch).into_iter().collect()
    }

    /// Whether it is a write into a ring of roots.
    fn is_root(&self, label: &Label) -> bool {
        let capacity_bytes = label.drives[self.drive.as_usize()].capacity_bytes;
        [Zone::Front, Zone::Back].iter().any(|zone| {
            let (start, len) = label.layout.root_zone_range(*zone, capacity_bytes);
            (start..start + len).contains(&self.offset_bytes)
        })
    }
}

/// One run.
pub(super) struct LateRun<'a> {
    /// What the first owner does before.
    pub(super) before: &'a [Act],
    /// What it does when it is killed.
    pub(super) killed_in: Act,
    /// The batch of that act that is in flight then.
    pub(super) killed_at: u64,
    /// What the successor does after it has opened the pool.
    pub(super) after: &'a [Act],
    /// When the writes land; without it, each at an instant of its own by the seed.
    pub(super) lands_at: Option<u64>,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// The act has fewer batches.
    NotKilled,
    /// The successor's life was over before a write landed.
    NotLanded,
    /// Everything that was in flight landed, and all is as promised.
    Landed,
}

impl LateRun<'_> {
    pub(super) fn run(&self, mut live: Live<'_>, rng: &mut SimRng) -> Result<Ended, String> {
        self.run_checked(&mut live, rng).map_err(|what| {
            let LateRun { before, killed_in, killed_at, after, lands_at } = self;
            format!(
                "{} drives, {before:?}, killed in batch {killed_at} of {killed_in:?}, then {after:?} \
                 with late writes at {lands_at:?}: {what}",
                live.explorer.sims.len()
            )
        })
    }

    fn run_checked(&self, live: &mut Live<'_>, rng: &mut SimRng) -> Result<Ended, String> {
        for act in self.before {
            live.perform(*act).map_err(|stop| stop.to_string())?;
        }
        let label = live.state().label().clone();
        live.explorer.kill_after = Some(self.killed_at);
        match live.perform(self.killed_in) {
            Ok(_) => return Ok(Ended::NotKilled),
            Err(Stop::PowerCut) => {}
            Err(stop) => return Err(stop.to_string()),
        }
        let only_roots = live.explorer.late.iter().all(|held| held.is_root(&label));
        for held in &mut live.explorer.late {
            held.after_batches = self.lands_at.unwrap_or_else(|| rng.below(16));
        }
        live.explorer.guards = only_roots;
        let mut lived = live.recover();
        // The first root of an opening that was killed looks like that of another owner who began
        // the same epoch, until the pool is opened again.
        let is_twin = |lived: &Result<(), Stop>| {
            self.killed_in == Act::Reopen
                && matches!(lived, Err(Stop::Refused(Error::LostOwnership { .. })))
        };
        if is_twin(&lived) {
            lived = live.perform(Act::Reopen).map(|_| ());
        }
        for act in self.after {
            if lived.is_ok() {
                lived = live.perform(*act).map(|_| ());
            }
        }
        match lived {
            Ok(()) => {}
            // Late metadata hit the newest catalogue on every drive, and the successor opens again.
            Err(Stop::Refused(Error::NewestUnreadable { .. } | Error::Damaged(_)))
                if !only_roots => {}
            Err(stop) => return Err(stop.to_string()),
        }
        let landed = live.explorer.late.is_empty();
        let sims: Vec<SimDrive> = live.explorer.sims.iter().map(SimDrive::fork).collect();
        sims.iter().for_each(|sim| sim.crash_keeping(&[], None));
        for writable in [false, true] {
            check(live, &sims, writable, only_roots)?;
        }
        Ok(if landed { Ended::Landed } else { Ended::NotLanded })
    }
}

/// Opens the drives after the successor's life, and compares them with what it acknowledged.
fn check(live: &Live<'_>, sims: &[SimDrive], writable: bool, exact: bool) -> Result<(), String> {
    let expected = &live.explorer.expected;
    let mut drives = live.explorer.lab.drive(sims).map_err(|error| error.to_string())?;
    let fall_back = !exact;
    let now_unix_ns = 1 << 62;
    let owner = Owner::default();
    let opening = Opening { writable, degraded: false, fall_back, now_unix_ns, owner };
    let state = open_as(&mut drives, opening, &mut Vec::new())
        .map_err(|error| format!("the pool does not open: {error}"))?;
    let generation = state.root().generation.0 - u64::from(writable);
    let is_newest = expected.allows(generation);
    if exact && !is_newest {
        return Err(format!("generation {generation} opens, not {}", expected.acknowledged));
    }
    // Opened for writing, numbers may be skipped; the contents decide.
    let names = if exact { same_names } else { has_names };
    let known = expected.history.values().find(|contents| names(&state, contents).is_ok());
    let contents = match expected.history.get(&generation).or(known) {
        Some(contents) => contents,
        None => return Err(format!("generation {generation} was never made")),
    };
    names(&state, contents)?;
    for committed in state.checkpoints() {
        let stored = &contents[&committed.name()];
        let damage = verify_checkpoint(&mut drives, sims, state.label(), committed, stored)?;
        if let Some(damage) = damage.filter(|_| exact) {
            return Err(format!("a late root damaged {}: {damage}", committed.name()));
        }
    }
    Ok(())
}

/// The acts in which an owner is killed: each has batches of its own.
pub(super) const KILLED_IN: [Act; 4] = [Act::SaveSpanning, Act::Remove, Act::Reclaim, Act::Reopen];
/// The successor fills the places again that were free.
const AFTER: [Act; 5] =
    [Act::SaveSmall, Act::SaveSpanning, Act::Remove, Act::Reopen, Act::SaveSmall];
/// No act has more batches.
const MOST_BATCHES: u64 = 16;
/// The successor's life has fewer.
const MOST_LIFE: u64 = 64;

/// Kills an owner in each batch of an act, and lets what was in flight land before each batch of
/// its successor's life. Returns the runs.
pub(super) fn every_place<'a>(
    start: &dyn Fn() -> Result<Live<'a>, String>,
    killed_in: Act,
) -> Result<u64, String> {
    let mut runs = 0;
    let mut rng = SimRng::new(0);
    for killed_at in 0..MOST_BATCHES {
        for lands_at in 0..MOST_LIFE {
            let run = LateRun {
                before: &[Act::SaveSmall, Act::SaveSmall],
                killed_in,
                killed_at,
                after: &AFTER,
                lands_at: Some(lands_at),
            };
            match run.run(start()?, &mut rng)? {
                Ended::NotKilled if lands_at == 0 => return Ok(runs),
                Ended::NotKilled => return Err("an act differs from itself".into()),
                Ended::NotLanded => break,
                Ended::Landed => runs += 1,
            }
        }
    }
    Err(format!("{killed_in:?} has more than {MOST_BATCHES} batches"))
}

/// The same at random: other acts, and each write lands at an instant of its own.
pub(super) fn random_run(live: Live<'_>, rng: &mut SimRng) -> Result<u64, String> {
    let mut some = |most: usize| -> Vec<Act> {
        (0..=rng.index(most)).map(|_| Act::SMALL[rng.index(Act::SMALL.len())]).collect()
    };
    let (before, mut after) = (some(4), some(6));
    after.extend(AFTER);
    let killed_in = KILLED_IN[rng.index(KILLED_IN.len())];
    let killed_at = rng.below(4);
    let (before, after) = (&before[..], &after[..]);
    let run = LateRun { before, killed_in, killed_at, after, lands_at: None };
    run.run(live, rng).map(|ended| u64::from(ended == Ended::Landed))
}
