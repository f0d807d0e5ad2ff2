// SPDX-License-Identifier: Apache-2.0
//! Opens a crash image as a user would after the power is back, and compares it with what was
//! promised.

use std::collections::HashSet;

use super::contents::{read_tables, verify_checkpoint, verify_retired};
use super::explorer::{Explorer, Tally, Watched, digest};
use super::images::Effort;
use super::lab::{Lab, Without, open_as, open_pool};
use super::live::Live;
use super::model::{Contents, Expected};
use crate::device::sim::{SimDrive, SimRng};
use crate::error::Error;
use crate::format::layout::META_UNIT_BYTES;
use crate::format::{Label, Manifest, Owner};
use crate::limits::BLOCK_BYTES;
use crate::pool::Notice;
use crate::recover::opening::Opening;
use crate::state::{Availability, Committed, State};
use crate::units::DriveIndex;

/// Far after every time in a pool's life.
const LATER_UNIX_NS: u64 = 1_800_000_000_000_000_000;

/// Checks one image.
pub(super) struct Checker<'a> {
    pub(super) lab: &'a Lab,
    pub(super) tally: &'a Tally,
    pub(super) expected: &'a Expected,
    /// Also crash the recovery.
    pub(super) nest: bool,
    /// Decides which images get the more expensive checks.
    pub(super) seed: u64,
}

/// The result of an opening.
struct Opened {
    state: State,
    notices: Vec<Notice>,
}

