//! Verification: every copy of the metadata on every drive, and every chunk of data.

use std::collections::VecDeque;
use std::time::Duration;

use crate::drives::Drives;
use crate::error::{Damage, Error, IoError};
use crate::format::{CatalogueEntry, FormatError, Label, MetaExtent, Root, SegmentTable};
use crate::metadata::{self, Found, Subject};
use crate::name::CheckpointName;
use crate::pool::{Notice, Pool, PoolMode, find, open, read_segment_table};
use crate::recover;
use crate::ring::{CompleteEntry, SubmitEntry, Transfer, codes};
use crate::session::{OpenedSegment, Session, SessionBuffer, SessionOptions};

/// Chunks that verification reads at once.
const CHUNKS_IN_FLIGHT: u64 = 32;

/// Called now and then with the bytes of data checked so far and the bytes to check in all.
pub type VerifyProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// What a verification found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Checkpoints looked at.
    pub checkpoints: usize,
    /// Bytes of data whose checksum was compared.
    pub data_bytes: u64,
    /// Copies of metadata objects looked at.
    pub metadata_copies: u64,
    /// What is damaged and was not repaired.
    pub damages: Vec<Damage>,
    /// What was damaged and is repaired.
    pub repaired: Vec<Damage>,
}

impl VerifyReport {
    /// Whether nothing is damaged (any more).
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty()
    }

    fn take_notices(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Repaired(damage) => self.repaired.push(damage),
                Notice::DamagedCopy(damage) => self.damages.push(damage),
                Notice::FellBack { .. } | Notice::RolledForward(_) => {}
            }
        }
    }
}

impl Pool {
    /// Verifies one checkpoint, or all: every copy of its metadata and every byte of its data. Bad
    /// copies of metadata are rewritten from sound ones when `repair` and the pool is open for
    /// writing; data has no copy.
    ///
    /// # Errors
    /// When verification itself cannot go on. Damage is no error: the report names it.
    pub fn verify(
        &self,
        name: Option<&CheckpointName>,
        repair: bool,
        progress: VerifyProgress<'_>,
    ) -> Result<VerifyReport, Error> {
        let entries: Vec<CatalogueEntry> = match name {
            Some(name) => vec![find(&self.shared, name)?.entry.clone()],
            None => self.shared.state().checkpoints().map(|c| c.entry.clone()).collect(),
        };
        let repair = repair && self.shared.mode == PoolMode::ReadWrite;
        let (label, root) = {
            let state = self.shared.state();
            (state.label().clone(), state.root().clone())
        };
        let chunk_bytes = label.layout.chunk_bytes();
        let names: Vec<_> =
            entries.iter().map(|e| CheckpointName { name: e.name.clone(), step: e.step }).collect();
        let total_bytes = entries.iter().map(|entry| entry.bytes).sum();
        let work = Metadata { label, root, entries, repair };
        let mut report = self.shared.on_keeper(move |keeper| work.check(keeper.drives()))??;
        let options =
            SessionOptions { memory_bytes: chunk_bytes * CHUNKS_IN_FLIGHT, ring_entries: 64 };
        let mut session = self.session(&options)?;
        let buffer = session.alloc(chunk_bytes * CHUNKS_IN_FLIGHT)?;
        for name in names {
            report.checkpoints += 1;
            let participants = self.find(&name)?.participants;
            for participant in 0..participants {
                let opened = match session.open(&name, participant) {
                    Ok(opened) => opened,
                    // The metadata pass has named it already.
                    Err(Error::Damaged(_)) => continue,
                    Err(error) => return Err(error),
                };
                let handle = opened.handle;
                let mut advance = |bytes| progress(bytes, total_bytes);
                check_data(self, &mut session, &buffer, &name, &opened, &mut report, &mut advance)?;
                session.close(handle)?;
            }
        }
        Ok(report)
    }

    /// The error behind a failed read or write of a segment: what is hurt, on which drive.
    pub fn explain(
        &self,
        name: &CheckpointName,
        participant: u32,
        completion: &CompleteEntry,
    ) -> Error {
        let committed = match find(&self.shared, name) {
            Ok(committed) => committed,
            Err(error) => return error,
        };
        match read_segment_table(&self.shared, &committed, participant) {
            Ok(table) => explain(self, name, &table, completion),
            Err(error) => error,
        }
    }
}

/// The pass over the metadata; runs on the keeper's thread.
struct Metadata {
    label: Label,
    root: Root,
    entries: Vec<CatalogueEntry>,
    repair: bool,
}

impl Metadata {
    fn check(&self, drives: &mut dyn Drives) -> Result<VerifyReport, Error> {
        let mut report = VerifyReport::default();
        self.check_labels(drives, &mut report)?;
        let roots = recover::read_roots(drives, &self.label)?;
        report.metadata_copies += 2 * self.label.drives.len() as u64;
        report.take_notices(recover::repair_roots(drives, &self.label, &roots, self.repair));
        let decode = recover::decode_catalogue(&self.label, &self.root);
        let subject = recover::catalogue_subject();
        self.check_object(drives, &self.root.catalogue, &subject, &decode, &mut report);
        for entry in &self.entries {
            let decode = metadata::decode_manifest(&self.label, entry);
            let subject = metadata::manifest_subject(entry);
            let manifest =
                self.check_object(drives, &entry.manifest, &subject, &decode, &mut report);
            let Some(manifest) = manifest else { continue };
            let subject = metadata::table_subject(entry);
            for (participant, segment) in manifest.segments.iter().enumerate() {
                let decode =
                    metadata::decode_table(&self.label, entry, &manifest, participant as u32);
                self.check_object(drives, &segment.table, &subject, &decode, &mut report);
            }
        }
        Ok(report)
    }

