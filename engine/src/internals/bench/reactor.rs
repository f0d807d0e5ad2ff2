// SPDX-License-Identifier: Apache-2.0
//! One reactor with one drive and one session, run by its client's thread.

use std::sync::Arc;

use crossbeam::channel::Sender;
use crossbeam::sync::Parker;

use crate::checksum::ChecksumHelpers;
use crate::device::condition::Conditions;
use crate::device::retrying::Retrying;
use crate::device::sim::{SimConfig, SimDrive};
use crate::error::Error;
use crate::format::Layout;
use crate::format::layout::MIN_DRIVE_BYTES;
use crate::limits::MIN_CHUNK_BYTES;
use crate::memory::{Arena, Buffer, HugePages, Region};
use crate::reactor::Reactor;
use crate::reactor::control::Control;
use crate::reactor::drive_queue::DriveQueue;
use crate::reactor::queues::{CREDITS, Queues, Route};
use crate::reactor::segment::Segment;
use crate::ring::{self, CompleteEntry, RingSizes, SubmitEntry, Transfer};
use crate::units::{Copies, DriveIndex, Location};

/// Bytes of a chunk: the smallest, so that a run measures the reactor and not the drive's copying
/// and the checksum.
pub const CHUNK_BYTES: u64 = MIN_CHUNK_BYTES;
/// Entries of the submit ring.
const RING_ENTRIES: u32 = 64;
/// Chunks of the session's buffer.
const BUFFER_CHUNKS: u64 = 64;
/// Chunks of a segment to save. Each is written once; a new segment follows.
const SAVE_CHUNKS: u64 = 4096;

/// A reactor, its drive, and the session that it serves. The work of the checksum helpers is done
/// between the reactor's turns. The keeper is never called.
pub struct ReactorHarness {
    reactor: Reactor,
    queues: Arc<Queues>,
    client: ring::Client,
    port: u32,
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "held so that its memory stays the session's")
    )]
    buffer: Buffer,
    key: u32,
    save: u64,
    /// Chunks of it that are written.
    saved: u64,
    restore: u64,
    entries: Vec<SubmitEntry>,
    completions: Vec<CompleteEntry>,
    /// The drive, seen from outside.
    #[cfg(test)]
    sim: SimDrive,
}

impl ReactorHarness {
    /// Allocates a drive of 32 MiB in memory and 2 MiB of buffers, in ordinary pages.
    ///
    /// # Errors
    /// When the memory cannot be allocated.
    pub fn new() -> Result<ReactorHarness, Error> {
        let sim = SimDrive::new(SimConfig {
            capacity_bytes: MIN_DRIVE_BYTES,
            volatile_cache: false,
            dense: true,
            ..SimConfig::default()
        })?;
        let layout = Layout::plan(&[MIN_DRIVE_BYTES], CHUNK_BYTES)?;
        assert!(layout.data_slots(MIN_DRIVE_BYTES) >= SAVE_CHUNKS, "each chunk has its own place");
        let conditions = Arc::new(Conditions::new(1));
        let device = Retrying::over(Box::new(sim.open()?));
        let depth = device.info().queue_depth;
        let waiting = Queues::inbox_capacity(1);
        let drive = DriveQueue::new(device, depth, waiting, DriveIndex(0), Arc::clone(&conditions));

        let parkers = [Parker::new()];
        // Only their queue: there are no helpers.
        let checksums = ChecksumHelpers::start(0, CREDITS)?.queue();
        let routes = vec![Route { reactor: 0, local: 0 }];
        let queues = Queues::new(
            &parkers,
            &Parker::new(),
            checksums,
            routes,
            vec![depth],
            layout,
            conditions,
        );
        let queues = Arc::new(queues);
        let [parker] = parkers;
        let mut reactor = Reactor::new(0, Arc::clone(&queues), parker, vec![drive]);

        let (client, engine) = ring::pair(RingSizes::new(RING_ENTRIES)?)?;
        let waker = Parker::new().unparker().clone();
        let port = ask(&queues, &mut reactor, |answer| Control::OpenPort {
            ring: engine,
            client: waker,
            answer,
        });
        let port = port.expect("the reactor has no port yet");
        let region = Arc::new(Region::new(BUFFER_CHUNKS * CHUNK_BYTES, HugePages::Off)?);
        ask(&queues, &mut reactor, |answer| Control::Register {
            region: Arc::clone(&region),
            answer,
        })?;
        let mut buffer = Arena::new(region).alloc(BUFFER_CHUNKS * CHUNK_BYTES)?;
        let bytes = buffer.as_mut_slice()?.iter_mut().enumerate();
        bytes.for_each(|(at, byte)| *byte = (at / 7) as u8);
        let registration = buffer.registration();
        let key =
            ask(&queues, &mut reactor, |answer| Control::AddBuffer { port, registration, answer });
        let key = key.expect("the port has no buffer yet");

        let mut harness = ReactorHarness {
            reactor,
            queues,
            client,
            port,
            buffer,
            key,
            save: 0,
            saved: 0,
            restore: 0,
            entries: Vec::with_capacity(RING_ENTRIES as usize),
            completions: vec![CompleteEntry::default(); RING_ENTRIES as usize],
            #[cfg(test)]
            sim,
        };
        let segment = harness.add_save();
        harness.write(BUFFER_CHUNKS);
        let written = (0..BUFFER_CHUNKS).map(|chunk| (segment.copies(chunk), segment.crc64(chunk)));
        let restore = Segment::for_restore(0, BUFFER_CHUNKS * CHUNK_BYTES, CHUNK_BYTES, written);
        harness.restore = harness.add_segment(Arc::new(restore));
        Ok(harness)
    }

