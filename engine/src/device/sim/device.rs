// SPDX-License-Identifier: Apache-2.0
//! The queue pair of a simulated drive.

#![allow(unsafe_code)]

use std::slice;
use std::sync::Arc;

use super::drive::SimDrive;
use super::hardware::Hardware;
use super::reservation::{CONFLICT, Host};
use crate::device::reservation::Reservations;
use crate::device::{Command, Completion, Device, DriveInfo, Operation, SubmitError};
use crate::error::{Error, IoError};
use crate::memory::Region;
use crate::units::is_block_aligned;

const INVALID_FIELD: IoError = IoError::Nvme { sct: 0, sc: 0x02, dnr: true };
const LBA_OUT_OF_RANGE: IoError = IoError::Nvme { sct: 0, sc: 0x80, dnr: true };

/// A simulated drive, open.
pub struct SimDevice {
    drive: SimDrive,
    info: DriveInfo,
    pub(super) epoch: u64,
    pub(super) host: Host,
    /// It has registered, and not taken that back.
    pub(super) is_registered: bool,
    /// The drive stays reserved when it is closed.
    pub(super) stays_reserved: bool,
    in_flight: u32,
    regions: Vec<Arc<Region>>,
}

impl SimDrive {
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
        if hardware.is_removed || !self.world().has_power() {
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
            reservations: Some(hardware.config.reservations),
            needs_huge_pages: false,
            interrupt_driven: false,
            origin: crate::drive_info::Origin::default(),
        };
        let host = hardware.reservations.new_host();
        Ok(SimDevice::new(self.clone(), info, hardware.epoch, host))
    }
}

impl SimDevice {
    pub(super) fn new(drive: SimDrive, info: DriveInfo, epoch: u64, host: Host) -> SimDevice {
        let (is_registered, stays_reserved, in_flight) = (false, false, 0);
        let regions = Vec::new();
        SimDevice { drive, info, epoch, host, is_registered, stays_reserved, in_flight, regions }
    }

    pub(super) fn drive(&self) -> SimDrive {
        self.drive.clone()
    }

    /// What a drive checks before it accepts a command, and that the memory is registered.
    fn check(&self, command: &Command) -> Result<(), IoError> {
        if command.operation == Operation::Flush {
            return Ok(());
        }
        let len_bytes = u64::from(command.memory.len_bytes);
        let offset_bytes = command.offset_bytes;
        if len_bytes == 0
            || len_bytes > self.info.max_transfer_bytes
            || !is_block_aligned(len_bytes)
            || !is_block_aligned(offset_bytes)
            || !is_block_aligned(command.memory.address.as_ptr() as u64)
        {
            return Err(INVALID_FIELD);
        }
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > self.info.capacity_bytes) {
            return Err(LBA_OUT_OF_RANGE);
        }
        let known = |region: &Arc<Region>| region.contains(command.memory.address, len_bytes);
        if !self.regions.iter().any(known) {
            return Err(IoError::Os(libc::EFAULT));
        }
        Ok(())
    }
}

impl Device for SimDevice {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        if !self.regions.iter().any(|known| known.id() == region.id()) {
            self.regions.push(region.clone());
        }
        Ok(())
    }

    fn unregister(&mut self, region: &Arc<Region>) {
        self.regions.retain(|known| known.id() != region.id());
    }

    unsafe fn submit(&mut self, command: Command) -> Result<(), SubmitError> {
        let world = self.drive.world();
        let mut hardware = self.drive.lock();
        if hardware.epoch != self.epoch || hardware.is_removed || !world.has_power() {
            return Err(SubmitError::Failed(IoError::Removed));
        }
        self.check(&command).map_err(SubmitError::Failed)?;
        if self.in_flight >= self.info.queue_depth {
            return Err(SubmitError::Full);
        }
        if command.operation != Operation::Read && hardware.reservations.excludes(self.host) {
            return Err(SubmitError::Failed(CONFLICT));
        }
        if !world.admit() {
            return Err(SubmitError::Failed(IoError::Removed));
        }
        let data: &[u8] = match command.operation {
            Operation::Write | Operation::WriteDurable => {
                let len_bytes = command.memory.len_bytes as usize;
                // SAFETY: `check` found the bytes within a registered region, which `self.regions`
                // keeps mapped, and the caller promises that no thread writes them meanwhile.
                unsafe { slice::from_raw_parts(command.memory.address.as_ptr(), len_bytes) }
            }
            Operation::Read | Operation::Flush => &[],
        };
        hardware.accept(world, command, data).map_err(SubmitError::Failed)?;
        self.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut hardware = self.drive.lock();
        let is_connected = hardware.epoch == self.epoch;
        let is_alive = is_connected && !hardware.is_removed && self.drive.world().has_power();
        if is_connected && !is_alive {
            hardware.abandon_in_flight();
        }
        let mut count = 0;
        for completion in completions {
            let next = if is_alive {
                // The first one is certain, so that polling makes progress.
                hardware.next_completion(self.drive.world(), count == 0)
            } else {
                hardware.next_orphan(self.epoch)
            };
            let Some(next) = next else { break };
            *completion = next;
            count += 1;
        }
        if is_alive {
            hardware.pass_poll();
        }
        self.in_flight -= count as u32;
        count
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn reservations(&mut self) -> Option<&mut dyn Reservations> {
        (self.info.reservations == Some(true)).then_some(self as &mut dyn Reservations)
    }
}

impl Drop for SimDevice {
    /// Memory is only touched within `submit` and `poll`, so there is nothing to wait for.
    fn drop(&mut self) {
        self.give_up_reservation();
        let mut hardware = self.drive.lock();
        if hardware.epoch == self.epoch {
            hardware.abandon_in_flight();
            hardware.is_open = false;
        }
        hardware.orphans.retain(|(epoch, _)| *epoch != self.epoch);
    }
}
