// SPDX-License-Identifier: Apache-2.0
//! A device with memory for its commands, and random commands compared with a model: for every back
//! end.
//!
//! Included by path, also from the engine's own tests: `super::engine` is the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::device::sim::SimRng;
use super::engine::device::{Command, Completion, Device, DmaSlice, Operation, SubmitError};
use super::engine::error::IoError;
use super::engine::memory::{HugePages, Region};

/// No command of a test takes longer.
pub const PATIENCE: Duration = Duration::from_secs(30);
const BLOCK_BYTES: u64 = 4096;

/// A device with one registered region, cut into as many pieces as its queue is deep.
pub struct Rig {
    pub device: Box<dyn Device>,
    pub region: Arc<Region>,
    pub piece_bytes: u64,
}

/// The command of a piece in the model test.
#[derive(Clone, Copy)]
struct Running {
    operation: Operation,
    start: u64,
    length: u64,
}

impl Rig {
    /// Memory of `piece_bytes` for each command in flight.
    pub fn over(mut device: Box<dyn Device>, piece_bytes: u64, pages: HugePages) -> Rig {
        let length = u64::from(device.info().queue_depth) * piece_bytes;
        let region = Arc::new(Region::new(length, pages).unwrap());
        device.register(&region).unwrap();
        device.register(&region).unwrap(); // harmless
        Rig { device, region, piece_bytes }
    }

    fn memory(&self, piece: u64, len_bytes: u64) -> DmaSlice {
        let address = self.region.at(piece * self.piece_bytes, len_bytes).unwrap();
        DmaSlice { address, len_bytes: u32::try_from(len_bytes).unwrap() }
    }

    /// The bytes of a piece that no command names.
    pub fn bytes(&mut self, piece: u64, len_bytes: u64) -> &mut [u8] {
        let memory = self.memory(piece, len_bytes);
        // SAFETY: within the region, and the caller has no command in flight for this piece.
        unsafe { std::slice::from_raw_parts_mut(memory.address.as_ptr(), len_bytes as usize) }
    }

    pub fn submit(
        &mut self,
        operation: Operation,
        offset_bytes: u64,
        piece: u64,
        len_bytes: u64,
    ) -> Result<(), SubmitError> {
        let memory = self.memory(piece, len_bytes);
        // SAFETY: the region lives as long as the rig, whose fields are dropped in order; a piece
        // is touched between its commands only.
        unsafe { self.device.submit(Command { operation, offset_bytes, memory, tag: piece }) }
    }

    /// Waits for at least one completion.
    pub fn wait(&mut self) -> Vec<Completion> {
        let end = Instant::now() + PATIENCE;
        let mut completions = [Completion { tag: 0, status: Ok(()) }; 3];
        loop {
            let count = self.device.poll(&mut completions);
            if count > 0 {
                return completions[..count].to_vec();
            }
            assert!(Instant::now() < end, "no completion, {} in flight", self.device.in_flight());
            std::thread::yield_now();
        }
    }

    /// One command from beginning to end.
    pub fn run(
        &mut self,
        operation: Operation,
        offset: u64,
        piece: u64,
        len: u64,
    ) -> Result<(), IoError> {
        match self.submit(operation, offset, piece, len) {
            Ok(()) => {}
            Err(SubmitError::Failed(error)) => return Err(error),
            Err(SubmitError::Full) => panic!("full with {} in flight", self.device.in_flight()),
        }
        let completions = self.wait();
        assert_eq!((completions.len(), completions[0].tag), (1, piece));
        completions[0].status
    }

    /// Takes one completion for each command in flight, by tag.
    pub fn drain(&mut self) -> Vec<Option<Result<(), IoError>>> {
        let mut ends = vec![None; self.device.info().queue_depth as usize];
        while self.device.in_flight() > 0 {
            for completion in self.wait() {
                let end = &mut ends[completion.tag as usize];
                assert!(end.replace(completion.status).is_none(), "a command ended twice");
            }
        }
        ends
    }

    /// `count` random commands, as many at once as the queue is deep, on a drive of zeros. Reads
    /// are compared with a model, which is returned: the final contents of the drive.
    pub fn random_commands(&mut self, seed: u64, count: usize) -> Vec<u8> {
        let mut numbers = SimRng::new(seed);
        let drive_bytes = self.device.info().capacity_bytes;
        let most_blocks = self.piece_bytes / BLOCK_BYTES;
        let mut model = vec![0_u8; drive_bytes as usize];
        let mut running: Vec<Option<Running>> = vec![None; self.device.info().queue_depth as usize];
        let mut compared_bytes = 0;
        for _ in 0..count {
            let operation = match numbers.below(20) {
                0 => Operation::Flush,
                1 => Operation::WriteDurable,
                2..11 => Operation::Write,
                _ => Operation::Read,
            };
            let length = match operation {
                Operation::Flush => 0,
                // Short commands as often as long ones.
                _ => {
                    let scale = 1 << numbers.below(u64::from(most_blocks.ilog2()) + 1);
                    BLOCK_BYTES * (1 + numbers.below(scale))
                }
            };
            let start = BLOCK_BYTES * numbers.below((drive_bytes - length) / BLOCK_BYTES + 1);
            // Commands are unordered, so those that touch the same bytes must not run together.
            while running
                .iter()
                .flatten()
                .any(|other| start < other.start + other.length && other.start < start + length)
                || running.iter().all(Option::is_some)
            {
                compared_bytes += self.settle(&mut running, &model);
            }
            let piece = running.iter().position(Option::is_none).unwrap();
            if matches!(operation, Operation::Write | Operation::WriteDurable) {
                let seed = numbers.next_u64();
                let bytes = self.bytes(piece as u64, length);
                for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
                    word.copy_from_slice(&(seed ^ (at as u64) << 20).to_le_bytes());
                }
                model[start as usize..][..length as usize].copy_from_slice(bytes);
            }
            self.submit(operation, start, piece as u64, length).unwrap();
            running[piece] = Some(Running { operation, start, length });
        }
        while self.device.in_flight() > 0 {
            compared_bytes += self.settle(&mut running, &model);
        }
        assert!(compared_bytes > count as u64 * BLOCK_BYTES, "{compared_bytes}");
        model
    }

    /// Finishes completed commands, and compares read bytes with the model; returns how many.
    fn settle(&mut self, running: &mut [Option<Running>], model: &[u8]) -> u64 {
        let mut compared_bytes = 0;
        for end in self.wait() {
            assert_eq!(end.status, Ok(()));
            let run = running[end.tag as usize].take().expect("one completion per command");
            if run.operation == Operation::Read {
                let expected = &model[run.start as usize..][..run.length as usize];
                assert!(self.bytes(end.tag, run.length) == expected, "read at {}", run.start);
                compared_bytes += run.length;
            }
        }
        compared_bytes
    }

    /// Reads the whole drive and compares it.
    pub fn holds(&mut self, expected: &[u8]) {
        for (number, bytes) in expected.chunks(self.piece_bytes as usize).enumerate() {
            let at = number as u64 * self.piece_bytes;
            assert_eq!(self.run(Operation::Read, at, 0, bytes.len() as u64), Ok(()));
            assert!(self.bytes(0, bytes.len() as u64) == bytes, "the drive differs after {at}");
        }
    }
}
