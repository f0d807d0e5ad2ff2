// SPDX-License-Identifier: Apache-2.0
//! `stanchion verify`: every copy of the metadata, and every byte of the data.

use clap::Args;
use serde::Serialize;
use stanchion_engine::DriveAddress;
use stanchion_engine::{
    Damage, Filled, Notice, Pool, PoolMode, Replacement, VerifyReport, admit_drive,
};

use super::Subcommand;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, Output, plain};
use crate::progress_bar::ProgressBar;
use crate::record::DamageRecord;

const EXAMPLES: &str = "\
Examples:
  stanchion verify --drive /data/a.img --drive /data/b.img    the whole pool
  stanchion verify llama@100                                  one checkpoint
  stanchion verify --repair                                   repair what has a sound copy
  stanchion verify --repair --replacement /data/new.img       replace a lost drive
  stanchion verify --repair --rebuild                         go on where that was interrupted

Without --repair nothing is written. Metadata has copies on several drives; data has a second one
in a mirror only. --replacement adds a drive to the pool in place of a missing one, and fills it.
Add the missing drive itself in the same way when it is back. Only a mirror has the data to fill a
drive.
A drive that was merely not named keeps its place: name every sound drive of the pool, or pass the
serial of the lost one with --replaces. While a drive is filled, only what belongs on it is read;
everything else is checked by a run without these options. A checkpoint that is removed meanwhile is
left out.
A drive on which a file system or a partition table was made is not repaired; --repair --force
erases that and keeps the pool. The command ends with code 3 if anything is still damaged.";

/// Arguments of `stanchion verify`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Verify {
    /// Only this checkpoint
    #[arg(value_name = "NAME@STEP")]
    name: Option<String>,
    /// Rewrite damaged copies of metadata and data from sound ones
    #[arg(long)]
    repair: bool,
    /// Only fill the drives that are being rebuilt
    #[arg(long, requires = "repair", conflicts_with = "name")]
    rebuild: bool,
    /// Add this drive to the pool in place of a missing one, and fill it
    #[arg(long, value_name = "ADDRESS", requires = "repair", conflicts_with = "name")]
    replacement: Option<String>,
    /// The drive that the replacement replaces, where more than one is missing
    #[arg(long, value_name = "SERIAL", requires = "replacement")]
    replaces: Option<String>,
    /// Use the replacement although it holds data; without one, erase what another system made over
    /// a drive of the pool. That data is lost
    #[arg(long, requires = "repair")]
    force: bool,
}

#[derive(Serialize)]
struct Report {
    clean: bool,
    /// Only what belongs on drives that are being rebuilt was checked.
    rebuild_only: bool,
    checkpoint_count: usize,
    removed_count: usize,
    data_bytes: u64,
    metadata_copy_count: u64,
    /// All of them; the lists end at a thousand.
    damage_count: u64,
    damages: Vec<DamageRecord>,
    repaired_count: u64,
    repaired: Vec<DamageRecord>,
    filled: Vec<FilledRecord>,
    /// Serials of the drives that hold everything again.
    rebuilt_serials: Vec<String>,
    lost_generation: Option<u64>,
}

/// What was written to a drive that was being rebuilt.
#[derive(Serialize)]
struct FilledRecord {
    serial: String,
    range_count: u64,
    data_bytes: u64,
}

/// All damage found, when the pool was opened and after.
#[derive(Default)]
struct Findings {
    damages: Vec<Damage>,
    repaired: Vec<Damage>,
    /// Damage that the report counts and does not name.
    more_damages: u64,
    more_repaired: u64,
    /// Drives on which another program made something, which is not ours to repair.
    foreign_count: usize,
    /// The newest generation is lost; the text says so.
    fell_back: Option<(u64, String)>,
}

impl Findings {
    fn gather(pool: &Pool, report: &VerifyReport, output: Output) -> Findings {
        let mut found = Findings::default();
        for notice in pool.notices() {
            match notice {
                Notice::Repaired(damage) => found.repaired.push(damage.clone()),
                Notice::DamagedCopy(damage) | Notice::Unusable(damage) => {
                    found.damages.push(damage.clone());
                }
                Notice::FellBack { lost, .. } => {
                    found.fell_back = Some((lost.0, notice.to_string()));
                }
                Notice::Foreign { .. } => {
                    found.foreign_count += 1;
                    output.pool_notice(notice);
                }
                // The report says it: the drive has been rebuilt.
                Notice::Rebuilding { .. } if !report.rebuilt.is_empty() => {}
                _ => output.pool_notice(notice),
            }
        }
        // Damage found at opening is found again, unless it belongs to a lost generation.
        let add = |to: &mut Vec<Damage>, from: &[Damage]| {
            for damage in from {
                if !to.iter().any(|known| is_same_place(known, damage)) {
                    to.push(damage.clone());
                }
            }
        };
        add(&mut found.damages, &report.damages);
        add(&mut found.repaired, &report.repaired);
        found.damages.retain(|damage| !found.repaired.iter().any(|r| is_same_place(r, damage)));
        found.more_damages = report.damage_count - report.damages.len() as u64;
        found.more_repaired = report.repaired_count - report.repaired.len() as u64;
        found
    }

    fn is_clean(&self) -> bool {
        self.damage_count() == 0 && self.fell_back.is_none()
    }

    fn damage_count(&self) -> u64 {
        self.damages.len() as u64 + self.more_damages
    }

    fn repaired_count(&self) -> u64 {
        self.repaired.len() as u64 + self.more_repaired
    }

