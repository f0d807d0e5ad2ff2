// SPDX-License-Identifier: Apache-2.0
//! Batches over simulated drives.

use proptest::prelude::*;

use super::*;
use crate::device::sim::{
    CompletionOrder, Effect, Fault, SimConfig, SimDrive, SimRng, SimWorld, When,
};
use crate::units::DriveIndex;

const B: usize = BLOCK_BYTES as usize;
const FAULT: IoError = IoError::Nvme { sct: 2, sc: 0x81, dnr: true };

fn sims(count: u64, config: &SimConfig) -> Vec<SimDrive> {
    let world = SimWorld::new();
    let with_seed = |seed| SimConfig { seed, serial: format!("S{seed}"), ..config.clone() };
    (0..count).map(|seed| SimDrive::new_in(&world, with_seed(seed)).unwrap()).collect()
}

fn direct(sims: &[SimDrive]) -> DirectDrives {
    let open = |sim: &SimDrive| -> Box<dyn Device> { Box::new(sim.open().unwrap()) };
    DirectDrives::new(sims.iter().map(open).collect(), HugePages::Off).unwrap()
}

fn write(drive: u16, offset: usize, data: &[u8]) -> DriveCommand<'_> {
    let offset_bytes = offset as u64;
    DriveCommand::Write { drive: DriveIndex(drive), offset_bytes, data, durable: false }
}

fn read(drive: u16, offset: usize, into: &mut [u8]) -> DriveCommand<'_> {
    DriveCommand::Read { drive: DriveIndex(drive), offset_bytes: offset as u64, into }
}

fn flush(drive: u16) -> DriveCommand<'static> {
    DriveCommand::Flush { drive: DriveIndex(drive) }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = SimRng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

fn shuffled() -> SimConfig {
    SimConfig { order: CompletionOrder::Shuffled, queue_depth: 3, ..SimConfig::default() }
}

#[test]
fn commands_larger_than_a_transfer_and_than_the_arena_are_complete() {
    for max_transfer_bytes in [4 << 10, 20 << 10, 1 << 20] {
        let sims = sims(3, &SimConfig { max_transfer_bytes, ..shuffled() });
        let mut drives = direct(&sims);
        let data: Vec<_> = (0..3).map(|seed| noise((9 << 20) + B, seed)).collect();
        let mut batch: Vec<_> = (0..3).map(|i| write(i, B, &data[usize::from(i)])).collect();
        assert_eq!(drives.run(&mut batch), [Ok(()); 3]);
        let mut back = vec![vec![0; (9 << 20) + 3 * B]; 3];
        let mut batch: Vec<_> = (0..).zip(&mut back).map(|(i, into)| read(i, 0, into)).collect();
        assert_eq!(drives.run(&mut batch), [Ok(()); 3]);
        for (data, back) in data.iter().zip(&back) {
            let end = back.len() - B;
            assert!(back[..B].iter().chain(&back[end..]).all(|byte| *byte == 0));
            assert!(back[B..end] == data[..]);
        }
    }
}

#[test]
fn writes_are_durable_after_a_flush_batch_or_when_they_ask_for_it() {
    let sims = sims(2, &SimConfig::default());
    let mut drives = direct(&sims);
    let data = noise(2 * B, 1);
    let durable =
        DriveCommand::Write { drive: DriveIndex(1), offset_bytes: 0, data: &data, durable: true };
    assert_eq!(drives.run(&mut [write(0, 0, &data), durable, flush(0)]), [Ok(()); 3]);
    let durable_is = |sim: &SimDrive| sim.peek_durable(0, 2 * B as u64).unwrap() == data;
    assert_eq!((durable_is(&sims[0]), durable_is(&sims[1])), (false, true));
    assert_eq!(drives.run(&mut [flush(0), flush(1)]), [Ok(()); 2]);
    assert!(durable_is(&sims[0]));
}

#[test]
fn a_fault_fails_its_command_and_no_other() {
    let sims = sims(2, &SimConfig { max_transfer_bytes: B as u32, ..shuffled() });
    let at = (5 * B as u64)..(6 * B as u64);
    let fault = |operation, effect| Fault::new(operation, When::From(0), effect).within(at.clone());
    let data = noise(8 * B, 1);
    for effect in [Effect::Fail(FAULT), Effect::Refuse(FAULT)] {
        for sim in &sims {
            sim.clear_faults();
        }
        sims[1].inject(fault(Operation::Write, effect)).unwrap();
        sims[0].inject(fault(Operation::Read, effect)).unwrap();
        let mut drives = direct(&sims);
        let mut into = vec![0; 8 * B];
        let mut batch = [
            write(0, 0, &data),
            write(1, 0, &data),
            write(1, 8 * B, &data),
            read(0, 0, &mut into),
            flush(1),
        ];
        let results = drives.run(&mut batch);
        assert_eq!(results, [Ok(()), Err(FAULT), Ok(()), Err(FAULT), Ok(())]);
        // The next batch finds every slot free, and nothing of the last one.
        let mut batch: Vec<_> = (0..100).map(|i| write(i % 2, 8 * B, &data)).collect();
        assert_eq!(drives.run(&mut batch), [Ok(()); 100]);
        assert_eq!(drives.free_slots.len(), SLOTS);
        assert_eq!(sims[0].peek(8 * B as u64, 8 * B as u64).unwrap(), data);
    }
}

