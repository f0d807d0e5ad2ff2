// SPDX-License-Identifier: Apache-2.0
//! An open namespace: its queue pair, the commands on it, and what happens when it is lost.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::controller::{Controller, Namespace, QueuePair};
use super::held::Held;
#[cfg(any(test, feature = "internals"))]
use super::inject;
use super::namespace::{
    drive_info, has_reservations, keeps_reservations, may_report, supported_split,
};
use super::polled_time::PolledTime;
use super::registration::Registration;
use super::slots::Slots;
use super::split::Split;
use super::{environment, fence};
use crate::address::{DriveAddress, function_of_transport_id};
use crate::device::check::check;
use crate::device::health_log::HealthLog;
use crate::device::reservation::Reservations;
use crate::device::{
    Command, Completion, Device, DriveInfo, OpenMode, Operation, Regions, SubmitError,
};
use crate::error::{Error, IoError};
use crate::host::lock::DriveLock;
use crate::limits::MAX_QUEUE_DEPTH;
use crate::memory::Region;

/// The environment variable for the seconds after which a command, and with it its drive, counts as
/// lost.
pub const TIMEOUT_VARIABLE: &str = "STANCHION_IO_TIMEOUT_S";

/// The environment variable that keeps reservations of SPDK's drives from being used (`off`), for
/// drives and targets whose reservations do not work.
pub const RESERVATIONS_VARIABLE: &str = "STANCHION_RESERVATIONS";

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the controller and the timeouts of commands are checked.
const TEND_INTERVAL: Duration = Duration::from_millis(10);
/// Request objects of one queue pair at most: some 300 bytes each.
const MAX_REQUESTS: u64 = 16 << 10;
/// The size of a queue pair's pool if none is given to SPDK.
const MIN_REQUESTS: u64 = 512;

/// See [`unaccounted_requests`].
static UNACCOUNTED: AtomicU64 = AtomicU64::new(0);

/// Requests that SPDK took and never completed, over all drives that this process has closed or
/// lost. Anything but 0 is a fault of the driver: their memory is kept and never used again.
#[cfg(any(test, feature = "internals"))]
pub fn unaccounted_requests() -> u64 {
    UNACCOUNTED.load(Ordering::Acquire)
}

/// Regions of memory that are registered with SPDK now: 0 when every device and session is closed.
#[cfg(any(test, feature = "internals"))]
pub fn registered_regions() -> usize {
    super::registration::count()
}

/// As [`crate::device::open`], with a way to make the device's commands fail.
#[cfg(any(test, feature = "internals"))]
pub fn open_with_injector(
    address: &DriveAddress,
    queue_depth: u32,
) -> Result<(Box<dyn Device>, inject::Injector), Error> {
    let DriveAddress::Spdk { transport_id, namespace } = address else {
        return Err(Error::Usage(format!("{address} is not an address for SPDK")));
    };
    let injector = inject::Injector::default();
    let mut device = open_device(transport_id, *namespace, OpenMode::ReadWrite, queue_depth)?;
    device.injector = Some(injector.clone());
    Ok((Box::new(device), injector))
}

/// Opens a namespace behind an SPDK transport ID in the form that [`DriveAddress`] prints. It stays
/// locked on this host until the device is dropped.
///
/// # Errors
/// [`Error::DriveNotFound`] when nothing answers there; [`Error::Busy`] naming the owner;
/// [`Error::Environment`] when SPDK cannot run or the drive cannot be used with it.
pub(crate) fn open(
    transport_id: &str,
    namespace: u32,
    mode: OpenMode,
    queue_depth: u32,
) -> Result<Box<dyn Device>, Error> {
    Ok(Box::new(open_device(transport_id, namespace, mode, queue_depth)?))
}

