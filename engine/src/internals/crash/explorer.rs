// SPDX-License-Identifier: Apache-2.0
//! Crashes a pool before each batch of writes, in many ways, and checks each image.
//!
//! A batch is a set of commands that the engine runs in no fixed order. Before it runs, the writes
//! at risk are those that completed and were not flushed, and those of the batch. A power cut at
//! any command boundary within the batch leaves some subset of them, so the subsets cover all
//! boundaries. The subsets that a serial drive would leave are always chosen.

use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Mutex;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::check::Checker;
use super::images::{Choice, Effort, Risk, choices};
use super::lab::Lab;
use super::late::Held;
use super::model::Expected;
use crate::device::DriveInfo;
use crate::device::sim::{SimDrive, SimRng, Torn, WriteId};
use crate::direct::DirectDrives;
use crate::drives::{DriveCommand, Drives};
use crate::error::IoError;
use crate::limits::BLOCK_BYTES;

/// A deeper nested level would only repeat what the first one checks.
const DEEPEST: u32 = 1;

/// What all explorers of one run share.
#[derive(Default)]
pub(super) struct Tally {
    /// Digests of all images so far.
    images: Mutex<HashSet<u64>>,
    /// Digests of images, each with the expectations for it.
    checked: Mutex<HashSet<u64>>,
}

impl Tally {
    pub(super) fn distinct(&self) -> u64 {
        lock(&self.images).len() as u64
    }
}

fn lock(set: &Mutex<HashSet<u64>>) -> std::sync::MutexGuard<'_, HashSet<u64>> {
    set.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Decides what an image must be, where the rules of a whole pool do not hold.
pub(super) trait Judge {
    /// Its rules, in a few words: one image may be checked by several.
    fn rules(&self) -> String;
    /// Checks an image, and may change it.
    fn judge(&self, image: &[SimDrive], expected: &Expected) -> Result<(), String>;
}

/// What someone else does to the drives.
pub(super) type Intrusion<'a> = Box<dyn FnOnce(&mut dyn Drives) + 'a>;

/// Explores the crashes of one pool.
pub(super) struct Explorer<'a> {
    pub(super) lab: &'a Lab,
    pub(super) tally: &'a Tally,
    pub(super) sims: Vec<SimDrive>,
    pub(super) expected: Expected,
    pub(super) effort: Effort,
    pub(super) rng: SimRng,
    /// Images made, including those seen before.
    pub(super) images: u64,
    /// The first violation.
    pub(super) violation: Option<String>,
    /// Whether writes to what the two newest generations need are a violation. They are not while
    /// damage is repaired in place.
    pub(super) guards: bool,
    /// Those places: the drive in the high 16 bits, the offset below.
    pub(super) protected: Vec<Range<u64>>,
    /// The power really fails at one in this many batches.
    pub(super) cut_one_in: u64,
    /// The process is killed with the writes of a batch in flight, after this many batches.
    pub(super) kill_after: Option<u64>,
    /// Writes of a killed process that have not landed.
    pub(super) late: Vec<Held>,
    /// The drives after the power cut, or after the kill.
    pub(super) survivors: Option<Vec<SimDrive>>,
    pub(super) depth: u32,
    /// What someone else does to the drives, after this many batches.
    pub(super) before_batch: Option<(u64, Intrusion<'a>)>,
    /// Checks images in place of a [`Checker`].
    pub(super) judge: Option<Rc<dyn Judge + 'a>>,
}

