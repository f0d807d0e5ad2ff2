// SPDX-License-Identifier: Apache-2.0
//! A pool with checkpoints, opened for writing again and again.

use std::cell::RefCell;

use uuid::Uuid;

use crate::commit::{self, Committer};
use crate::device::Device;
use crate::device::retrying::Retrying;
use crate::device::sim::{SimConfig, SimDrive};
use crate::direct::DirectDrives;
use crate::error::Error;
use crate::limits::ROOT_SLOTS;
use crate::memory::HugePages;
use crate::name::CheckpointName;
use crate::pool::{FormatOptions, format_on};
use crate::recover::opening::{Identified, Opening, identify, recover_state};
use crate::state::{CheckpointSpec, State};
use crate::units::Generation;

const DRIVES: usize = 4;
/// Sparse: no chunk is written, so only metadata uses memory.
const CAPACITY_BYTES: u64 = 1 << 40;
/// Of each checkpoint, which one participant wrote.
const SEGMENT_BYTES: u64 = 64 << 20;

/// The drives of a pool. Data of its checkpoints was never written: opening does not read data.
pub struct RecoveryHarness {
    drives: DirectDrives,
    checkpoints: usize,
}

impl RecoveryHarness {
    /// A pool of four drives, with this number of checkpoints of 64 MiB. Its ring of roots is full,
    /// so that every opening finds the same number of roots.
    ///
    /// # Errors
    /// Those of [`crate::format_pool`] and of commits, which sound drives in memory do not have;
    /// [`Error::TooMany`] for more checkpoints than a pool holds.
    pub fn new(checkpoints: usize) -> Result<RecoveryHarness, Error> {
        let config = |number| SimConfig {
            capacity_bytes: CAPACITY_BYTES,
            serial: format!("SIM{number}"),
            volatile_cache: false,
            ..SimConfig::default()
        };
        let sims = (0..DRIVES).map(|number| SimDrive::new(config(number)));
        let sims = sims.collect::<Result<Vec<_>, _>>()?;
        let open = |sim: &SimDrive| sim.open().map(|device| Box::new(device) as Box<dyn Device>);
        let devices = || sims.iter().map(open).collect::<Result<Vec<_>, _>>();
        format_on(devices()?, &FormatOptions::new(Vec::new()))?;

        let devices = devices()?.into_iter().map(Retrying::over).collect();
        let drives = DirectDrives::new(devices, HugePages::Off)?;
        let mut harness = RecoveryHarness { drives, checkpoints };
        let state = harness.recover()?;
        let chunks = SEGMENT_BYTES / state.label().layout.chunk_bytes();
        let state = RefCell::new(state);
        let mut committer = Committer::new(&state);
        let no_room = || Err(Error::Usage("the pool is too small".into()));
        for step in 0..checkpoints {
            let spec = CheckpointSpec {
                name: CheckpointName::new("llama", step as u64)?,
                participants: 1,
                participant: 0,
                len_bytes: SEGMENT_BYTES,
                shards: Vec::new(),
            };
            let open = commit::begin(&state, &spec, Uuid::from_u128(1 + step as u128), no_room)?;
            committer.set_whole(open, 0);
        }
        let drives = &mut harness.drives;
        committer.commit_ready(drives, &|_, _| (0..chunks).collect(), 0).result?;
        for _ in 0..ROOT_SLOTS {
            committer.reclaim(drives, 0)?;
        }
        Ok(harness)
    }

    /// Opens the pool for writing, from the labels to the state and to the empty commit at the end;
    /// the result is that commit's generation. Not included: opening the devices, and the threads.
    ///
    /// # Panics
    /// When it fails, finds anything wrong, or does not find exactly the checkpoints that exist.
    pub fn open(&mut self) -> Generation {
        let state = self.recover().expect("sound drives");
        assert_eq!(state.checkpoints().count(), self.checkpoints);
        state.root().generation
    }

    fn recover(&mut self) -> Result<State, Error> {
        let mut notices = Vec::new();
        let Identified { labels, membership } = identify(&mut self.drives, false, &mut notices)?;
        let opening = Opening { writable: true, ..Opening::default() };
        let state = recover_state(&mut self.drives, labels, &membership, opening, &mut notices)?;
        assert!(notices.is_empty(), "{notices:?}");
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opening_finds_the_checkpoints_and_commits_a_generation() {
        let mut harness = RecoveryHarness::new(20).unwrap();
        let first = harness.open();
        assert_eq!(harness.open(), first.next());
        let state = harness.recover().unwrap();
        let free: u64 = state.free_slots().iter().sum();
        let layout = &state.label().layout;
        let all = DRIVES as u64 * layout.data_slots(CAPACITY_BYTES);
        assert_eq!(free, all - 20 * SEGMENT_BYTES / layout.chunk_bytes(), "their chunks are taken");
    }
}