fn open_device(
    transport_id: &str,
    namespace: u32,
    mode: OpenMode,
    queue_depth: u32,
) -> Result<SpdkDevice, Error> {
    if queue_depth == 0 || queue_depth > MAX_QUEUE_DEPTH {
        return Err(Error::Usage(format!(
            "a queue depth of {queue_depth}: it is 1 to {MAX_QUEUE_DEPTH}"
        )));
    }
    let timeout = timeout(std::env::var(TIMEOUT_VARIABLE).ok().as_deref())?;
    let address = DriveAddress::Spdk { transport_id: transport_id.into(), namespace }.to_string();
    let writable = mode == OpenMode::ReadWrite;
    let lock = take_lock(transport_id, &address, writable)?;
    environment::start(function_of_transport_id(transport_id).is_some())?;
    let controller = Controller::connect(transport_id, timeout)?;
    let about = controller.info();
    let Some(found) = controller.namespace(namespace) else {
        return Err(Error::DriveNotFound {
            address,
            detail: format!(
                "the controller has no namespace {namespace}; it has {:?}, as in ns:N",
                controller.namespaces()
            ),
        });
    };
    let split = supported_split(&address, &about, &found.info)?;
    let pieces = split.max_pieces(split.max_command_bytes());
    let queue_depth = queue_depth.min((MAX_REQUESTS / pieces) as u32);
    let mut info = drive_info(transport_id, &about, &found.info, split, queue_depth);
    let is_supported = has_reservations(&about, &found.info) && reservations_are_on()?;
    info.reservations = Some(is_supported);
    if let Some(lock) = lock.as_ref().filter(|_| writable && !is_supported) {
        wait_for_fence(&address, lock);
    }
    let held = Held {
        is_supported,
        persists: keeps_reservations(&found.info),
        may_report: may_report(&about),
        has_long_host_identifier: about.has_long_host_identifier,
        stays_reserved: false,
        key: None,
        ended_keys: lock.as_ref().map(DriveLock::earlier_keys).unwrap_or_default(),
    };
    if writable && found.info.is_write_protected {
        return Err(Error::Environment(format!(
            "drive {address} ({}): the namespace is write protected; remove the protection, or open it for reading",
            info.serial
        )));
    }
    let requests = (u64::from(queue_depth) * pieces).max(MIN_REQUESTS) as u32;
    let queue = controller.queue_pair(requests)?;
    tracing::debug!(
        drive = info.address,
        serial = info.serial,
        queue_depth,
        requests,
        ?split,
        "opened through SPDK"
    );
    Ok(SpdkDevice {
        queue: Some(queue),
        namespace: found,
        slots: Slots::new(info.queue_depth, pieces as usize),
        stalled: VecDeque::with_capacity(info.queue_depth as usize),
        regions: Regions::new(),
        split,
        mode,
        timeout,
        held,
        tended: Instant::now(),
        polled: PolledTime::new(Instant::now()),
        must_judge: false,
        lost: false,
        info,
        #[cfg(any(test, feature = "internals"))]
        injector: None,
        lock,
    })
}

/// A writer's lock. A reader over a fabric takes none. Over PCIe it takes the same one:
/// opening a drive there resets it, so it has one user at a time.
fn take_lock(
    transport_id: &str,
    address: &str,
    writable: bool,
) -> Result<Option<DriveLock>, Error> {
    let is_alone = writable || function_of_transport_id(transport_id).is_some();
    is_alone.then(|| DriveLock::take(address)).transpose()
}

/// Whether the drives' reservations are to be used.
fn reservations_are_on() -> Result<bool, Error> {
    match std::env::var(RESERVATIONS_VARIABLE).as_deref() {
        Err(_) | Ok("" | "on") => Ok(true),
        Ok("off") => Ok(false),
        Ok(other) => {
            Err(Error::Usage(format!("{RESERVATIONS_VARIABLE}={other}: set it to on or off")))
        }
    }
}

/// Waits until no command that a previous owner sent and then lost can reach this drive any more.
fn wait_for_fence(address: &str, lock: &DriveLock) {
    let fence = lock.side_file("fence");
    let mut remaining = fence::remaining(&fence);
    if remaining > Duration::ZERO {
        tracing::warn!(
            drive = address,
            seconds = remaining.as_secs_f32(),
            "its connection was lost with commands in flight: waiting until none of them can reach it"
        );
    }
    while remaining > Duration::ZERO {
        std::thread::sleep(remaining);
        remaining = fence::remaining(&fence);
    }
    // If the file cannot be removed, its time has passed all the same.
    let _ = std::fs::remove_file(fence);
}

