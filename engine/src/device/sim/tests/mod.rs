// SPDX-License-Identifier: Apache-2.0
//! The drive against its own rules.

#![allow(unsafe_code)]

mod model;

use std::collections::HashSet;
use std::sync::Arc;

use super::*;
use crate::device::{Command, Completion, Device, DmaSlice, Operation, SubmitError};
use crate::error::{Error, IoError};
use crate::limits::BLOCK_BYTES;
use crate::memory::{HugePages, Region};

const B: u64 = BLOCK_BYTES;
const GONE: IoError = IoError::Removed;
const FAULT: IoError = IoError::Nvme { sct: 2, sc: 0x80, dnr: false };

/// A device with memory: block `i` of the region is the memory of command `i`.
struct Rig {
    drive: SimDrive,
    device: SimDevice,
    region: Arc<Region>,
}

impl Rig {
    fn new(config: SimConfig) -> Rig {
        Rig::on(SimDrive::new(config).unwrap())
    }

    fn on(drive: SimDrive) -> Rig {
        let mut device = drive.open().unwrap();
        let region = Arc::new(Region::new(1, HugePages::Off).unwrap());
        device.register(&region).unwrap();
        Rig { drive, device, region }
    }

    fn memory(&self, place: u64, blocks: u64) -> DmaSlice {
        let address = self.region.at(place * B, blocks * B).unwrap();
        DmaSlice { address, len_bytes: (blocks * B) as u32 }
    }

    /// Submits with the tag as the place of its memory.
    fn submit(&mut self, operation: Operation, block: u64, tag: u64) -> Result<(), SubmitError> {
        let memory = match operation {
            Operation::Flush => DmaSlice::EMPTY,
            _ => self.memory(tag, 1),
        };
        // SAFETY: the tests use each place once until its command is over.
        unsafe { self.device.submit(Command { operation, offset_bytes: block * B, memory, tag }) }
    }

    fn fill(&mut self, place: u64, byte: u8) {
        let memory = self.memory(place, 1);
        // SAFETY: within the region, and no command in flight names it.
        unsafe { memory.address.write_bytes(byte, B as usize) };
    }

    fn memory_byte(&self, place: u64) -> u8 {
        // SAFETY: within the region; the command that wrote it is over.
        unsafe { self.memory(place, 1).address.read() }
    }

    fn poll(&mut self) -> Vec<(u64, Result<(), IoError>)> {
        let mut completions = [Completion { tag: 0, status: Ok(()) }; 64];
        let count = self.device.poll(&mut completions);
        completions[..count].iter().map(|c| (c.tag, c.status)).collect()
    }

    /// Submits one command and polls until it is over.
    fn run(&mut self, operation: Operation, block: u64) -> Result<(), IoError> {
        match self.submit(operation, block, 0) {
            Ok(()) => {}
            Err(SubmitError::Failed(error)) => return Err(error),
            Err(SubmitError::Full) => panic!("full"),
        }
        loop {
            if let [(0, status)] = self.poll()[..] {
                return status;
            }
        }
    }

    fn write(&mut self, block: u64, byte: u8) -> Result<(), IoError> {
        self.fill(0, byte);
        self.run(Operation::Write, block)
    }

    fn write_durable(&mut self, block: u64, byte: u8) -> Result<(), IoError> {
        self.fill(0, byte);
        self.run(Operation::WriteDurable, block)
    }

    fn read(&mut self, block: u64) -> Result<u8, IoError> {
        self.run(Operation::Read, block).map(|()| self.memory_byte(0))
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.run(Operation::Flush, 0)
    }
}

fn small() -> SimConfig {
    SimConfig { capacity_bytes: 16 * B, ..SimConfig::default() }
}

fn first_byte(drive: &SimDrive, block: u64) -> u8 {
    drive.peek_durable(block * B, B).unwrap()[0]
}

#[test]
fn a_completed_write_is_read_and_not_durable_until_flushed() {
    let mut rig = Rig::new(small());
    rig.write(3, 7).unwrap();
    assert_eq!(rig.read(3), Ok(7));
    assert_eq!(first_byte(&rig.drive, 3), 0);
    rig.flush().unwrap();
    assert_eq!(first_byte(&rig.drive, 3), 7);
    rig.write_durable(4, 8).unwrap();
    assert_eq!(first_byte(&rig.drive, 4), 8);
    assert_eq!(rig.drive.volatile_writes(), []);
}