    /// Puts `count` no-op entries on the ring, at most 64, and takes their completions.
    pub fn nops(&mut self, count: u32) {
        self.entries.clear();
        self.entries.extend((0..count).map(|number| SubmitEntry::nop(number.into())));
        self.run(0);
    }

    /// Writes `chunks` chunks with one entry, at most 64, to places of their segment that were not
    /// written before.
    pub fn write(&mut self, chunks: u64) {
        if self.saved + chunks > SAVE_CHUNKS {
            let (port, handle) = (self.port, self.save);
            self.ask(|answer| Control::RemoveSegment { port, handle, answer });
            self.add_save();
        }
        let transfer = self.transfer(self.save, self.saved, chunks);
        self.saved += chunks;
        self.entries.clear();
        self.entries.push(SubmitEntry::write(transfer, 0));
        self.run(chunks * CHUNK_BYTES);
    }

    /// Reads `chunks` chunks with one entry, at most 64, and compares their checksums.
    pub fn read(&mut self, chunks: u64) {
        let transfer = self.transfer(self.restore, 0, chunks);
        self.entries.clear();
        self.entries.push(SubmitEntry::read(transfer, 0));
        self.run(chunks * CHUNK_BYTES);
    }

    /// From the start of the buffer, to or from chunks of a segment.
    fn transfer(&self, handle: u64, first_chunk: u64, chunks: u64) -> Transfer {
        Transfer {
            checkpoint: handle,
            buffer: self.key,
            buffer_offset_bytes: 0,
            len_bytes: chunks * CHUNK_BYTES,
            segment_offset_bytes: first_chunk * CHUNK_BYTES,
        }
    }

    /// Submits the entries and turns the reactor until each has completed with `result`.
    fn run(&mut self, result: u64) {
        let count = self.entries.len();
        // The reactor does not sleep between turns: no wake-up is needed.
        let accepted = self.client.submit(&self.entries).accepted;
        assert_eq!(accepted, count, "more entries than the ring holds");
        let mut taken = 0;
        while taken < count {
            let turned = self.reactor.tick();
            let answered = self.queues.checksums.answer_waiting();
            assert!(turned || answered, "entries that do not complete");
            taken += self.client.peek(&mut self.completions[taken..count]);
        }
        for completion in &self.completions[..count] {
            assert_eq!(u64::try_from(completion.result), Ok(result), "{completion:?}");
        }
    }

    /// Continues with a segment of which nothing is written.
    fn add_save(&mut self) -> Arc<Segment> {
        let place = |slot| Copies::one(Location { drive: DriveIndex(0), slot });
        let copies: Vec<Copies> = (0..SAVE_CHUNKS).map(place).collect();
        let len_bytes = SAVE_CHUNKS * CHUNK_BYTES;
        let segment = Arc::new(Segment::for_save(1, 0, len_bytes, CHUNK_BYTES, &copies));
        self.save = self.add_segment(Arc::clone(&segment));
        self.saved = 0;
        segment
    }

    fn add_segment(&mut self, segment: Arc<Segment>) -> u64 {
        let port = self.port;
        let handle = self.ask(|answer| Control::AddSegment { port, segment, answer });
        handle.expect("the port has two segments")
    }

    fn ask<T>(&mut self, message: impl FnOnce(Sender<T>) -> Control) -> T {
        ask(&self.queues, &mut self.reactor, message)
    }
}

/// Sends the reactor a message and lets it answer, on this thread.
fn ask<T>(queues: &Queues, reactor: &mut Reactor, message: impl FnOnce(Sender<T>) -> Control) -> T {
    let (answer, result) = crossbeam::channel::bounded(1);
    let sent = queues.reactors[0].mailbox.send(message(answer));
    sent.expect("the reactor has not ended");
    reactor.tick();
    result.try_recv().expect("a message is answered in the next turn")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_on_the_drive_and_is_read_again() {
        let mut harness = ReactorHarness::new().unwrap();
        harness.nops(RING_ENTRIES);
        let from_setup = BUFFER_CHUNKS;
        harness.write(16);
        let bytes = harness.buffer.as_slice().unwrap()[..16 * CHUNK_BYTES as usize].to_vec();
        let offset = harness.queues.layout.slot_offset(from_setup);
        assert_eq!(harness.sim.peek(offset, 16 * CHUNK_BYTES).unwrap(), bytes);
        harness.buffer.as_mut_slice().unwrap().fill(0);
        harness.read(16);
        assert_eq!(harness.buffer.as_slice().unwrap()[..bytes.len()], bytes);
    }

    #[test]
    fn a_segment_that_is_full_is_followed_by_another() {
        let mut harness = ReactorHarness::new().unwrap();
        let first = harness.save;
        (0..SAVE_CHUNKS / 16).for_each(|_| harness.write(16));
        assert_ne!(harness.save, first);
    }

    #[test]
    #[should_panic(expected = "result: -14")]
    fn memory_that_no_drive_has_registered_fails_its_entry() {
        let mut harness = ReactorHarness::new().unwrap();
        let region = Arc::clone(harness.buffer.region());
        harness.ask(|answer| Control::Unregister { region, answer });
        harness.read(16);
    }

    #[test]
    #[should_panic(expected = "result: -")]
    fn a_chunk_that_is_not_what_was_written_fails_its_read() {
        let mut harness = ReactorHarness::new().unwrap();
        harness.sim.flip_bit(harness.queues.layout.slot_offset(3), 0);
        harness.read(16);
    }
}