    fn check_labels(
        &self,
        drives: &mut dyn Drives,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let count = self.label.drives.len();
        let labels =
            (0..count).map(|i| recover::read_labels(drives, i)).collect::<Result<Vec<_>, _>>()?;
        report.metadata_copies += 4 * count as u64;
        report.take_notices(open::repair_labels(drives, &labels, self.repair)?);
        Ok(())
    }

    /// Looks at the copy of every drive.
    fn check_object<T>(
        &self,
        drives: &mut dyn Drives,
        extent: &MetaExtent,
        subject: &Subject,
        decode: &dyn Fn(&[u8]) -> Result<T, FormatError>,
        report: &mut VerifyReport,
    ) -> Option<T> {
        let Found { object, bad } =
            metadata::check_copies(drives, &self.label, extent, subject, decode);
        report.metadata_copies += self.label.drives.len() as u64;
        let (object, bytes) = object.unzip();
        match bytes.filter(|_| self.repair) {
            Some(sound) => {
                report.take_notices(open::repair_metadata(drives, &bad, Some(&sound)));
            }
            None => report.damages.extend(bad.into_iter().map(|copy| copy.damage)),
        }
        object
    }
}

/// Reads a segment chunk by chunk, so that each damaged chunk is named.
fn check_data(
    pool: &Pool,
    session: &mut Session,
    buffer: &SessionBuffer,
    name: &CheckpointName,
    opened: &OpenedSegment,
    report: &mut VerifyReport,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let chunks = opened.length_bytes.div_ceil(opened.chunk_bytes);
    let mut places: VecDeque<u64> = (0..CHUNKS_IN_FLIGHT).collect();
    let (mut next, mut done) = (0, 0);
    let mut completions = [CompleteEntry::default(); CHUNKS_IN_FLIGHT as usize];
    while done < chunks {
        while next < chunks
            && let Some(place) = places.pop_front()
        {
            let segment_offset_bytes = next * opened.chunk_bytes;
            let transfer = Transfer {
                checkpoint: opened.handle,
                buffer: buffer.key(),
                buffer_offset_bytes: place * opened.chunk_bytes,
                len_bytes: opened.chunk_bytes.min(opened.length_bytes - segment_offset_bytes),
                segment_offset_bytes,
            };
            // The place comes back with the completion.
            if session.submit(&[SubmitEntry::read(transfer, place)]) == 0 {
                places.push_front(place);
                break;
            }
            next += 1;
        }
        let count = session.wait(&mut completions, 1, Duration::from_secs(3600));
        for completion in &completions[..count] {
            done += 1;
            places.push_back(completion.user_data);
            if completion.result >= 0 {
                report.data_bytes += completion.result as u64;
                continue;
            }
            match pool.explain(name, opened.participant, completion) {
                Error::Damaged(damage) => report.damages.push(*damage),
                error => return Err(error),
            }
        }
        progress(report.data_bytes);
    }
    Ok(())
}

/// Turns a failed completion into an error that names the drive, the shard and the place.
fn explain(
    pool: &Pool,
    name: &CheckpointName,
    table: &SegmentTable,
    completion: &CompleteEntry,
) -> Error {
    let chunk = completion.aux / table.chunk_bytes;
    let Some(record) = table.chunks.get(chunk as usize) else {
        let what = codes::describe(completion.result);
        return Error::Usage(format!("{name}: participant {}: {what}", table.participant));
    };
    let state = pool.shared.state();
    let label = state.label();
    let drive = record.location.drive.as_usize();
    let serial = label.drives[drive].serial.clone();
    let offset_bytes = label.layout.slot_offset(record.location.slot);
    let start = chunk * table.chunk_bytes;
    let end = (start + table.chunk_bytes).min(table.length_bytes);
    let unreadable = completion.detail >> 8 == 2;
    if completion.result == codes::CHECKSUM || completion.result == codes::SHORT || unreadable {
        let shards: Vec<&str> = table
            .shards
            .iter()
            .filter(|s| s.offset_bytes < end && s.offset_bytes + s.length_bytes > start)
            .map(|shard| shard.name.as_str())
            .take(4)
            .collect();
        let shard = if shards.is_empty() { None } else { Some(shards.join(", ")) };
        let participant = table.participant;
        return Damage {
            what: "data",
            serial,
            offset_bytes: Some(offset_bytes),
            checkpoint: Some(name.to_string()),
            shard,
            generation: None,
            detail: format!(
                "bytes {start} to {end} of participant {participant}'s segment: {}",
                codes::describe_with_status(completion.result, completion.detail)
            ),
        }
        .into();
    }
    let source = match completion.result {
        codes::REMOVED => IoError::Removed,
        codes::IO if completion.detail != 0 => IoError::Nvme {
            sct: (completion.detail >> 8) as u8,
            sc: completion.detail as u8,
            dnr: false,
        },
        code => IoError::Os(i32::try_from(-code).unwrap_or(libc::EIO)),
    };
    let address = pool.shared.facts[drive].address.clone();
    Error::Io { serial, address, what: "read", offset_bytes, source }
}