#[test]
fn without_a_cache_completion_is_durable() {
    let mut rig = Rig::new(SimConfig { volatile_cache: false, ..small() });
    rig.write(3, 7).unwrap();
    assert_eq!(first_byte(&rig.drive, 3), 7);
}

#[test]
fn a_flush_covers_what_completed_before_its_submission_only() {
    let mut rig = Rig::new(small());
    rig.write(1, 1).unwrap();
    rig.fill(1, 2);
    rig.submit(Operation::Write, 2, 1).unwrap();
    rig.submit(Operation::Flush, 0, 2).unwrap();
    assert_eq!(rig.poll(), [(1, Ok(())), (2, Ok(()))]);
    assert_eq!((first_byte(&rig.drive, 1), first_byte(&rig.drive, 2)), (1, 0));
}

#[test]
fn an_older_cached_write_never_covers_a_newer_durable_one() {
    let mut rig = Rig::new(small());
    rig.write(1, 1).unwrap();
    rig.write_durable(1, 2).unwrap();
    let kept = [rig.drive.volatile_writes()[0].id];
    let image = rig.drive.fork();
    image.crash_keeping(&kept, None);
    assert_eq!(first_byte(&image, 1), 2);
    rig.flush().unwrap();
    assert_eq!(first_byte(&rig.drive, 1), 2);
}

#[test]
fn a_write_takes_its_bytes_at_submission() {
    let mut rig = Rig::new(small());
    rig.fill(0, 1);
    rig.submit(Operation::Write, 0, 0).unwrap();
    rig.fill(0, 2);
    rig.poll();
    assert_eq!(rig.read(0), Ok(1));
}

#[test]
fn malformed_commands_are_refused_and_not_counted() {
    let mut rig = Rig::new(small());
    let good =
        Command { operation: Operation::Read, offset_bytes: 0, memory: rig.memory(0, 1), tag: 0 };
    let beyond = rig.memory(511, 1);
    let bad = [
        Command { offset_bytes: 1, ..good },
        Command { offset_bytes: 16 * B, ..good },
        Command { offset_bytes: u64::MAX - 4095, ..good },
        Command { memory: DmaSlice { len_bytes: 0, ..good.memory }, ..good },
        Command { memory: DmaSlice { len_bytes: 100, ..good.memory }, ..good },
        Command { memory: DmaSlice { len_bytes: 2 << 20, ..good.memory }, ..good },
        Command { memory: DmaSlice { len_bytes: 8192, ..beyond }, ..good },
    ];
    for command in bad {
        // SAFETY: none of them is accepted.
        let result = unsafe { rig.device.submit(command) };
        assert!(matches!(result, Err(SubmitError::Failed(_))), "{command:?}");
    }
    rig.device.unregister(&rig.region);
    // SAFETY: not accepted either.
    let result = unsafe { rig.device.submit(good) };
    assert_eq!(result, Err(SubmitError::Failed(IoError::Os(libc::EFAULT))));
    assert_eq!((rig.drive.world().submitted(), rig.device.in_flight()), (0, 0));
}

#[test]
fn the_queue_is_bounded_and_the_drive_exclusive() {
    let mut rig = Rig::new(SimConfig { queue_depth: 2, ..small() });
    rig.submit(Operation::Read, 0, 0).unwrap();
    rig.submit(Operation::Read, 0, 1).unwrap();
    assert_eq!(rig.submit(Operation::Read, 0, 2), Err(SubmitError::Full));
    assert!(matches!(rig.drive.open(), Err(Error::Busy { .. })));
    rig.poll();
    rig.submit(Operation::Read, 0, 2).unwrap();
    let drive = rig.drive.clone();
    drop(rig);
    drive.open().unwrap();
}

#[test]
fn a_drive_of_4_tib_takes_memory_for_what_is_written() {
    let mut rig = Rig::new(SimConfig { capacity_bytes: 4 << 40, ..SimConfig::default() });
    let last = (4 << 40) / B - 1;
    rig.write(last, 9).unwrap();
    assert_eq!((rig.read(last), rig.read(last - 1)), (Ok(9), Ok(0)));
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    for config in [
        SimConfig { queue_depth: 0, ..small() },
        SimConfig { max_transfer_bytes: 100, ..small() },
        SimConfig { max_transfer_bytes: 0, ..small() },
        SimConfig { dense: true, volatile_cache: true, ..small() },
    ] {
        assert!(matches!(SimDrive::new(config), Err(Error::Usage(_))));
    }
}

