//! The `sim` back end: a drive in memory, seeded and deterministic, with power cuts and faults.
//!
//! [`SimDrive`] is the hardware: it outlives whoever drives it, and tests act on it from outside.
//! [`SimDevice`] is what the engine opens. One at a time.
//!
//! What a command goes through: submitted, completed (volatile), durable. The invariants:
//! - A write's bytes are taken when it is submitted; they become what reads see when it completes,
//!   and durable when a flush completes that was submitted after that, or at once if the write was
//!   [`super::Operation::WriteDurable`] or the drive has no volatile cache.
//! - A power cut keeps all that is durable. Of every other write, completed or in flight, it keeps
//!   all, nothing, or any 512-byte sectors. A failed command may be in flight, for this purpose,
//!   only where a fault says so ([`Effect::FailThenLand`]).
//! - Everything that happens is a function of the configuration, the seeds and the order of calls.
//! - `submit` and `poll` make no system calls beyond a mutex that nobody contends for. On a dense
//!   drive without faults and trace they never allocate; a sparse one allocates for each write.
//!
//! A dense drive has all its memory from the start and stores a write when it is submitted. That is
//! a drive without a volatile cache whose in-flight writes happen to survive every power cut.

mod content;
mod device;
mod fault;
mod hardware;
mod rng;
#[cfg(test)]
mod tests;
mod world;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::Xxh3;

use content::{Content, Fate, Write};
pub use device::SimDevice;
use fault::Faults;
pub use fault::{Effect, Fault, When};
use hardware::Hardware;
pub use rng::SimRng;
pub use world::SimWorld;

use super::{DriveInfo, Operation};
use crate::error::{Error, IoError};
use crate::limits::BLOCK_BYTES;
use crate::units::{is_block_aligned, round_down};

/// The order in which commands complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionOrder {
    /// As submitted; a poll gives all that fit.
    InOrder,
    /// Any, by the drive's seed; a poll gives some, and at least one when one is due.
    Shuffled,
}

/// What a simulated drive is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// Capacity; rounded down to whole blocks. Memory is taken only for blocks that were written,
    /// unless `dense`.
    pub capacity_bytes: u64,
    /// The serial; the address is `sim:` and the serial.
    pub serial: String,
    /// Commands in flight at once; at least 1.
    pub queue_depth: u32,
    /// Largest command; a whole number of blocks.
    pub max_transfer_bytes: u32,
    /// Whether completed writes may be lost at a power cut.
    pub volatile_cache: bool,
    /// Where all of the drive's choices come from.
    pub seed: u64,
    /// The order of completions.
    pub order: CompletionOrder,
    /// Take all memory at creation and never later. Not with `volatile_cache`.
    pub dense: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            capacity_bytes: 64 << 20,
            serial: "SIM0".into(),
            queue_depth: 64,
            max_transfer_bytes: 1 << 20,
            volatile_cache: true,
            seed: 0,
            order: CompletionOrder::InOrder,
            dense: false,
        }
    }
}

/// A write of one drive, numbered from 0 in the order of submission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteId(pub u64);

/// How far a write came that a power cut may drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteState {
    /// Completed, and not flushed.
    Volatile,
    /// Submitted, and not completed.
    InFlight,
    /// Its submitter is gone or was told that it failed, and it may still land.
    Stray,
}

/// A write that a power cut may drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtRisk {
    /// The write.
    pub id: WriteId,
    /// Where it goes.
    pub offset_bytes: u64,
    /// How long it is.
    pub len_bytes: u64,
    /// How far it came.
    pub state: WriteState,
}

/// A write of which a power cut leaves only some sectors of 512 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torn {
    /// The write; it need not be among the kept ones.
    pub id: WriteId,
    /// The sectors that arrive, counted from the start of the write.
    pub sectors: Range<u64>,
}

/// One event in a drive's trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// Order over all drives of the same [`SimWorld`].
    pub at: u64,
    /// What the command was.
    pub operation: Operation,
    /// Where, as the command said.
    pub offset_bytes: u64,
    /// How long.
    pub len_bytes: u32,
    /// The command's tag.
    pub tag: u64,
    /// `None`: it was submitted. Otherwise it ended like this, or was refused like this.
    pub ended: Option<Result<(), IoError>>,
}