impl Checker<'_> {
    /// Checks an image, and changes it. Returns how many more images were checked.
    pub(super) fn check(&self, image: &[SimDrive]) -> Result<u64, String> {
        let mut rng = SimRng::new(self.seed);
        let generation = self.read_only(image, &mut rng)?;
        let mut more = 0;
        if rng.one_in(8) {
            self.fall_back(image, generation)?;
        }
        if rng.one_in(2) {
            self.lose_a_drive(image, generation, &mut rng)?;
        }
        if self.nest && rng.one_in(16) {
            more = self.crash_recovery(image, generation)?;
        }
        self.read_write(image, generation, &mut rng)?;
        Ok(more)
    }

    fn open(&self, image: &[SimDrive], writable: bool) -> Result<Opened, String> {
        self.open_falling_back(image, writable, false)
            .map_err(|error| format!("the pool does not open: {error}"))
    }

    fn open_falling_back(
        &self,
        image: &[SimDrive],
        writable: bool,
        fall_back: bool,
    ) -> Result<Opened, Error> {
        let mut drives = self.lab.drive(image)?;
        let mut notices = Vec::new();
        let now_unix_ns = LATER_UNIX_NS;
        let owner = Owner::default();
        let opening = Opening { writable, degraded: false, fall_back, now_unix_ns, owner };
        let state = open_as(&mut drives, opening, &mut notices)?;
        Ok(Opened { state, notices })
    }

    /// Opens for reading: may this generation be seen, and is all of it right?
    fn read_only(&self, image: &[SimDrive], rng: &mut SimRng) -> Result<u64, String> {
        let before = digest(image);
        let opened = self.open(image, false)?;
        opened.notices.iter().try_for_each(only_a_torn_root)?;
        let generation = opened.state.root().generation.0;
        if !self.expected.allows(generation) {
            return Err(format!(
                "generation {generation} is visible; {} was acknowledged, {:?} pending",
                self.expected.acknowledged, self.expected.pending
            ));
        }
        self.compare(image, &opened.state, generation)?;
        if rng.one_in(8) {
            let again = self.open(image, false)?;
            if entries(&again.state) != entries(&opened.state) {
                return Err("opening for reading twice gives two catalogues".into());
            }
        }
        if digest(image) != before {
            return Err("opening for reading wrote to a drive".into());
        }
        Ok(generation)
    }

    /// The checkpoints are those of the generation, and their data is what was saved.
    fn compare(&self, image: &[SimDrive], state: &State, generation: u64) -> Result<(), String> {
        let contents = &self.expected.history[&generation];
        same_names(state, contents)?;
        let mut drives = self.lab.drive(image).map_err(|error| error.to_string())?;
        for committed in state.checkpoints() {
            let stored = &contents[&committed.name()];
            match verify_checkpoint(&mut drives, image, state.label(), committed, stored)? {
                None => {}
                Some(damage) => return Err(format!("after a crash without damage: {damage}")),
            }
        }
        // Opened for writing after a generation was given up, another one is the newest.
        let is_newest = state.root().generation.0 == generation;
        match self.expected.history.get(&(generation - 1)).filter(|_| is_newest) {
            Some(before) => verify_retired(&mut drives, image, state, before),
            None => Ok(()),
        }
    }

    /// Opens for writing: the same is visible, free space is what no checkpoint needs, what
    /// recovery wrote is durable, and saving works again.
    fn read_write(
        &self,
        image: &[SimDrive],
        generation: u64,
        rng: &mut SimRng,
    ) -> Result<(), String> {
        let opened = self.open(image, true)?;
        opened.notices.iter().try_for_each(only_a_torn_root)?;
        let contents = &self.expected.history[&generation];
        same_names(&opened.state, contents)?;
        check_free(self.lab, image, &opened.state)?;
        self.generation_is(&opened.state, generation + 1)?;
        image.iter().for_each(|sim| sim.crash_keeping(&[], None));

        if rng.one_in(4) {
            // From here on a second explorer's pool saves, without exploring.
            let mut expected = self.expected.clone();
            expected.begin(generation + 1, contents.clone());
            expected.acknowledge(generation + 1);
            let explorer = self.explorer(image, expected);
            let mut live = Live::adopt(explorer, opened.state, LATER_UNIX_NS)?;
            live.save_again()?;
            let (sims, expected) = live.end();
            sims.iter().for_each(|sim| sim.crash_keeping(&[], None));
            let checker = Checker { expected: &expected, nest: false, ..*self };
            let opened = checker.open(&sims, false)?;
            let generation = opened.state.root().generation.0;
            if generation != expected.acknowledged {
                return Err(format!(
                    "saved after recovery, and generation {generation} is visible"
                ));
            }
            return checker.compare(&sims, &opened.state, generation);
        }
        let again = self.open(image, false)?;
        if let Some(notice) = again.notices.first() {
            return Err(format!("recovery left damage behind: {notice}"));
        }
        self.generation_is(&again.state, generation + 1)?;
        same_names(&again.state, contents)
    }

    fn generation_is(&self, state: &State, generation: u64) -> Result<(), String> {
        let found = state.root().generation.0;
        if found != generation {
            return Err(format!("generation {found} after recovery, not {generation}"));
        }
        Ok(())
    }

    /// With the newest catalogue damaged on every drive, the generation before is opened on request
    /// only, reported, and whole: the two newest generations are never overwritten.
    pub(super) fn fall_back(&self, image: &[SimDrive], generation: u64) -> Result<(), String> {
        let Some(before) = self.expected.history.get(&(generation - 1)) else { return Ok(()) };
        let damaged: Vec<SimDrive> = image.iter().map(SimDrive::fork).collect();
        let label = self.open(&damaged, false)?.state.label().clone();
        let offset = label.layout.catalogue_offset(crate::units::Generation(generation));
        damaged.iter().for_each(|sim| sim.corrupt(offset, BLOCK_BYTES, self.seed));
        let damage = digest(&damaged);
        for writable in [false, true] {
            match self.open_falling_back(&damaged, writable, false).map(|_| ()) {
                Err(Error::NewestUnreadable { lost, .. }) if lost.0 == generation => {}
                other => return Err(format!("an older generation without request: {other:?}")),
            }
            if digest(&damaged) != damage {
                return Err("an opening that was refused wrote to a drive".into());
            }
            let opened = self
                .open_falling_back(&damaged, writable, true)
                .map_err(|error| format!("after damage to the newest catalogue: {error}"))?;
            let reported = |notice: &Notice| {
                matches!(notice, Notice::FellBack { lost, opened }
                if lost.0 == generation && opened.0 == generation - 1)
            };
            if !opened.notices.iter().any(reported) {
                return Err(format!("falling back from {generation} was not reported"));
            }
            same_names(&opened.state, before)?;
            self.compare(&damaged, &opened.state, generation - 1)
                .map_err(|what| format!("the generation before the newest: {what}"))?;
        }
        // What was written after the older generation is the newest now.
        let opened = self.open(&damaged, false)?;
        self.generation_is(&opened.state, generation + 1)?;
        same_names(&opened.state, before)?;
        // The one that was given up can be read again, and its successor cannot. It is not the
        // parent of that: its space may be in use again.
        damaged.iter().for_each(|sim| sim.corrupt(offset, BLOCK_BYTES, self.seed));
        let offset = label.layout.catalogue_offset(crate::units::Generation(generation + 1));
        damaged.iter().for_each(|sim| sim.corrupt(offset, BLOCK_BYTES, self.seed));
        let opened = self
            .open_falling_back(&damaged, false, true)
            .map_err(|error| format!("after damage to a second catalogue: {error}"))?;
        self.generation_is(&opened.state, generation - 1)?;
        same_names(&opened.state, before)
    }

    /// A mirrored pool loses any one drive: the same is visible, every byte is there, the pool can
    /// be written, and the drive is refused when it comes back. A pool without copies still reports
    /// what it has.
    fn lose_a_drive(
        &self,
        image: &[SimDrive],
        generation: u64,
        rng: &mut SimRng,
    ) -> Result<(), String> {
        if image.len() < 2 {
            return Ok(());
        }
        let damaged: Vec<SimDrive> = image.iter().map(SimDrive::fork).collect();
        let gone = DriveIndex(rng.index(damaged.len()) as u16);
        let context = |what: String| format!("without drive {gone}: {what}");
        for writable in [false, true] {
            let mut drives = self.lab.drive(&damaged).map_err(|error| error.to_string())?;
            let mut without = Without { drives: &mut drives, gone };
            let opening = Opening {
                writable,
                degraded: writable,
                fall_back: false,
                now_unix_ns: LATER_UNIX_NS,
                owner: Owner::default(),
            };
            let state = open_as(&mut without, opening, &mut Vec::new())
                .map_err(|error| context(format!("the pool does not open: {error}")))?;
            let found = state.root().generation.0 - u64::from(writable);
            // The missing drive may be the only one with a root that was not acknowledged.
            let contents = self.expected.history.get(&found);
            let contents =
                contents.filter(|_| (self.expected.promised..=generation).contains(&found));
            let Some(contents) = contents else {
                return Err(context(format!("generation {found} is visible, not {generation}")));
            };
            same_names(&state, contents).map_err(context)?;
            for committed in state.checkpoints() {
                let availability = committed.holding.spread.availability(state.label());
                if state.label().copies == 1 {
                    continue;
                }
                if matches!(availability, Availability::Lost { .. }) {
                    return Err(context(format!("{} is {availability:?}", committed.name())));
                }
                let stored = &contents[&committed.name()];
                if let Some(error) =
                    verify_checkpoint(&mut without, &damaged, state.label(), committed, stored)?
                {
                    return Err(context(error.to_string()));
                }
            }
        }
        damaged.iter().for_each(|sim| sim.crash_keeping(&[], None));
        match self.open(&damaged, true) {
            Err(text) if text.contains("written without it") => Ok(()),
            Err(text) => Err(context(format!("and it comes back: {text}"))),
            Ok(_) => {
                Err(context("the stale drive is taken for a member when it comes back".into()))
            }
        }
    }

    /// Crashes the recovery, too, at each of its batches.
    fn crash_recovery(&self, image: &[SimDrive], generation: u64) -> Result<u64, String> {
        let copies: Vec<SimDrive> = image.iter().map(SimDrive::fork).collect();
        let mut expected = self.expected.clone();
        let contents = expected.history[&generation].clone();
        // What recovery saw it must keep: a user may have seen it.
        expected.see(generation);
        expected.begin(generation + 1, contents);
        let mut explorer = self.explorer(&copies, expected);
        explorer.effort = Effort { exhaustive: 4, structured: true, random: 4, units: true };
        let mut drives = self.lab.drive(&copies).map_err(|error| error.to_string())?;
        let mut watched = Watched { drives: &mut drives, explorer: &mut explorer };
        open_pool(&mut watched, true, LATER_UNIX_NS, &mut Vec::new())
            .map_err(|error| format!("the pool does not open: {error}"))?;
        explorer.expected.acknowledge(generation + 1);
        explorer.explore(&[]);
        match explorer.violation {
            Some(what) => Err(format!("crash during recovery: {what}")),
            None => Ok(explorer.images),
        }
    }

    fn explorer(&self, sims: &[SimDrive], expected: Expected) -> Explorer<'_> {
        let explorer = Explorer::new(self.lab, self.tally, sims.to_vec(), expected, self.seed);
        Explorer { depth: DEEPER, ..explorer }
    }
}