#[test]
fn faults_hit_the_commands_they_name() {
    let mut rig = Rig::new(small());
    rig.drive.inject(Fault::new(Operation::Write, When::Nth(1), Effect::Fail(FAULT))).unwrap();
    rig.drive.inject(Fault::new(Operation::Flush, When::From(1), Effect::Refuse(FAULT))).unwrap();
    let results = [rig.write(1, 1), rig.write(2, 2), rig.write(3, 3)];
    assert_eq!(results, [Ok(()), Err(FAULT), Ok(())]);
    assert_eq!([rig.flush(), rig.flush(), rig.flush()], [Ok(()), Err(FAULT), Err(FAULT)]);
    assert_eq!(rig.read(2), Ok(0));
    rig.drive.clear_faults();
    rig.flush().unwrap();

    let nowhere = Fault::new(Operation::Read, When::From(0), Effect::Fail(FAULT));
    rig.drive.inject(nowhere.within(5 * B..6 * B)).unwrap();
    assert_eq!((rig.read(4), rig.read(5), rig.read(6)), (Ok(0), Err(FAULT), Ok(0)));
}

#[test]
fn seeded_faults_hit_some() {
    let mut rig = Rig::new(small());
    rig.drive.inject(Fault::new(Operation::Read, When::OneIn(4), Effect::Fail(FAULT))).unwrap();
    let failed = (0..400).filter(|_| rig.read(0).is_err()).count();
    assert!((50..150).contains(&failed), "{failed}");
}

#[test]
fn lost_and_misdirected_writes_lying_flushes_and_stale_reads() {
    let mut rig = Rig::new(small());
    let elsewhere = Effect::Misdirect { offset_bytes: 9 * B };
    rig.write(1, 1).unwrap();
    rig.drive.inject(Fault::new(Operation::Write, When::Nth(0), Effect::Lose)).unwrap();
    rig.write(1, 2).unwrap();
    assert_eq!(rig.read(1), Ok(1));
    rig.drive.inject(Fault::new(Operation::Write, When::Nth(0), elsewhere)).unwrap();
    rig.write(2, 3).unwrap();
    assert_eq!((rig.read(2), rig.read(9)), (Ok(0), Ok(3)));
    rig.drive.inject(Fault::new(Operation::Read, When::Nth(0), elsewhere)).unwrap();
    assert_eq!((rig.read(1), rig.read(1)), (Ok(3), Ok(1)));
    rig.write(1, 4).unwrap();
    rig.drive.inject(Fault::new(Operation::Read, When::Nth(0), Effect::Stale)).unwrap();
    assert_eq!((rig.read(1), rig.read(1)), (Ok(1), Ok(4)));
    rig.drive.inject(Fault::new(Operation::Flush, When::Nth(0), Effect::Lose)).unwrap();
    rig.flush().unwrap();
    assert_eq!(first_byte(&rig.drive, 1), 0);
    rig.flush().unwrap();
    assert_eq!(first_byte(&rig.drive, 1), 4);
    rig.drive
        .inject(Fault::new(
            Operation::Read,
            When::Nth(0),
            Effect::Misdirect { offset_bytes: 99 * B },
        ))
        .unwrap();
    assert_eq!(rig.read(1), Ok(0));
    assert!(
        rig.drive
            .inject(Fault::new(
                Operation::Read,
                When::Nth(0),
                Effect::Misdirect { offset_bytes: 1 }
            ))
            .is_err()
    );
}

#[test]
fn a_delayed_command_takes_that_many_polls_and_others_pass_it() {
    let config = SimConfig { order: CompletionOrder::Shuffled, ..small() };
    let mut rig = Rig::new(config);
    let delay = Effect::Delay { polls: 3 };
    rig.drive.inject(Fault::new(Operation::Write, When::Nth(0), delay)).unwrap();
    rig.submit(Operation::Write, 0, 0).unwrap();
    rig.submit(Operation::Read, 1, 1).unwrap();
    assert_eq!(rig.poll(), [(1, Ok(()))]);
    assert_eq!((rig.poll(), rig.poll()), (vec![], vec![]));
    assert_eq!(rig.poll(), [(0, Ok(()))]);
}

