// SPDX-License-Identifier: Apache-2.0
//! The oracle: what was acknowledged, and which states a kill may leave.

use std::collections::BTreeMap;

use serde_json::Value;

use super::operation::Step;
use super::rig::Rig;

/// Names and contents of the files of a checkpoint.
pub type Files = Vec<(String, Vec<u8>)>;

/// The pool as it must be.
#[derive(Default)]
pub struct Model {
    /// Its identity; none while the drives hold no pool.
    pool: Option<String>,
    /// The newest acknowledged generation.
    generation: u64,
    capacity_bytes: u64,
    chunk_bytes: u64,
    checkpoints: BTreeMap<String, Files>,
}

/// How a killed step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Undone,
    Done,
    Between,
}

/// The pool as `show` reports it.
#[derive(PartialEq, Debug)]
pub enum Seen {
    NoPool,
    Pool { pool: String, generation: u64, checkpoints: usize, free_bytes: u64 },
}

impl Seen {
    pub fn look(rig: &Rig) -> Seen {
        let outcome = rig.run(&["show", "--json"]);
        if outcome.code == 10 {
            return Seen::NoPool;
        }
        let is_unfinished = outcome.stderr.contains("not formatted");
        let pool = outcome.ok(rig).json()["pool"].take();
        // Reading goes on without a drive that a killed format did not reach.
        if is_unfinished {
            assert_eq!(pool["checkpoint_count"], 0, "{}: {pool}", rig.context);
            return Seen::NoPool;
        }
        Seen::Pool {
            pool: pool["uuid"].as_str().unwrap().to_owned(),
            generation: pool["generation"].as_u64().unwrap(),
            checkpoints: pool["checkpoint_count"].as_u64().unwrap() as usize,
            free_bytes: pool["free_bytes"].as_u64().unwrap(),
        }
    }
}

/// The step of NAME@STEP. Every name has a step of its own, and the later a checkpoint was made,
/// the higher it is.
pub fn step_of(name: &str) -> u64 {
    name.split_once('@').unwrap().1.parse().unwrap()
}

fn len_bytes(files: &Files) -> u64 {
    files.iter().map(|(_, bytes)| bytes.len() as u64).sum()
}

impl Model {
    pub fn is_formatted(&self) -> bool {
        self.pool.is_some()
    }

    pub fn checkpoints(&self) -> impl Iterator<Item = (&String, &Files)> {
        self.checkpoints.iter()
    }

    pub fn oldest(&self) -> String {
        self.checkpoints.keys().min_by_key(|name| step_of(name)).unwrap().clone()
    }

    pub fn free_bytes(&self) -> u64 {
        let chunks = |files| len_bytes(files).div_ceil(self.chunk_bytes);
        self.capacity_bytes - self.checkpoints.values().map(chunks).sum::<u64>() * self.chunk_bytes
    }

    /// The drives were blanked.
    pub fn forget_pool(&mut self) {
        *self = Model::default();
    }

    /// The command ended with code 0 and printed this.
    pub fn acknowledge(&mut self, step: &Step, said: &Value) {
        match step {
            Step::Save { name, files } => {
                self.advance(said["generation"].as_u64().unwrap());
                self.checkpoints.insert(name.clone(), files.clone());
            }
            Step::Remove { names } => {
                for removed in said["removed"].as_array().unwrap() {
                    self.advance(removed["generation"].as_u64().unwrap());
                }
                for name in names {
                    self.checkpoints.remove(name).unwrap();
                }
            }
            Step::Format { .. } => {
                let pool = &said["pool"];
                *self = Model {
                    pool: Some(pool["uuid"].as_str().unwrap().to_owned()),
                    generation: 0,
                    capacity_bytes: pool["capacity_bytes"].as_u64().unwrap(),
                    chunk_bytes: pool["chunk_bytes"].as_u64().unwrap(),
                    checkpoints: BTreeMap::new(),
                };
            }
        }
    }

    /// Each acknowledged change has a generation of its own, above those before.
    fn advance(&mut self, generation: u64) {
        assert!(generation > self.generation, "{generation} follows {}", self.generation);
        self.generation = generation;
    }

    /// The step was killed, and this is visible now: one of the states that the step may leave. The
    /// model becomes that state.
    pub fn settle(&mut self, step: &Step, seen: &Seen, context: &str) -> Fate {
        let before = self.checkpoints.len();
        match (step, seen) {
            (Step::Format { .. }, Seen::NoPool) => {
                self.forget_pool();
                Fate::Between
            }
            (Step::Format { .. }, Seen::Pool { pool, .. }) if self.pool.as_ref() == Some(pool) => {
                Fate::Undone
            }
            (Step::Format { .. }, Seen::Pool { pool, checkpoints, free_bytes, .. }) => {
                assert_eq!(*checkpoints, 0, "{context}: a new pool has checkpoints");
                // The drives and the defaults are those of every format of this test; the
                // chunk size is needed only for counting, and all of an empty pool is free.
                *self = Model {
                    pool: Some(pool.clone()),
                    generation: 0,
                    capacity_bytes: *free_bytes,
                    chunk_bytes: super::rig::MIB,
                    checkpoints: BTreeMap::new(),
                };
                Fate::Done
            }
            (_, Seen::NoPool) => panic!("{context}: the pool is gone"),
            (Step::Save { .. }, Seen::Pool { checkpoints, .. }) if *checkpoints == before => {
                Fate::Undone
            }
            (Step::Save { name, files }, Seen::Pool { checkpoints, .. }) => {
                assert_eq!(*checkpoints, before + 1, "{context}");
                self.checkpoints.insert(name.clone(), files.clone());
                Fate::Done
            }
            (Step::Remove { names }, Seen::Pool { checkpoints, .. }) => {
                let removed = before.checked_sub(*checkpoints).filter(|n| *n <= names.len());
                let removed = removed
                    .unwrap_or_else(|| panic!("{context}: {checkpoints} checkpoints of {before}"));
                for name in &names[..removed] {
                    self.checkpoints.remove(name).unwrap();
                }
                match removed {
                    0 => Fate::Undone,
                    all if all == names.len() => Fate::Done,
                    _ => Fate::Between,
                }
            }
        }
    }

    /// What is visible equals the model, and the generation did not go back.
    pub fn check(&mut self, seen: &Seen, context: &str) {
        let Seen::Pool { pool, generation, checkpoints, free_bytes } = seen else {
            panic!("{context}: the pool is gone");
        };
        assert_eq!(self.pool.as_ref(), Some(pool), "{context}: another pool");
        let newest = self.generation;
        assert!(*generation >= newest, "{context}: from generation {newest} to {generation}");
        self.generation = *generation;
        assert_eq!(*checkpoints, self.checkpoints.len(), "{context}");
        assert_eq!(*free_bytes, self.free_bytes(), "{context}: free space");
    }

    /// `list` names what the model has, with its length, and nothing newer than the pool.
    pub fn check_list(&self, rig: &Rig) {
        let context = &rig.context;
        let listed = rig.run(&["list", "--json"]).ok(rig).json();
        let mut names = BTreeMap::new();
        for listed in listed["checkpoints"].as_array().unwrap() {
            let name = format!("{}@{}", listed["name"].as_str().unwrap(), listed["step"]);
            assert!(listed["generation"].as_u64().unwrap() <= self.generation, "{context}");
            names.insert(name, listed["data_bytes"].as_u64().unwrap());
        }
        let model = self.checkpoints.iter().map(|(name, files)| (name.clone(), len_bytes(files)));
        assert_eq!(names, model.collect(), "{context}");
    }
}
