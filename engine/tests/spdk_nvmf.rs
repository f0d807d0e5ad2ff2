//! The SPDK back end against a real NVMe-oF target on loopback: what a device does, and what becomes
//! of it when the target goes away. Pools on it: `spdk_pool.rs`.
//!
//! Each test starts a target of its own and is skipped, with a message, where that cannot be.

#![cfg(feature = "spdk")]
#![allow(unsafe_code, clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::target::Target;
use stanchion_engine::address::DriveAddress;
use stanchion_engine::device::kernel::OpenMode;
use stanchion_engine::device::{
    self, Command, Completion, Device, DmaSlice, Operation, SubmitError,
};
use stanchion_engine::memory::{HugePages, Region};
use stanchion_engine::{Error, IoError};

const MIB: u64 = 1 << 20;
const DEPTH: u32 = 16;
/// Memory of one command.
const PIECE_BYTES: u64 = 4 * MIB;
const PATIENCE: Duration = Duration::from_secs(30);

/// A small seeded generator (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A device with one registered region, cut into pieces.
struct Rig {
    device: Box<dyn Device>,
    region: Arc<Region>,
}

impl Rig {
    fn open(address: &DriveAddress, mode: OpenMode) -> Rig {
        let mut device = device::open(address, mode, DEPTH).unwrap();
        let length = u64::from(DEPTH) * PIECE_BYTES;
        let region = Arc::new(Region::new(length, HugePages::Required).unwrap());
        device.register(&region).unwrap();
        device.register(&region).unwrap(); // harmless
        Rig { device, region }
    }

    fn memory(&self, piece: u64, len_bytes: u64) -> DmaSlice {
        let address = self.region.at(piece * PIECE_BYTES, len_bytes).unwrap();
        DmaSlice { address, len_bytes: len_bytes as u32 }
    }

    /// The bytes of a piece that no command names.
    fn bytes(&mut self, piece: u64, len_bytes: u64) -> &mut [u8] {
        let memory = self.memory(piece, len_bytes);
        // SAFETY: within the region, and the caller has no command in flight for this piece.
        unsafe { std::slice::from_raw_parts_mut(memory.address.as_ptr(), len_bytes as usize) }
    }

    fn submit(
        &mut self,
        operation: Operation,
        offset_bytes: u64,
        piece: u64,
        len_bytes: u64,
    ) -> Result<(), SubmitError> {
        let memory = self.memory(piece, len_bytes);
        // SAFETY: the region lives as long as the rig, whose fields are dropped in order; a piece is
        // touched between its commands only.
        unsafe { self.device.submit(Command { operation, offset_bytes, memory, tag: piece }) }
    }

    /// Waits for at least one completion.
    fn wait(&mut self) -> Vec<Completion> {
        let end = Instant::now() + PATIENCE;
        let mut completions = [Completion { tag: 0, status: Ok(()) }; 3];
        loop {
            let count = self.device.poll(&mut completions);
            if count > 0 {
                return completions[..count].to_vec();
            }
            assert!(Instant::now() < end, "no completion, {} in flight", self.device.in_flight());
        }
    }

    /// One command from beginning to end.
    fn run(&mut self, operation: Operation, at: u64, piece: u64, len: u64) -> Result<(), IoError> {
        match self.submit(operation, at, piece, len) {
            Ok(()) => {}
            Err(SubmitError::Failed(error)) => return Err(error),
            Err(SubmitError::Full) => panic!("full with {} in flight", self.device.in_flight()),
        }
        let completions = self.wait();
        assert_eq!((completions.len(), completions[0].tag), (1, piece));
        completions[0].status
    }
}

fn address_of(target: &Target) -> DriveAddress {
    target.drives[0].clone()
}