/// Handle on a simulated drive; clones are handles on the same drive.
#[derive(Clone)]
pub struct SimDrive {
    hardware: Arc<Mutex<Hardware>>,
    world: SimWorld,
}

impl fmt::Debug for SimDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDrive").field("config", &self.lock().config).finish_non_exhaustive()
    }
}

impl SimDrive {
    /// An empty drive with a power supply of its own.
    ///
    /// # Errors
    /// [`Error::Usage`] when the configuration makes no sense.
    pub fn new(config: SimConfig) -> Result<SimDrive, Error> {
        SimDrive::new_in(&SimWorld::new(), config)
    }

    /// An empty drive on the power supply, and in the command count, of `world`.
    ///
    /// # Errors
    /// [`Error::Usage`] when the configuration makes no sense.
    pub fn new_in(world: &SimWorld, mut config: SimConfig) -> Result<SimDrive, Error> {
        config.capacity_bytes = round_down(config.capacity_bytes, BLOCK_BYTES);
        let wrong = |what: &str| Error::Usage(format!("simulated drive {}: {what}", config.serial));
        if config.queue_depth == 0 {
            return Err(wrong("a queue depth of 0"));
        }
        let max_transfer_bytes = u64::from(config.max_transfer_bytes);
        if max_transfer_bytes == 0 || !is_block_aligned(max_transfer_bytes) {
            return Err(wrong("the largest transfer is not a whole number of blocks"));
        }
        if config.dense && config.volatile_cache {
            return Err(wrong("a dense drive has no volatile cache"));
        }
        let capacity = usize::try_from(config.capacity_bytes).map_err(|_| wrong("too large"))?;
        let hardware = Hardware {
            content: Content::new(capacity, config.dense, config.volatile_cache),
            faults: Faults::new(config.seed),
            rng: SimRng::new(config.seed),
            trace: None,
            in_flight: VecDeque::with_capacity(config.queue_depth as usize),
            next_write: 0,
            epoch: 0,
            is_open: false,
            is_removed: false,
            orphans: Vec::new(),
            config,
        };
        Ok(SimDrive { hardware: Arc::new(Mutex::new(hardware)), world: world.clone() })
    }

    /// A copy as of this instant, with a power supply of its own: not open, no faults, no trace.
    /// Commands in flight are strays of the copy: each write may land or not. Blocks are shared
    /// until written, except for a dense drive.
    pub fn fork(&self) -> SimDrive {
        self.fork_in(&SimWorld::new())
    }

    /// As [`SimDrive::fork`], in a given world.
    pub fn fork_in(&self, world: &SimWorld) -> SimDrive {
        let hardware = self.lock();
        let mut content = hardware.content.clone();
        for write in hardware.writes_in_flight() {
            content.stray(write.clone(), None);
        }
        let config = hardware.config.clone();
        let copy = Hardware {
            content,
            faults: Faults::new(config.seed),
            rng: hardware.rng.clone(),
            trace: None,
            in_flight: VecDeque::with_capacity(config.queue_depth as usize),
            next_write: hardware.next_write,
            epoch: 0,
            is_open: false,
            is_removed: hardware.is_removed,
            orphans: Vec::new(),
            config,
        };
        SimDrive { hardware: Arc::new(Mutex::new(copy)), world: world.clone() }
    }