impl<'a> Explorer<'a> {
    /// An explorer that explores nothing until it is given an effort.
    pub(super) fn new(
        lab: &'a Lab,
        tally: &'a Tally,
        sims: Vec<SimDrive>,
        expected: Expected,
        seed: u64,
    ) -> Explorer<'a> {
        Explorer {
            lab,
            tally,
            sims,
            expected,
            effort: Effort::NONE,
            rng: SimRng::new(seed),
            images: 0,
            violation: None,
            guards: true,
            protected: Vec::new(),
            cut_one_in: 0,
            kill_after: None,
            late: Vec::new(),
            survivors: None,
            depth: 0,
            before_batch: None,
            judge: None,
        }
    }

    /// The first violation.
    pub(super) fn verdict(&self) -> Result<(), String> {
        self.violation.clone().map_or(Ok(()), Err)
    }

    /// Before a batch runs; with an empty one while nothing runs.
    pub(super) fn explore(&mut self, batch: &[DriveCommand<'_>]) {
        if self.violation.is_none()
            && let Err(violation) = self.try_explore(batch)
        {
            self.violation = Some(violation);
        }
    }

    /// Kills the process if it is time: the writes of the batch are in flight, and nothing follows
    /// them.
    fn kill(&mut self, batch: &[DriveCommand<'_>]) -> bool {
        match &mut self.kill_after {
            Some(0) => {
                self.kill_after = None;
                self.late = Held::of(batch);
                self.survivors = Some(self.sims.iter().map(SimDrive::fork).collect());
                true
            }
            Some(batches) => {
                *batches -= 1;
                true
            }
            None => false,
        }
    }

    fn try_explore(&mut self, batch: &[DriveCommand<'_>]) -> Result<(), String> {
        self.check_writes(batch)?;
        let with_batch = self.put_at_risk(batch)?;
        let risks: Vec<Risk> = with_batch
            .iter()
            .enumerate()
            .flat_map(|(drive, sim)| {
                let writes = sim.volatile_writes().into_iter();
                writes.map(move |write| {
                    let (id, offset_bytes) = (write.id, write.offset_bytes);
                    Risk { drive, id, offset_bytes, blocks: write.len_bytes / BLOCK_BYTES }
                })
            })
            .collect();
        let rules = self.judge.as_ref().map_or_else(String::new, |judge| judge.rules());
        let fingerprint = fingerprint(&self.expected, &rules);
        for choice in choices(&risks, self.effort, &mut self.rng) {
            let image = crash(&with_batch, &risks, &choice);
            self.images += 1;
            let digest = digest(&image);
            lock(&self.tally.images).insert(digest);
            if !lock(&self.tally.checked).insert(digest ^ fingerprint) {
                continue;
            }
            let checked = match &self.judge {
                Some(judge) => judge.judge(&image, &self.expected).map(|()| 0),
                None => self.checker(&self.expected, digest).check(&image),
            };
            self.images += checked.map_err(|what| {
                format!("{what}\n  the image: {}", describe(&risks, &choice, batch))
            })?;
        }
        if self.cut_one_in > 0 && self.survivors.is_none() && self.rng.one_in(self.cut_one_in) {
            let effort = Effort { exhaustive: 0, structured: false, random: 1, units: true };
            let choice = choices(&risks, effort, &mut self.rng).into_iter().next();
            self.survivors = choice.map(|choice| crash(&with_batch, &risks, &choice));
        }
        Ok(())
    }

    /// Checks images of a whole pool.
    pub(super) fn checker<'e>(&'e self, expected: &'e Expected, seed: u64) -> Checker<'e> {
        let (lab, tally) = (self.lab, self.tally);
        Checker { lab, tally, expected, nest: self.depth < DEEPEST, seed }
    }

    /// Copies of the drives where the writes of the batch are as much at risk as earlier ones.
    fn put_at_risk(&self, batch: &[DriveCommand<'_>]) -> Result<Vec<SimDrive>, String> {
        let forks: Vec<SimDrive> = self.sims.iter().map(SimDrive::fork).collect();
        let mut writes: Vec<DriveCommand<'_>> = batch
            .iter()
            .filter_map(|command| match command {
                DriveCommand::Write { drive, offset_bytes, data, .. } => {
                    let (drive, offset_bytes) = (*drive, *offset_bytes);
                    Some(DriveCommand::Write { drive, offset_bytes, data, durable: false })
                }
                _ => None,
            })
            .collect();
        let mut direct = self.lab.drive(&forks).map_err(|error| error.to_string())?;
        crate::drives::run_all(&mut direct, &mut writes).map_err(|error| error.to_string())?;
        Ok(forks)
    }

    /// Extents of the two newest generations are never overwritten.
    fn check_writes(&self, batch: &[DriveCommand<'_>]) -> Result<(), String> {
        for command in batch {
            let DriveCommand::Write { drive, offset_bytes, data, .. } = command else { continue };
            let (start, end) = (*offset_bytes, offset_bytes + data.len() as u64);
            let place = |at: u64| u64::from(drive.0) << 48 | at;
            let hits = |range: &&Range<u64>| place(start) < range.end && range.start < place(end);
            if self.protected.iter().any(|range| hits(&range)) {
                return Err(format!(
                    "drive {drive}: a write of bytes {start} to {end} overwrites generation {} or the one before",
                    self.expected.acknowledged
                ));
            }
        }
        Ok(())
    }
}

/// Drives whose batches are explored before they run.
pub(super) struct Watched<'e, 'a> {
    pub(super) drives: &'e mut DirectDrives,
    pub(super) explorer: &'e mut Explorer<'a>,
}

impl Drives for Watched<'_, '_> {
    fn info(&self) -> &[DriveInfo] {
        self.drives.info()
    }

    fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), IoError>> {
        if self.explorer.survivors.is_none()
            && batch.iter().any(|command| matches!(command, DriveCommand::Write { .. }))
        {
            match self.explorer.before_batch.take() {
                Some((0, intrude)) => intrude(self.drives),
                Some((batches, later)) => self.explorer.before_batch = Some((batches - 1, later)),
                None => {}
            }
            if !self.explorer.kill(batch)
                && let Err(error) = Held::land_due(&mut self.explorer.late, self.drives)
            {
                self.explorer.violation.get_or_insert(format!("a late write: {error}"));
            }
            self.explorer.explore(batch);
        }
        if self.explorer.survivors.is_some() {
            return vec![Err(IoError::Removed); batch.len()];
        }
        self.drives.run(batch)
    }
}

/// The drives after a power cut that left the writes of `choice`.
fn crash(sims: &[SimDrive], risks: &[Risk], choice: &Choice) -> Vec<SimDrive> {
    let crash_one = |(number, sim): (usize, &SimDrive)| {
        let copy = sim.fork();
        let kept: Vec<WriteId> = risks
            .iter()
            .zip(&choice.kept)
            .filter(|(risk, kept)| risk.drive == number && **kept)
            .map(|(risk, _)| risk.id)
            .collect();
        let mut torn = choice.torn.iter().map(|(write, sectors)| (&risks[*write], sectors));
        let torn = torn.find(|(risk, _)| risk.drive == number);
        let sectors =
            |(risk, sectors): (&Risk, &Range<u64>)| Torn { id: risk.id, sectors: sectors.clone() };
        copy.crash_keeping(&kept, torn.map(sectors).as_ref());
        if let Some((risk, _)) = torn.filter(|_| choice.unit_bytes > 0) {
            lose_neighbours(&copy, risk, choice.unit_bytes);
        }
        copy
    };
    sims.iter().enumerate().map(crash_one).collect()
}

/// A drive that reads a unit, changes a part of it and writes it again loses all of it when that is
/// interrupted.
fn lose_neighbours(sim: &SimDrive, torn: &Risk, unit_bytes: u64) {
    let end = torn.offset_bytes + torn.blocks * BLOCK_BYTES;
    let first = torn.offset_bytes / unit_bytes * unit_bytes;
    sim.corrupt(first, torn.offset_bytes - first, torn.id.0);
    sim.corrupt(end, end.next_multiple_of(unit_bytes) - end, torn.id.0);
}

/// The digest of the contents of all drives.
pub(super) fn digest(sims: &[SimDrive]) -> u64 {
    let mut hash = Xxh3::new();
    sims.iter().for_each(|sim| hash.update(&sim.durable_digest().to_le_bytes()));
    hash.digest()
}

fn fingerprint(expected: &Expected, rules: &str) -> u64 {
    xxh3_64(format!("{expected:?}{rules}").as_bytes())
}

fn describe(risks: &[Risk], choice: &Choice, batch: &[DriveCommand<'_>]) -> String {
    let kept = risks.iter().zip(&choice.kept).filter(|(_, kept)| **kept);
    let kept: Vec<String> = kept.map(|(risk, _)| format!("{}:{}", risk.drive, risk.id.0)).collect();
    let torn = choice.torn.iter().map(|(write, sectors)| {
        let Risk { drive, id, offset_bytes, .. } = &risks[*write];
        let unit_bytes = choice.unit_bytes;
        format!(
            ", torn {drive}:{} at {offset_bytes:#x} sectors {sectors:?} unit {unit_bytes}",
            id.0
        )
    });
    let torn: String = torn.collect();
    let batch: Vec<String> = batch
        .iter()
        .map(|command| {
            format!("{} {}@{:#x}", command.what(), command.drive(), command.offset_bytes())
        })
        .collect();
    format!(
        "of {} writes at risk kept [{}]{torn}, before batch [{}]",
        risks.len(),
        kept.join(" "),
        batch.join(", ")
    )
}
