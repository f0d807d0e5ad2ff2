// SPDX-License-Identifier: Apache-2.0
//! A device that does what another one does, but panics on request, or moves fewer bytes a
//! second.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::engine::device::reservation::Reservations;
use super::engine::device::{Command, Completion, Device, DriveInfo, SubmitError};
use super::engine::memory::Region;
use stanchion_testing::Error;

/// What the device is asked to do; shared by the test and the device.
#[derive(Default)]
pub struct Shape {
    /// Commands until one panics, counted down; 0: none does.
    pub panic_at_submit: AtomicU64,
    /// Completions until a poll panics, counted down; 0: none does.
    pub panic_at_completion: AtomicU64,
    /// Whether closing it panics, so that it cannot be fenced.
    pub panic_at_drop: AtomicBool,
    /// 0: as fast as it is.
    pub bytes_per_second: AtomicU64,
    /// Bytes that it has moved, by the address of each command's memory.
    pub moved_bytes: Mutex<BTreeMap<u64, u64>>,
    /// When it panicked.
    pub panicked: Mutex<Option<Instant>>,
}

impl Shape {
    /// Bytes that it has moved from or to the memory at these addresses.
    pub fn moved_in(&self, addresses: Range<u64>) -> u64 {
        self.moved_bytes.lock().unwrap().range(addresses).map(|(_, bytes)| bytes).sum()
    }

    fn count_down(&self, counter: &AtomicU64) {
        if counter.load(Ordering::SeqCst) > 0 && counter.fetch_sub(1, Ordering::SeqCst) == 1 {
            *self.panicked.lock().unwrap() = Some(Instant::now());
            panic!("the device was asked to");
        }
    }
}

/// The device.
pub struct Shaped {
    inner: Box<dyn Device>,
    shape: Arc<Shape>,
    /// The commands in flight, in the order of submission: tag, address and bytes.
    in_flight: VecDeque<(u64, u64, u64)>,
    /// Completions that are to be given at their time.
    late: VecDeque<(Instant, Completion)>,
    free_at: Instant,
}

impl Shaped {
    /// Over another device.
    pub fn new(inner: Box<dyn Device>, shape: &Arc<Shape>) -> Shaped {
        let (in_flight, late) = (VecDeque::new(), VecDeque::new());
        Shaped { inner, shape: Arc::clone(shape), in_flight, late, free_at: Instant::now() }
    }
}

impl Device for Shaped {
    fn info(&self) -> &DriveInfo {
        self.inner.info()
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        self.inner.register(region)
    }

    fn unregister(&mut self, region: &Arc<Region>) {
        self.inner.unregister(region);
    }

    unsafe fn submit(&mut self, command: Command) -> Result<(), SubmitError> {
        let (tag, len_bytes) = (command.tag, u64::from(command.memory.len_bytes));
        let address = command.memory.address.as_ptr() as u64;
        if self.in_flight() >= self.info().queue_depth {
            return Err(SubmitError::Full);
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { self.inner.submit(command) }?;
        self.in_flight.push_back((tag, address, len_bytes));
        // After the drive has it: that is the worse instant.
        self.shape.count_down(&self.shape.panic_at_submit);
        Ok(())
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let rate = self.shape.bytes_per_second.load(Ordering::Relaxed);
        let count = self.inner.poll(completions);
        for completion in &completions[..count] {
            self.shape.count_down(&self.shape.panic_at_completion);
            let at = self.in_flight.iter().position(|(tag, ..)| *tag == completion.tag).unwrap();
            let (_, address, len_bytes) = self.in_flight.remove(at).unwrap();
            let mut moved = self.shape.moved_bytes.lock().unwrap();
            *moved.entry(address).or_default() += len_bytes;
            drop(moved);
            let now = Instant::now();
            let nanos = (len_bytes * 1_000_000_000).checked_div(rate).unwrap_or(0);
            self.free_at = self.free_at.max(now) + Duration::from_nanos(nanos);
            self.late.push_back((self.free_at, *completion));
        }
        let now = Instant::now();
        let mut given = 0;
        while given < completions.len() && self.late.front().is_some_and(|(at, _)| *at <= now) {
            completions[given] = self.late.pop_front().unwrap().1;
            given += 1;
        }
        given
    }

    fn in_flight(&self) -> u32 {
        (self.in_flight.len() + self.late.len()) as u32
    }

    fn reservations(&mut self) -> Option<&mut dyn Reservations> {
        self.inner.reservations()
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        assert!(!self.shape.panic_at_drop.load(Ordering::SeqCst), "the device was asked to");
    }
}
