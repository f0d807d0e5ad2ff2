// SPDX-License-Identifier: Apache-2.0
//! An open pool on one thread: passes the committer what the keeper and the sessions pass it, while
//! an explorer watches. The committer decides what is committed and in which order.

use std::cell::{Ref, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::act::{Act, Stop};
use super::check::{has_names, metadata_places, same_names};
use super::contents::read_tables;
use super::explorer::{Explorer, Watched};
use super::lab::{Base, CHUNK_BYTES, open_pool};
use super::model::{Contents, Stored};
use super::trainer::{Begun, Meanwhile, Save, write_chunks};
use crate::commit::{self, Committer, Ended};
use crate::device::DriveInfo;
use crate::device::sim::{SimDrive, SimRng};
use crate::direct::DirectDrives;
use crate::drives::{DriveCommand, Drives};
use crate::error::{Error, IoError};
use crate::state::{Readiness, State};
use crate::units::Generation;

/// Less than a chunk, and not whole blocks.
const SMALL_BYTES: u64 = 5000;

/// The open pool.
pub(super) struct Live<'a> {
    pub(super) explorer: Explorer<'a>,
    state: Rc<RefCell<State>>,
    committer: KeptCommitter,
    drives: DirectDrives,
    now_unix_ns: u64,
    next_step: u64,
    waiting: Option<Begun>,
    meanwhile: Option<Meanwhile>,
}

/// The committer, over a state that is kept here.
type KeptCommitter = Committer<Rc<RefCell<State>>>;

/// The drives during a commit. The committer must not hold the state then: a trainer may begin.
struct Busy<'e, 'a> {
    drives: Watched<'e, 'a>,
    state: &'e Rc<RefCell<State>>,
    meanwhile: &'e mut Option<Meanwhile>,
}

impl Drives for Busy<'_, '_> {
    fn info(&self) -> &[DriveInfo] {
        self.drives.info()
    }

    fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), IoError>> {
        if self.state.try_borrow_mut().is_err() {
            let held = || "the state is held while drives work".to_owned();
            self.drives.explorer.violation.get_or_insert_with(held);
        } else if let Some(meanwhile) = self.meanwhile {
            meanwhile.before_batch(&mut self.drives, self.state);
        }
        self.drives.run(batch)
    }
}

impl<'a> Live<'a> {
    /// Opens the base pool for writing; that itself is not explored.
    pub(super) fn start(mut explorer: Explorer<'a>, base: &Base) -> Result<Live<'a>, String> {
        let now_unix_ns = base.now_unix_ns + 1;
        let mut drives = explorer.lab.drive(&explorer.sims).map_err(|error| error.to_string())?;
        let state = open_pool(&mut drives, true, now_unix_ns, &mut Vec::new())
            .map_err(|error| error.to_string())?;
        explorer.expected.begin(base.generation + 1, base.contents.clone());
        explorer.expected.acknowledge(base.generation + 1);
        let mut live = Live::new(explorer, state, drives, now_unix_ns, 1);
        live.protect()?;
        Ok(live)
    }

    /// Continues with a pool that is already open.
    pub(super) fn adopt(
        explorer: Explorer<'a>,
        state: State,
        now_unix_ns: u64,
    ) -> Result<Live<'a>, String> {
        let drives = explorer.lab.drive(&explorer.sims).map_err(|error| error.to_string())?;
        let taken = state.checkpoints().map(|committed| committed.entry.step).max().unwrap_or(0);
        Ok(Live::new(explorer, state, drives, now_unix_ns, taken + 1000))
    }