/// Random writes of 4 KiB to 4 MiB (four times what the target takes at once) at full depth, read
/// back at random against a model. Each of the places in flight has a part of the drive to itself.
fn writes_are_read_back(sector_bytes: &str) {
    let options = ["--size", "64M", "--block-size", sector_bytes];
    let Some(target) = Target::start(&options) else { return };
    let mut rig = Rig::open(&address_of(&target), OpenMode::ReadWrite);
    let facts = rig.device.facts().clone();
    assert_eq!((facts.back_end, facts.queue_depth), (device::SPDK, DEPTH));
    assert_eq!((facts.capacity_bytes, facts.serial.as_str()), (64 * MIB, "STNDRIVE0"));
    assert!(facts.max_transfer_bytes >= PIECE_BYTES && !facts.interrupt_driven);
    assert_eq!(facts.address, address_of(&target).to_string());

    let mut numbers = Numbers(sector_bytes.len() as u64);
    let mut model = vec![0_u8; facts.capacity_bytes as usize];
    let mut started: Vec<Option<(Operation, u64, u64)>> = vec![None; DEPTH as usize];
    let mut checked_bytes = 0;
    let mut rounds = 0;
    while rounds < 600 || rig.device.in_flight() > 0 {
        for piece in 0..u64::from(DEPTH) {
            if started[piece as usize].is_some() || rounds >= 600 {
                continue;
            }
            rounds += 1;
            let scale = numbers.below(11);
            let length = (1 + numbers.below(1 << scale)) * 4096;
            let within = numbers.below((PIECE_BYTES - length) / 4096 + 1) * 4096;
            let offset = piece * PIECE_BYTES + within;
            let operation = match numbers.below(4) {
                0 => Operation::WriteDurable,
                1 => Operation::Write,
                _ => Operation::Read,
            };
            if operation != Operation::Read {
                let seed = numbers.next();
                let bytes = rig.bytes(piece, length);
                for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
                    word.copy_from_slice(&(seed ^ (at as u64) << 20).to_le_bytes());
                }
                model[offset as usize..][..length as usize].copy_from_slice(bytes);
            }
            rig.submit(operation, offset, piece, length).unwrap();
            started[piece as usize] = Some((operation, offset, length));
        }
        for completion in rig.wait() {
            assert_eq!(completion.status, Ok(()));
            let (operation, offset, length) =
                started[completion.tag as usize].take().expect("a command completes once");
            if operation == Operation::Read {
                let expected = &model[offset as usize..][..length as usize];
                assert!(rig.bytes(completion.tag, length) == expected, "read at {offset}");
                checked_bytes += length;
            }
        }
    }
    assert!(checked_bytes > 10 * MIB, "{checked_bytes}");
    assert_eq!(rig.run(Operation::Flush, 0, 3, 0), Ok(()));

    // What another opening of the drive finds.
    drop(rig);
    let mut rig = Rig::open(&address_of(&target), OpenMode::ReadOnly);
    for part in 0..u64::from(DEPTH) {
        let at = part * PIECE_BYTES;
        assert_eq!(rig.run(Operation::Read, at, 0, PIECE_BYTES), Ok(()));
        assert!(rig.bytes(0, PIECE_BYTES) == &model[at as usize..][..PIECE_BYTES as usize]);
    }
}

#[test]
fn writes_are_read_back_in_sectors_of_512_bytes() {
    writes_are_read_back("512");
}

