// SPDX-License-Identifier: Apache-2.0
//! The crash explorer: drives the engine's own committer and recovery over simulated drives, on one
//! thread, crashes them in every way that a power cut may leave them, and compares each image with
//! a model of what was acknowledged.
//!
//! - Small worlds: all sequences of up to three acts on one to four drives, and on mirrors of two
//!   and three, and one or two of them before a save during whose commit a trainer begins. Each
//!   sequence explores the crashes of its last act; other sequences explore those of the earlier
//!   acts.
//! - Long runs: many acts by a seed, with power cuts between them, and with bits that flip and
//!   writes that are lost or land elsewhere on one drive.
//! - Formats of blank drives and over earlier pools; mirrors that lose a drive, are written without
//!   it, admit another one and fill it; repairs of damage, and of places that cannot be read.
//! - Two owners that nothing keeps apart.
//! - Late writes: an owner is killed, and what it had in flight lands in its successor's life.
//! - One seed gives one run, for any number of threads: the images of an item depend only on the
//!   seed, the round and the item, and a run ends only between groups of items.

mod act;
mod check;
mod contents;
mod damage;
mod explorer;
mod faults;
mod format;
mod images;
mod lab;
mod late;
mod live;
mod membership;
mod model;
#[cfg(test)]
mod owner_tests;
#[cfg(test)]
mod recovery_tests;
mod repair;
mod rivals;
#[cfg(test)]
mod root_tests;
mod story;
#[cfg(test)]
mod tests;
mod trainer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::device::sim::{SimDrive, SimRng};
use act::{Act, Stop};
use explorer::{Explorer, Tally};
use images::Effort;
use lab::{Base, Lab, SHAPES};
use live::Live;
use model::Expected;
use story::Story;

/// Acts of the longest sequence.
const LONGEST: u32 = 3;
/// Items between two checks whether there are enough images.
const GROUP: usize = 32;
/// Long runs in each round.
const LONG_RUNS: usize = 24;
/// Runs with late writes of a killed owner in each round.
const LATE_RUNS: usize = 64;
/// Late writes at every place of a successor's life: by act in which the owner is killed, and
/// shape.
const LATE_SWEEPS: usize = late::KILLED_IN.len() * SHAPES.len();
/// Runs with faults in each round.
const FAULTY_RUNS: usize = 64;
/// Sweeps that fail every command of an act in turn: by act, shape, once or forever.
const SWEEPS: usize = Act::SMALL.len() * SHAPES.len() * 2;
/// Items between the small worlds and the stories.
const OTHERS: usize = LONG_RUNS + FAULTY_RUNS + SWEEPS + LATE_SWEEPS + LATE_RUNS;

/// What to explore.
#[derive(Clone, Copy, Debug)]
pub struct CrashOptions {
    /// Distinct crash images that are enough.
    pub images: u64,
    /// The source of all choices.
    pub seed: u64,
    /// Threads; the result does not depend on it.
    pub threads: usize,
    /// Only this round and item, for repeating a violation.
    pub only: Option<(u64, usize)>,
}

/// The result of an exploration without a violation.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrashReport {
    /// Crash images made.
    pub images: u64,
    /// Different ones among them.
    pub distinct: u64,
    /// Sequences of acts.
    pub sequences: u64,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The round and the item that show it.
    pub at: (u64, usize),
    /// What was done, and what is wrong.
    pub what: String,
}

/// Explores until there are enough distinct images.
///
/// # Errors
/// The first violation.
pub fn explore(options: CrashOptions) -> Result<CrashReport, Violation> {
    let lab = Lab::default();
    let bases: Vec<Base> = SHAPES
        .iter()
        .map(|shape| Base::new(&lab, *shape))
        .collect::<Result<_, _>>()
        .map_err(|error| Violation { at: (0, 0), what: format!("making a pool: {error}") })?;
    let (worlds, stories) = (small_worlds(), Story::all());
    let tally = Tally::default();
    let mut report = CrashReport::default();
    let mut round = options.only.map_or(0, |(round, _)| round);
    loop {
        let first_story = worlds.len() + OTHERS;
        let mut items = match round {
            // However few images are wanted, each story is played once, in the first groups.
            0 => {
                let mut stories_left =
                    (first_story..first_story + stories.len()).rev().collect::<Vec<_>>();
                let others = shuffled(first_story, options.seed).into_iter().enumerate();
                others
                    .flat_map(|(place, item)| {
                        let story = if place % 2 == 0 { stories_left.pop() } else { None };
                        [Some(item), story].into_iter().flatten()
                    })
                    .collect()
            }
            _ => shuffled(first_story + stories.len(), options.seed ^ round),
        };
        if let Some((_, only)) = options.only {
            items = vec![only];
        }
        for group in items.chunks(GROUP) {
            let (bases, worlds, stories) = (&bases, &worlds, &stories);
            let run = Run { options, round, bases, worlds, stories, tally: &tally };
            let done = run.group(group)?;
            report.images += done.images;
            report.sequences += done.sequences;
            report.distinct = tally.distinct();
            if report.distinct >= options.images {
                return Ok(report);
            }
        }
        if options.only.is_some() {
            return Ok(report);
        }
        round += 1;
    }
}

