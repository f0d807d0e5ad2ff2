//! The SPDK back end against real NVMe-oF targets on loopback: the device, pools on it, what becomes
//! of either when the target goes away, and pools that change from one back end to the other.
//!
//! Each test starts a target of its own and is skipped, with a message, where that cannot be.

#![cfg(feature = "spdk")]
#![allow(unsafe_code, clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::target::Target;
use common::{BackEnd, Pattern, restore, save, write};
use stanchion_engine::address::DriveAddress;
use stanchion_engine::device::kernel::OpenMode;
use stanchion_engine::device::{
    self, Command, Completion, Device, DmaSlice, Operation, SubmitError,
};
use stanchion_engine::memory::{HugePages, Region};
use stanchion_engine::ring::{CompleteEntry, SubmitEntry, codes};
use stanchion_engine::{
    CheckpointName, CheckpointSpec, Error, FormatOptions, IoError, Pool, PoolMode, PoolOptions,
    SessionOptions, format_pool,
};

const MIB: u64 = 1 << 20;
const DEPTH: u32 = 16;
/// Memory of one command.
const PIECE_BYTES: u64 = 4 * MIB;
const PATIENCE: Duration = Duration::from_secs(30);

fn name(text: &str) -> CheckpointName {
    text.parse().unwrap()
}

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

/// A pool on so many drives: what is saved comes back, also after it was opened anew.
fn a_pool_on(drives: usize) {
    let Some(back_end) = BackEnd::spdk(drives) else { return };
    back_end.format();
    let pattern = Pattern::new(drives as u64, 20 * MIB + 777);
    {
        let pool = back_end.open();
        assert_eq!(pool.info().drives.len(), drives);
        save(&pool, &name("run@1"), &pattern).unwrap();
        assert_eq!(restore(&pool, &name("run@1"), &pattern), Ok(()));
    }
    let pool = back_end.open_read_only();
    assert_eq!(restore(&pool, &name("run@1"), &pattern), Ok(()));
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.data_bytes, pattern.len_bytes());
}

#[test]
fn a_pool_on_one_drive() {
    a_pool_on(1);
}

#[test]
fn a_pool_on_two_drives() {
    a_pool_on(2);
}

#[test]
fn a_pool_on_four_drives() {
    a_pool_on(4);
}

#[test]
fn a_pool_on_eight_drives() {
    a_pool_on(8);
}

