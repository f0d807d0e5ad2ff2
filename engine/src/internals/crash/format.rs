// SPDX-License-Identifier: Apache-2.0
//! Crashes of format, over blank drives and over an earlier pool. Afterwards each drive holds
//! nothing, the new pool, or the earlier one; and the pool that opens is a whole one.
//!
//! Torn writes take no neighbours here: what a drive leaves in such a unit may be anyone's bytes,
//! and format then asks for `--force`.

use std::rc::Rc;

use uuid::Uuid;

use super::check::has_names;
use super::contents::verify_checkpoint;
use super::explorer::{Explorer, Judge, Tally, Watched};
use super::images::Effort;
use super::lab::{Base, Lab, blank_drives, label, open_pool};
use super::model::{Contents, Expected};
use crate::commit;
use crate::device::sim::SimDrive;
use crate::drives::flush_all;
use crate::error::Error;
use crate::format::Label;
use crate::pool::{Content, read_content};

/// What the drives hold before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Before {
    Nothing,
    /// A pool without checkpoints.
    EmptyPool,
    /// A pool with a checkpoint.
    Pool,
}

impl Before {
    pub(super) const ALL: [Before; 3] = [Before::Nothing, Before::EmptyPool, Before::Pool];
}

/// Formats the drives of a pool, and crashes that at each of its batches.
pub(super) fn crash_format(
    lab: &Lab,
    tally: &Tally,
    base: &Base,
    before: Before,
    seed: u64,
) -> Result<u64, String> {
    let context = |error: Error| format!("{:?}, format over {before:?}: {error}", base.shape);
    let sims = drives_with(lab, base, before).map_err(context)?;
    let mut new = label(base.shape).map_err(context)?;
    new.pool = Uuid::from_u128(0xb01);
    for (number, drive) in (0..).zip(&mut new.drives) {
        drive.uuid = Uuid::from_u128(0xe0 + number);
    }
    let earlier = match before {
        Before::Nothing => None,
        Before::EmptyPool => Some(Contents::new()),
        Before::Pool => Some(base.contents.clone()),
    };
    let judge = Formatted { lab, new: new.clone(), earlier };
    let nothing = Expected {
        history: [(0, Contents::new())].into(),
        acknowledged: 0,
        promised: 0,
        pending: None,
    };
    let mut explorer = Explorer::new(lab, tally, sims, nothing, seed);
    explorer.effort = Effort { exhaustive: 2, structured: true, random: 2, units: false };
    explorer.judge = Some(Rc::new(judge));
    let mut drives = lab.drive(&explorer.sims).map_err(context)?;
    let mut watched = Watched { drives: &mut drives, explorer: &mut explorer };
    commit::make_pool(&mut watched, &new).map_err(context)?;
    drop(drives);
    explorer.explore(&[]);
    explorer
        .verdict()
        .map_err(|what| format!("{:?}, crash of a format over {before:?}: {what}", base.shape))?;
    let opened = Formatted { lab, new, earlier: None }.open(&explorer.sims, true);
    match opened {
        Ok(true) => Ok(explorer.images),
        other => Err(format!("{:?}: after a format: {other:?}", base.shape)),
    }
}

fn drives_with(lab: &Lab, base: &Base, before: Before) -> Result<Vec<SimDrive>, Error> {
    if before == Before::Pool {
        return Ok(base.sims.iter().map(SimDrive::fork).collect());
    }
    let sims = blank_drives(base.shape.drives)?;
    if before == Before::EmptyPool {
        let label = label(base.shape)?;
        let mut drives = lab.drive(&sims)?;
        commit::make_pool(&mut drives, &label)?;
        open_pool(&mut drives, true, 1, &mut Vec::new())?;
        flush_all(&mut drives, label.live())?;
    }
    Ok(sims)
}

/// The rules for drives whose format was interrupted.
struct Formatted<'a> {
    lab: &'a Lab,
    new: Label,
    /// What the earlier pool holds.
    earlier: Option<Contents>,
}

impl Judge for Formatted<'_> {
    fn rules(&self) -> String {
        format!("format over {:?}", self.earlier)
    }

    fn judge(&self, image: &[SimDrive], _: &Expected) -> Result<(), String> {
        for index in 0..image.len() {
            self.check_drive(image, index)?;
        }
        self.open(image, false)?;
        // Format is repeated, and completes.
        let again: Vec<SimDrive> = image.iter().map(SimDrive::fork).collect();
        let mut drives = self.lab.drive(&again).map_err(|error| error.to_string())?;
        commit::make_pool(&mut drives, &self.new).map_err(|error| format!("again: {error}"))?;
        drop(drives);
        again.iter().for_each(|sim| sim.crash_keeping(&[], None));
        match self.open(&again, true)? {
            true => Ok(()),
            false => Err("the format was repeated, and the earlier pool opens".into()),
        }
    }
}

impl Formatted<'_> {
    /// A drive can be formatted without force, unless its labels still say that it is a drive of
    /// the earlier pool, which holds checkpoints.
    fn check_drive(&self, image: &[SimDrive], index: usize) -> Result<(), String> {
        let mut drives = self.lab.drive(image).map_err(|error| error.to_string())?;
        let content = read_content(&mut drives, index)
            .map_err(|error| format!("drive {index}: its contents: {error}"))?;
        let kept = self.earlier.as_ref().map(Contents::len);
        match &content {
            Content::Blank => Ok(()),
            Content::Pool { pool, checkpoints: Some(0), .. } if *pool == self.new.pool => Ok(()),
            Content::Pool { pool, checkpoints, .. }
                if *pool != self.new.pool && *checkpoints == kept && kept.is_some() =>
            {
                Ok(())
            }
            other => Err(format!("drive {index} is taken for {other:?}")),
        }
    }

    /// Whether the new pool opens (true), or there is none, or the earlier one is whole (false).
    fn open(&self, image: &[SimDrive], writable: bool) -> Result<bool, String> {
        let mut drives = self.lab.drive(image).map_err(|error| error.to_string())?;
        let state = match open_pool(&mut drives, writable, 1 << 61, &mut Vec::new()) {
            Ok(state) => state,
            // Some drives are blank, or have the earlier pool's labels.
            Err(
                Error::NotFormatted { .. }
                | Error::MissingDrives { .. }
                | Error::ForeignDrive { .. },
            ) if !writable => return Ok(false),
            Err(error) => return Err(format!("the pool does not open: {error}")),
        };
        if state.label().pool == self.new.pool {
            return has_names(&state, &Contents::new()).map(|()| true);
        }
        let earlier = self.earlier.as_ref().ok_or("a pool opens that was never made")?;
        has_names(&state, earlier)?;
        for committed in state.checkpoints() {
            let stored = &earlier[&committed.name()];
            let label = state.label();
            if let Some(damage) = verify_checkpoint(&mut drives, image, label, committed, stored)? {
                return Err(format!("the earlier pool opens: {damage}"));
            }
        }
        Ok(false)
    }
}
