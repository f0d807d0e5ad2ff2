// SPDX-License-Identifier: Apache-2.0
//! The SPDK back end against a real NVMe-oF target on loopback: what a device does, and what
//! happens to it when the target is lost. Pools on it: `spdk_pool.rs`.
//!
//! Each test starts a target of its own; it is skipped, with a message, where that is not possible.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::device_rig::{PATIENCE, Rig};
use crate::common::target::Target;
use stanchion_testing::DriveAddress;
use stanchion_testing::internals::device::OpenMode;
use stanchion_testing::internals::device::{self, Completion, Operation, SubmitError, reservation};
use stanchion_testing::internals::memory::{HugePages, Region};
use stanchion_testing::{Error, IoError};

const MIB: u64 = 1 << 20;
const DEPTH: u32 = 16;
/// Memory of one command.
const PIECE_BYTES: u64 = 4 * MIB;

fn open_rig(address: &DriveAddress, mode: OpenMode) -> Rig {
    let device = device::open(address, mode, Some(DEPTH)).unwrap();
    Rig::over(device, PIECE_BYTES, HugePages::Required)
}

fn address_of(target: &Target) -> DriveAddress {
    target.drives[0].clone()
}

/// Random commands of 4 KiB to 4 MiB, which is four times what the target takes at once.
fn writes_are_read_back(sector_bytes: &str) {
    let options = ["--size", "64M", "--block-size", sector_bytes];
    let Some(target) = Target::start(&options) else { return };
    let mut rig = open_rig(&address_of(&target), OpenMode::ReadWrite);
    let info = rig.device.info().clone();
    assert_eq!((info.back_end, info.queue_depth), ("spdk", DEPTH));
    assert_eq!((info.capacity_bytes, info.serial.as_str()), (64 * MIB, "STNDRIVE0"));
    assert!(info.max_transfer_bytes >= PIECE_BYTES && !info.interrupt_driven);
    assert_eq!(info.address, address_of(&target).to_string());
    let model = rig.random_commands(sector_bytes.len() as u64, 1500);
    assert_eq!(rig.run(Operation::Flush, 0, 3, 0), Ok(()));

    // What another opening of the drive finds.
    drop(rig);
    open_rig(&address_of(&target), OpenMode::ReadOnly).holds(&model);
    assert_eq!(device::spdk::unaccounted_requests(), 0);
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
fn only_the_named_host_is_admitted() {
    let Some(target) = Target::start(&["--size", "64MiB"]) else { return };
    let address = address_of(&target);
    let printed = address.to_string();
    let (drive, host) = printed.split_once(" hostnqn:").unwrap();
    for other in [drive.to_owned(), format!("{drive} hostnqn:{host}0")] {
        let error = device::open(&other.parse().unwrap(), OpenMode::ReadOnly, Some(DEPTH)).err();
        let error = error.expect("a host that the target does not know");
        assert!(matches!(error, Error::DriveNotFound { .. }), "{error}");
        assert!(error.to_string().contains("hostnqn"), "{error}");
    }
    let mut rig = open_rig(&address, OpenMode::ReadWrite);
    assert_eq!(rig.device.info().address, printed);
    assert_eq!(rig.run(Operation::Write, 0, 0, 4096), Ok(()));
    // It is the same drive, for every name of a host.
    let other = device::open(&drive.parse().unwrap(), OpenMode::ReadWrite, Some(DEPTH)).err();
    assert!(matches!(other, Some(Error::Busy { .. })), "{other:?}");
}

#[test]
fn invalid_requests_are_refused() {
    let Some(target) = Target::start(&["--size", "64M"]) else { return };
    let address = address_of(&target);
    let open = |address: &DriveAddress, mode| device::open(address, mode, Some(DEPTH));
    let mut rig = open_rig(&address, OpenMode::ReadWrite);
    // Another process has it; a reader does not mind.
    let error = open(&address, OpenMode::ReadWrite).err().unwrap();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    drop(open(&address, OpenMode::ReadOnly).unwrap());
    let fails = |errno| Err(SubmitError::Failed(IoError::Os(errno)));
    let end = rig.device.info().capacity_bytes;
    assert_eq!(rig.submit(Operation::Read, end - 4096, 0, 8192), fails(libc::EINVAL));
    assert_eq!(rig.submit(Operation::Read, u64::MAX - 4095, 0, 4096), fails(libc::EINVAL));
    assert_eq!(rig.submit(Operation::Write, 512, 0, 4096), fails(libc::EINVAL));
    assert_eq!(rig.submit(Operation::Write, 0, 0, 512), fails(libc::EINVAL));
    assert_eq!(rig.run(Operation::Write, end - 4096, 0, 4096), Ok(()));
    // Full is a value, and the queue still works.
    for piece in 0..u64::from(DEPTH) {
        rig.submit(Operation::Write, piece * PIECE_BYTES, piece, 2 * MIB).unwrap();
    }
    assert_eq!(rig.submit(Operation::Write, 0, 0, 4096), Err(SubmitError::Full));
    assert_eq!(rig.device.in_flight(), DEPTH);
    while rig.device.in_flight() > 0 {
        assert!(rig.wait().iter().all(|completion| completion.status.is_ok()));
    }
    // Memory that was unregistered, and memory that SPDK does not take.
    let region = Arc::clone(&rig.region);
    rig.device.unregister(&region);
    assert_eq!(rig.submit(Operation::Read, 0, 0, 4096), fails(libc::EFAULT));
    rig.device.register(&region).unwrap();
    assert_eq!(rig.run(Operation::Read, 0, 0, 4096), Ok(()));
    let ordinary = Arc::new(Region::new(1, HugePages::Off).unwrap());
    let error = rig.device.register(&ordinary).unwrap_err();
    assert!(matches!(error, Error::Environment(_)), "{error}");
    drop(rig);

    let mut readers: Vec<_> = (0..2).map(|_| open_rig(&address, OpenMode::ReadOnly)).collect();
    for reader in &mut readers {
        assert_eq!(reader.submit(Operation::Write, 0, 0, 4096), fails(libc::EROFS));
        assert_eq!(reader.run(Operation::Read, 0, 0, 4096), Ok(()));
    }
    drop(open(&address, OpenMode::ReadWrite).unwrap());
    drop(readers);

    let other = format!("{address} ns:7").parse().unwrap();
    let error = open(&other, OpenMode::ReadWrite).err().unwrap();
    assert!(error.to_string().contains("no namespace 7; it has [1]"), "{error}");
    let other = address.to_string().replace(":drive0", ":absent").parse().unwrap();
    let error = open(&other, OpenMode::ReadWrite).err().unwrap();
    assert!(matches!(error, Error::DriveNotFound { .. }), "{error}");
    let other = "pcie:ffff:1f:1f.7".parse().unwrap();
    let error = open(&other, OpenMode::ReadWrite).err().unwrap();
    // Or SPDK runs without PCI here.
    assert!(matches!(error, Error::DriveNotFound { .. } | Error::Environment(_)), "{error}");
    let error = device::open(&address, OpenMode::ReadWrite, Some(0)).err().unwrap();
    assert!(matches!(error, Error::Usage(_)), "{error}");
    target.kill();
    let error = open(&address, OpenMode::ReadWrite).err().unwrap();
    assert!(matches!(error, Error::DriveNotFound { .. }), "{error}");
}

/// Fills the queue with 4 MiB writes, none of which can have ended yet.
fn fill_queue(rig: &mut Rig) {
    for piece in 0..u64::from(DEPTH) {
        rig.submit(Operation::Write, piece * PIECE_BYTES, piece, PIECE_BYTES).unwrap();
    }
}

/// Takes a completion for each command in flight; returns how many failed, all as removed.
fn count_removed(rig: &mut Rig) -> usize {
    let ends = rig.drain();
    assert!(ends.iter().all(Option::is_some));
    let failures: Vec<IoError> = ends.into_iter().flatten().filter_map(Result::err).collect();
    assert!(failures.iter().all(|error| *error == IoError::Removed), "{failures:?}");
    assert_eq!(device::spdk::unaccounted_requests(), 0);
    failures.len()
}

#[test]
fn a_lost_drive_ends_every_command_once_and_can_be_opened_again() {
    let Some(mut target) = Target::start(&["--size", "64M"]) else { return };
    let address = address_of(&target);
    let mut rig = open_rig(&address, OpenMode::ReadWrite);
    fill_queue(&mut rig);
    target.kill();
    assert!(count_removed(&mut rig) > 0);
    let lost = Instant::now();
    let removed = Err(SubmitError::Failed(IoError::Removed));
    assert_eq!(rig.submit(Operation::Read, 0, 0, 4096), removed);
    assert_eq!(rig.device.poll(&mut [Completion { tag: 0, status: Ok(()) }]), 0);
    drop(rig);

    target.restart();
    // No process writes while commands of the old connection might still land.
    let reopening = Instant::now();
    drop(open_rig(&address, OpenMode::ReadOnly));
    assert!(reopening.elapsed() < Duration::from_secs(10), "{:?}", reopening.elapsed());
    let mut rig = open_rig(&address, OpenMode::ReadWrite);
    // As a pool takes it. The target has lost its registrations, so there is no owner whose
    // commands it would refuse: only time helps.
    let reservations = rig.device.reservations().unwrap();
    let taken = reservation::take(reservations, 7, None).unwrap();
    assert_eq!(taken, reservation::Taken::Free);
    reservations.settle(taken);
    let waited = lost.elapsed();
    assert!((15.0..40.0).contains(&waited.as_secs_f64()), "{waited:?}");
    assert_eq!(rig.run(Operation::Write, 0, 0, 4096), Ok(()));
    // A loss is detected on an idle drive, too.
    target.kill();
    let end = Instant::now() + PATIENCE;
    while rig.submit(Operation::Flush, 0, 0, 0) != removed {
        assert!(Instant::now() < end);
        rig.device.poll(&mut [Completion { tag: 0, status: Ok(()) }; 4]);
    }
}

#[test]
fn a_silent_drive_is_given_up_after_the_timeout() {
    let Some(target) = Target::start(&["--size", "64M"]) else { return };
    // SAFETY: no other thread of this process reads or writes the environment yet.
    unsafe { std::env::set_var(device::spdk::TIMEOUT_VARIABLE, "2") };
    let mut rig = open_rig(&address_of(&target), OpenMode::ReadWrite);
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

/// A thread without a core for longer than the timeout sends nothing and sees nothing: its drive is
/// as healthy as before, with many small pieces in its queue, too.
#[test]
fn a_drive_is_not_given_up_for_a_stall_of_its_own_thread() {
    let Some(target) = Target::start(&["--size", "64M"]) else { return };
    // SAFETY: no other thread of this process reads or writes the environment yet.
    unsafe { std::env::set_var(device::spdk::TIMEOUT_VARIABLE, "2") };
    let mut rig = open_rig(&address_of(&target), OpenMode::ReadWrite);
    for stall_ms in [0, 3_000, 5_000] {
        fill_queue(&mut rig);
        std::thread::sleep(Duration::from_millis(stall_ms));
        let ends = rig.drain();
        assert!(ends.iter().all(|end| *end == Some(Ok(()))), "after {stall_ms} ms: {ends:?}");
    }
    assert_eq!(rig.run(Operation::Flush, 0, 0, 0), Ok(()));
}

#[test]
fn a_device_dropped_with_commands_in_flight_finishes_them() {
    let Some(target) = Target::start(&["--size", "64M"]) else { return };
    let address = address_of(&target);
    let mut rig = open_rig(&address, OpenMode::ReadWrite);
    for piece in 0..u64::from(DEPTH) {
        rig.bytes(piece, PIECE_BYTES).fill(1 + piece as u8);
    }
    fill_queue(&mut rig);
    drop(rig);
    // Commands that were accepted before the drop were carried out.
    let mut rig = open_rig(&address, OpenMode::ReadOnly);
    for piece in 0..u64::from(DEPTH) {
        assert_eq!(rig.run(Operation::Read, piece * PIECE_BYTES, piece, PIECE_BYTES), Ok(()));
        assert!(rig.bytes(piece, PIECE_BYTES).iter().all(|byte| *byte == 1 + piece as u8));
    }
    drop(rig);
    let mut rig = open_rig(&address, OpenMode::ReadWrite);
    fill_queue(&mut rig);
    target.kill();
    drop(rig);
}

#[test]
fn a_device_goes_from_thread_to_thread() {
    let Some(target) = Target::start(&["--size", "64M"]) else { return };
    let mut rig = open_rig(&address_of(&target), OpenMode::ReadWrite);
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
    let bound = stanchion_testing::host::inventory::list(std::path::Path::new("/"))
        .into_iter()
        .filter(|drive| drive.address.starts_with("pcie:") && drive.driver.is_some())
        .count();
    match device::spdk::list_pcie() {
        Ok(found) => assert!(found.len() >= bound, "{found:?}"),
        Err(error @ Error::Environment(_)) => eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}