    fn print(
        &self,
        report: &VerifyReport,
        rebuild_only: bool,
        output: Output,
    ) -> Result<(), CommandError> {
        if output.json {
            return output.document(
                Verify::NAME,
                &Report {
                    clean: self.is_clean(),
                    rebuild_only,
                    checkpoint_count: report.checkpoints,
                    removed_count: report.removed,
                    data_bytes: report.data_bytes,
                    metadata_copy_count: report.metadata_copies,
                    damage_count: self.damage_count(),
                    damages: self.damages.iter().map(DamageRecord::from).collect(),
                    repaired_count: self.repaired_count(),
                    repaired: self.repaired.iter().map(DamageRecord::from).collect(),
                    filled: report.filled.iter().map(FilledRecord::from).collect(),
                    rebuilt_serials: report.rebuilt.clone(),
                    lost_generation: self.fell_back.as_ref().map(|(lost, _)| *lost),
                },
            );
        }
        if let Some((_, text)) = &self.fell_back {
            output.text(text)?;
        }
        for damage in &self.damages {
            output.text(plain(&damage.to_string()))?;
        }
        if self.more_damages > 0 {
            output.text(format_args!("and {} more", self.more_damages))?;
        }
        for damage in &self.repaired {
            output.text(plain(&format!("repaired from its copy: {damage}")))?;
        }
        if self.more_repaired > 0 {
            output.text(format_args!("and {} more repaired", self.more_repaired))?;
        }
        self.print_drives(report, output)?;
        if report.removed > 0 {
            output.text(format_args!(
                "{} removed meanwhile",
                output::count(report.removed, "checkpoint")
            ))?;
        }
        output.summary(format_args!(
            "{} {}, {} of data, {} copies of metadata: {}",
            if rebuild_only { "read for the rebuilding from" } else { "verified" },
            output::count(report.checkpoints, "checkpoint"),
            output::size(report.data_bytes),
            report.metadata_copies,
            match (self.is_clean(), self.repaired_count()) {
                (false, _) => "damaged".to_owned(),
                (true, 0) => "all sound".to_owned(),
                (true, count) => format!("{count} repaired, all sound"),
            }
        ))
    }

    /// One line for each drive that was being rebuilt: everything on it was missing.
    fn print_drives(&self, report: &VerifyReport, output: Output) -> Result<(), CommandError> {
        let written = |serial: &String| {
            let filled = report.filled.iter().find(|filled| filled.serial == *serial);
            let (ranges, bytes) =
                filled.map_or((0, 0), |filled| (filled.ranges, filled.data_bytes));
            let ranges = output::count(ranges as usize, "range");
            format!("{ranges} written, {} of data", output::size(bytes))
        };
        for serial in &report.rebuilt {
            output.text(plain(&format!("drive {serial} is rebuilt; {}", written(serial))))?;
        }
        let unfinished = report.filled.iter().filter(|f| !report.rebuilt.contains(&f.serial));
        for Filled { serial, .. } in unfinished {
            output
                .text(plain(&format!("drive {serial} is not rebuilt yet; {}", written(serial))))?;
        }
        Ok(())
    }
}

impl From<&Filled> for FilledRecord {
    fn from(filled: &Filled) -> FilledRecord {
        let Filled { serial, ranges, data_bytes } = filled.clone();
        FilledRecord { serial, range_count: ranges, data_bytes }
    }
}

/// Whether both are about the same bytes; one of them may say more.
fn is_same_place(one: &Damage, other: &Damage) -> bool {
    let place = |damage: &Damage| (damage.what, damage.serial.clone(), damage.offset_bytes);
    place(one) == place(other)
}

impl Subcommand for Verify {
    const NAME: &'static str = "verify";
    const ABOUT: &'static str = "Check every byte of a pool or of one checkpoint";
    const GROUPS: &'static [Group] = &Group::ALL;

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let output = context.output;
        let name = self.name.as_ref().map(|text| text.parse()).transpose()?;
        let mode = if self.repair { PoolMode::ReadWrite } else { PoolMode::ReadOnly };
        let mut options = context.pool_options(mode)?;
        if let Some(replacement) = &self.replacement {
            let address: DriveAddress = replacement.parse()?;
            // Here, --force is about the replacement.
            let admitted = admit_drive(
                &options,
                &Replacement {
                    drive: address.clone(),
                    replaces: self.replaces.clone(),
                    force: self.force,
                },
            )?;
            let text = match admitted.returning {
                true => format!("drive {} is part of the pool again", admitted.serial),
                false => format!(
                    "drive {} has taken the place of drive {}",
                    admitted.serial, admitted.replaced_serial
                ),
            };
            output.notice("drive_admitted", text);
            options.drives.retain(|drive| *drive != address);
            options.drives.push(address);
        } else {
            options.erase_foreign = self.force;
        }
        let pool = context.open_with(&options)?;
        let rebuild_only = self.rebuild || self.replacement.is_some();
        let what = if rebuild_only { "rebuilding" } else { "verifying" };
        let progress = ProgressBar::new(output, what, 0);
        let mut watch = |done, total| {
            progress.set_total(total);
            progress.set(done);
        };
        let report = match rebuild_only {
            true => pool.rebuild(&mut watch)?,
            false => pool.verify(name.as_ref(), self.repair, &mut watch)?,
        };
        drop(progress);
        let found = Findings::gather(&pool, &report, output);
        found.print(&report, rebuild_only, output)?;
        if found.is_clean() {
            return Ok(());
        }
        let count = found.damage_count() + u64::from(found.fell_back.is_some());
        let remedy = match self.repair {
            true => {
                "not repairable: remove the damaged checkpoints (`stanchion rm`) and save them again"
            }
            false if found.foreign_count > 0 => {
                "a drive holds something else, so nothing is repaired before you have decided which of \
                 the two to keep: see the notice above"
            }
            false => "`stanchion verify --repair` repairs what has a sound copy",
        };
        Err(CommandError::Damaged(format!("{count} damaged; {remedy}")))
    }
}
