// SPDX-License-Identifier: Apache-2.0
//! JSON that several subcommands print. Keys are only ever added: docs/json/README.md has the
//! rules.

use serde::Serialize;
use stanchion_engine::host::inventory::{DriveKind, HostDrive};
use stanchion_engine::host::safety::{Finding, Findings};
use stanchion_engine::{CheckpointName, Content, Damage, DriveState, Notice, Survey};

use crate::text::plain;

/// A document or a line: its schema, and its content.
#[derive(Serialize)]
pub struct Document<'a, T> {
    schema: String,
    #[serde(flatten)]
    content: &'a T,
}

impl<'a, T> Document<'a, T> {
    /// Content under the first version of a schema.
    pub fn new(schema: &str, content: &'a T) -> Document<'a, T> {
        Document { schema: format!("stanchion/{schema}/1"), content }
    }
}

/// A line on stderr.
#[derive(Serialize)]
pub struct Message {
    /// "error", "warning", "notice", "info", "debug" or "trace".
    pub level: &'static str,
    /// Its kind, for programs.
    pub kind: String,
    /// The text.
    #[serde(rename = "message")]
    pub text: String,
    /// Only in the error that ends the command.
    pub exit_code: Option<u8>,
    /// The drive that it is about.
    pub serial: Option<String>,
}

impl Message {
    /// A message that is not about a drive.
    pub fn new(level: &'static str, kind: &str, text: String) -> Message {
        Message { level, kind: kind.to_owned(), text, exit_code: None, serial: None }
    }
}

impl From<&Notice> for Message {
    fn from(notice: &Notice) -> Message {
        let (kind, serial) = match notice {
            Notice::Repaired(damage) => ("repaired", Some(&damage.serial)),
            Notice::DamagedCopy(damage) => ("damaged_copy", Some(&damage.serial)),
            Notice::Unusable(damage) => ("damaged", Some(&damage.serial)),
            Notice::FellBack { .. } => ("generation_lost", None),
            Notice::Outdated { serial, .. } => ("drive_outdated", Some(serial)),
            Notice::OtherOwner { .. } => ("other_owner", None),
            Notice::Unreachable { .. } => ("drive_unreachable", None),
            Notice::Missing { serial, .. } => ("drive_missing", Some(serial)),
            Notice::Absent { serial } => ("drive_absent", Some(serial)),
            Notice::Rebuilding { serial } => ("drive_rebuilding", Some(serial)),
            Notice::Foreign { serial, .. } => ("drive_foreign", Some(serial)),
            Notice::VolatileOverFabric { serial, .. } => ("volatile_over_fabric", Some(serial)),
            Notice::ForeignErased { serial, .. } => ("foreign_erased", Some(serial)),
            Notice::RolledForward(_) => ("rolled_forward", None),
            Notice::Unfinished(_) => ("commit_unfinished", None),
            Notice::TakenOver { serial, .. } => ("taken_over", Some(serial)),
        };
        let text = plain(&notice.to_string());
        Message { serial: serial.cloned(), ..Message::new("notice", kind, text) }
    }
}

/// A word of the engine as JSON writes it: `segment table` is `segment_table`.
pub fn word(text: &str) -> String {
    let letters = text.chars().filter(|c| *c != '/');
    letters.map(|c| if c == ' ' || c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

/// A checkpoint's name.
#[derive(Serialize)]
pub struct NameRecord {
    name: String,
    step: u64,
}

impl From<&CheckpointName> for NameRecord {
    fn from(of: &CheckpointName) -> NameRecord {
        NameRecord { name: of.name.clone(), step: of.step }
    }
}

/// A damaged range or structure.
#[derive(Serialize)]
pub struct DamageRecord {
    kind: String,
    serial: Option<String>,
    offset_bytes: Option<u64>,
    checkpoint: Option<NameRecord>,
    shard: Option<String>,
    generation: Option<u64>,
    message: String,
}

impl From<&Damage> for DamageRecord {
    fn from(damage: &Damage) -> DamageRecord {
        let name = damage.checkpoint.as_ref().and_then(|text| text.parse::<CheckpointName>().ok());
        DamageRecord {
            kind: word(damage.what),
            serial: (!damage.serial.is_empty()).then(|| damage.serial.clone()),
            offset_bytes: damage.offset_bytes,
            checkpoint: name.as_ref().map(NameRecord::from),
            shard: damage.shard.clone(),
            generation: damage.generation.map(|generation| generation.0),
            message: damage.to_string(),
        }
    }
}

/// Why a drive cannot be used.
#[derive(Serialize)]
pub struct FindingRecord {
    kind: String,
    evidence: String,
    overridable: bool,
}

fn findings(findings: &[Finding]) -> Vec<FindingRecord> {
    let record = |finding: &Finding| FindingRecord {
        kind: word(finding.what),
        evidence: finding.evidence.clone(),
        overridable: finding.overridable,
    };
    findings.iter().map(record).collect()
}

/// A drive of the machine.
#[derive(Serialize)]
pub struct HostDriveRecord {
    address: String,
    kind: &'static str,
    serial: Option<String>,
    model: Option<String>,
    firmware: Option<String>,
    capacity_bytes: Option<u64>,
    numa_node: Option<u32>,
    pci_address: Option<String>,
    driver: Option<String>,
    in_use: Vec<FindingRecord>,
}

impl From<&HostDrive> for HostDriveRecord {
    fn from(drive: &HostDrive) -> HostDriveRecord {
        HostDriveRecord {
            address: drive.address.clone(),
            kind: match drive.kind {
                DriveKind::BlockDevice => "block_device",
                DriveKind::NvmeController => "nvme_controller",
            },
            serial: drive.serial.clone(),
            model: drive.model.clone(),
            firmware: drive.firmware.clone(),
            capacity_bytes: drive.capacity_bytes,
            numa_node: drive.numa_node,
            pci_address: drive.pci_address.clone(),
            driver: drive.driver.clone(),
            in_use: findings(&drive.in_use),
        }
    }
}

/// What a drive holds.
#[derive(Serialize)]
pub struct SurveyRecord {
    address: String,
    serial: Option<String>,
    model: Option<String>,
    capacity_bytes: Option<u64>,
    content: &'static str,
    detail: String,
    pool_uuid: Option<String>,
    checkpoint_count: Option<usize>,
    in_use: Vec<FindingRecord>,
}

impl From<&Survey> for SurveyRecord {
    fn from(survey: &Survey) -> SurveyRecord {
        let (pool, checkpoints) = match &survey.content {
            Content::Pool { pool, checkpoints, .. } => (Some(pool.to_string()), *checkpoints),
            _ => (None, None),
        };
        let info = survey.info.as_ref();
        let Findings(in_use) = &survey.in_use;
        SurveyRecord {
            address: survey.address.clone(),
            serial: info.map(|info| info.serial.clone()),
            model: info.map(|info| info.model.clone()),
            capacity_bytes: info.map(|info| info.capacity_bytes),
            content: match survey.content {
                Content::Absent => "absent",
                Content::Blank => "blank",
                Content::Pool { .. } => "pool",
                Content::Foreign(_) => "foreign",
            },
            detail: describe(&survey.content),
            pool_uuid: pool,
            checkpoint_count: checkpoints,
            in_use: findings(in_use),
        }
    }
}

/// How a drive takes part in its pool.
pub fn drive_state(state: DriveState) -> &'static str {
    match state {
        DriveState::Member => "member",
        DriveState::Absent => "absent",
        DriveState::Rebuilding => "rebuilding",
    }
}

/// What a drive holds, in words.
pub fn describe(content: &Content) -> String {
    match content {
        Content::Absent => "does not exist yet".to_owned(),
        Content::Blank => "blank".to_owned(),
        Content::Pool { pool, drives, checkpoints } => {
            let count = checkpoints.map_or_else(|| "unreadable".to_owned(), |n| n.to_string());
            format!("pool {pool} of {}, checkpoints: {count}", crate::text::count(*drives, "drive"))
        }
        Content::Foreign(what) => what.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_snake_case() {
        let words = [("segment table", "segment_table"), ("read-only", "read_only")];
        words.iter().for_each(|(text, expected)| assert_eq!(word(text), *expected));
        assert_eq!(
            (word("direct I/O"), word("IOMMU group")),
            ("direct_io".into(), "iommu_group".into())
        );
    }
}
