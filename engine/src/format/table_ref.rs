// SPDX-License-Identifier: Apache-2.0
//! A table reference: where the copies of a segment table or of a shard list lie, and their hash.
//!
//! | offset | size    | field                                            |
//! |--------|---------|--------------------------------------------------|
//! | 0      | 8       | length of the object, padding not included       |
//! | 8      | 16      | hash in its prologue                             |
//! | 24     | 2       | runs                                             |
//! | 26     | 6       | zero                                             |
//! | 32     | 16 each | runs: drive 2, copy 1, zero 1, blocks 4, first block 8 |
//!
//! Each copy is whole, on a drive of its own, in one run or several; its runs follow each other,
//! and copies are numbered from 0 in the order of the runs. All copies have the same bytes: their
//! prologue has the offset 0, and the hash here distinguishes them from stale or foreign ones.

use uuid::Uuid;

use super::codec::{PROLOGUE_BYTES, Reader, Writer, corrupt};
use super::object::MAX_META_OBJECT_BYTES;
use super::table_run::TableRun;
use super::{FormatError, Layout, MetaExtent, blocks_of};
use crate::limits::{BLOCK_BYTES, MAX_DRIVE_BYTES, MAX_PARTICIPANTS, MAX_SEGMENT_BYTES};
use crate::units::DriveIndex;

/// The offset in the prologue of an object that lies in several places.
pub(super) const NO_OFFSET: u64 = 0;

/// Copies of one object at most.
pub(super) const MAX_TABLE_COPIES: u8 = 8;
/// Runs of one copy at most.
pub const MAX_TABLE_RUNS: usize = 16;

const HEADER_BYTES: u64 = 32;
const RUN_BYTES: u64 = 16;

/// Whose a table or list is: its checkpoint and participant.
pub(super) type Whose = (Uuid, u32);

/// Refuses an object of another segment than the one that is named.
pub(super) fn same_segment(found: Whose, named: Whose) -> Result<(), FormatError> {
    if found == named {
        return Ok(());
    }
    let ((found, found_participant), (checkpoint, participant)) = (found, named);
    Err(corrupt(format!(
        "of checkpoint {found}, participant {found_participant}, where {checkpoint}, {participant} is named"
    )))
}

/// Why there is no segment of this length, of this participant.
pub(super) fn check_segment(len_bytes: u64, participant: u32) -> Result<(), String> {
    if len_bytes > MAX_SEGMENT_BYTES {
        return Err(format!("a segment of {len_bytes} bytes"));
    }
    if participant >= MAX_PARTICIPANTS {
        return Err(format!("participant {participant}"));
    }
    Ok(())
}

/// Where the copies of an object lie, and its hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableRef {
    /// The object's length without the padding to whole blocks.
    pub len_bytes: u64,
    /// The hash in its prologue.
    pub hash: [u8; 16],
    /// Copy after copy.
    pub runs: Vec<TableRun>,
}

impl TableRef {
    /// The reference to an encoded object in these places.
    pub fn of(object: &MetaExtent, runs: Vec<TableRun>) -> TableRef {
        TableRef { len_bytes: object.len_bytes, hash: object.hash, runs }
    }

    /// The runs of each copy.
    pub fn copies(&self) -> impl Iterator<Item = &[TableRun]> {
        self.runs.chunk_by(|a, b| a.copy == b.copy)
    }

    /// What a decoder compares the object with.
    pub(super) fn named(&self) -> MetaExtent {
        MetaExtent { offset_bytes: NO_OFFSET, len_bytes: self.len_bytes, hash: self.hash }
    }