/// Deep enough to nest no further.
const DEEPER: u32 = 1;

/// A crash tears roots, which is reported; it damages nothing else that is read.
fn only_a_torn_root(notice: &Notice) -> Result<(), String> {
    match notice {
        Notice::Repaired(damage) | Notice::DamagedCopy(damage) | Notice::Unusable(damage)
            if damage.what == "root" =>
        {
            Ok(())
        }
        Notice::RolledForward(_) | Notice::Unfinished(_) | Notice::TakenOver { .. } => Ok(()),
        other => Err(format!("after a crash without damage: {other}")),
    }
}

fn entries(state: &State) -> Vec<crate::format::CatalogueEntry> {
    state.checkpoints().map(|committed| committed.entry.clone()).collect()
}

pub(super) fn has_names(state: &State, contents: &Contents) -> Result<(), String> {
    let found: Vec<_> = state.checkpoints().map(|committed| committed.name()).collect();
    if found.iter().ne(contents.keys()) {
        let list = |names: Vec<String>| names.join(", ");
        return Err(format!(
            "generation {} shows [{}], not [{}]",
            state.root().generation,
            list(found.iter().map(ToString::to_string).collect()),
            list(contents.keys().map(ToString::to_string).collect()),
        ));
    }
    Ok(())
}

/// The same, and the metadata of each of them is sound.
pub(super) fn same_names(state: &State, contents: &Contents) -> Result<(), String> {
    has_names(state, contents)?;
    match state.checkpoints().find_map(|committed| committed.damage.as_ref()) {
        Some(damage) => Err(format!("after a crash without damage: {damage}")),
        None => Ok(()),
    }
}

