// SPDX-License-Identifier: Apache-2.0
//! Faults that SPDK's driver injects into commands, for tests.
//!
//! SPDK keeps such rules in a queue pair without a lock, so the thread that polls the device sets
//! them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::controller::QueuePair;
use crate::device::Operation;

/// The fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The next `count` commands of this kind end with this NVMe status, and are not sent.
    Status {
        /// Which commands. A durable write is a write like any other here.
        operation: Operation,
        /// Status code type.
        sct: u8,
        /// Status code.
        sc: u8,
        /// How many.
        count: u32,
    },
    /// The next `count` commands of this kind are withheld from the drive for this time; then they
    /// fail.
    Park {
        /// Which commands.
        operation: Operation,
        /// How long.
        hold: Duration,
        /// How many.
        count: u32,
    },
    /// Faults of this kind of command end.
    Heal {
        /// Which commands.
        operation: Operation,
    },
}

/// Sets faults on one open device, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Injector(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    any: AtomicBool,
    faults: Mutex<Vec<Fault>>,
}

impl Injector {
    /// Sets a fault; when this returns the device has it. Another thread polls the device
    /// meanwhile.
    ///
    /// # Panics
    /// When no thread polls it.
    #[cfg(any(test, feature = "internals"))]
    pub fn set(&self, fault: Fault) {
        let Waiting { any, faults } = &*self.0;
        faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
        any.store(true, Ordering::Release);
        for _ in 0..30_000 {
            if !any.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no thread polls the device");
    }

    /// Sets the faults that wait. Called by the thread that polls the device.
    pub(super) fn apply(&self, queue: &QueuePair) {
        let Waiting { any, faults } = &*self.0;
        if !any.load(Ordering::Acquire) {
            return;
        }
        let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
        for fault in faults.drain(..) {
            match fault {
                Fault::Status { operation, sct, sc, count } => {
                    queue.inject(opcode(operation), None, count, sct, sc);
                }
                Fault::Park { operation, hold, count } => {
                    // A withheld command ends like one with a path error.
                    queue.inject(opcode(operation), Some(hold), count, 3, 0x70);
                }
                Fault::Heal { operation } => queue.remove_injected(opcode(operation)),
            }
        }
        any.store(false, Ordering::Release);
    }
}

fn opcode(operation: Operation) -> u8 {
    match operation {
        Operation::Flush => 0,
        Operation::Write | Operation::WriteDurable => 1,
        Operation::Read => 2,
    }
}
