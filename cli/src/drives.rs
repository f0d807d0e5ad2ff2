//! `stanchion drives`: what this machine has, and what the given drives hold.

use std::path::Path;

use clap::Args;
use serde::Serialize;
use stanchion_engine::DriveAddress;
use stanchion_engine::host::inventory::{self, DriveKind, HostDrive};
use stanchion_engine::host::safety::Findings;
use stanchion_engine::{Content, Survey, survey};

use crate::args::Common;
use crate::config;
use crate::exit::Failure;
use crate::output::{self, Output, plain};

const EXAMPLES: &str = "\
Examples:
  stanchion drives                                           the drives of this machine
  stanchion drives --drive /dev/nvme1n1 --drive a.img        and what these hold

The first list opens nothing. The second reads the ends of each drive and changes nothing.";

/// `stanchion drives` has no arguments of its own.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DrivesArgs {}

#[derive(Serialize)]
struct Document {
    format_version: u32,
    drives: Vec<HostDrive>,
    surveys: Vec<SurveyRecord>,
}

/// A survey as JSON.
#[derive(Serialize)]
pub struct SurveyRecord {
    address: String,
    serial: String,
    model: String,
    capacity_bytes: u64,
    content: &'static str,
    detail: String,
    pool: Option<String>,
    checkpoints: Option<usize>,
    in_use: Findings,
}

impl From<&Survey> for SurveyRecord {
    fn from(survey: &Survey) -> SurveyRecord {
        let (pool, checkpoints) = match &survey.content {
            Content::Pool { pool, checkpoints, .. } => (Some(pool.to_string()), *checkpoints),
            _ => (None, None),
        };
        SurveyRecord {
            address: survey.address.clone(),
            serial: survey.serial().to_owned(),
            model: survey.info.as_ref().map_or_else(String::new, |info| info.model.clone()),
            capacity_bytes: survey.info.as_ref().map_or(0, |info| info.capacity_bytes),
            content: match survey.content {
                Content::Absent => "absent",
                Content::Blank => "blank",
                Content::Pool { .. } => "pool",
                Content::Foreign(_) => "foreign",
            },
            detail: describe(&survey.content),
            pool,
            checkpoints,
            in_use: survey.in_use.clone(),
        }
    }
}

/// What a drive holds, in words.
pub fn describe(content: &Content) -> String {
    match content {
        Content::Absent => "does not exist yet".to_owned(),
        Content::Blank => "blank".to_owned(),
        Content::Pool { pool, drives, checkpoints } => {
            let count = checkpoints.map_or_else(|| "unreadable".to_owned(), |n| n.to_string());
            format!("pool {pool} of {drives} drives, checkpoints: {count}")
        }
        Content::Foreign(what) => what.clone(),
    }
}

/// A table of what drives hold.
pub fn survey_table(surveys: &[Survey]) -> comfy_table::Table {
    let header = ["ADDRESS", "SERIAL", "MODEL", "SIZE", "CONTENT", "IN USE"];
    let mut table = output::table(&header, &["SIZE"]);
    for survey in surveys {
        let info = survey.info.as_ref();
        table.add_row([
            plain(&survey.address),
            plain(survey.serial()),
            plain(info.map_or("", |info| &info.model)),
            info.map_or_else(String::new, |info| output::size(info.capacity_bytes)),
            plain(&describe(&survey.content)),
            plain(&in_use(&survey.in_use)),
        ]);
    }
    table
}

fn in_use(findings: &Findings) -> String {
    if findings.is_clear() { "no".to_owned() } else { findings.to_string() }
}

/// Runs it.
///
/// # Errors
/// When a given drive cannot be looked at; the others are shown all the same.
pub fn run(_: &DrivesArgs, common: &Common, output: Output) -> Result<(), Failure> {
    let given = config::drives(common)?;
    let drives = inventory::list(Path::new("/"));
    let mut surveys = Vec::new();
    let mut first_failure = None;
    for address in &given {
        match look_at(address) {
            Ok(found) => surveys.extend(found),
            Err(failure) => {
                output.notice(&failure);
                first_failure = first_failure.or(Some(failure));
            }
        }
    }
    if output.json {
        let surveys = surveys.iter().map(SurveyRecord::from).collect();
        output.document(&Document { format_version: 1, drives, surveys })?;
    } else {
        output.text(output::lines(&inventory_table(&drives)))?;
        if !surveys.is_empty() {
            output.text(format_args!("\n{}", output::lines(&survey_table(&surveys))))?;
        }
    }
    first_failure.map_or(Ok(()), Err)
}

fn look_at(address: &DriveAddress) -> Result<Vec<Survey>, Failure> {
    Ok(survey(std::slice::from_ref(address))?)
}

fn inventory_table(drives: &[HostDrive]) -> comfy_table::Table {
    let header = ["ADDRESS", "KIND", "SERIAL", "MODEL", "SIZE", "DRIVER", "NUMA", "IN USE"];
    let mut table = output::table(&header, &["SIZE", "NUMA"]);
    for drive in drives {
        let text = |value: &Option<String>| value.as_deref().map_or_else(|| "-".into(), plain);
        table.add_row([
            plain(&drive.address),
            match drive.kind {
                DriveKind::BlockDevice => "block device".to_owned(),
                DriveKind::NvmeController => "NVMe controller".to_owned(),
            },
            text(&drive.serial),
            text(&drive.model),
            drive.capacity_bytes.map_or_else(|| "-".into(), output::size),
            text(&drive.driver),
            drive.numa_node.map_or_else(|| "-".into(), |node| node.to_string()),
            plain(&in_use(&Findings(drive.in_use.clone()))),
        ]);
    }
    table
}