#[test]
fn writes_are_read_back_in_sectors_of_4096_bytes() {
    writes_are_read_back("4096");
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(target) = Target::start(&["--size", "64M"]) else { return };
    let address = address_of(&target);
    let open = |address: &DriveAddress, mode| device::open(address, mode, DEPTH);
    let mut rig = Rig::open(&address, OpenMode::ReadWrite);
    // Somebody has it.
    for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
        let error = open(&address, mode).err().unwrap();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    }
    let fails = |errno| Err(SubmitError::Failed(IoError::Os(errno)));
    let end = rig.device.facts().capacity_bytes;
    assert_eq!(rig.submit(Operation::Read, end - 4096, 0, 8192), fails(libc::EINVAL));
    assert_eq!(rig.submit(Operation::Read, u64::MAX - 4095, 0, 4096), fails(libc::EINVAL));
    assert_eq!(rig.submit(Operation::Write, 512, 0, 4096), fails(libc::EINVAL));
    assert_eq!(rig.submit(Operation::Write, 0, 0, 512), fails(libc::EINVAL));
    assert_eq!(rig.run(Operation::Write, end - 4096, 0, 4096), Ok(()));
    // Full is a value, and the queue works on.
    for piece in 0..u64::from(DEPTH) {
        rig.submit(Operation::Write, piece * PIECE_BYTES, piece, 2 * MIB).unwrap();
    }
    assert_eq!(rig.submit(Operation::Write, 0, 0, 4096), Err(SubmitError::Full));
    assert_eq!(rig.device.in_flight(), DEPTH);
    while rig.device.in_flight() > 0 {
        assert!(rig.wait().iter().all(|completion| completion.status.is_ok()));
    }
    // Memory that was forgotten, and memory that SPDK does not take.
    let region = Arc::clone(&rig.region);
    rig.device.unregister(&region);
    assert_eq!(rig.submit(Operation::Read, 0, 0, 4096), fails(libc::EFAULT));
    rig.device.register(&region).unwrap();
    assert_eq!(rig.run(Operation::Read, 0, 0, 4096), Ok(()));
    let ordinary = Arc::new(Region::new(1, HugePages::Off).unwrap());
    let error = rig.device.register(&ordinary).unwrap_err();
    assert!(matches!(error, Error::Environment(_)), "{error}");
    drop(rig);

    let mut readers: Vec<_> = (0..2).map(|_| Rig::open(&address, OpenMode::ReadOnly)).collect();
    for reader in &mut readers {
        assert_eq!(reader.submit(Operation::Write, 0, 0, 4096), fails(libc::EROFS));
        assert_eq!(reader.run(Operation::Read, 0, 0, 4096), Ok(()));
    }
    let error = open(&address, OpenMode::ReadWrite).err().unwrap();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    drop(readers);

    let other = format!("{address} ns:7").parse().unwrap();
    let error = open(&other, OpenMode::ReadWrite).err().unwrap();
    assert!(error.to_string().contains("no namespace 7; it has [1]"), "{error}");
    let other = address.to_string().replace(":drive0", ":nobody").parse().unwrap();
    let error = open(&other, OpenMode::ReadWrite).err().unwrap();
    assert!(matches!(error, Error::DriveNotFound { .. }), "{error}");
    let other = "pcie:ffff:1f:1f.7".parse().unwrap();
    let error = open(&other, OpenMode::ReadWrite).err().unwrap();
    // Or SPDK runs without PCI here.
    assert!(matches!(error, Error::DriveNotFound { .. } | Error::Environment(_)), "{error}");
    let error = device::open(&address, OpenMode::ReadWrite, 0).err().unwrap();
    assert!(matches!(error, Error::Usage(_)), "{error}");
    target.kill();
    let error = open(&address, OpenMode::ReadWrite).err().unwrap();
    assert!(matches!(error, Error::DriveNotFound { .. }), "{error}");
}

/// Fills the queue with 4 MiB writes, of which none can have ended yet.
fn fill_queue(rig: &mut Rig) {
    for piece in 0..u64::from(DEPTH) {
        rig.submit(Operation::Write, piece * PIECE_BYTES, piece, PIECE_BYTES).unwrap();
    }
}