#[test]
fn a_failed_command_stops_being_submitted() {
    let sims = sims(1, &SimConfig { max_transfer_bytes: B as u32, ..SimConfig::default() });
    sims[0].inject(Fault::new(Operation::Write, When::Nth(0), Effect::Refuse(FAULT))).unwrap();
    let mut drives = direct(&sims);
    let data = noise(1000 * B, 1);
    assert_eq!(drives.run(&mut [write(0, 0, &data)]), [Err(FAULT)]);
    assert_eq!(sims[0].world().submitted(), 1);
}

#[test]
fn a_lost_drive_fails_its_commands_and_the_others_continue() {
    let sims = sims(2, &SimConfig::default());
    let mut drives = direct(&sims);
    sims[0].remove();
    let data = noise(3 << 20, 1);
    let mut batch = [write(0, 0, &data), write(1, 0, &data), flush(0)];
    let results = drives.run(&mut batch);
    assert_eq!(results, [Err(IoError::Removed), Ok(()), Err(IoError::Removed)]);
}

#[test]
fn a_power_cut_in_a_batch_ends_it() {
    for after in 0..12 {
        let sims = sims(2, &SimConfig { max_transfer_bytes: B as u32, ..shuffled() });
        let mut drives = direct(&sims);
        sims[0].world().crash_after(after);
        let data = noise(5 * B, 1);
        let results = drives.run(&mut [write(0, 0, &data), write(1, 0, &data)]);
        let all_fit = after >= 10;
        assert_eq!(results.iter().all(Result::is_ok), all_fit, "{after}: {results:?}");
        assert_eq!(drives.free_slots.len(), SLOTS);
    }
}

#[test]
fn only_the_invalid_commands_of_a_batch_fail() {
    let sims = sims(1, &SimConfig::default());
    let mut drives = direct(&sims);
    let data = noise(B, 1);
    let (mut short, mut none) = ([0; 100], []);
    let mut batch = [
        write(0, 7, &data),
        write(1, 0, &data),
        write(0, 64 << 20, &data),
        write(0, usize::MAX - B + 1, &data),
        read(0, 0, &mut short),
        read(0, 0, &mut none),
        flush(9),
        write(0, 0, &data),
    ];
    let os = |errno| Err(IoError::Os(errno));
    let (inval, nodev, nxio) = (os(libc::EINVAL), os(libc::ENODEV), os(libc::ENXIO));
    let results = drives.run(&mut batch);
    assert_eq!(results, [inval, nodev, nxio, nxio, inval, Ok(()), nodev, Ok(())]);
    assert_eq!(drives.run(&mut []), []);
}

#[test]
fn devices_come_back_without_the_arena() {
    let sims = sims(2, &SimConfig::default());
    let drives = direct(&sims);
    let arena = Arc::downgrade(&drives.arena);
    let devices = drives.into_devices();
    assert_eq!(devices.len(), 2);
    assert_eq!(arena.strong_count(), 0);
    assert!(sims[0].open().is_err());
    let again = DirectDrives::new(devices, HugePages::Off).unwrap();
    assert_eq!(again.info()[1].serial, "S1");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Writes of one batch do not overlap here: commands of one batch are unordered.
    #[test]
    fn batches_do_what_plain_memory_does(
        lens in proptest::collection::vec((0..3u16, 0..90usize), 1..40),
        seed: u64,
        transfer_blocks in 1..70u32,
        delay in 0..4u32,
    ) {
        let sims = sims(3, &SimConfig { max_transfer_bytes: transfer_blocks * B as u32, ..shuffled() });
        for sim in &sims {
            let effect = Effect::Delay { polls: delay };
            sim.inject(Fault::new(Operation::Write, When::OneIn(3), effect)).unwrap();
        }
        let mut drives = direct(&sims);
        let data = noise(100 * B, seed);
        let mut memory = vec![vec![0; 40 * 90 * B]; 3];
        let mut ends = [0; 3];
        let mut batch = Vec::new();
        for (drive, blocks) in lens {
            let len = blocks * B;
            let end = &mut ends[usize::from(drive)];
            let from = &data[(blocks % 10) * B..][..len];
            memory[usize::from(drive)][*end..*end + len].copy_from_slice(from);
            batch.push(write(drive, *end, from));
            *end += len;
        }
        prop_assert!(drives.run(&mut batch).iter().all(Result::is_ok));
        let mut back = vec![vec![1; 40 * 90 * B]; 3];
        let mut batch: Vec<_> = (0..).zip(&mut back).map(|(i, into)| read(i, 0, into)).collect();
        prop_assert!(drives.run(&mut batch).iter().all(Result::is_ok));
        prop_assert!(back == memory);
    }
}
