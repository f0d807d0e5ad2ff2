// SPDX-License-Identifier: Apache-2.0
//! The stories: what happens to a pool around its commits. Each is played once in every round.

use super::act::Act;
use super::damage::{self, Wrong};
use super::explorer::{Explorer, Tally};
use super::format::{self, Before};
use super::lab::{Base, Lab, SHAPES};
use super::live::Live;
use super::membership::{self, Newcomer};
use super::rivals::{self, RACES};
use crate::units::DriveIndex;

/// One story of a pool of one shape.
#[derive(Clone, Copy, Debug)]
pub(super) enum Story {
    Format { shape: usize, before: Before },
    Replace { shape: usize, gone: u16, newcomer: Newcomer },
    NotNamed { shape: usize, lost: u16, unnamed: u16 },
    Repair { shape: usize, wrong: Wrong },
    Race { shape: usize, act: Act, saves: bool },
}

impl Story {
    /// All of them.
    pub(super) fn all() -> Vec<Story> {
        let mut all = Vec::new();
        for (shape, of_shape) in SHAPES.iter().enumerate() {
            all.extend(Before::ALL.map(|before| Story::Format { shape, before }));
            all.extend(Wrong::ALL.map(|wrong| Story::Repair { shape, wrong }));
            for saves in [false, true] {
                all.extend(RACES.map(|act| Story::Race { shape, act, saves }));
            }
            if of_shape.copies == 1 {
                continue;
            }
            for gone in 0..of_shape.drives as u16 {
                let newcomers = [Newcomer::Blank, Newcomer::Returning];
                all.extend(newcomers.map(|newcomer| Story::Replace { shape, gone, newcomer }));
                let others = (0..of_shape.drives as u16).filter(|other| *other != gone);
                let not_named = |unnamed| Story::NotNamed { shape, lost: gone, unnamed };
                if of_shape.drives > 2 {
                    all.extend(others.map(not_named));
                }
            }
        }
        all
    }

    /// Its place in [`SHAPES`].
    pub(super) fn shape(&self) -> usize {
        match *self {
            Story::Format { shape, .. }
            | Story::Replace { shape, .. }
            | Story::NotNamed { shape, .. }
            | Story::Repair { shape, .. }
            | Story::Race { shape, .. } => shape,
        }
    }

    /// Plays it on a pool that begins as `base`, of its shape. Returns the images.
    pub(super) fn play<'a>(
        &self,
        (lab, tally, seed): (&'a Lab, &'a Tally, u64),
        base: &Base,
        explorer: impl Fn() -> Explorer<'a>,
    ) -> Result<u64, String> {
        match *self {
            Story::Format { before, .. } => format::crash_format(lab, tally, base, before, seed),
            Story::Replace { gone, newcomer, .. } => {
                membership::lose_and_replace(explorer(), base, DriveIndex(gone), newcomer)
            }
            Story::NotNamed { lost, unnamed, .. } => {
                let (lost, unnamed) = (DriveIndex(lost), DriveIndex(unnamed));
                membership::only_not_named(explorer(), base, lost, unnamed)
            }
            Story::Race { act, saves, .. } => {
                let start = || Live::start(explorer(), base);
                rivals::race_at_every_batch(&start, act, saves)
                    .map_err(|what| format!("{:?}, {what}", base.shape))
            }
            Story::Repair { wrong, .. } => damage::crash_repair(explorer(), base, wrong, seed),
        }
    }
}