/// Takes a completion for each command in flight; says how many failed, all as removed.
fn count_removed(rig: &mut Rig) -> usize {
    let mut seen = [false; DEPTH as usize];
    let mut removed = 0;
    while rig.device.in_flight() > 0 {
        for completion in rig.wait() {
            assert!(!std::mem::replace(&mut seen[completion.tag as usize], true), "twice");
            match completion.status {
                Ok(()) => {}
                Err(IoError::Removed) => removed += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(seen.iter().all(|seen| *seen));
    removed
}

#[test]
fn a_lost_drive_ends_every_command_once_and_can_be_opened_again() {
    let Some(mut target) = Target::start(&["--size", "64M"]) else { return };
    let address = address_of(&target);
    let mut rig = Rig::open(&address, OpenMode::ReadWrite);
    fill_queue(&mut rig);
    target.kill();
    assert!(count_removed(&mut rig) > 0);
    let lost = Err(SubmitError::Failed(IoError::Removed));
    assert_eq!(rig.submit(Operation::Read, 0, 0, 4096), lost);
    assert_eq!(rig.device.poll(&mut [Completion { tag: 0, status: Ok(()) }]), 0);
    drop(rig);

    target.restart();
    let mut rig = Rig::open(&address, OpenMode::ReadWrite);
    assert_eq!(rig.run(Operation::Write, 0, 0, 4096), Ok(()));
    // A loss is noticed on an idle drive, too.
    target.kill();
    let end = Instant::now() + PATIENCE;
    while rig.submit(Operation::Flush, 0, 0, 0) != lost {
        assert!(Instant::now() < end);
        rig.device.poll(&mut [Completion { tag: 0, status: Ok(()) }; 4]);
    }
}

#[test]
fn a_silent_drive_is_given_up_after_the_timeout() {
    let Some(target) = Target::start(&["--size", "64M"]) else { return };
    // SAFETY: no other thread of this process reads or writes the environment yet.
    unsafe { std::env::set_var(device::spdk::TIMEOUT_VARIABLE, "2") };
    let mut rig = Rig::open(&address_of(&target), OpenMode::ReadWrite);
    assert_eq!(rig.run(Operation::Write, 0, 0, 4096), Ok(()));
    target.freeze();
    fill_queue(&mut rig);
    let start = Instant::now();
    assert_eq!(count_removed(&mut rig), DEPTH as usize);
    let took = start.elapsed();
    assert!((2.0..12.0).contains(&took.as_secs_f64()), "{took:?}");
    drop(rig);
    eprintln!("given up after {took:?}, dropped after {:?}", start.elapsed());
    assert!(start.elapsed() < PATIENCE);
    target.thaw();
}

#[test]
fn a_device_dropped_with_commands_in_flight_finishes_them() {
    let Some(target) = Target::start(&["--size", "64M"]) else { return };
    let address = address_of(&target);
    let mut rig = Rig::open(&address, OpenMode::ReadWrite);
    for piece in 0..u64::from(DEPTH) {
        rig.bytes(piece, PIECE_BYTES).fill(1 + piece as u8);
    }
    fill_queue(&mut rig);
    drop(rig);
    // What was accepted before the drop was carried out by it.
    let mut rig = Rig::open(&address, OpenMode::ReadOnly);
    for piece in 0..u64::from(DEPTH) {
        assert_eq!(rig.run(Operation::Read, piece * PIECE_BYTES, piece, PIECE_BYTES), Ok(()));
        assert!(rig.bytes(piece, PIECE_BYTES).iter().all(|byte| *byte == 1 + piece as u8));
    }
    drop(rig);
    let mut rig = Rig::open(&address, OpenMode::ReadWrite);
    fill_queue(&mut rig);
    target.kill();
    drop(rig);
}

#[test]
fn a_device_goes_from_thread_to_thread() {
    let Some(target) = Target::start(&["--size", "64M"]) else { return };
    let mut rig = Rig::open(&address_of(&target), OpenMode::ReadWrite);
    for round in 0..4_u8 {
        rig.bytes(0, MIB).fill(round);
        rig.submit(Operation::Write, 0, 0, MIB).unwrap();
        // With a command in flight.
        rig = std::thread::scope(|scope| {
            let moved = scope.spawn(move || {
                assert!(rig.wait()[0].status.is_ok());
                rig
            });
            moved.join().unwrap()
        });
        assert_eq!(rig.run(Operation::Read, 0, 1, MIB), Ok(()));
        assert!(rig.bytes(1, MIB).iter().all(|byte| *byte == round));
    }
}

#[test]
fn pcie_drives_are_listed() {
    if std::env::var_os("NEXTEST").is_none() {
        eprintln!("skipped: SPDK starts once per process; run by cargo-nextest");
        return;
    }
    let bound = stanchion_engine::device::inventory::list(std::path::Path::new("/"))
        .into_iter()
        .filter(|drive| drive.address.starts_with("pcie:") && drive.driver.is_some())
        .count();
    match device::spdk::list_pcie() {
        Ok(found) => assert!(found.len() >= bound, "{found:?}"),
        Err(error @ Error::Environment(_)) => eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}
