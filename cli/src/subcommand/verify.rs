// SPDX-License-Identifier: Apache-2.0
//! `stanchion verify`: every copy of the metadata, and every byte of the data.

use clap::Args;
use serde::Serialize;
use stanchion_engine::DriveAddress;
use stanchion_engine::{Damage, Notice, Pool, PoolMode, VerifyReport, admit_drive};

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

Without --repair nothing is written. Metadata has a copy on every drive; data has a second copy in a
mirror only. --replacement adds a drive to the pool in place of a missing one, and fills it. Add the
missing drive itself in the same way when it is back. Only a mirror has the data to fill a drive.
The command ends with code 3 if anything is still damaged.";

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
    /// Add this drive to the pool in place of a missing one, and fill it
    #[arg(long, value_name = "ADDRESS", requires = "repair", conflicts_with = "name")]
    replacement: Option<String>,
    /// Use the replacement although it holds data; the data is lost
    #[arg(long, requires = "replacement")]
    force: bool,
}

#[derive(Serialize)]
struct Report {
    clean: bool,
    checkpoint_count: usize,
    data_bytes: u64,
    metadata_copy_count: u64,
    damages: Vec<DamageRecord>,
    repaired: Vec<DamageRecord>,
    /// Serials of the drives that hold everything again.
    rebuilt_serials: Vec<String>,
    lost_generation: Option<u64>,
}

/// All damage found, when the pool was opened and after.
#[derive(Default)]
struct Findings {
    damages: Vec<Damage>,
    repaired: Vec<Damage>,
    /// The newest generation is lost; the text says so.
    fell_back: Option<(u64, String)>,
}

impl Findings {
    fn gather(pool: &Pool, report: &VerifyReport, output: Output) -> Findings {
        let mut found = Findings::default();
        for notice in pool.notices() {
            match notice {
                Notice::Repaired(damage) => found.repaired.push(damage.clone()),
                Notice::DamagedCopy(damage) => found.damages.push(damage.clone()),
                Notice::FellBack { lost, .. } => {
                    found.fell_back = Some((lost.0, notice.to_string()));
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
        found
    }

    fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.fell_back.is_none()
    }

    fn print(&self, report: &VerifyReport, output: Output) -> Result<(), CommandError> {
        if output.json {
            return output.document(
                Verify::NAME,
                &Report {
                    clean: self.is_clean(),
                    checkpoint_count: report.checkpoints,
                    data_bytes: report.data_bytes,
                    metadata_copy_count: report.metadata_copies,
                    damages: self.damages.iter().map(DamageRecord::from).collect(),
                    repaired: self.repaired.iter().map(DamageRecord::from).collect(),
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
        // On a new drive everything was missing: one line below, not one for each range.
        let is_rebuilt = |damage: &&Damage| report.rebuilt.contains(&damage.serial);
        for damage in self.repaired.iter().filter(|damage| !is_rebuilt(damage)) {
            output.text(plain(&format!("repaired from its copy: {damage}")))?;
        }
        for serial in &report.rebuilt {
            let filled = self.repaired.iter().filter(|damage| damage.serial == *serial).count();
            output.text(plain(&format!(
                "drive {serial} is rebuilt; {} written",
                output::count(filled, "range")
            )))?;
        }
        output.summary(format_args!(
            "verified {}, {} of data, {} copies of metadata: {}",
            output::count(report.checkpoints, "checkpoint"),
            output::size(report.data_bytes),
            report.metadata_copies,
            match (self.is_clean(), self.repaired.len()) {
                (false, _) => "damaged".to_owned(),
                (true, 0) => "all sound".to_owned(),
                (true, count) => format!("{count} repaired, all sound"),
            }
        ))
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
            let admitted = admit_drive(&options, &address, self.force)?;
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
        }
        let pool = Pool::open(&options)?;
        let progress = ProgressBar::new(output, "verifying", 0);
        let report = pool.verify(name.as_ref(), self.repair, &mut |done, total| {
            progress.set_total(total);
            progress.set(done);
        })?;
        drop(progress);
        let found = Findings::gather(&pool, &report, output);
        found.print(&report, output)?;
        if found.is_clean() {
            return Ok(());
        }
        let count = found.damages.len() + usize::from(found.fell_back.is_some());
        let remedy = match self.repair {
            true => {
                "not repairable: remove the damaged checkpoints (`stanchion rm`) and save them again"
            }
            false => "`stanchion verify --repair` repairs what has a sound copy",
        };
        Err(CommandError::Damaged(format!("{count} damaged; {remedy}")))
    }
}