/// The places of a checkpoint's metadata: drive, offset and length.
pub(super) fn metadata_places(
    label: &Label,
    committed: &Committed,
    manifest: &Manifest,
) -> Vec<(DriveIndex, u64, u64)> {
    let extent = &committed.entry.manifest;
    let drives = (0..label.drives.len() as u16).map(DriveIndex);
    let mut places: Vec<_> =
        drives.map(|drive| (drive, extent.offset_bytes, extent.stored_bytes())).collect();
    for segment in &manifest.segments {
        let runs = segment.table.runs.iter().chain(&segment.list.runs);
        places.extend(runs.map(|run| (run.drive, run.offset_bytes(), run.len_bytes())));
    }
    places
}

/// Free is exactly what no checkpoint names: nothing leaks, and nothing in use is free.
pub(super) fn check_free(lab: &Lab, image: &[SimDrive], state: &State) -> Result<(), String> {
    let mut drives = lab.drive(image).map_err(|error| error.to_string())?;
    let label = state.label();
    let mut slots = vec![HashSet::new(); label.drives.len()];
    let mut units = vec![HashSet::new(); label.drives.len()];
    for committed in state.checkpoints() {
        let (manifest, tables) = read_tables(&mut drives, label, committed)
            .map_err(|error| format!("free space: {error}"))?;
        let mut own = HashSet::new();
        for (drive, offset_bytes, len_bytes) in metadata_places(label, committed, &manifest) {
            let first = (offset_bytes - label.layout.meta_offset()) / META_UNIT_BYTES;
            let end = offset_bytes + len_bytes - label.layout.meta_offset();
            own.extend((first..end.div_ceil(META_UNIT_BYTES)).map(|unit| (drive, unit)));
        }
        for (drive, unit) in own {
            if !units[drive.as_usize()].insert(unit) {
                return Err(format!("unit {unit} of drive {drive} has two owners"));
            }
        }
        for chunk in tables.iter().flat_map(|table| &table.chunks) {
            for location in chunk.copies.iter() {
                slots[location.drive.as_usize()].insert(location.slot);
            }
        }
    }
    let free: Vec<u64> = label
        .drives
        .iter()
        .zip(&slots)
        .map(|(drive, used)| label.layout.data_slots(drive.capacity_bytes) - used.len() as u64)
        .collect();
    if state.free_slots() != free {
        return Err(format!("{:?} slots are free, not {free:?}", state.free_slots()));
    }
    let free: Vec<u64> =
        units.iter().map(|used| label.layout.meta_units() - used.len() as u64).collect();
    if state.free_meta_units() != free {
        return Err(format!("{:?} metadata units are free, not {free:?}", state.free_meta_units()));
    }
    Ok(())
}
