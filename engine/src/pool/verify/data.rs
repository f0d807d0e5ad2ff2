// SPDX-License-Identifier: Apache-2.0
//! The pass over the data: many chunks at once, each on its way through reads and writes.
//!
//! - Each chunk in flight has a place in one buffer, so memory is bounded by that buffer.
//! - A chunk in flight holds its checkpoint. When the pool is dropped in the middle, the session
//!   ends first and waits for the drives; only then do the holds end.
//! - Before each read and each write it is asked whether the checkpoint is still there. What was
//!   removed is left alone. A poisoned pool is not written to.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use uuid::Uuid;

use crate::device::condition::Condition;
use crate::error::{Damage, Error, IoError};
use crate::format::{DriveState, Label, SegmentTable, Shard};
use crate::name::CheckpointName;
use crate::pool::explain::{chunk_damage, is_damage};
use crate::pool::handle::Pool;
use crate::pool::hold::Hold;
use crate::pool::verify::chunk::{Begin, ChunkCheck, Presence, Step, Verdict};
use crate::pool::verify::report::Tally;
use crate::pool::verify::scope::Scope;
use crate::reactor::segment::Segment;
use crate::ring::{CompleteEntry, SubmitEntry, Transfer, codes};
use crate::session::{Session, SessionBuffer, SessionOptions};
use crate::units::{Copies, DriveIndex, Location};

/// Memory for chunks in flight: for each drive, and altogether. A drive is busy with a few MiB.
const BYTES_PER_DRIVE: u64 = 8 << 20;
const MIN_BYTES: u64 = 16 << 20;
const MAX_BYTES: u64 = 128 << 20;
/// With fewer, reading and writing would take turns.
const MIN_PLACES: u64 = 4;
/// Small chunks need no more of them. Each may need two handles of the session.
const MAX_PLACES: u64 = 256;
/// Chunks of a table that a handle covers: a table may be large, and what a handle takes is not
/// part of the buffer.
const CHUNKS_OF_A_PART: u64 = 4096;
/// The longest time without a progress report while drives work.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Names in messages about a segment.
struct Owner {
    name: CheckpointName,
    shards: Vec<Shard>,
}

/// A part of a segment, and the session's handles for its copies.
struct Part {
    hold: Rc<Hold>,
    owner: Rc<Owner>,
    table: Rc<SegmentTable>,
    first_chunk: u64,
    handles: [Option<u64>; 2],
}

/// A chunk in flight.
struct Job {
    part: Rc<Part>,
    chunk: u64,
    check: ChunkCheck,
    step: Step,
    /// What was wrong with each copy.
    damages: [Option<Box<Damage>>; 2],
    /// A copy could not be read, although it may be there.
    unread: bool,
}

impl Job {
    fn len_bytes(&self) -> u64 {
        let table = &self.part.table;
        table.chunk_bytes.min(table.len_bytes - self.chunk * table.chunk_bytes)
    }

    fn location(&self, copy: usize) -> Location {
        let copies = self.part.table.chunks[self.chunk as usize].copies;
        copies.iter().nth(copy).unwrap_or(copies.first)
    }
}

/// The pass. The session comes first: it is dropped before the jobs, whose memory it uses.
pub(super) struct DataPass<'a> {
    session: Session,
    buffer: SessionBuffer,
    pool: &'a Pool,
    label: Label,
    scope: Scope,
    repair: bool,
    /// By place in the buffer.
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Parts whose handles are not taken back yet.
    parts: Vec<Rc<Part>>,
    /// By drive.
    presence: Vec<Presence>,
    /// Something was written that no flush covers.
    unflushed: bool,
    /// Checkpoints that were gone, or were being removed, when their turn came.
    abandoned: BTreeSet<Uuid>,
}

