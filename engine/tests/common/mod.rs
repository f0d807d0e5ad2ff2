// SPDX-License-Identifier: Apache-2.0
//! Code that the engine's tests share: back ends, byte patterns, a save and a restore.

#![allow(clippy::unwrap_used)]
// Each test binary uses its part of this.
#![allow(dead_code)]

#[allow(unsafe_code)]
pub mod device_rig;
#[cfg(feature = "spdk")]
#[allow(unsafe_code)]
pub mod faulty;
pub mod kept;
#[allow(unsafe_code)]
pub mod shaped;
#[cfg(feature = "spdk")]
#[allow(unsafe_code)]
pub mod target;

use stanchion_testing::internals as engine;

use std::time::Duration;

use stanchion_testing::DriveAddress;
use stanchion_testing::HugePages;
use stanchion_testing::internals::device::Device;
use stanchion_testing::internals::device::sim::{SimConfig, SimDrive};
use stanchion_testing::internals::format_pool_on;
use stanchion_testing::internals::ring::{CompleteEntry, SubmitEntry, Transfer, codes};
use stanchion_testing::{
    CheckpointName, CheckpointSpec, Error, FormatOptions, Pool, PoolMode, PoolOptions,
    SessionOptions, format_pool,
};

/// Drives of one kind.
pub enum BackEnd {
    /// Simulated drives.
    Sim(Vec<SimDrive>),
    /// Files, and their directory.
    Files { drives: Vec<DriveAddress>, _directory: tempfile::TempDir },
    /// NVMe-oF drives, and the target that serves them.
    #[cfg(feature = "spdk")]
    Spdk { target: target::Target },
}

/// The size of each drive.
pub const DRIVE_BYTES: u64 = 48 << 20;
/// No operation of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

impl BackEnd {
    /// Simulated drives.
    pub fn sim(count: usize) -> BackEnd {
        let config = |number: usize| SimConfig {
            capacity_bytes: DRIVE_BYTES,
            serial: format!("SIM{number}"),
            seed: number as u64,
            ..SimConfig::default()
        };
        BackEnd::Sim((0..count).map(|number| SimDrive::new(config(number)).unwrap()).collect())
    }

    /// Files.
    pub fn files(count: usize) -> BackEnd {
        let directory = tempfile::tempdir().unwrap();
        let path = |number| directory.path().join(format!("drive{number}.img"));
        let drives = (0..count).map(|number| DriveAddress::Path(path(number))).collect();
        BackEnd::Files { drives, _directory: directory }
    }

    /// Drives behind SPDK, in a target's memory. `None`, with a message, where no target can run.
    #[cfg(feature = "spdk")]
    pub fn spdk(count: usize) -> Option<BackEnd> {
        let size = format!("{}M", DRIVE_BYTES >> 20);
        let options = ["--drives", &count.to_string(), "--size", &size];
        Some(BackEnd::Spdk { target: target::Target::start(&options)? })
    }

    /// Every kind that this machine can run.
    pub fn all(count: usize) -> impl Iterator<Item = BackEnd> {
        let usual = [BackEnd::sim as fn(usize) -> BackEnd, BackEnd::files];
        let kinds = usual.into_iter().map(move |make| make(count));
        #[cfg(feature = "spdk")]
        let kinds = kinds.chain(std::iter::once_with(move || BackEnd::spdk(count)).flatten());
        kinds
    }

    fn addresses(&self) -> Vec<DriveAddress> {
        match self {
            BackEnd::Sim(_) => Vec::new(),
            BackEnd::Files { drives, .. } => drives.clone(),
            #[cfg(feature = "spdk")]
            BackEnd::Spdk { target } => target.drives.clone(),
        }
    }

    fn devices(&self) -> Vec<Box<dyn Device>> {
        let BackEnd::Sim(drives) = self else { panic!("files are opened by address") };
        drives.iter().map(|drive| Box::new(drive.open().unwrap()) as Box<dyn Device>).collect()
    }

    /// Makes a pool of them.
    pub fn format(&self) {
        let options = FormatOptions {
            create_bytes: Some(DRIVE_BYTES),
            ..FormatOptions::new(self.addresses())
        };
        match self {
            BackEnd::Sim(_) => format_pool_on(self.devices(), &options).unwrap(),
            _ => format_pool(&options).unwrap(),
        };
    }

