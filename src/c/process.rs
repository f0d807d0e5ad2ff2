// SPDX-License-Identifier: Apache-2.0
//! Which process this is: a number that changes when a process forks.
//!
//! It lies in a page that the kernel clears in a forked child (`MADV_WIPEONFORK`), however it was
//! forked. Reading it costs one load and no system call.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::CallError;

/// Goes on counting in a forked child, so that its number differs from all of its parent's.
static NUMBERS: AtomicU64 = AtomicU64::new(0);
static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

/// The number of this process; 0 in a process that has not yet asked for one by [`enter`].
pub(crate) fn current() -> u64 {
    match PAGE.get() {
        Some(Some(page)) => page.load(Ordering::Relaxed),
        _ => 0,
    }
}

/// The number of this process, given to it now if it has none.
pub(crate) fn enter() -> Result<u64, CallError> {
    let page = PAGE.get_or_init(map_page).ok_or_else(|| {
        CallError::new(
            super::error::STN_E_ENVIRONMENT,
            "the kernel cannot mark memory for forked processes (MADV_WIPEONFORK); use Linux 4.14 or newer",
        )
    })?;
    if page.load(Ordering::Relaxed) == 0 {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed) + 1;
        // Of two threads that come here at once, one sets the number.
        let _ = page.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    }
    Ok(page.load(Ordering::Relaxed))
}

fn map_page() -> Option<&'static AtomicU64> {
    const BYTES: usize = 4096;
    // SAFETY: a new private mapping at an address that the kernel chooses.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping was just made and has this length.
    if unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above, and nothing else refers to it.
        unsafe { libc::munmap(page, BYTES) };
        return None;
    }
    // SAFETY: page aligned, zeroed, never unmapped from here on, and only reached as an atomic.
    Some(unsafe { page.cast::<AtomicU64>().as_ref()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_has_another_number() {
        let ours = enter().unwrap();
        assert_eq!((ours, current()), (enter().unwrap(), ours));
        // SAFETY: the child calls nothing that another thread's lock could block, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fresh = current() == 0;
            let theirs = enter().unwrap_or(ours);
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(i32::from(!(fresh && theirs != ours && theirs == current()))) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(current(), ours);
    }
}