impl<'a> DataPass<'a> {
    pub(super) fn new(
        pool: &'a Pool,
        label: Label,
        scope: Scope,
        repair: bool,
    ) -> Result<DataPass<'a>, Error> {
        let chunk_bytes = label.layout.chunk_bytes();
        let drives = label.live().count() as u64;
        let wanted = (drives * BYTES_PER_DRIVE).clamp(MIN_BYTES, MAX_BYTES);
        let mut places = (wanted / chunk_bytes).clamp(MIN_PLACES, MAX_PLACES);
        let (session, buffer) = loop {
            match make_session(pool, places, chunk_bytes) {
                // Fewer pages are free than wanted.
                Err(Error::Environment(_)) if places > MIN_PLACES => places /= 2,
                made => break made?,
            }
        };
        let count = places as usize;
        Ok(DataPass {
            session,
            buffer,
            pool,
            jobs: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            parts: Vec::new(),
            presence: vec![Presence::default(); label.drives.len()],
            label,
            scope,
            repair,
            unflushed: false,
            abandoned: BTreeSet::new(),
        })
    }

    /// Checks the chunks of a segment; returns when the last of them is on its way.
    pub(super) fn check(
        &mut self,
        hold: &Rc<Hold>,
        (table, shards): (SegmentTable, Vec<Shard>),
        tally: &mut Tally<'_>,
    ) -> Result<(), Error> {
        let owner = Rc::new(Owner { name: hold.committed().name(), shards });
        let table = Rc::new(table);
        if self.scope == Scope::Everything
            && let Some(lost) = self.lost_chunks(&owner.name, &table)
        {
            tally.damaged(lost);
        }
        let count = table.chunks.len() as u64;
        let mut start = 0;
        while start < count {
            let end = count.min(start + CHUNKS_OF_A_PART);
            self.check_part(hold, &owner, &table, start..end, tally)?;
            start = end;
        }
        Ok(())
    }

    fn check_part(
        &mut self,
        hold: &Rc<Hold>,
        owner: &Rc<Owner>,
        table: &Rc<SegmentTable>,
        chunks: Range<u64>,
        tally: &mut Tally<'_>,
    ) -> Result<(), Error> {
        let is_needed = |chunk: &u64| self.begin_with(table, *chunk).is_some();
        if !chunks.clone().any(|chunk| is_needed(&chunk)) {
            return Ok(());
        }
        self.take_back_handles()?;
        let mut handles = [None; 2];
        for (copy, handle) in handles.iter_mut().enumerate().take(usize::from(table.copies())) {
            *handle = Some(self.session.add_segment(self.segment(table, &chunks, copy))?);
        }
        let part = Rc::new(Part {
            hold: Rc::clone(hold),
            owner: Rc::clone(owner),
            table: Rc::clone(table),
            first_chunk: chunks.start,
            handles,
        });
        self.parts.push(Rc::clone(&part));
        for chunk in chunks {
            let Some(begin) = self.begin_with(table, chunk) else { continue };
            let place = self.wait_for_place(tally)?;
            let begin = self.without_a_look(table, chunk, begin);
            let job = Job {
                part: Rc::clone(&part),
                chunk,
                check: ChunkCheck::new(begin, self.repair),
                step: Step::Done,
                damages: [None, None],
                unread: false,
            };
            self.advance(place, job, tally)?;
        }
        Ok(())
    }

    /// Takes back the handles of parts that have no chunk in flight.
    fn take_back_handles(&mut self) -> Result<(), Error> {
        let (ended, parts) =
            std::mem::take(&mut self.parts).into_iter().partition(|p| Rc::strong_count(p) == 1);
        self.parts = parts;
        let ended: Vec<Rc<Part>> = ended;
        for handle in ended.iter().flat_map(|part| part.handles).flatten() {
            self.session.remove_segment(handle)?;
        }
        Ok(())
    }

    /// One copy of some chunks, as the reactor sees it.
    fn segment(&self, table: &SegmentTable, chunks: &Range<u64>, copy: usize) -> Segment {
        let records = &table.chunks[chunks.start as usize..chunks.end as usize];
        let records = records.iter().map(|record| {
            let nth = record.copies.iter().nth(copy).unwrap_or(record.copies.first);
            (Copies::one(nth), record.crc64)
        });
        let start = chunks.start * table.chunk_bytes;
        let end = table.len_bytes.min(chunks.end * table.chunk_bytes);
        let segment =
            Segment::for_restore(table.participant, end - start, table.chunk_bytes, records);
        if self.repair { segment.for_repair() } else { segment }
    }

    fn is_live(&self, drive: DriveIndex) -> bool {
        self.label.live().any(|live| live == drive)
    }

    fn is_rebuilding(&self, drive: DriveIndex) -> bool {
        self.label.drives[drive.as_usize()].state == DriveState::Rebuilding
    }

    /// How the check of a chunk begins; `None` when no copy of it is wanted.
    fn begin_with(&self, table: &SegmentTable, chunk: u64) -> Option<[Begin; 2]> {
        let mut begin = [Begin::Absent; 2];
        for (location, begin) in table.chunks[chunk as usize].copies.iter().zip(&mut begin) {
            let wanted = self.scope == Scope::Everything || self.is_rebuilding(location.drive);
            *begin = match (self.is_live(location.drive), wanted) {
                (false, _) => Begin::Absent,
                (true, true) => Begin::Check,
                (true, false) => Begin::Spare,
            };
        }
        begin.contains(&Begin::Check).then_some(begin)
    }

    /// A copy that a new drive cannot have is not looked at.
    fn without_a_look(
        &mut self,
        table: &SegmentTable,
        chunk: u64,
        mut begin: [Begin; 2],
    ) -> [Begin; 2] {
        let copies = table.chunks[chunk as usize].copies;
        for (copy, location) in copies.iter().enumerate().filter(|_| self.repair) {
            let other = copies.iter().nth(1 - copy).filter(|_| begin[1 - copy] != Begin::Absent);
            let has_source = other.is_some_and(|other| !self.is_rebuilding(other.drive));
            let can_be_missing = begin[copy] == Begin::Check && self.is_rebuilding(location.drive);
            if can_be_missing && has_source && self.presence[location.drive.as_usize()].is_missing()
            {
                begin[copy] = Begin::Missing;
            }
        }
        begin
    }

    /// Chunks on drives that do not take part.
    fn lost_chunks(&self, name: &CheckpointName, table: &SegmentTable) -> Option<Damage> {
        let is_lost = |copies: &Copies| !copies.iter().any(|place| self.is_live(place.drive));
        let mut lost = table.chunks.iter().map(|chunk| chunk.copies).filter(is_lost);
        let first = lost.next()?;
        let participant = table.participant;
        Some(Damage {
            what: "data",
            serial: self.label.drives[first.first.drive.as_usize()].serial.clone(),
            offset_bytes: None,
            checkpoint: Some(name.to_string()),
            shard: None,
            generation: None,
            detail: format!(
                "{} chunks of participant {participant}'s segment lie on drives that are missing",
                1 + lost.count()
            ),
        })
    }

    fn wait_for_place(&mut self, tally: &mut Tally<'_>) -> Result<usize, Error> {
        loop {
            if let Some(place) = self.free.pop() {
                return Ok(place);
            }
            self.take_completions(tally)?;
        }
    }

    /// Waits until nothing is in flight.
    pub(super) fn wait_for_all(&mut self, tally: &mut Tally<'_>) -> Result<(), Error> {
        while self.free.len() < self.jobs.len() {
            self.take_completions(tally)?;
        }
        self.take_back_handles()
    }

    /// A checkpoint is gone, or is being removed.
    pub(super) fn abandon(&mut self, hold: &Hold) {
        self.abandoned.insert(hold.committed().entry.id);
    }

    /// Checkpoints that were not checked to their end, since the last call.
    pub(super) fn take_abandoned(&mut self) -> BTreeSet<Uuid> {
        std::mem::take(&mut self.abandoned)
    }

    /// Whether something was written that no flush covers.
    pub(super) fn has_unflushed(&self) -> bool {
        self.unflushed
    }

    fn take_completions(&mut self, tally: &mut Tally<'_>) -> Result<(), Error> {
        let mut out = [CompleteEntry::default(); 32];
        let count = self.session.wait(&mut out, 1, REPORT_EVERY);
        if count == 0 && !self.session.is_served() {
            return Err(Error::Closed("the pool"));
        }
        for completion in &out[..count] {
            self.take_completion(completion, tally)?;
        }
        tally.tick();
        Ok(())
    }

    /// A read or a write of a chunk has ended: the chunk's next step follows.
    fn take_completion(
        &mut self,
        completion: &CompleteEntry,
        tally: &mut Tally<'_>,
    ) -> Result<(), Error> {
        let place = completion.user_data as usize;
        let Some(mut job) = self.jobs.get_mut(place).and_then(Option::take) else {
            return Err(Error::Closed("the pool"));
        };
        let succeeded = completion.result >= 0;
        let (Step::Read(copy) | Step::Write(copy)) = job.step else {
            return Err(Error::Closed("the pool"));
        };
        if !succeeded {
            self.check_drive(&job, copy, completion)?;
            let Part { owner, table, .. } = &*job.part;
            let names = (&owner.name, owner.shards.as_slice());
            let chunk = job.chunk as usize;
            let damage = chunk_damage(self.pool, names, table, chunk, copy, completion);
            job.damages[copy] = Some(Box::new(damage));
            job.unread |= !is_damage(completion);
        }
        if let Step::Read(_) = job.step {
            job.check.was_read(copy, succeeded);
            if succeeded {
                tally.compared(job.len_bytes());
            }
            let drive = job.location(copy).drive;
            if self.is_rebuilding(drive) {
                self.presence[drive.as_usize()].saw(succeeded);
            }
        } else {
            job.check.was_written(copy, succeeded);
            self.unflushed |= succeeded;
        }
        self.advance(place, job, tally)
    }

    /// A failure of one place is damage of one copy. A drive that is gone is not: nothing can be
    /// said about its copies, and the verification ends.
    fn check_drive(&self, job: &Job, copy: usize, completion: &CompleteEntry) -> Result<(), Error> {
        let location = job.location(copy);
        let source = match self.pool.open.context.queues.conditions.of(location.drive) {
            Condition::Stopped(source) => source,
            _ if completion.result == codes::REMOVED => IoError::Removed,
            _ => return Ok(()),
        };
        let info = &self.pool.open.context.info[location.drive.as_usize()];
        Err(Error::Io {
            serial: self.label.drives[location.drive.as_usize()].serial.clone(),
            address: info.address.clone(),
            what: if matches!(job.step, Step::Write(_)) { "write" } else { "read" },
            offset_bytes: self.label.layout.slot_offset(location.slot),
            source,
        })
    }

    /// Begins the next step of a chunk in its place, or ends it.
    fn advance(&mut self, place: usize, mut job: Job, tally: &mut Tally<'_>) -> Result<(), Error> {
        let next = job.check.next();
        if next != Step::Done && !job.part.hold.is_current() {
            let hold = Rc::clone(&job.part.hold);
            self.abandon(&hold);
            self.free.push(place);
            return Ok(());
        }
        if let Step::Write(_) = next {
            self.pool.open.context.state().check_poison()?;
        }
        let entry = match next {
            Step::Done => {
                self.free.push(place);
                self.end(job, tally);
                return Ok(());
            }
            Step::Read(copy) => SubmitEntry::read(self.transfer(&job, copy, place), place as u64),
            Step::Write(copy) => SubmitEntry::write(self.transfer(&job, copy, place), place as u64),
        };
        job.step = next;
        self.jobs[place] = Some(job);
        // The ring has room for an entry of each place.
        match self.session.submit(&[entry]) {
            0 => Err(Error::Closed("the pool")),
            _ => Ok(()),
        }
    }

    fn transfer(&self, job: &Job, copy: usize, place: usize) -> Transfer {
        let chunk_bytes = job.part.table.chunk_bytes;
        Transfer {
            // Without a handle there is no such copy, and no step names it.
            checkpoint: job.part.handles[copy].unwrap_or_default(),
            buffer: self.buffer.key(),
            buffer_offset_bytes: place as u64 * chunk_bytes,
            len_bytes: job.len_bytes(),
            segment_offset_bytes: (job.chunk - job.part.first_chunk) * chunk_bytes,
        }
    }

    /// Nothing is left to do for a chunk: what became of its copies goes into the report.
    fn end(&self, mut job: Job, tally: &mut Tally<'_>) {
        tally.done(job.len_bytes() * job.check.wanted());
        for copy in 0..2 {
            let damage = job.damages[copy].take();
            let drive = job.location(copy).drive;
            match job.check.verdict(copy) {
                Verdict::Fine => {}
                Verdict::Mended => tally.rewritten(drive, job.len_bytes(), damage.map(|d| *d)),
                Verdict::Damaged => {
                    if let Some(damage) = damage {
                        tally.damaged(*damage);
                    }
                    // If another drive may have it, this one does not yet have all of its own. What
                    // no drive has is lost, and keeps no drive from being a member.
                    let is_stuck = job.check.could_be_mended(copy) || job.unread;
                    if is_stuck {
                        tally.incomplete(drive);
                    }
                }
            }
        }
    }
}

/// A session for so many chunks at once, and the buffer of all of them.
fn make_session(
    pool: &Pool,
    places: u64,
    chunk_bytes: u64,
) -> Result<(Session, SessionBuffer), Error> {
    let memory_bytes = places * chunk_bytes;
    let ring_entries = (places as u32).next_power_of_two();
    let mut session = pool.session(&SessionOptions { memory_bytes, ring_entries })?;
    let buffer = session.alloc(memory_bytes)?;
    Ok((session, buffer))
}