    /// Makes a pool of them although they have one that may be read. Not of simulated ones.
    pub fn format_again(&self) {
        let options = FormatOptions { force: true, ..FormatOptions::new(self.addresses()) };
        format_pool(&options).unwrap();
    }

    fn open_as(&self, mode: PoolMode) -> Pool {
        let drives = self.addresses();
        let options = PoolOptions { mode, huge_pages: HugePages::Off, ..PoolOptions::new(drives) };
        match self {
            BackEnd::Sim(_) => Pool::open_on(self.devices(), &options).unwrap(),
            _ => Pool::open(&options).unwrap(),
        }
    }

    /// Opens the pool.
    pub fn open(&self) -> Pool {
        self.open_as(PoolMode::ReadWrite)
    }

    /// Opens the pool for reading only.
    pub fn open_read_only(&self) -> Pool {
        self.open_as(PoolMode::ReadOnly)
    }
}

/// Whether this process runs one test only, as under cargo-nextest: a test that changes its process
/// (limits, environment) would disturb others. Prints a message where it does not.
pub fn is_alone() -> bool {
    let alone = std::env::var_os("NEXTEST").is_some();
    if !alone {
        eprintln!("skipped: it needs a process of its own; run by cargo-nextest");
    }
    alone
}

/// Bytes that differ everywhere, from a seed.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    bytes: Vec<u8>,
}