#[test]
fn a_target_that_dies_during_a_save_fails_it_and_nothing_hangs() {
    let Some(mut back_end) = BackEnd::spdk(2) else { return };
    back_end.format();
    let pool = back_end.open();
    save(&pool, &name("old@1"), &Pattern::new(5, 3 * MIB)).unwrap();
    let mut session = pool.session(&SessionOptions::default()).unwrap();
    let spec = CheckpointSpec {
        name: name("new@2"),
        participants: 1,
        participant: 0,
        length_bytes: 40 * MIB,
        shards: Vec::new(),
    };
    let handle = session.begin(&spec).unwrap();
    let buffer = session.alloc(40 * MIB).unwrap();
    let at = |at: u64| {
        SubmitEntry::write(
            stanchion_engine::ring::Transfer {
                checkpoint: handle,
                buffer: buffer.key(),
                buffer_offset_bytes: at,
                len_bytes: MIB,
                segment_offset_bytes: at,
            },
            at,
        )
    };
    let mut out = [CompleteEntry::default(); 64];
    for number in 0..10 {
        assert_eq!(session.submit(&[at(number * MIB)]), 1);
    }
    assert_eq!(session.wait(&mut out[..1], 1, PATIENCE), 1);
    assert!(out[0].result > 0);
    let BackEnd::Spdk { target } = &mut back_end else { unreachable!() };
    let start = Instant::now();
    target.kill();
    for number in 10..40 {
        assert_eq!(session.submit(&[at(number * MIB)]), 1);
    }
    assert_eq!(session.submit(&[SubmitEntry::commit(handle, u64::MAX)]), 1);
    let (mut ended, mut failed) = (1, 0);
    while ended < 41 {
        let count = session.wait(&mut out, 1, PATIENCE);
        assert!(count > 0, "{ended} of 41 operations have ended");
        ended += count;
        for entry in &out[..count] {
            if entry.user_data == u64::MAX {
                assert!(entry.result < 0, "a commit without drives");
            } else if entry.result < 0 {
                assert_eq!(entry.result, codes::REMOVED);
                failed += 1;
            }
        }
    }
    assert!(failed >= 29, "{failed}");
    drop((buffer, session));
    drop(pool);
    eprintln!("{failed} writes failed; all was over {:?} after the kill", start.elapsed());
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn a_pool_closed_with_writes_in_flight_opens_again() {
    let Some(back_end) = BackEnd::spdk(2) else { return };
    back_end.format();
    let pattern = Pattern::new(6, 5 * MIB);
    {
        let pool = back_end.open();
        save(&pool, &name("old@1"), &pattern).unwrap();
        let mut session = pool.session(&SessionOptions::default()).unwrap();
        let spec = CheckpointSpec {
            name: name("new@2"),
            participants: 1,
            participant: 0,
            length_bytes: 16 * MIB,
            shards: Vec::new(),
        };
        let handle = session.begin(&spec).unwrap();
        let buffer = session.alloc(16 * MIB).unwrap();
        assert_eq!(session.submit(&[write(handle, buffer.key(), 16 * MIB, 0, 1)]), 1);
    }
    let pool = back_end.open();
    assert_eq!(pool.list().len(), 1);
    assert_eq!(restore(&pool, &name("old@1"), &pattern), Ok(()));
}

/// The same bytes on the same files, once through the kernel and once through SPDK.
struct BothWays {
    directory: tempfile::TempDir,
    paths: Vec<DriveAddress>,
}

impl BothWays {
    const DRIVES: usize = 3;

    fn new() -> BothWays {
        let directory = tempfile::tempdir().unwrap();
        let path = |number| directory.path().join(format!("drive{number}.img"));
        let paths = (0..Self::DRIVES).map(|number| DriveAddress::Path(path(number))).collect();
        BothWays { directory, paths }
    }

    fn target(&self) -> Option<Target> {
        let backing = format!("aio:{}", self.directory.path().display());
        let drives = Self::DRIVES.to_string();
        let sizes = ["--size", "48M", "--drives", &drives, "--backing", &backing];
        Target::start(&[&sizes[..], &["--block-size", "512"]].concat())
    }
}

fn make_pool(drives: &[DriveAddress]) {
    format_pool(&FormatOptions {
        drives: drives.to_vec(),
        chunk_bytes: None,
        create_bytes: Some(48 * MIB),
        force: false,
    })
    .unwrap();
}

/// Drives in another order than they were formatted in.
fn open_turned(drives: &[DriveAddress], mode: PoolMode) -> Pool {
    let mut drives = drives.to_vec();
    drives.rotate_left(1);
    drives.swap(0, 1);
    Pool::open(&PoolOptions { mode, ..PoolOptions::new(drives) }).unwrap()
}

fn check(pool: &Pool, checkpoints: &[(&str, &Pattern)]) {
    assert_eq!(pool.list().len(), checkpoints.len());
    for (checkpoint, pattern) in checkpoints {
        assert_eq!(restore(pool, &name(checkpoint), pattern), Ok(()));
    }
    let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.data_bytes, checkpoints.iter().map(|(_, p)| p.len_bytes()).sum::<u64>());
}

#[test]
fn a_pool_made_by_the_kernel_is_used_through_spdk_and_back() {
    let both = BothWays::new();
    let (first, second) = (Pattern::new(11, 9 * MIB + 5), Pattern::new(12, 6 * MIB));
    make_pool(&both.paths);
    save(&Pool::open(&PoolOptions::new(both.paths.clone())).unwrap(), &name("a@1"), &first)
        .unwrap();
    {
        let Some(target) = both.target() else { return };
        check(&open_turned(&target.drives, PoolMode::ReadOnly), &[("a@1", &first)]);
        let pool = open_turned(&target.drives, PoolMode::ReadWrite);
        check(&pool, &[("a@1", &first)]);
        save(&pool, &name("b@2"), &second).unwrap();
    }
    let pool = open_turned(&both.paths, PoolMode::ReadWrite);
    check(&pool, &[("a@1", &first), ("b@2", &second)]);
}

#[test]
fn a_pool_made_through_spdk_is_used_by_the_kernel_and_back() {
    let both = BothWays::new();
    let (first, second) = (Pattern::new(13, 9 * MIB + 5), Pattern::new(14, 6 * MIB));
    {
        let Some(target) = both.target() else { return };
        make_pool(&target.drives);
        let pool = Pool::open(&PoolOptions::new(target.drives.clone())).unwrap();
        save(&pool, &name("a@1"), &first).unwrap();
    }
    {
        let pool = open_turned(&both.paths, PoolMode::ReadWrite);
        check(&pool, &[("a@1", &first)]);
        save(&pool, &name("b@2"), &second).unwrap();
    }
    let Some(target) = both.target() else { return };
    check(&open_turned(&target.drives, PoolMode::ReadWrite), &[("a@1", &first), ("b@2", &second)]);
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
