// SPDX-License-Identifier: Apache-2.0
//! Blocking threads behind two lock-free queues, for systems without io_uring.
//!
//! Invariants:
//! - No more commands are in flight than each queue has room for: a push never fails.
//! - A worker that finds no work announces that it sleeps, checks once more and only then sleeps.
//!   `submit` pushes first and checks for sleepers afterwards. One of the two always sees the
//!   other.
//! - Memory is touched only by the worker that took its command. Dropping the device joins all
//!   workers; commands that no worker took are dropped untouched.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;

use crossbeam::queue::ArrayQueue;

use super::file::DriveFile;
use super::reservation::BlockReservations;
use super::transfer::{AfterCall, after_call};
use crate::device::check::check;
use crate::device::reservation::Reservations;
use crate::device::{
    Command, Completion, Device, DriveInfo, OpenMode, Operation, Regions, SubmitError,
};
use crate::error::{Error, IoError};
use crate::memory::Region;

/// Workers of one drive: enough to keep a fast drive busy with chunks, few enough to start many.
const MAX_WORKERS: u32 = 8;

/// The commands that wait for a worker, and the completions that wait for the device.
struct WorkQueue {
    file: DriveFile,
    commands: ArrayQueue<Command>,
    completions: ArrayQueue<Completion>,
    /// One bit for each worker that sleeps or is about to.
    sleepers: AtomicU64,
    stop: AtomicBool,
}

/// A drive behind blocking threads.
pub(super) struct ThreadsDevice {
    queue: Arc<WorkQueue>,
    workers: Vec<JoinHandle<()>>,
    mode: OpenMode,
    info: DriveInfo,
    regions: Regions<()>,
    in_flight: u32,
    reservations: Option<BlockReservations>,
}

impl ThreadsDevice {
    pub(super) fn new(mut file: DriveFile, info: DriveInfo) -> Result<Self, Error> {
        let depth = info.queue_depth as usize;
        let mode = file.mode;
        let reservations = file.reservations.take();
        let queue = Arc::new(WorkQueue {
            file,
            commands: ArrayQueue::new(depth),
            completions: ArrayQueue::new(depth),
            sleepers: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let mut device = ThreadsDevice {
            queue,
            workers: Vec::new(),
            mode,
            info,
            regions: Regions::new(),
            in_flight: 0,
            reservations,
        };
        for number in 0..device.info.queue_depth.min(MAX_WORKERS) {
            let queue = Arc::clone(&device.queue);
            let worker = std::thread::Builder::new()
                .name(format!("stanchion-io-{number}"))
                .spawn(move || queue.work(1 << number))
                .map_err(|error| Error::os("starting an I/O thread", error))?;
            device.workers.push(worker);
        }
        Ok(device)
    }

    /// Wakes one sleeping worker, if there is one.
    fn wake_one(&self) {
        // Pairs with the fence in `WorkQueue::work`.
        fence(Ordering::SeqCst);
        let mut sleepers = self.queue.sleepers.load(Ordering::Relaxed);
        while sleepers != 0 {
            let number = sleepers.trailing_zeros();
            let before = self.queue.sleepers.fetch_and(!(1 << number), Ordering::AcqRel);
            if before & (1 << number) != 0 {
                self.workers[number as usize].thread().unpark();
                return;
            }
            sleepers = before;
        }
    }
}

impl WorkQueue {
    fn work(&self, my_bit: u64) {
        loop {
            while let Some(command) = self.take() {
                let status = self.execute(&command);
                let pushed = self.completions.push(Completion { tag: command.tag, status });
                debug_assert!(pushed.is_ok(), "there is room for every command in flight");
            }
            self.sleepers.fetch_or(my_bit, Ordering::AcqRel);
            // Pairs with the fence in `ThreadsDevice::wake_one`.
            fence(Ordering::SeqCst);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if self.commands.is_empty() {
                std::thread::park();
            }
            self.sleepers.fetch_and(!my_bit, Ordering::AcqRel);
        }
    }

    fn take(&self) -> Option<Command> {
        if self.stop.load(Ordering::Acquire) { None } else { self.commands.pop() }
    }

    fn execute(&self, command: &Command) -> Result<(), IoError> {
        if command.operation == Operation::Flush {
            return self.flush();
        }
        let length = command.memory.len_bytes;
        let mut done = 0;
        loop {
            match after_call(length, done, self.transfer(command, done), self.file.unit_bytes) {
                AfterCall::Done(status) => return status,
                AfterCall::Continue { done_bytes } if done_bytes == done => {
                    std::thread::yield_now()
                }
                AfterCall::Continue { done_bytes } => done = done_bytes,
            }
        }
    }

    fn flush(&self) -> Result<(), IoError> {
        loop {
            match self.file.file.sync_data() {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(IoError::Os(error.raw_os_error().unwrap_or(libc::EIO))),
            }
        }
    }

    /// One system call for the rest after `done_bytes`: bytes moved, or a negative errno.
    fn transfer(&self, command: &Command, done_bytes: u32) -> i64 {
        let length = (command.memory.len_bytes - done_bytes) as usize;
        let address = command.memory.address.as_ptr().wrapping_add(done_bytes as usize);
        let offset = (command.offset_bytes + u64::from(done_bytes)) as libc::off_t;
        let piece = libc::iovec { iov_base: address.cast(), iov_len: length };
        let drive = self.file.file.as_raw_fd();
        // SAFETY: the piece is the rest of the command's memory, which the submitter keeps valid,
        // and untouched by others, until its completion or the drop that joins this thread.
        let moved = unsafe {
            match command.operation {
                Operation::Read => libc::preadv(drive, &raw const piece, 1, offset),
                Operation::Write => libc::pwritev(drive, &raw const piece, 1, offset),
                Operation::WriteDurable => {
                    libc::pwritev2(drive, &raw const piece, 1, offset, libc::RWF_DSYNC)
                }
                Operation::Flush => 0,
            }
        };
        if moved < 0 {
            return -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        moved as i64
    }
}

impl Device for ThreadsDevice {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        if !self.regions.holds(region) {
            self.regions.add(region, ());
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
        if self.in_flight == self.info.queue_depth || self.queue.commands.push(command).is_err() {
            return Err(SubmitError::Full);
        }
        self.in_flight += 1;
        self.wake_one();
        Ok(())
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut taken = 0;
        while taken < completions.len() {
            let Some(completion) = self.queue.completions.pop() else { break };
            completions[taken] = completion;
            taken += 1;
        }
        self.in_flight -= taken as u32;
        taken
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn reservations(&mut self) -> Option<&mut dyn Reservations> {
        self.reservations.as_mut().map(|reservations| reservations as &mut dyn Reservations)
    }
}

impl Drop for ThreadsDevice {
    fn drop(&mut self) {
        self.queue.stop.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker that panicked touches nothing any more, and only that matters here.
            let _ = worker.join();
        }
    }
}
