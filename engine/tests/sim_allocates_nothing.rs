// SPDX-License-Identifier: Apache-2.0
//! A dense simulated drive takes no memory while commands run, so that tests which count
//! allocations can drive the engine through it.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use stanchion_testing::internals::device::sim::{CompletionOrder, SimConfig, SimDrive};
use stanchion_testing::internals::device::{Command, Completion, Device, DmaSlice, Operation};
use stanchion_testing::internals::memory::{HugePages, Region};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call passes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of this thread while a few thousand commands run.
fn allocations(config: SimConfig) -> u64 {
    let drive = SimDrive::new(config).unwrap();
    let mut device = drive.open().unwrap();
    let region = Arc::new(Region::new(1, HugePages::Off).unwrap());
    device.register(&region).unwrap();
    let mut completions = [Completion { tag: 0, status: Ok(()) }; 8];
    let before = ALLOCATIONS.get();
    let operations = [Operation::Write, Operation::Read, Operation::Flush, Operation::WriteDurable];
    let mut done = 0;
    for tag in 0..4000u64 {
        let operation = operations[tag as usize % 4];
        let memory = DmaSlice { address: region.base(), len_bytes: 8192 };
        let command = Command { operation, offset_bytes: tag % 100 * 4096, memory, tag };
        // SAFETY: the region outlives the device. Reads and writes of the same memory do overlap
        // in time, but only this thread touches it, within `submit` and `poll`.
        while unsafe { device.submit(command) }.is_err() {
            done += device.poll(&mut completions);
        }
    }
    while device.in_flight() > 0 {
        done += device.poll(&mut completions);
    }
    assert_eq!(done, 4000);
    ALLOCATIONS.get() - before
}

#[test]
fn a_dense_drive_allocates_nothing_and_a_sparse_one_does() {
    let sparse = SimConfig { capacity_bytes: 1 << 20, queue_depth: 16, ..SimConfig::default() };
    for order in [CompletionOrder::InOrder, CompletionOrder::Shuffled] {
        let dense = SimConfig { dense: true, volatile_cache: false, order, ..sparse.clone() };
        assert_eq!(allocations(dense), 0);
    }
    assert!(allocations(sparse) > 0, "the counter counts");
}
