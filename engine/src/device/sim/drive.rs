// SPDX-License-Identifier: Apache-2.0
//! The hardware of a simulated drive, and what tests do to it from outside.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::Xxh3;

use super::config::SimConfig;
use super::content::{Content, Fate, Write};
use super::fault::{Effect, Fault, Faults};
use super::hardware::Hardware;
use super::reservation::ReservationState;
use super::rng::SimRng;
use super::trace::TraceEvent;
use super::world::SimWorld;
use super::write::{AtRisk, Torn, WriteId, WriteState};
use crate::error::Error;
use crate::limits::BLOCK_BYTES;
use crate::units::{is_block_aligned, round_down};

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
    /// [`Error::Usage`] when the configuration is invalid.
    pub fn new(config: SimConfig) -> Result<SimDrive, Error> {
        SimDrive::new_in(&SimWorld::new(), config)
    }

    /// An empty drive on the power supply, and in the command count, of `world`.
    ///
    /// # Errors
    /// [`Error::Usage`] when the configuration is invalid.
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
            reservations: ReservationState::default(),
            orphans: Vec::new(),
            config,
        };
        Ok(SimDrive { hardware: Arc::new(Mutex::new(hardware)), world: world.clone() })
    }

    /// A copy as of this instant, with its own power supply: not open, no faults, no trace.
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
            reservations: hardware.reservations.clone(),
            orphans: Vec::new(),
            config,
        };
        SimDrive { hardware: Arc::new(Mutex::new(copy)), world: world.clone() }
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

    /// Power cut that keeps exactly `kept` of [`SimDrive::volatile_writes`], in that order, and
    /// some sectors of `torn`. Otherwise as [`SimDrive::crash`].
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

    /// The writes that a power cut may drop: completed ones in the order of completion, then
    /// strays, then those in flight in the order of submission.
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

    /// Sets a fault. If several hit one command, the one that was set first counts.
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

    /// Removes all faults. Their effects remain.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// Pulls the drive: every command in flight and every later one fails with
    /// `IoError::Removed`.
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

    /// Flips one bit of the stored content. Like all tampering, it changes what reads see and what
    /// is durable; a write that is not durable yet may still cover it. No effect beyond the drive's
    /// end.
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

    /// Whether all of these bytes are zeros, as far as they are durable.
    pub fn is_blank(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.lock().content.is_blank(offset_bytes, len_bytes)
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

    /// Starts a record of commands, with room for `room` events before it has to grow.
    pub fn start_trace(&self, room: usize) {
        self.lock().trace = Some(Vec::with_capacity(room));
    }

    /// The events since the start or the last take; recording continues.
    pub fn take_trace(&self) -> Vec<TraceEvent> {
        self.lock().trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Hardware> {
        // A panic of a test thread leaves at worst a command that will not complete.
        self.hardware.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
