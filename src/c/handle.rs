// SPDX-License-Identifier: Apache-2.0
//! Handles: how a C program refers to a pool, a session, a list, a checkpoint.
//!
//! - A handle is a number: kind, process, generation, place. It is never followed as a pointer, so
//!   a stale, foreign or garbage handle finds nothing and does no harm.
//! - A place's generation grows when its object is taken out. It has 32 bits, so a stale handle
//!   becomes valid again only after four thousand million objects in one place.
//! - A call that uses an object holds the place, shared or exclusively, by one atomic operation and
//!   without waiting: a conflicting call gets EBUSY. Nothing here locks, so a process that is
//!   forked at any moment finds no lock held for ever.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::error::{CallError, STN_E_PANIC};
use super::process;

/// A place's state: generation in the upper half, users in the lower. Odd generations have an
/// object, and handles have odd generations only.
const ALONE: u64 = 1 << 31;
const USERS: u64 = u32::MAX as u64;

const PROCESS_BITS: u64 = 12;

/// Objects of one type, by handle.
pub(crate) struct Table<T: 'static, const PLACES: usize> {
    /// 1 to 15; no other table has it.
    kind: u64,
    /// The error's text when the table is full.
    what: &'static str,
    next: AtomicU32,
    places: [Place<T>; PLACES],
}

/// In a cache line of its own: threads use different sessions at the same time.
#[repr(align(64))]
struct Place<T> {
    state: AtomicU64,
    object: UnsafeCell<Option<T>>,
}

// SAFETY: the object is reached only through a hold of the state: shared by any number of threads,
// or exclusively by one. T is Send for the second; `shared` asks for Sync as well.
unsafe impl<T: Send> Sync for Place<T> {}

impl<T, const PLACES: usize> Table<T, PLACES> {
    pub(crate) const fn new(kind: u64, what: &'static str) -> Table<T, PLACES> {
        assert!(kind > 0 && kind < 16 && PLACES <= 1 << 16);
        Table {
            kind,
            what,
            next: AtomicU32::new(0),
            places: [const { Place { state: AtomicU64::new(0), object: UnsafeCell::new(None) } };
                PLACES],
        }
    }

    /// Stores an object and returns its handle. Drops the object when the table is full.
    pub(crate) fn insert(&'static self, object: T) -> Result<u64, CallError> {
        let process = process::enter()?;
        let first = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        for offset in 0..PLACES {
            let index = (first + offset) % PLACES;
            let place = &self.places[index];
            let state = place.state.load(Ordering::Relaxed);
            let generation = state >> 32;
            if generation & 1 == 1 || state & USERS != 0 {
                continue;
            }
            let taken = place.state.compare_exchange(
                state,
                state | ALONE,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if taken.is_err() {
                continue;
            }
            // SAFETY: held exclusively.
            unsafe { *place.object.get() = Some(object) };
            let generation = (generation + 1) & u64::from(u32::MAX);
            place.state.store(generation << 32, Ordering::Release);
            return Ok(self.kind << 60
                | (process & ((1 << PROCESS_BITS) - 1)) << 48
                | generation << 16
                | index as u64);
        }
        Err(CallError::new(libc::EMFILE, self.what))
    }

    /// The place that a handle names, and its generation.
    fn place(&'static self, handle: u64) -> Result<(&'static Place<T>, u64), CallError> {
        if handle == 0 {
            return Err(CallError::new(libc::EFAULT, "the handle is NULL"));
        }
        if handle >> 60 != self.kind {
            return Err(UNKNOWN);
        }
        let process = process::current() & ((1 << PROCESS_BITS) - 1);
        if handle >> 48 & ((1 << PROCESS_BITS) - 1) != process {
            return Err(CallError::new(
                libc::EOWNERDEAD,
                "the handle belongs to the process that this one was forked from; open one here",
            ));
        }
        let generation = handle >> 16 & u64::from(u32::MAX);
        match self.places.get((handle & 0xffff) as usize) {
            Some(place) if generation & 1 == 1 => Ok((place, generation)),
            _ => Err(UNKNOWN),
        }
    }

    /// The object, shared: other calls may use it too.
    pub(crate) fn shared(&'static self, handle: u64) -> Result<SharedHold<T>, CallError>
    where
        T: Sync,
    {
        let (place, generation) = self.place(handle)?;
        let mut state = place.state.load(Ordering::Relaxed);
        loop {
            check(state, generation)?;
            if state & ALONE != 0 {
                return Err(BUSY);
            }
            let held = place.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match held {
                Ok(_) => return Ok(SharedHold { place }),
                Err(now) => state = now,
            }
        }
    }

    /// The object, exclusively: no other call uses it.
    pub(crate) fn alone(&'static self, handle: u64) -> Result<ExclusiveHold<T>, CallError> {
        let (place, generation) = self.place(handle)?;
        let idle = generation << 32;
        match place.state.compare_exchange(idle, idle | ALONE, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Ok(ExclusiveHold { place, after: idle }),
            Err(state) => {
                check(state, generation)?;
                Err(BUSY)
            }
        }
    }
}

const BUSY: CallError =
    CallError::new(libc::EBUSY, "another thread is inside a call on the same handle");
const UNKNOWN: CallError = CallError::new(libc::EBADF, "not a handle, or a closed one");

fn check(state: u64, generation: u64) -> Result<(), CallError> {
    if state >> 32 == generation { Ok(()) } else { Err(UNKNOWN) }
}

/// A shared hold of an object.
pub(crate) struct SharedHold<T: 'static> {
    place: &'static Place<T>,
}

impl<T> SharedHold<T> {
    /// The object. It is there: places of live generations have one.
    pub(crate) fn get(&self) -> Result<&T, CallError> {
        // SAFETY: no call holds the place exclusively while it is held shared.
        unsafe { (*self.place.object.get()).as_ref() }.ok_or(LOST)
    }
}

impl<T> Drop for SharedHold<T> {
    fn drop(&mut self) {
        self.place.state.fetch_sub(1, Ordering::Release);
    }
}

/// The exclusive hold of an object.
pub(crate) struct ExclusiveHold<T: 'static> {
    place: &'static Place<T>,
    /// The state of the place after the hold.
    after: u64,
}