    /// Why a reader would refuse it.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(PROLOGUE_BYTES..=MAX_META_OBJECT_BYTES).contains(&self.len_bytes) {
            return Err(format!("a table of {} bytes", self.len_bytes));
        }
        let most_block = MAX_DRIVE_BYTES / BLOCK_BYTES;
        if let Some(run) = self.runs.iter().find(|r| r.blocks == 0 || r.first_block > most_block) {
            return Err(format!("a run of {} blocks from block {}", run.blocks, run.first_block));
        }
        let mut drives = Vec::new();
        for (number, copy) in self.copies().enumerate() {
            let (drive, runs) = (copy[0].drive, copy.len());
            if number >= usize::from(MAX_TABLE_COPIES) || usize::from(copy[0].copy) != number {
                return Err(format!("copy {} of a table at place {number}", copy[0].copy));
            }
            if runs > MAX_TABLE_RUNS {
                return Err(format!("{runs} runs of a copy; at most {MAX_TABLE_RUNS} are allowed"));
            }
            if copy.iter().any(|run| run.drive != drive) || drives.contains(&drive) {
                return Err(format!("copy {number} of a table shares a drive, or has several"));
            }
            drives.push(drive);
            let blocks: u64 = copy.iter().map(|run| u64::from(run.blocks)).sum();
            if blocks != blocks_of(self.len_bytes) {
                return Err(format!("{blocks} blocks for {} bytes of a table", self.len_bytes));
            }
        }
        if drives.is_empty() { Err("a table without a copy".into()) } else { Ok(()) }
    }

    /// Whether every run lies in the metadata area of a drive that the pool has.
    pub(super) fn validate(&self, layout: &Layout, drives: usize) -> Result<(), FormatError> {
        let is_lost = |run: &&TableRun| {
            run.drive.as_usize() >= drives || layout.meta_units_of_run(run).is_none()
        };
        match self.runs.iter().find(is_lost) {
            Some(run) => Err(corrupt(format!("a table outside the metadata areas: {run:?}"))),
            None => Ok(()),
        }
    }

    /// Bytes of references with that many runs together.
    pub(super) const fn encoded_bytes(references: u64, runs: u64) -> u64 {
        references * HEADER_BYTES + runs * RUN_BYTES
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.len_bytes);
        writer.put(&self.hash);
        writer.u16(self.runs.len() as u16);
        writer.zeros(6);
        for run in &self.runs {
            writer.u16(run.drive.0);
            writer.u8(run.copy);
            writer.zeros(1);
            writer.u32(run.blocks);
            writer.u64(run.first_block);
        }
    }

    /// A reference that [`TableRef::check`] accepts.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<TableRef, FormatError> {
        let (len_bytes, hash, count) = (reader.u64()?, reader.hash()?, reader.u16()?);
        reader.zeros(6)?;
        let mut runs = Vec::with_capacity(reader.count(count.into(), RUN_BYTES)?);
        for _ in 0..count {
            let (drive, copy) = (DriveIndex(reader.u16()?), reader.u8()?);
            reader.zeros(1)?;
            let (blocks, first_block) = (reader.u32()?, reader.u64()?);
            runs.push(TableRun { drive, copy, blocks, first_block });
        }
        let reference = TableRef { len_bytes, hash, runs };
        reference.check().map_err(FormatError::Corrupt)?;
        Ok(reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::MIB;

    fn run(drive: u16, copy: u8, blocks: u32, first_block: u64) -> TableRun {
        TableRun { drive: DriveIndex(drive), copy, blocks, first_block }
    }

    fn reference(runs: Vec<TableRun>) -> TableRef {
        TableRef { len_bytes: 10_000, hash: [7; 16], runs }
    }

    #[test]
    fn impossible_references_have_a_reason() {
        let two = || vec![run(1, 0, 2, 5), run(1, 0, 1, 9), run(4, 1, 3, 7)];
        assert_eq!(reference(two()).check(), Ok(()));
        let reason = |change: fn(&mut Vec<TableRun>)| {
            let mut runs = two();
            change(&mut runs);
            reference(runs).check().unwrap_err()
        };
        assert!(reason(Vec::clear).contains("without a copy"));
        assert!(reason(|runs| runs[1].blocks = 2).contains("4 blocks for 10000"));
        assert!(reason(|runs| runs[1].blocks = 0).contains("a run of 0 blocks"));
        assert!(reason(|runs| runs[1].first_block = u64::MAX).contains("from block"));
        assert!(reason(|runs| runs[1].drive.0 = 2).contains("has several"));
        assert!(reason(|runs| runs[2].drive.0 = 1).contains("shares a drive"));
        assert!(reason(|runs| runs[2].copy = 2).contains("copy 2"));
        assert!(reason(|runs| runs[2].copy = 0).contains("has several"));
        assert!(reason(|runs| runs.swap(1, 2)).contains("blocks"));
        assert!(
            reason(|runs| {
                *runs = (0..17).map(|number| run(1, 0, 1, number)).collect();
            })
            .contains("17 runs")
        );
        assert!(
            reason(|runs| *runs = (0..9).map(|n| run(n, n as u8, 3, 1)).collect())
                .contains("copy 8")
        );
        let short = TableRef { len_bytes: 63, ..reference(two()) };
        assert!(short.check().unwrap_err().contains("63 bytes"));
    }

    #[test]
    fn validate_compares_the_runs_with_the_metadata_area() {
        let layout = Layout::plan(&[64 * MIB; 2], MIB).unwrap();
        let first = layout.meta_unit_offset(0) / BLOCK_BYTES;
        let end = first + layout.meta_units() * 16;
        let check = |drive, first_block| {
            reference(vec![run(drive, 0, 3, first_block)]).validate(&layout, 2).is_ok()
        };
        assert!(check(1, first) && check(0, end - 3));
        assert!(!check(2, first) && !check(0, first - 1) && !check(0, end - 2));
    }
}