#[test]
fn a_failed_write_may_land_later() {
    let mut rig = Rig::new(small());
    let effect = Effect::FailThenLand { error: FAULT, after_polls: 2 };
    rig.drive.inject(Fault::new(Operation::Write, When::Nth(0), effect)).unwrap();
    assert_eq!(rig.write(1, 5), Err(FAULT));
    assert_eq!(rig.drive.volatile_writes()[0].state, WriteState::Stray);
    assert_eq!(rig.drive.peek(B, B).unwrap()[0], 0);
    rig.write(1, 6).unwrap();
    assert_eq!(rig.drive.peek(B, B).unwrap()[0], 6);
    rig.poll();
    rig.poll();
    assert_eq!(rig.drive.peek(B, B).unwrap()[0], 5);
}

#[test]
fn a_removed_drive_fails_everything_once() {
    let mut rig = Rig::new(small());
    rig.submit(Operation::Write, 1, 1).unwrap();
    rig.drive.remove();
    assert_eq!(rig.submit(Operation::Read, 1, 2), Err(SubmitError::Failed(GONE)));
    assert!(matches!(rig.drive.open(), Err(Error::Busy { .. })));
    assert_eq!(rig.poll(), [(1, Err(GONE))]);
    assert_eq!((rig.poll(), rig.device.in_flight()), (vec![], 0));
    rig.drive.reinsert();
    assert_eq!(rig.submit(Operation::Read, 1, 2), Err(SubmitError::Failed(GONE)));
    assert_eq!(Rig::on(rig.drive.clone()).write(1, 1), Ok(()));
}

#[test]
fn power_goes_for_all_drives_of_a_world_at_the_chosen_command() {
    let world = SimWorld::new();
    let mut rigs = ["A", "B"].map(|serial| {
        let config = SimConfig { serial: serial.into(), ..small() };
        Rig::on(SimDrive::new_in(&world, config).unwrap())
    });
    world.crash_after(3);
    rigs[0].write_durable(1, 1).unwrap();
    rigs[1].write_durable(1, 1).unwrap();
    rigs[1].fill(7, 2);
    rigs[1].submit(Operation::Write, 2, 7).unwrap();
    assert_eq!(rigs[0].write(2, 2), Err(GONE));
    assert!(!world.has_power());
    assert_eq!(rigs[1].poll(), [(7, Err(GONE))]);
    assert!(rigs[1].drive.fork().open().is_ok(), "a fork has power of its own");
    for rig in &rigs {
        rig.drive.crash_keeping(&[], None);
        assert!(matches!(rig.drive.open(), Err(Error::DriveNotFound { .. })));
    }
    world.power_on();
    for rig in &rigs {
        let mut again = Rig::on(rig.drive.clone());
        assert_eq!((again.read(1), again.read(2)), (Ok(1), Ok(0)));
    }
    assert_eq!(rigs[0].write(1, 1), Err(GONE), "the old device stays dead");
}

#[test]
fn explicit_crashes_keep_drop_and_tear_exactly() {
    let mut rig = Rig::new(small());
    rig.write_durable(1, 9).unwrap();
    for block in 1..=3 {
        rig.write(block, block as u8).unwrap();
    }
    rig.fill(4, 4);
    rig.submit(Operation::Write, 4, 4).unwrap();
    let ids: Vec<_> = rig.drive.volatile_writes().iter().map(|write| write.id).collect();
    let states: Vec<_> = rig.drive.volatile_writes().iter().map(|write| write.state).collect();
    assert_eq!(states[2..], [WriteState::Volatile, WriteState::InFlight]);
    let mut seen = HashSet::new();
    for mask in 0..1u32 << ids.len() {
        let kept: Vec<_> =
            (0..).zip(&ids).filter(|(i, _)| mask >> i & 1 == 1).map(|x| *x.1).collect();
        let image = rig.drive.fork();
        image.crash_keeping(&kept, None);
        for (i, id) in ids.iter().enumerate() {
            let block = i as u64 + 1;
            let old = if block == 1 { 9 } else { 0 };
            let wanted = if kept.contains(id) { block as u8 } else { old };
            assert_eq!(image.peek(block * B, B).unwrap(), vec![wanted; B as usize]);
        }
        seen.insert(image.durable_digest());
    }
    assert_eq!(seen.len(), 16);
    let image = rig.drive.fork();
    image.crash_keeping(&[], Some(&Torn { id: ids[0], sectors: 2..3 }));
    let block = image.peek(B, B).unwrap();
    assert!(block[..1024].iter().chain(&block[1536..]).all(|byte| *byte == 9));
    assert!(block[1024..1536].iter().all(|byte| *byte == 1));
    assert_eq!(rig.poll(), [(4, Ok(()))], "forks leave the original alone");
}

