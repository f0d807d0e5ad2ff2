// SPDX-License-Identifier: Apache-2.0
//! A verification on one thread: the shipped checks and repairs of each structure, in the order in
//! which [`crate::Pool::verify`] carries them out. A checkpoint is not removed meanwhile.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use super::lab::CHUNK_BYTES;
use crate::checksum::chunk_is_sound;
use crate::commit::Committer;
use crate::drives::{DriveCommand, Drives};
use crate::error::{Damage, Error};
use crate::format::{Label, SegmentTable, crc64};
use crate::limits::BLOCK_BYTES;
use crate::pool::{Begin, ChunkCheck, Notice, PoolMode, Step, Verdict, check_pool};
use crate::recover::metadata::{self, CopyPlace, Decode, Subject, copies_of, everywhere};
use crate::state::{Committed, State};
use crate::units::{DriveIndex, Location};

/// What a verification found.
#[derive(Default, Debug)]
pub(super) struct Verified {
    /// What is damaged and was not mended.
    pub(super) damaged: Vec<String>,
    /// Copies that were written again.
    pub(super) mended: usize,
    /// Drives that lack something.
    incomplete: BTreeSet<DriveIndex>,
}

/// Verifies the whole pool; with `repair` it also repairs, and makes drives that lack nothing
/// members again.
pub(super) fn verify(
    drives: &mut dyn Drives,
    state: &Rc<RefCell<State>>,
    repair: bool,
) -> Result<Verified, Error> {
    let label = state.borrow().label().clone();
    let root = state.borrow().root().clone();
    let checkpoints: Vec<_> = state.borrow().checkpoints().cloned().collect();
    let mut pass = Pass { label: &label, repair, found: Verified::default() };
    let (_, notices) = check_pool(drives, &label, &root, PoolMode::ReadWrite, repair)?;
    for notice in notices {
        match notice {
            Notice::Repaired(_) => pass.found.mended += 1,
            Notice::DamagedCopy(damage) | Notice::Unusable(damage) => {
                pass.found.damaged.push(damage.to_string());
            }
            other => pass.found.damaged.push(other.to_string()),
        }
    }
    for committed in &checkpoints {
        pass.check_one(drives, committed)?;
    }
    let found = pass.found;
    if repair {
        let mut committer = Committer::new(Rc::clone(state));
        committer.flush(drives)?;
        let complete: Vec<_> =
            label.live().filter(|drive| !found.incomplete.contains(drive)).collect();
        committer.finish_rebuilding(drives, &complete)?;
    }
    Ok(found)
}

struct Pass<'a> {
    label: &'a Label,
    repair: bool,
    found: Verified,
}

impl Pass<'_> {
    fn check_one(&mut self, drives: &mut dyn Drives, committed: &Committed) -> Result<(), Error> {
        let (label, entry) = (self.label, &committed.entry);
        let decode = metadata::decode_manifest(label, entry);
        let subject = metadata::manifest_subject(entry);
        let copies = everywhere(label, &entry.manifest);
        let Some(manifest) = self.check_object(drives, copies, &subject, &decode) else {
            return Ok(());
        };
        for (participant, segment) in (0..).zip(&manifest.segments) {
            let decode = metadata::decode_list(label, entry, segment, participant);
            let copies = copies_of(label, &segment.list);
            self.check_object(drives, copies, &metadata::list_subject(entry), &decode);
            let decode = metadata::decode_table(label, entry, segment, participant);
            let copies = copies_of(label, &segment.table);
            let subject = metadata::table_subject(entry);
            if let Some(table) = self.check_object(drives, copies, &subject, &decode) {
                self.check_data(drives, &table)?;
            }
        }
        Ok(())
    }

    /// Reads the copies of an object, and repairs bad ones from a sound one.
    fn check_object<T>(
        &mut self,
        drives: &mut dyn Drives,
        copies: Vec<CopyPlace>,
        subject: &Subject,
        decode: Decode<'_, T>,
    ) -> Option<T> {
        let found = metadata::check_copies(drives, self.label, copies, subject, decode);
        if found.object.is_none() {
            self.found.incomplete.extend(self.label.live());
            self.found.damaged.push(found.damage(subject).to_string());
            return None;
        }
        let (object, sound) = found.object.unzip();
        let sound = sound.filter(|_| self.repair);
        let repaired = metadata::repair_metadata(drives, &found.bad, sound.as_deref());
        for (number, copy) in found.bad.iter().enumerate() {
            match repaired.get(number) {
                Some(Notice::Repaired(_)) => self.found.mended += 1,
                _ => self.lacks(copy.drive, &copy.damage),
            }
        }
        object
    }

    fn lacks(&mut self, drive: DriveIndex, damage: &Damage) {
        self.found.incomplete.insert(drive);
        self.found.damaged.push(damage.to_string());
    }

    fn check_data(&mut self, drives: &mut dyn Drives, table: &SegmentTable) -> Result<(), Error> {
        for (number, record) in (0..).zip(&table.chunks) {
            let len_bytes = CHUNK_BYTES.min(table.len_bytes - number * CHUNK_BYTES) as usize;
            let mut bytes = vec![0; len_bytes.next_multiple_of(BLOCK_BYTES as usize)];
            let copies: Vec<Location> = record.copies.iter().collect();
            let is_live = |at: &Location| self.label.live().any(|drive| drive == at.drive);
            let mut begin = [Begin::Absent; 2];
            for (at, begin) in copies.iter().zip(&mut begin).filter(|(at, _)| is_live(at)) {
                let _ = at;
                *begin = Begin::Check;
            }
            let mut check = ChunkCheck::new(begin, self.repair);
            loop {
                let place = |copy: usize| {
                    let Location { drive, slot } = copies[copy];
                    (drive, self.label.layout.slot_offset(slot))
                };
                match check.next() {
                    Step::Done => break,
                    Step::Read(copy) => {
                        let (drive, offset_bytes) = place(copy);
                        let read = DriveCommand::Read { drive, offset_bytes, into: &mut bytes };
                        let is_read = drives.run(&mut [read]).remove(0).is_ok();
                        let (data, padding) = bytes.split_at(len_bytes);
                        let is_zero = padding.iter().all(|byte| *byte == 0);
                        let is_sound = chunk_is_sound(record.crc64, crc64(data), is_zero);
                        check.was_read(copy, is_read && is_sound);
                    }
                    Step::Write(copy) => {
                        let (drive, offset_bytes) = place(copy);
                        let (data, durable) = (&bytes[..], false);
                        let write = DriveCommand::Write { drive, offset_bytes, data, durable };
                        check.was_written(copy, drives.run(&mut [write]).remove(0).is_ok());
                    }
                }
            }
            for (copy, at) in copies.iter().enumerate() {
                match check.verdict(copy) {
                    Verdict::Fine => {}
                    Verdict::Mended => self.found.mended += 1,
                    Verdict::Damaged => {
                        self.found.incomplete.insert(at.drive);
                        let what = format!("chunk {number} on drive {}", at.drive);
                        self.found.damaged.push(what);
                    }
                }
            }
        }
        Ok(())
    }
}
