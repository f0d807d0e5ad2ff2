// SPDX-License-Identifier: Apache-2.0
//! Descriptors of regions, which a forked child must not keep: it would keep their pages taken for
//! as long as it lives, and closing on exec helps only where it calls exec.
//!
//! A handler of `fork` closes them in the child. What clones a process without that handler (a raw
//! `clone`) keeps them.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::hint;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The descriptors, under a lock that `fork` takes: the child finds a list that is whole.
struct Descriptors {
    /// A spinning lock, because it is given back in another process than the one that took it. It
    /// is held for a few instructions, and during a fork.
    is_taken: AtomicBool,
    list: UnsafeCell<Vec<RawFd>>,
}

// SAFETY: `list` is reached only between `take` and `give_back`.
unsafe impl Sync for Descriptors {}

static DESCRIPTORS: Descriptors =
    Descriptors { is_taken: AtomicBool::new(false), list: UnsafeCell::new(Vec::new()) };

static DEPTH: AtomicU64 = AtomicU64::new(0);

impl Descriptors {
    fn take(&self) {
        while self.is_taken.swap(true, Ordering::Acquire) {
            while self.is_taken.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
        }
    }

    fn give_back(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    fn with<R>(&self, work: impl FnOnce(&mut Vec<RawFd>) -> R) -> R {
        self.take();
        // SAFETY: the lock is ours, and `work` does not come back here.
        let result = work(unsafe { &mut *self.list.get() });
        self.give_back();
        result
    }
}

/// From now on a forked child closes this descriptor.
pub(super) fn close_in_children(descriptor: RawFd) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: functions that live as long as the program. Failure (no memory) only leaves the
        // descriptors open in children.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) };
    });
    DESCRIPTORS.with(|list| list.push(descriptor));
}

/// The descriptor is about to be closed here.
pub(super) fn forget(descriptor: RawFd) {
    DESCRIPTORS.with(|list| {
        if let Some(place) = list.iter().position(|&known| known == descriptor) {
            list.swap_remove(place);
        }
    });
}

/// A number that each forked child has one higher than its parent: what another number made is not
/// there any more.
pub(super) fn depth() -> u64 {
    DEPTH.load(Ordering::Relaxed)
}

unsafe extern "C" fn before() {
    DESCRIPTORS.take();
}

unsafe extern "C" fn after() {
    DESCRIPTORS.give_back();
}

/// Allocates and frees nothing: another thread may have been in the allocator.
unsafe extern "C" fn after_in_child() {
    // SAFETY: `before` took the lock, and this is the only thread of the child.
    let list = unsafe { &mut *DESCRIPTORS.list.get() };
    for &descriptor in list.iter() {
        // SAFETY: a descriptor of a region, which this process uses no more.
        unsafe { libc::close(descriptor) };
    }
    list.clear();
    DEPTH.fetch_add(1, Ordering::Relaxed);
    DESCRIPTORS.give_back();
}