const LOST: CallError = CallError::new(STN_E_PANIC, "a live handle has no object");

impl<T> ExclusiveHold<T> {
    /// Takes the object out of the table: the handle is stale from now on.
    pub(crate) fn take(mut self) -> Option<T> {
        let generation = (self.after >> 32) + 1;
        self.after = (generation & u64::from(u32::MAX)) << 32;
        // SAFETY: held exclusively.
        unsafe { (*self.place.object.get()).take() }
    }
}

impl<T> Deref for ExclusiveHold<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: held exclusively.
        unsafe { (*self.place.object.get()).as_ref() }.expect("live handles have an object")
    }
}

impl<T> DerefMut for ExclusiveHold<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: held exclusively.
        unsafe { (*self.place.object.get()).as_mut() }.expect("live handles have an object")
    }
}

impl<T> Drop for ExclusiveHold<T> {
    fn drop(&mut self) {
        self.place.state.store(self.after, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T>(result: Result<T, CallError>) -> i32 {
        result.map_or_else(|failure| failure.code, |_| 0)
    }

    #[test]
    fn stale_and_strange_handles_are_detected() {
        static TABLE: Table<u32, 2> = Table::new(3, "numbers");
        let first = TABLE.insert(7).unwrap();
        let second = TABLE.insert(8).unwrap();
        assert_eq!(code(TABLE.insert(9)), libc::EMFILE);
        assert_eq!(*TABLE.shared(first).unwrap().get().unwrap(), 7);
        assert_eq!(TABLE.alone(first).unwrap().take(), Some(7));
        assert_eq!(code(TABLE.shared(first)), libc::EBADF);
        assert_eq!(code(TABLE.alone(first)), libc::EBADF);
        let third = TABLE.insert(9).unwrap();
        assert_ne!(first, third);
        assert_eq!(code(TABLE.alone(first)), libc::EBADF, "its place has another object");
        assert_eq!((*TABLE.alone(second).unwrap(), *TABLE.alone(third).unwrap()), (8, 9));
        assert_eq!(code(TABLE.alone(0)), libc::EFAULT);
        for strange in [1, u64::MAX, second ^ 1 << 60, second + 2, second ^ 1 << 17] {
            assert_ne!(code(TABLE.alone(strange)), 0, "{strange:#x}");
            assert_ne!(code(TABLE.shared(strange)), 0, "{strange:#x}");
        }
        assert_eq!(code(TABLE.alone(second ^ 1 << 48)), libc::EOWNERDEAD);
    }

    #[test]
    fn one_alone_or_many_shared() {
        static TABLE: Table<u32, 1> = Table::new(3, "numbers");
        let handle = TABLE.insert(7).unwrap();
        let (one, two) = (TABLE.shared(handle).unwrap(), TABLE.shared(handle).unwrap());
        assert_eq!(code(TABLE.alone(handle)), libc::EBUSY);
        drop(one);
        assert_eq!(code(TABLE.alone(handle)), libc::EBUSY);
        drop(two);
        let mut alone = TABLE.alone(handle).unwrap();
        *alone += 1;
        assert_eq!(code(TABLE.shared(handle)), libc::EBUSY);
        assert_eq!(code(TABLE.alone(handle)), libc::EBUSY);
        drop(alone);
        assert_eq!(*TABLE.shared(handle).unwrap().get().unwrap(), 8);
    }
}