/// One sequence of acts on a pool of one shape.
#[derive(Clone, Debug)]
struct World {
    /// Its place in [`SHAPES`].
    shape: usize,
    acts: Vec<Act>,
}

fn small_worlds() -> Vec<World> {
    let mut worlds = Vec::new();
    for shape in 0..SHAPES.len() {
        for length in 1..=LONGEST {
            let choices = Act::SMALL.len();
            for mut number in 0..choices.pow(length) {
                let mut acts = Vec::new();
                for _ in 0..length {
                    acts.push(Act::SMALL[number % choices]);
                    number /= choices;
                }
                if acts.len() < LONGEST as usize {
                    let meanwhile = acts.iter().copied().chain([Act::SaveMeanwhile]).collect();
                    worlds.push(World { shape, acts: meanwhile });
                }
                worlds.push(World { shape, acts });
            }
        }
    }
    worlds
}

fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut rng = SimRng::new(seed);
    let mut items: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        items.swap(i, rng.index(i + 1));
    }
    items
}

/// What the workers of one round share.
struct Run<'a> {
    options: CrashOptions,
    round: u64,
    bases: &'a [Base],
    worlds: &'a [World],
    stories: &'a [Story],
    tally: &'a Tally,
}

impl Run<'_> {
    /// Works through items, on several threads; of several violations the first item's is reported.
    fn group(&self, items: &[usize]) -> Result<CrashReport, Violation> {
        let next = AtomicUsize::new(0);
        let total = Mutex::new(CrashReport::default());
        let violations = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.max(1) {
                scope.spawn(|| {
                    let lab = Lab::default();
                    loop {
                        let place = next.fetch_add(1, Ordering::Relaxed);
                        let Some(item) = items.get(place) else { return };
                        match self.item(&lab, *item) {
                            Ok(images) => {
                                let mut total =
                                    total.lock().unwrap_or_else(PoisonError::into_inner);
                                total.images += images;
                                total.sequences += 1;
                            }
                            Err(what) => {
                                let violation = Violation { at: (self.round, *item), what };
                                let mut all =
                                    violations.lock().unwrap_or_else(PoisonError::into_inner);
                                all.insert(place, violation);
                            }
                        }
                    }
                });
            }
        });
        let violations = violations.into_inner().unwrap_or_else(PoisonError::into_inner);
        match violations.into_iter().next() {
            Some((_, violation)) => Err(violation),
            None => Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    fn item(&self, lab: &Lab, item: usize) -> Result<u64, String> {
        let seed = SimRng::new(self.options.seed ^ self.round << 32 ^ item as u64).next_u64();
        match self.worlds.get(item) {
            Some(world) => self.small_world(lab, world, seed),
            None => match item - self.worlds.len() {
                long if long < LONG_RUNS => self.long_run(lab, seed),
                faulty if faulty < LONG_RUNS + FAULTY_RUNS => self.faulty_run(lab, seed),
                sweep if sweep < LONG_RUNS + FAULTY_RUNS + SWEEPS => {
                    self.sweep(lab, sweep - LONG_RUNS - FAULTY_RUNS, seed)
                }
                late if late < LONG_RUNS + FAULTY_RUNS + SWEEPS + LATE_SWEEPS => {
                    self.late_sweep(lab, late - LONG_RUNS - FAULTY_RUNS - SWEEPS, seed)
                }
                late if late < OTHERS => self.late_run(lab, seed),
                story => {
                    let story = &self.stories[story - OTHERS];
                    let base = &self.bases[story.shape()];
                    let explorer = || self.explorer(lab, base, seed, Effort::NONE);
                    story.play((lab, self.tally, seed), base, explorer)
                }
            },
        }
    }

    fn faulty_run(&self, lab: &Lab, seed: u64) -> Result<u64, String> {
        let mut rng = SimRng::new(seed);
        let base = &self.bases[rng.index(self.bases.len())];
        let mut explorer = self.explorer(lab, base, seed, Effort::NONE);
        explorer.guards = false;
        faults::faulty_run(Live::start(explorer, base)?, &mut rng)
    }

    fn late_sweep(&self, lab: &Lab, number: usize, seed: u64) -> Result<u64, String> {
        let killed_in = late::KILLED_IN[number % late::KILLED_IN.len()];
        let base = &self.bases[number / late::KILLED_IN.len()];
        let start = || Live::start(self.explorer(lab, base, seed, Effort::NONE), base);
        late::every_place(&start, killed_in)
    }

    fn late_run(&self, lab: &Lab, seed: u64) -> Result<u64, String> {
        let mut rng = SimRng::new(seed);
        let base = &self.bases[rng.index(self.bases.len())];
        let explorer = self.explorer(lab, base, seed, Effort::NONE);
        late::random_run(Live::start(explorer, base)?, &mut rng)
    }

    fn sweep(&self, lab: &Lab, number: usize, seed: u64) -> Result<u64, String> {
        let act = Act::SMALL[number % Act::SMALL.len()];
        let rest = number / Act::SMALL.len();
        let (shape, forever) = (rest % SHAPES.len(), rest >= SHAPES.len());
        let base = &self.bases[shape];
        let start = || Live::start(self.explorer(lab, base, seed, Effort::NONE), base);
        faults::fail_each_command(&start, act, base.shape.drives / 2, forever)
    }

    fn small_world(&self, lab: &Lab, world: &World, seed: u64) -> Result<u64, String> {
        let base = &self.bases[world.shape];
        let mut live = Live::start(self.explorer(lab, base, seed, Effort::NONE), base)?;
        let (last, before) = world.acts.split_last().ok_or("no act")?;
        for act in before {
            live.perform(*act).map_err(|stop| context(world, &stop))?;
        }
        live.explorer.effort = self.effort(base.shape.drives);
        live.perform(*last).map_err(|stop| context(world, &stop))?;
        Ok(live.explorer.images)
    }

    fn long_run(&self, lab: &Lab, seed: u64) -> Result<u64, String> {
        let mut rng = SimRng::new(seed);
        let base = &self.bases[rng.index(self.bases.len())];
        let effort = Effort { exhaustive: 0, structured: false, random: 2, units: true };
        let mut explorer = self.explorer(lab, base, seed, effort);
        explorer.cut_one_in = 40;
        let mut live = Live::start(explorer, base)?;
        let mut done = Vec::new();
        for _ in 0..100 {
            let act = Act::ALL[rng.index(Act::ALL.len())];
            done.push(act);
            let ended = match live.perform(act) {
                Err(Stop::PowerCut) => live.recover(),
                other => other.map(|_| ()),
            };
            ended.map_err(|stop| {
                format!("{:?}, a long run, its last act {done:?}:\n  {stop}", base.shape)
            })?;
        }
        Ok(live.explorer.images)
    }

    /// The first round checks a few images of everything, and fits 100,000 images; the second
    /// checks every subset in worlds with few; later ones check more and more by the seed.
    fn effort(&self, drives: usize) -> Effort {
        let nightly = self.options.images > 1_000_000;
        let exhaustive = if nightly { 11 } else { 7 };
        match self.round {
            0 => Effort { exhaustive: 2, structured: true, random: 1, units: true },
            1 if drives <= 2 || nightly => {
                Effort { exhaustive, structured: true, random: 16, units: true }
            }
            _ => Effort { exhaustive: 2, structured: false, random: 32, units: true },
        }
    }

    fn explorer<'a>(
        &'a self,
        lab: &'a Lab,
        base: &Base,
        seed: u64,
        effort: Effort,
    ) -> Explorer<'a> {
        let history = [base.generation - 1, base.generation];
        let expected = Expected {
            history: history.map(|known| (known, base.contents.clone())).into(),
            acknowledged: base.generation,
            promised: base.generation,
            pending: None,
        };
        let sims = base.sims.iter().map(SimDrive::fork).collect();
        Explorer { effort, ..Explorer::new(lab, self.tally, sims, expected, seed) }
    }
}

fn context(world: &World, stop: &Stop) -> String {
    format!("{:?}, {:?}: {stop}", SHAPES[world.shape], world.acts)
}