/// A drive's health log.
///
/// # Errors
/// As [`open`]; [`Error::Environment`] when the drive does not answer.
pub(crate) fn read_health_log(transport_id: &str, namespace: u32) -> Result<HealthLog, Error> {
    let address = DriveAddress::Spdk { transport_id: transport_id.into(), namespace }.to_string();
    let _lock = take_lock(transport_id, &address, false)?;
    environment::start(function_of_transport_id(transport_id).is_some())?;
    let controller = Controller::connect(transport_id, DEFAULT_TIMEOUT)?;
    controller.health()
}

fn timeout(variable: Option<&str>) -> Result<Duration, Error> {
    match variable {
        None | Some("") => Ok(DEFAULT_TIMEOUT),
        Some(text) => match text.parse::<u64>() {
            Ok(seconds @ 1..=3600) => Ok(Duration::from_secs(seconds)),
            _ => Err(Error::Usage(format!(
                "{TIMEOUT_VARIABLE}={text}: set it to seconds, 1 to 3600"
            ))),
        },
    }
}

/// An open drive. The lock is last: it is released together with the controller.
pub(super) struct SpdkDevice {
    /// None once the drive is lost.
    pub(super) queue: Option<QueuePair>,
    /// Its pointer is valid as long as `queue` is there.
    pub(super) namespace: Namespace,
    slots: Arc<Slots>,
    /// Slots of which SPDK did not take every piece yet.
    stalled: VecDeque<u32>,
    regions: Regions<Registration>,
    split: Split,
    mode: OpenMode,
    pub(super) timeout: Duration,
    pub(super) held: Held,
    tended: Instant,
    polled: PolledTime,
    /// Whether the next poll that finds nothing looks for commands that are late.
    must_judge: bool,
    /// The drive refused a command as lost; the next poll ends the others.
    lost: bool,
    info: DriveInfo,
    /// In tests.
    #[cfg(any(test, feature = "internals"))]
    injector: Option<inject::Injector>,
    lock: Option<DriveLock>,
}

// SAFETY: SPDK ties queue pairs and namespaces to no thread. It requires one thread at a time,
// which `&mut self` gives; a move to another thread orders what the first one did before it. Only
// this device and the requests on its queue pair know the slots. The controller, which several
// devices share, has its own lock.
unsafe impl Send for SpdkDevice {}

/// The result of sending a slot's pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    All,
    /// SPDK has no request object left.
    Stalled,
    Failed(IoError),
}

impl SpdkDevice {
    /// Sends the pieces of a slot that were not sent yet.
    fn send(&mut self, slot: u32) -> Sent {
        let Some(queue) = &self.queue else { return Sent::Failed(IoError::Removed) };
        let command = self.slots.command(slot);
        let sector_bytes = self.namespace.info.sector_bytes;
        while self.slots.has_more_to_send(slot) {
            let sent = self.slots.sent_bytes(slot);
            let offset = command.offset_bytes + u64::from(sent);
            let length = self.split.next(offset, command.memory.len_bytes - sent);
            let Some(request) = self.slots.next_request(slot) else {
                debug_assert!(false, "more pieces than computed");
                return Sent::Failed(IoError::Os(libc::EINVAL));
            };
            let memory = command.memory.address.as_ptr().wrapping_add(sent as usize).cast();
            let lba = offset / u64::from(sector_bytes);
            let count = length / sector_bytes;
            let fua = spdk_sys::STN_SPDK_FLAG_FUA;
            let (queue, namespace) = (queue.as_ptr(), self.namespace.pointer.as_ptr());
            // SAFETY: a live queue pair and its namespace, used by this thread alone; a request of
            // a slot that is not in flight, pinned in `self.slots`. The piece lies within the
            // command's memory: `submit` found that in a registered region, and its owner does not
            // touch it until the completion.
            let result = unsafe {
                match command.operation {
                    Operation::Read => {
                        spdk_sys::stn_spdk_read(queue, namespace, request, memory, lba, count, 0)
                    }
                    Operation::Write => {
                        spdk_sys::stn_spdk_write(queue, namespace, request, memory, lba, count, 0)
                    }
                    Operation::WriteDurable => {
                        spdk_sys::stn_spdk_write(queue, namespace, request, memory, lba, count, fua)
                    }
                    Operation::Flush => spdk_sys::stn_spdk_flush(queue, namespace, request),
                }
            };
            match -result {
                0 => self.slots.sent(slot, length),
                libc::ENOMEM => return Sent::Stalled,
                // Lost; or the namespace is gone, which makes a checked command invalid.
                libc::ENXIO | libc::EINVAL => {
                    self.lost = true;
                    return Sent::Failed(IoError::Removed);
                }
                errno => return Sent::Failed(IoError::Os(errno)),
            }
        }
        Sent::All
    }

