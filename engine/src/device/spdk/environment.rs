// SPDX-License-Identifier: Apache-2.0
//! SPDK's environment: DPDK's memory and its view of PCI, started once per process and kept.
//!
//! - Started on its own thread, because DPDK pins the thread that starts it to one core.
//! - A failed start is final: DPDK cannot be started twice. Every later open returns the same
//!   error.
//! - Never shut down: the end of the process does that, and its huge pages are unlinked from the
//!   start.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::host::inventory;
use crate::host::pci::is_user_space_driver;

/// The environment variable for the huge-page memory, in MiB, that SPDK takes at its start for
/// queues and request objects; it takes more when that is used up. Data does not lie there.
pub const MEMORY_VARIABLE: &str = "STANCHION_SPDK_MEM_MB";

/// Level of SPDK's log: what failed.
const SPDK_ERRORS: c_int = 0;
/// Enough for a dozen queue pairs.
const DEFAULT_MEMORY_MIB: u32 = 64;
const MAX_MEMORY_MIB: u32 = 64 << 10;

/// How it was started, or why it was not.
static STARTED: Mutex<Option<Result<Started, String>>> = Mutex::new(None);

#[derive(Clone, Copy)]
struct Started {
    with_pci: bool,
}

/// Makes sure that SPDK runs, with PCI if this drive needs it.
///
/// # Errors
/// [`Error::Environment`] with what to run; [`Error::Usage`] for a variable that is not a size.
pub(super) fn start(needs_pci: bool) -> Result<(), Error> {
    let memory_mib = memory_mib(std::env::var(MEMORY_VARIABLE).ok().as_deref())?;
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let state = started.get_or_insert_with(|| {
        // Not only for this drive: a PCIe drive of the same pool may come next.
        let with_pci = needs_pci || any_user_space_drive();
        on_own_thread(memory_mib, with_pci).map(|()| Started { with_pci })
    });
    match state {
        Ok(Started { with_pci: false }) if needs_pci => Err(Error::Environment(
            "SPDK was started without PCI in this process, as no PCIe drive was bound to a \
             user-space driver then; start the program again now that one is"
                .into(),
        )),
        Ok(_) => Ok(()),
        Err(why) => Err(Error::Environment(why.clone())),
    }
}

fn any_user_space_drive() -> bool {
    let drives = inventory::list(Path::new("/"));
    drives.iter().any(|drive| drive.driver.as_deref().is_some_and(is_user_space_driver))
}

fn memory_mib(variable: Option<&str>) -> Result<u32, Error> {
    let text = match variable {
        None | Some("") => return Ok(DEFAULT_MEMORY_MIB),
        Some(text) => text,
    };
    match text.parse::<u32>() {
        Ok(mib @ 16..=MAX_MEMORY_MIB) => Ok(mib),
        _ => Err(Error::Usage(format!(
            "{MEMORY_VARIABLE}={text}: set it to a size in MiB, 16 to {MAX_MEMORY_MIB}"
        ))),
    }
}

fn on_own_thread(memory_mib: u32, with_pci: bool) -> Result<(), String> {
    let thread = std::thread::Builder::new().name("stn-spdk-start".into());
    let started = thread
        .spawn(move || {
            let options = spdk_sys::stn_spdk_env_options {
                mem_size_mib: memory_mib,
                no_pci: !with_pci,
                quiet: true,
                ..Default::default()
            };
            // SAFETY: the strings are null, which asks for defaults; nothing else of SPDK runs yet,
            // as every other call comes after this one has returned under the lock of `STARTED`.
            unsafe {
                spdk_sys::stn_spdk_set_log_level(SPDK_ERRORS);
                match spdk_sys::stn_spdk_set_log(Some(on_log)) {
                    0 => spdk_sys::stn_spdk_env_init(&raw const options),
                    failed => failed,
                }
            }
        })
        .map_err(|error| format!("starting a thread for SPDK: {error}"))?;
    match started.join() {
        Ok(0) => Ok(()),
        Ok(result) => Err(format!(
            "SPDK did not start ({}); it needs root, {} free huge pages of 2 MiB and hugetlbfs: \
             run `scripts/hugepages`; the log has SPDK's own message",
            std::io::Error::from_raw_os_error(-result),
            memory_mib / 2,
        )),
        Err(_) => Err("SPDK's start failed in a panic; the log has its message".into()),
    }
}

/// Takes a line that SPDK or DPDK logs. What SPDK calls an error may be one that this engine
/// recovers from, so it is a warning here.
unsafe extern "C" fn on_log(_: c_int, message: *const c_char) {
    // SAFETY: the shim gives a string with a NUL that lasts until this returns.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    // A listener that panics loses the line; SPDK's frames must not be unwound.
    let _ = catch_unwind(AssertUnwindSafe(|| tracing::warn!("SPDK: {}", message.trim_end())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_in_mib() {
        assert_eq!(memory_mib(None).unwrap(), DEFAULT_MEMORY_MIB);
        assert_eq!(memory_mib(Some("")).unwrap(), DEFAULT_MEMORY_MIB);
        assert_eq!(memory_mib(Some("256")).unwrap(), 256);
        for bad in ["0", "15", "65537", "1G", "-1"] {
            let error = memory_mib(Some(bad)).unwrap_err();
            assert!(error.to_string().contains(MEMORY_VARIABLE), "{error}");
        }
    }
}