    fn new(
        explorer: Explorer<'a>,
        state: State,
        drives: DirectDrives,
        now_unix_ns: u64,
        next_step: u64,
    ) -> Live<'a> {
        let state = Rc::new(RefCell::new(state));
        let committer = Committer::new(Rc::clone(&state));
        Live {
            explorer,
            state,
            committer,
            drives,
            now_unix_ns,
            next_step,
            waiting: None,
            meanwhile: None,
        }
    }

    pub(super) fn state(&self) -> Ref<'_, State> {
        self.state.borrow()
    }

    pub(super) fn drives(&mut self) -> &mut DirectDrives {
        &mut self.drives
    }

    /// The explorer, with the drives and their expected contents, and the state of the open pool.
    pub(super) fn into_parts(self) -> (Explorer<'a>, Rc<RefCell<State>>) {
        (self.explorer, self.state)
    }

    /// The drives and their expected contents.
    pub(super) fn end(self) -> (Vec<SimDrive>, super::model::Expected) {
        drop(self.drives);
        (self.explorer.sims, self.explorer.expected)
    }

    /// Carries out an act. `Ok(false)`: there was nothing to do, or no room.
    pub(super) fn perform(&mut self, act: Act) -> Result<bool, Stop> {
        let drives = self.explorer.sims.len() as u64;
        match act {
            Act::SaveSmall => self.save(&[SMALL_BYTES]),
            Act::SaveSpanning => self.save(&[drives * CHUNK_BYTES + SMALL_BYTES]),
            Act::SavePair => self.save(&[SMALL_BYTES, CHUNK_BYTES]),
            Act::SaveOverlapping => self.save_overlapping(),
            Act::SaveMeanwhile => self.save_meanwhile(),
            Act::Abandon => {
                let Some(begun) = self.begin(&[SMALL_BYTES, SMALL_BYTES])? else {
                    return Ok(false);
                };
                self.give_up(begun.number, begun.sums.len());
                Ok(true)
            }
            Act::Remove => self.remove(),
            Act::Reclaim => self.reclaim().map(|()| true),
            Act::Reopen => self.reopen().map(|()| true),
        }
    }

    fn tick(&mut self) -> u64 {
        self.now_unix_ns += 1;
        self.now_unix_ns
    }

    fn save(&mut self, lengths_bytes: &[u64]) -> Result<bool, Stop> {
        let Some(begun) = self.begin(lengths_bytes)? else { return Ok(false) };
        self.commit(vec![begun])?;
        Ok(true)
    }

    fn save_overlapping(&mut self) -> Result<bool, Stop> {
        let Some(begun) = self.begin(&[SMALL_BYTES])? else { return Ok(false) };
        match self.waiting.take() {
            Some(waiting) => self.commit(vec![waiting, begun])?,
            None => self.waiting = Some(begun),
        }
        Ok(true)
    }

    fn save_meanwhile(&mut self) -> Result<bool, Stop> {
        let Some(begun) = self.begin(&[SMALL_BYTES])? else { return Ok(false) };
        let save = self.next_save(&[SMALL_BYTES]);
        // A commit has four batches; each of them gets its turn.
        let after_batches = save.step % 4;
        self.meanwhile = Some(Meanwhile { after_batches, save, begun: None });
        let both = self.waiting.take().into_iter().chain([begun]).collect();
        let ended = self.commit(both);
        match self.meanwhile.take().and_then(|meanwhile| meanwhile.begun) {
            Some(Ok(begun)) => self.waiting = Some(begun),
            Some(Err(number)) => self.give_up(number, 1),
            None => {}
        }
        ended.map(|()| true)
    }

    /// Reserves and writes a checkpoint.
    fn begin(&mut self, lengths_bytes: &[u64]) -> Result<Option<Begun>, Stop> {
        let save = self.next_save(lengths_bytes);
        let mut number = None;
        for participant in 0..lengths_bytes.len() {
            match self.join(&save, participant as u32)? {
                Some(joined) => number = Some(joined),
                None => {
                    if let Some(number) = number {
                        self.give_up(number, participant);
                    }
                    return Ok(None);
                }
            }
        }
        let Some(number) = number else { return Ok(None) };
        let mut watched = Watched { drives: &mut self.drives, explorer: &mut self.explorer };
        let written = write_chunks(&mut watched, &self.state, number, &save);
        if written.is_err() {
            self.give_up(number, lengths_bytes.len());
        }
        self.stopped()?;
        Ok(Some(Begun { number, save, sums: written? }))
    }

    fn next_save(&mut self, lengths_bytes: &[u64]) -> Save {
        let step = self.next_step;
        self.next_step += 1;
        Save { step, lengths_bytes: lengths_bytes.to_vec() }
    }

    /// Lets a participant join; `None` when there is no room even after an empty commit.
    fn join(&mut self, save: &Save, participant: u32) -> Result<Option<u64>, Stop> {
        let state = Rc::clone(&self.state);
        match commit::begin(&*state, &save.spec(participant), save.id(), || self.reclaim()) {
            Ok(number) => Ok(Some(number)),
            Err(Stop::Refused(
                Error::NoSpace { .. } | Error::NoMetadataSpace | Error::TooMany { .. },
            )) => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    /// Aborts a checkpoint that this many participants have joined.
    fn give_up(&mut self, number: u64, participants: usize) {
        (0..participants as u32).for_each(|ended| self.committer.give_up(number, Some(ended)));
    }

    fn commit(&mut self, begun: Vec<Begun>) -> Result<(), Stop> {
        let mut contents = self.explorer.expected.contents().clone();
        for begun in &begun {
            for participant in 0..begun.sums.len() as u32 {
                let progress = self.committer.set_whole(begun.number, participant);
                let last = participant as usize + 1 == begun.sums.len();
                let wanted = if last { Readiness::Ready } else { Readiness::Waiting };
                if progress != wanted {
                    let name = begun.save.name();
                    return Err(Stop::Violation(format!("{name}: {progress:?}")));
                }
            }
            contents.insert(begun.save.name(), begun.save.stored());
        }
        let numbers: Vec<u64> = begun.iter().map(|begun| begun.number).collect();
        let sums = |number: u64, participant: u32| {
            let begun = begun.iter().find(|begun| begun.number == number);
            begun.map_or_else(Vec::new, |begun| begun.sums[participant as usize].clone())
        };
        self.generation(contents, |committer, drives, now| {
            let Ended { open, result } = committer.commit_ready(drives, &sums, now);
            assert_eq!(open, numbers, "what is ready is committed, and nothing else");
            result
        })
    }

    fn remove(&mut self) -> Result<bool, Stop> {
        let mut contents = self.explorer.expected.contents().clone();
        let oldest = contents.iter().find(|(_, stored)| **stored != Stored::Ballast);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else { return Ok(false) };
        contents.remove(&name);
        self.generation(contents, |committer, drives, now| committer.remove(drives, &name, now))?;
        Ok(true)
    }

    fn reclaim(&mut self) -> Result<(), Stop> {
        let contents = self.explorer.expected.contents().clone();
        self.generation(contents, |committer, drives, now| committer.reclaim(drives, now))
    }

    /// Makes the committer make a generation, which must contain `contents`.
    fn generation(
        &mut self,
        contents: Contents,
        make: impl FnOnce(&mut KeptCommitter, &mut dyn Drives, u64) -> Result<Generation, Error>,
    ) -> Result<(), Stop> {
        let now = self.tick();
        // A poisoned pool makes no generation; the one that it was making may stay pending forever.
        if self.state().check_poison().is_ok() {
            let next = self.state().next_generation().0;
            self.explorer.expected.begin(next, contents);
        }
        let mut drives = Busy {
            drives: Watched { drives: &mut self.drives, explorer: &mut self.explorer },
            state: &self.state,
            meanwhile: &mut self.meanwhile,
        };
        let made = make(&mut self.committer, &mut drives, now);
        self.stopped()?;
        match made {
            Ok(generation) if self.explorer.expected.was_made(generation.0) => {
                self.acknowledged(generation.0)
            }
            Ok(generation) => {
                let expected = self.explorer.expected.pending;
                Err(Stop::Violation(format!("generation {generation} is made, not {expected:?}")))
            }
            Err(error) => {
                if self.state().check_poison().is_ok() {
                    self.explorer.expected.pending = None;
                }
                Err(Stop::Refused(error))
            }
        }
    }

    fn acknowledged(&mut self, generation: u64) -> Result<(), Stop> {
        self.explorer.expected.acknowledge(generation);
        self.explorer.explore(&[]);
        self.stopped()?;
        self.protect()?;
        Ok(())
    }

    /// Opens the pool again; the drives keep what is in their caches.
    fn reopen(&mut self) -> Result<(), Stop> {
        self.waiting = None;
        let now = self.tick();
        let contents = self.explorer.expected.contents().clone();
        let generation = self.explorer.expected.acknowledged + 1;
        self.explorer.expected.begin(generation, contents);
        self.reopen_drives()?;
        let mut watched = Watched { drives: &mut self.drives, explorer: &mut self.explorer };
        let opened = open_pool(&mut watched, true, now, &mut Vec::new());
        self.stopped()?;
        match opened {
            Ok(state) => {
                self.state = Rc::new(RefCell::new(state));
                self.committer = Committer::new(Rc::clone(&self.state));
            }
            Err(error) => {
                // The state may be outdated; nothing continues with it.
                self.state.borrow_mut().poison("open", error.to_string());
                return Err(Stop::Refused(error));
            }
        }
        let check = if self.explorer.guards { same_names } else { has_names };
        check(&self.state(), self.explorer.expected.contents())?;
        let made = self.state().root().generation.0;
        if !self.explorer.expected.was_made(made) {
            return Err(Stop::Violation(format!("opening made {made}, not {generation}")));
        }
        self.acknowledged(made)
    }

    /// Cuts the power now; the caches are lost.
    pub(super) fn power_cut(&mut self) -> Result<(), Stop> {
        let left = self.explorer.sims.iter().map(SimDrive::fork).collect::<Vec<_>>();
        left.iter().for_each(|sim| sim.crash_keeping(&[], None));
        self.explorer.survivors = Some(left);
        self.recover()
    }

    /// A metadata object or a chunk of some checkpoint on this drive: offset and length.
    pub(super) fn some_extent(
        &mut self,
        drive: usize,
        metadata: bool,
        rng: &mut SimRng,
    ) -> Option<(u64, u64)> {
        let label = self.state().label().clone();
        let all: Vec<_> = self.state().checkpoints().cloned().collect();
        let committed = &all[rng.index(all.len())];
        let (manifest, tables) = read_tables(&mut self.drives, &label, committed).ok()?;
        let mut extents: Vec<(u64, u64)> = Vec::new();
        if metadata {
            let places = metadata_places(&label, committed, &manifest).into_iter();
            let here = places.filter(|(on, ..)| on.as_usize() == drive);
            extents.extend(here.map(|(_, offset_bytes, len_bytes)| (offset_bytes, len_bytes)));
        } else {
            let chunks = tables.iter().flat_map(|table| &table.chunks);
            let places = chunks.flat_map(|chunk| chunk.copies.iter());
            let here = places.filter(|location| location.drive.as_usize() == drive);
            extents.extend(
                here.map(|location| (label.layout.slot_offset(location.slot), SMALL_BYTES)),
            );
        }
        (!extents.is_empty()).then(|| extents[rng.index(extents.len())])
    }

    /// The power failed during an act: opens the drives, and learns what survived.
    pub(super) fn recover(&mut self) -> Result<(), Stop> {
        let Some(survivors) = self.explorer.survivors.take() else { return Ok(()) };
        self.waiting = None;
        self.explorer.sims = survivors;
        self.explorer.protected.clear();
        self.reopen_drives()?;
        let seen = open_pool(&mut self.drives, false, 0, &mut Vec::new())
            .map_err(|error| format!("the pool does not open: {error}"))?;
        let generation = seen.root().generation.0;
        if !self.explorer.expected.allows(generation) {
            return Err(Stop::Violation(format!("generation {generation} is visible")));
        }
        self.explorer.expected.see(generation);
        let cut_one_in = std::mem::take(&mut self.explorer.cut_one_in);
        let reopened = self.reopen();
        self.explorer.cut_one_in = cut_one_in;
        reopened
    }

    fn reopen_drives(&mut self) -> Result<(), Stop> {
        // The drives must be closed before they are opened.
        self.drives = self.explorer.lab.drive(&[]).map_err(|error| error.to_string())?;
        let drives = self.explorer.lab.drive(&self.explorer.sims);
        self.drives = drives.map_err(|error| error.to_string())?;
        Ok(())
    }

    /// One more small save, after making room for it if needed.
    pub(super) fn save_again(&mut self) -> Result<(), String> {
        for _ in 0..4 {
            match self.perform(Act::SaveSmall) {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    self.perform(Act::Remove).map_err(|stop| stop.to_string())?;
                }
                Err(stop) => return Err(format!("saving after recovery: {stop}")),
            }
        }
        Err("saving after recovery: no room, with checkpoints removed".into())
    }

    fn stopped(&self) -> Result<(), Stop> {
        if let Some(violation) = &self.explorer.violation {
            return Err(Stop::Violation(violation.clone()));
        }
        if self.explorer.survivors.is_some() {
            return Err(Stop::PowerCut);
        }
        Ok(())
    }

    /// Learns from the drives which places the two newest generations need.
    pub(super) fn protect(&mut self) -> Result<(), String> {
        if !self.explorer.guards {
            return Ok(());
        }
        let generation = self.explorer.expected.acknowledged;
        let label = self.state().label().clone();
        let drives = label.drives.len() as u64;
        let mut places: Vec<Range<u64>> = Vec::new();
        let mut add = |drive: u64, offset: u64, len: u64| {
            places.push((drive << 48 | offset)..(drive << 48 | (offset + len)));
        };
        let slot_bytes = label.layout.catalogue_slot_bytes();
        for newest in [generation, generation.saturating_sub(1)] {
            let offset = label.layout.catalogue_offset(Generation(newest));
            (0..drives).for_each(|drive| add(drive, offset, slot_bytes));
        }
        let state = self.state.borrow();
        for committed in state.checkpoints() {
            let Ok((manifest, tables)) = read_tables(&mut self.drives, &label, committed) else {
                continue;
            };
            for (drive, offset, len) in metadata_places(&label, committed, &manifest) {
                add(drive.0.into(), offset, len);
            }
            let chunks = tables.iter().flat_map(|table| &table.chunks);
            for location in chunks.flat_map(|chunk| chunk.copies.iter()) {
                let offset = label.layout.slot_offset(location.slot);
                add(u64::from(location.drive.0), offset, CHUNK_BYTES);
            }
        }
        self.explorer.protected = places;
        Ok(())
    }
}