impl Pattern {
    /// `len_bytes` bytes.
    pub fn new(seed: u64, len_bytes: u64) -> Pattern {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut bytes = Vec::with_capacity(len_bytes as usize + 8);
        while bytes.len() < len_bytes as usize {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        bytes.truncate(len_bytes as usize);
        Pattern { bytes }
    }

    /// So many copies of it.
    pub fn repeated(&self, count: u64) -> Pattern {
        Pattern { bytes: self.bytes.repeat(count as usize) }
    }

    /// Copies it to the start of a buffer.
    pub fn copy_to(&self, buffer: &mut [u8]) {
        buffer[..self.bytes.len()].copy_from_slice(&self.bytes);
    }

    /// Its length.
    pub fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// A write of `len_bytes` from the buffer's start.
pub fn write(handle: u64, buffer: u32, len_bytes: u64, at: u64, user_data: u64) -> SubmitEntry {
    let transfer = Transfer {
        checkpoint: handle,
        buffer,
        buffer_offset_bytes: 0,
        len_bytes,
        segment_offset_bytes: at,
    };
    SubmitEntry::write(transfer, user_data)
}

/// A session with no more memory than that: allocation costs time.
fn small(memory_bytes: u64) -> SessionOptions {
    SessionOptions { memory_bytes, ..SessionOptions::default() }
}

/// Saves a pattern as a checkpoint of one participant, in pieces of a few chunks.
pub fn save(pool: &Pool, name: &CheckpointName, pattern: &Pattern) -> Result<u64, Error> {
    let piece = 4 * pool.info().chunk_bytes;
    let mut session = pool.session(&small(piece))?;
    let handle = session.begin(&CheckpointSpec {
        name: name.clone(),
        participants: 1,
        participant: 0,
        len_bytes: pattern.len_bytes(),
        shards: Vec::new(),
    })?;
    let mut buffer = session.alloc(piece)?;
    let mut out = [CompleteEntry::default(); 4];
    for (number, bytes) in pattern.bytes.chunks(piece as usize).enumerate() {
        buffer.as_mut_slice()?[..bytes.len()].copy_from_slice(bytes);
        let at = number as u64 * piece;
        let entry = write(handle, buffer.key(), bytes.len() as u64, at, at);
        assert_eq!(session.submit(&[entry]), 1);
        assert_eq!(session.wait(&mut out, 1, Duration::from_secs(30)), 1);
        check(&out[0])?;
        assert_eq!((out[0].user_data, out[0].result), (at, bytes.len() as i64));
    }
    assert_eq!(session.submit(&[SubmitEntry::commit(handle, 99)]), 1);
    assert_eq!(session.wait(&mut out, 1, Duration::from_secs(30)), 1);
    check(&out[0])?;
    assert_eq!((out[0].user_data, out[0].result), (99, 0));
    Ok(out[0].aux)
}

/// The error of an entry that failed.
fn check(done: &CompleteEntry) -> Result<(), Error> {
    if done.result >= 0 {
        return Ok(());
    }
    let source = std::io::Error::other(codes::describe(done.result));
    Err(Error::Os { what: "a save".into(), source })
}

/// How the operations of a save ended.
#[derive(Debug)]
pub struct Ended {
    /// Writes, in no order.
    pub writes: Vec<CompleteEntry>,
    /// The commit.
    pub commit: CompleteEntry,
}

impl Ended {
    /// Writes that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CompleteEntry> {
        self.writes.iter().filter(|entry| entry.result < 0)
    }

    /// The first failure, if there is one.
    pub fn status(&self) -> Result<(), (i64, u32)> {
        let failed = self.failures().next().or((self.commit.result < 0).then_some(&self.commit));
        failed.map_or(Ok(()), |entry| Err((entry.result, entry.detail)))
    }
}

/// Saves a pattern chunk by chunk, all at once, and calls `disturb` when some writes have ended and
/// most have not. Every operation ends; the results are returned.
pub fn save_disturbed(
    pool: &Pool,
    name: &CheckpointName,
    pattern: &Pattern,
    disturb: impl FnOnce(),
) -> Result<Ended, Error> {
    let mut session = pool.session(&SessionOptions::default())?;
    let len_bytes = pattern.len_bytes();
    let handle = session.begin(&CheckpointSpec {
        name: name.clone(),
        participants: 1,
        participant: 0,
        len_bytes,
        shards: Vec::new(),
    })?;
    let mut buffer = session.alloc(len_bytes)?;
    buffer.as_mut_slice()?[..len_bytes as usize].copy_from_slice(&pattern.bytes);
    let chunk_bytes = pool.info().chunk_bytes;
    let writes: Vec<SubmitEntry> = (0..len_bytes.div_ceil(chunk_bytes))
        .map(|chunk| {
            let at = chunk * chunk_bytes;
            let transfer = Transfer {
                checkpoint: handle,
                buffer: buffer.key(),
                buffer_offset_bytes: at,
                len_bytes: chunk_bytes.min(len_bytes - at),
                segment_offset_bytes: at,
            };
            SubmitEntry::write(transfer, chunk)
        })
        .collect();
    let few = writes.len().min(8);
    assert_eq!(session.submit(&writes[..few]), few);
    let mut out = [CompleteEntry::default(); 64];
    let mut ended = Vec::new();
    let count = session.wait(&mut out, 1, PATIENCE);
    assert!(count > 0, "no write ends");
    ended.extend_from_slice(&out[..count]);
    disturb();
    assert_eq!(session.submit(&writes[few..]), writes.len() - few);
    let commit = SubmitEntry::commit(handle, u64::MAX);
    assert_eq!(session.submit(&[commit]), 1);
    while ended.len() < writes.len() + 1 {
        let count = session.wait(&mut out, 1, PATIENCE);
        assert!(count > 0, "{} of {} operations have ended", ended.len(), writes.len() + 1);
        ended.extend_from_slice(&out[..count]);
    }
    let (commits, writes): (Vec<_>, Vec<_>) =
        ended.into_iter().partition(|entry| entry.user_data == u64::MAX);
    let numbers: std::collections::BTreeSet<u64> = writes.iter().map(|e| e.user_data).collect();
    assert_eq!((numbers.len(), commits.len()), (writes.len(), 1), "an operation ended twice");
    Ok(Ended { writes, commit: commits[0] })
}

/// Restores a checkpoint and compares it; the error is the first completion's code.
pub fn restore(pool: &Pool, name: &CheckpointName, pattern: &Pattern) -> Result<(), i64> {
    let piece = 4 * pool.info().chunk_bytes;
    let mut session = pool.session(&small(piece)).unwrap();
    let opened = session.open(name, 0).unwrap();
    assert_eq!(opened.len_bytes, pattern.len_bytes());
    let buffer = session.alloc(piece).unwrap();
    let mut out = [CompleteEntry::default(); 4];
    for (number, bytes) in pattern.bytes.chunks(piece as usize).enumerate() {
        let transfer = Transfer {
            checkpoint: opened.handle,
            buffer: buffer.key(),
            buffer_offset_bytes: 0,
            len_bytes: bytes.len() as u64,
            segment_offset_bytes: number as u64 * piece,
        };
        assert_eq!(session.submit(&[SubmitEntry::read(transfer, 5)]), 1);
        assert_eq!(session.wait(&mut out, 1, Duration::from_secs(30)), 1);
        if out[0].result < 0 {
            return Err(out[0].result);
        }
        assert!(buffer.as_slice().unwrap()[..bytes.len()] == *bytes, "other bytes came back");
    }
    Ok(())
}