    /// Does all that is due: completions, stalled pieces, the controller.
    pub(super) fn work(&mut self) {
        let Some(queue) = &self.queue else { return };
        #[cfg(any(test, feature = "internals"))]
        if let Some(injector) = &self.injector {
            injector.apply(queue);
        }
        // SAFETY: our queue pair, on the one thread that uses it. Callbacks touch the slots only.
        let result: c_int =
            unsafe { spdk_sys::stn_spdk_qpair_process_completions(queue.as_ptr(), 0) };
        if result < 0 || self.lost || self.slots.saw_abort() {
            self.lose("its connection is lost");
            return;
        }
        if !self.stalled.is_empty() {
            self.send_stalled();
        }
        let now = Instant::now();
        let polled = self.polled.advance(now);
        if now.duration_since(self.tended) >= TEND_INTERVAL {
            self.tended = now;
            self.must_judge = true;
            self.tend();
        }
        // A poll that took something may have left more: only one that found nothing says that the
        // drive is late.
        if self.must_judge && result == 0 && self.queue.is_some() {
            self.must_judge = false;
            let oldest = self.slots.oldest();
            if oldest.is_some_and(|since| polled.saturating_duration_since(since) > self.timeout) {
                self.lose("a command was not completed in time");
            }
        }
    }

    fn send_stalled(&mut self) {
        // Each once, oldest first, while SPDK takes them. One that has failed meanwhile has nothing
        // more to send and leaves the list.
        let mut full = false;
        for _ in 0..self.stalled.len() {
            let Some(slot) = self.stalled.pop_front() else { return };
            if !self.slots.has_more_to_send(slot) {
                continue;
            }
            match if full { Sent::Stalled } else { self.send(slot) } {
                Sent::All => {}
                Sent::Stalled => {
                    full = true;
                    self.stalled.push_back(slot);
                }
                Sent::Failed(error) => self.slots.send_failed(slot, error),
            }
        }
    }

    fn tend(&mut self) {
        let Some(queue) = &self.queue else { return };
        let is_same = queue.controller().tend_namespace(&self.namespace);
        if !is_same || !queue.is_connected() {
            self.lose("its controller has failed, or its namespace has changed");
        }
    }

    /// Gives the drive up: when this returns it can no longer touch memory, and every command has
    /// ended.
    fn lose(&mut self, why: &str) {
        let Some(mut queue) = self.queue.take() else { return };
        tracing::error!(
            drive = self.info.address,
            serial = self.info.serial,
            in_flight = self.slots.in_flight(),
            "drive lost: {why}"
        );
        let over_fabric = !queue.controller().is_pcie();
        if over_fabric && self.mode == OpenMode::ReadWrite && self.slots.in_flight() > 0 {
            self.raise_fence();
        }
        self.slots.begin_to_lose();
        if self.slots.outstanding_pieces() > 0 && !queue.fence() {
            // The drive may still write to memory, or read it, at any time: it must not be used
            // again.
            tracing::error!(
                drive = self.info.address,
                "its controller could neither be reset nor be kept from memory, or others use it: memory \
                 that it may touch is kept until this process ends"
            );
            std::mem::forget(std::mem::replace(&mut self.regions, Regions::new()));
        }
        drop(queue);
        self.check_all_completed();
        self.slots.end_all();
        self.stalled.clear();
    }

    /// The next owner on this host has to know these keys.
    pub(super) fn note_in_lock(&mut self, keys: &[u64]) {
        if let Some(lock) = &mut self.lock {
            lock.note_keys(keys);
        }
    }