    /// Opens the drive. Commands that an earlier owner left in flight land now, or never, by the
    /// drive's seed.
    ///
    /// # Errors
    /// [`Error::Busy`] while another [`SimDevice`] of this drive lives; [`Error::DriveNotFound`]
    /// when it is removed or without power.
    pub fn open(&self) -> Result<SimDevice, Error> {
        let mut hardware = self.lock();
        let address = format!("sim:{}", hardware.config.serial);
        if hardware.is_open {
            let owner = "another simulated device".into();
            return Err(Error::Busy { what: format!("drive {address}"), owner });
        }
        if hardware.is_removed || !self.world.has_power() {
            let detail = "removed or without power; reinsert it, or power_on its world".into();
            return Err(Error::DriveNotFound { address, detail });
        }
        let Hardware { content, rng, .. } = &mut *hardware;
        content.settle_strays(|| rng.one_in(2));
        hardware.is_open = true;
        hardware.epoch += 1;
        let info = DriveInfo {
            address,
            serial: hardware.config.serial.clone(),
            model: "simulated".into(),
            back_end: "sim",
            capacity_bytes: hardware.config.capacity_bytes,
            max_transfer_bytes: u64::from(hardware.config.max_transfer_bytes),
            queue_depth: hardware.config.queue_depth,
            volatile_cache: Some(hardware.config.volatile_cache),
            needs_huge_pages: false,
            interrupt_driven: false,
        };
        Ok(SimDevice::new(self.clone(), info, hardware.epoch))
    }

    /// The drive's power supply and command count.
    pub fn world(&self) -> &SimWorld {
        &self.world
    }

    /// Power cut: each write that is not durable is kept, dropped or torn, by `seed`, and writes in
    /// flight land in any order. A device that is open fails from now on; the drive can be opened
    /// again. The world's power is not touched: see [`SimWorld::power_on`].
    pub fn crash(&self, seed: u64) {
        let mut order = SimRng::new(seed ^ 0x0cde);
        let mut fates = SimRng::new(seed);
        let reorder = |strays: &mut Vec<Write>| {
            for i in (1..strays.len()).rev() {
                strays.swap(i, order.index(i + 1));
            }
        };
        self.cut(reorder, |write| match fates.below(3) {
            0 => Fate::Keep,
            1 => Fate::Drop,
            _ => Fate::Torn((0..write.sectors()).map(|_| fates.one_in(2)).collect()),
        });
    }

    /// Power cut that keeps exactly `kept` of [`SimDrive::volatile_writes`], in that order, and some
    /// sectors of `torn`. Otherwise as [`SimDrive::crash`].
    pub fn crash_keeping(&self, kept: &[WriteId], torn: Option<&Torn>) {
        self.cut(
            |_| {},
            |write| match torn {
                Some(torn) if torn.id == write.id => {
                    let sectors = 0..write.sectors() as u64;
                    Fate::Torn(sectors.map(|sector| torn.sectors.contains(&sector)).collect())
                }
                _ if kept.contains(&write.id) => Fate::Keep,
                _ => Fate::Drop,
            },
        );
    }

    fn cut(&self, reorder: impl FnOnce(&mut Vec<Write>), fate: impl FnMut(&Write) -> Fate) {
        let mut hardware = self.lock();
        hardware.abandon_in_flight();
        hardware.content.crash(reorder, fate);
        hardware.is_open = false;
        hardware.epoch += 1;
    }

    /// The writes that a power cut may drop: completed ones in the order of completion, then strays,
    /// then those in flight in the order of submission.
    pub fn volatile_writes(&self) -> Vec<AtRisk> {
        let hardware = self.lock();
        let in_flight = hardware.writes_in_flight();
        let all = hardware.content.at_risk();
        all.chain(in_flight.into_iter().map(|write| (write, WriteState::InFlight)))
            .map(|(write, state)| AtRisk {
                id: write.id,
                offset_bytes: write.first_block * BLOCK_BYTES,
                len_bytes: write.blocks.len() as u64 * BLOCK_BYTES,
                state,
            })
            .collect()
    }

    /// Sets a fault. Of several that hit one command, the one that was set first decides.
    ///
    /// # Errors
    /// [`Error::Usage`] when the drive is dense and the effect needs what a dense drive does not
    /// keep ([`Effect::Stale`], [`Effect::FailThenLand`]), or the place to misdirect to is not
    /// block aligned.
    pub fn inject(&self, fault: Fault) -> Result<(), Error> {
        let mut hardware = self.lock();
        let needs_history = matches!(fault.effect, Effect::Stale | Effect::FailThenLand { .. });
        if needs_history && hardware.config.dense {
            return Err(Error::Usage(format!("{:?} needs a sparse drive", fault.effect)));
        }
        if let Effect::Misdirect { offset_bytes } = fault.effect
            && !is_block_aligned(offset_bytes)
        {
            return Err(Error::Usage(format!("misdirection to byte {offset_bytes}: not a block")));
        }
        hardware.faults.set(fault);
        Ok(())
    }