#[test]
fn tampering_hurts_what_is_read_and_what_is_durable() {
    let dense = SimConfig { dense: true, volatile_cache: false, ..small() };
    for config in [small(), dense] {
        let mut rig = Rig::new(config);
        rig.write_durable(0, 0xff).unwrap();
        rig.write_durable(1, 0xff).unwrap();
        let before = rig.drive.fork();
        rig.drive.flip_bit(5, 3);
        rig.drive.zero(4090, 12);
        rig.drive.overwrite(8190, &[1, 2, 3, 4]);
        rig.drive.corrupt(100, 1, 1);
        rig.drive.zero(u64::MAX, 10);
        for bytes in [rig.drive.peek(0, 3 * B).unwrap(), rig.drive.peek_durable(0, 3 * B).unwrap()]
        {
            assert_eq!((bytes[5], bytes[4089], bytes[8189]), (0xf7, 0xff, 0xff));
            assert_eq!(bytes[4090..4102], [0; 12]);
            assert_eq!(bytes[8190..8194], [1, 2, 3, 4]);
            assert_ne!(bytes[100], 0xff);
        }
        assert_eq!(before.peek(0, 2 * B).unwrap(), vec![0xff; 8192]);
        assert_ne!(before.durable_digest(), rig.drive.durable_digest());
        assert!(rig.drive.peek(15 * B, 2 * B).is_none());
    }
}

#[test]
fn the_trace_shows_the_order_over_drives() {
    let world = SimWorld::new();
    let mut a = Rig::on(SimDrive::new_in(&world, small()).unwrap());
    let mut b = Rig::on(SimDrive::new_in(&world, small()).unwrap());
    a.drive.start_trace(16);
    b.drive.start_trace(16);
    a.flush().unwrap();
    b.write_durable(2, 1).unwrap();
    let (a, b) = (a.drive.take_trace(), b.drive.take_trace());
    assert_eq!((a[1].operation, a[1].ended), (Operation::Flush, Some(Ok(()))));
    assert_eq!((b[0].operation, b[0].offset_bytes), (Operation::WriteDurable, 2 * B));
    assert_eq!((b[0].len_bytes, b[0].ended), (4096, None));
    assert!(a[1].at < b[0].at);
}

#[test]
fn a_dense_drive_behaves_as_one_without_a_cache() {
    let mut rig = Rig::new(SimConfig { dense: true, volatile_cache: false, ..small() });
    rig.write(3, 7).unwrap();
    rig.drive.inject(Fault::new(Operation::Write, When::Nth(0), Effect::Fail(FAULT))).unwrap();
    assert_eq!(rig.write(3, 8), Err(FAULT));
    assert_eq!((rig.read(3), rig.read(4)), (Ok(7), Ok(0)));
    assert!(rig.drive.inject(Fault::new(Operation::Read, When::Nth(0), Effect::Stale)).is_err());
    rig.drive.crash(1);
    assert_eq!(Rig::on(rig.drive.clone()).read(3), Ok(7));
}

#[test]
fn a_write_in_flight_survives_its_process_or_a_power_cut_by_the_seed() {
    for cut_power in [false, true] {
        let mut seen = HashSet::new();
        for seed in 0..32 {
            let mut rig = Rig::new(SimConfig { seed, ..small() });
            rig.fill(1, 5);
            rig.submit(Operation::Write, 1, 1).unwrap();
            let drive = rig.drive.clone();
            if cut_power {
                drive.crash(seed);
            }
            drop(rig);
            let rig = Rig::on(drive);
            assert_eq!(
                rig.drive.volatile_writes().len(),
                usize::from(!cut_power && rig.drive.peek(B, B).unwrap()[0] == 5)
            );
            seen.insert(rig.drive.peek(B, B).unwrap());
        }
        assert!(seen.contains(&vec![0; B as usize]) && seen.contains(&vec![5; B as usize]));
        assert_eq!(seen.len() > 2, cut_power, "only a power cut tears");
    }
}