    /// Waits until no command that an earlier owner of this host sent can reach the drive.
    pub(super) fn wait_for_fence(&self) {
        if let Some(lock) = &self.lock {
            wait_for_fence(&self.info.address, lock);
        }
    }

    /// No such command can reach the drive any more.
    pub(super) fn remove_fence(&self) {
        if let Some(lock) = &self.lock {
            // If the file cannot be removed, the next owner waits.
            let _ = std::fs::remove_file(lock.side_file("fence"));
        }
    }

    fn raise_fence(&self) {
        let Some(lock) = &self.lock else { return };
        if let Err(error) = fence::raise(&lock.side_file("fence")) {
            tracing::error!(
                drive = self.info.address,
                %error,
                "the time of the loss cannot be saved: wait half a minute before opening the drive for writing"
            );
        }
    }

    /// Checks, after the queue pair was freed, that this completed every request.
    fn check_all_completed(&self) {
        let left = self.slots.outstanding_pieces();
        if left > 0 {
            // SPDK has lost track of a request: its storage must not be used for anything else.
            std::mem::forget(Arc::clone(&self.slots));
            UNACCOUNTED.fetch_add(left.into(), Ordering::AcqRel);
            tracing::error!(
                drive = self.info.address,
                requests = left,
                "SPDK freed a queue without completing its requests"
            );
        }
    }
}

impl Device for SpdkDevice {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        if !self.regions.holds(region) {
            let registration = Registration::new(region)?;
            self.regions.add(region, registration);
        }
        Ok(())
    }

    fn unregister(&mut self, region: &Arc<Region>) {
        self.regions.remove(region);
    }

    unsafe fn submit(&mut self, command: Command) -> Result<(), SubmitError> {
        check(&command, &self.info, self.mode, |address, length| {
            self.regions.find(address, length).is_some()
        })?;
        if self.queue.is_none() || self.lost {
            return Err(SubmitError::Failed(IoError::Removed));
        }
        if !self.stalled.is_empty() {
            return Err(SubmitError::Full);
        }
        let Some(slot) = self.slots.take(command, self.polled.now()) else {
            return Err(SubmitError::Full);
        };
        let sent = self.send(slot);
        let any_sent = self.slots.has_outstanding(slot);
        match sent {
            Sent::All => {}
            Sent::Stalled if any_sent => self.stalled.push_back(slot),
            Sent::Stalled => {
                self.slots.give_back(slot);
                // With nothing in flight, no poll will ever make room.
                if self.slots.outstanding_pieces() == 0 {
                    return Err(SubmitError::Failed(IoError::Os(libc::ENOMEM)));
                }
                return Err(SubmitError::Full);
            }
            // The rest is not sent; the command ends with the pieces that were.
            Sent::Failed(error) if any_sent => self.slots.send_failed(slot, error),
            Sent::Failed(error) => {
                self.slots.give_back(slot);
                return Err(SubmitError::Failed(error));
            }
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.work();
        let mut taken = 0;
        while taken < completions.len() {
            let Some((tag, status)) = self.slots.take_done() else { break };
            completions[taken] = Completion { tag, status };
            taken += 1;
        }
        taken
    }

    fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    fn reservations(&mut self) -> Option<&mut dyn Reservations> {
        let may = self.held.is_supported && self.mode == OpenMode::ReadWrite;
        may.then_some(self as &mut dyn Reservations)
    }
}

impl Drop for SpdkDevice {
    fn drop(&mut self) {
        // Ends with the last piece, or when the drive is given up after the timeout.
        while self.queue.is_some() && self.slots.outstanding_pieces() > 0 {
            self.work();
        }
        if self.queue.is_some() {
            self.give_up_reservation();
        }
        // Before the regions: freeing a queue pair ends its last use of memory.
        if self.queue.take().is_some() {
            self.check_all_completed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_seconds() {
        assert_eq!(timeout(None).unwrap(), DEFAULT_TIMEOUT);
        assert_eq!(timeout(Some("5")).unwrap(), Duration::from_secs(5));
        for bad in ["0", "3601", "1s", "-1"] {
            assert!(timeout(Some(bad)).is_err(), "{bad}");
        }
    }
}