    /// Forgets all faults. What they did stays done.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// Pulls the drive: every command in flight and every later one fails with
    /// [`IoError::Removed`].
    pub fn remove(&self) {
        self.lock().is_removed = true;
    }

    /// Puts the drive back. A device that was open when it was pulled does not recover.
    pub fn reinsert(&self) {
        let mut hardware = self.lock();
        hardware.abandon_in_flight();
        hardware.is_removed = false;
        hardware.is_open = false;
        hardware.epoch += 1;
    }

    /// Reads stored bytes as a read would see them, without a command. Not hit by faults.
    /// Whole blocks within the drive, or `None`.
    pub fn peek(&self, offset_bytes: u64, len_bytes: u64) -> Option<Vec<u8>> {
        let hardware = self.lock();
        let mut bytes = hardware.buffer_for(offset_bytes, len_bytes)?;
        hardware.content.read(offset_bytes, &mut bytes, false);
        Some(bytes)
    }

    /// As [`SimDrive::peek`], but what is durable.
    pub fn peek_durable(&self, offset_bytes: u64, len_bytes: u64) -> Option<Vec<u8>> {
        let hardware = self.lock();
        let mut bytes = hardware.buffer_for(offset_bytes, len_bytes)?;
        hardware.content.read_durable(offset_bytes, &mut bytes);
        Some(bytes)
    }

    /// Flips one bit of the stored content. As all tampering, it hurts what reads see and what is
    /// durable; a write that is not durable yet may still cover it. Nothing beyond the drive's end.
    pub fn flip_bit(&self, offset_bytes: u64, bit: u8) {
        self.tamper(offset_bytes, 1, |_, bytes| bytes[0] ^= 1 << (bit % 8));
    }

    /// Zeroes stored bytes.
    pub fn zero(&self, offset_bytes: u64, len_bytes: u64) {
        self.tamper(offset_bytes, len_bytes, |_, bytes| bytes.fill(0));
    }

    /// Changes every byte of a range, by `seed`.
    pub fn corrupt(&self, offset_bytes: u64, len_bytes: u64, seed: u64) {
        self.tamper(offset_bytes, len_bytes, |at, bytes| {
            let mut rng = SimRng::new(seed ^ at);
            bytes.iter_mut().for_each(|byte| *byte ^= 1 + rng.below(255) as u8);
        });
    }

    /// Puts bytes into the stored content.
    pub fn overwrite(&self, offset_bytes: u64, data: &[u8]) {
        self.tamper(offset_bytes, data.len() as u64, |at, bytes| {
            let start = (at - offset_bytes) as usize;
            bytes.copy_from_slice(&data[start..start + bytes.len()]);
        });
    }

    fn tamper(&self, offset_bytes: u64, len_bytes: u64, change: impl Fn(u64, &mut [u8])) {
        let mut hardware = self.lock();
        let capacity = hardware.config.capacity_bytes;
        let len = len_bytes.min(capacity.saturating_sub(offset_bytes));
        hardware.content.tamper(offset_bytes, len, change);
    }

    /// A fingerprint of what is durable: equal for equal content, whatever wrote it.
    pub fn durable_digest(&self) -> u128 {
        let mut hash = Xxh3::new();
        self.lock().content.for_each_durable(|block, data| {
            hash.update(&block.to_le_bytes());
            hash.update(data);
        });
        hash.digest128()
    }

    /// Starts a record of commands, with room for so many events before it has to grow.
    pub fn start_trace(&self, room: usize) {
        self.lock().trace = Some(Vec::with_capacity(room));
    }

    /// The events since the start or the last take; the record goes on.
    pub fn take_trace(&self) -> Vec<TraceEvent> {
        self.lock().trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Hardware> {
        // A panic of a test thread leaves at worst a command that will not complete.
        self.hardware.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
