// SPDX-License-Identifier: Apache-2.0
//! Memory that SPDK's devices may reach, counted per process: several devices register the same
//! region, several sessions the same memory of their caller, and SPDK refuses memory that is
//! already registered.
//!
//! A [`Registration`] holds its region, so registered memory is mapped memory.

use std::collections::HashMap;
use std::ffi::c_int;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::memory::Region;

/// Registrations by the start and the length of their memory: two regions can be the same memory.
static COUNTS: Mutex<Option<HashMap<(usize, usize), u32>>> = Mutex::new(None);

/// One device's share in a registered region.
#[derive(Debug)]
pub(super) struct Registration {
    region: Arc<Region>,
}

impl Registration {
    /// Registers a region, or shares an existing registration. SPDK must have been started.
    pub(super) fn new(region: &Arc<Region>) -> Result<Registration, Error> {
        if !region.is_huge() {
            return Err(Error::Environment(
                "SPDK drives need buffers in huge pages; reserve some with `scripts/hugepages` and \
                 do not ask for ordinary pages"
                    .into(),
            ));
        }
        let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = counts.get_or_insert_default();
        let memory = memory(region);
        if !counts.contains_key(&memory) {
            // SAFETY: the whole of a mapping that stays mapped while a `Registration` holds it;
            // its pages are 2 MiB large and were touched when it was made.
            let result = unsafe { spdk_sys::stn_spdk_mem_register(start(region), length(region)) };
            if result == -libc::EBUSY {
                return Err(Error::Usage(format!(
                    "SPDK has a part of the {} bytes of memory already; register memory once, or \
                     exactly the same range again",
                    region.len_bytes(),
                )));
            }
            if result != 0 {
                return Err(Error::Environment(format!(
                    "SPDK cannot register {} bytes of memory: {}; a PCIe drive needs the IOMMU (or \
                     root, where there is none) and a limit of locked memory above that (`ulimit -l`)",
                    region.len_bytes(),
                    os_error(result),
                )));
            }
        }
        *counts.entry(memory).or_insert(0) += 1;
        Ok(Registration { region: Arc::clone(region) })
    }
}

/// Regions that are registered with SPDK now.
#[cfg(any(test, feature = "internals"))]
pub(super) fn count() -> usize {
    let counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    counts.as_ref().map_or(0, HashMap::len)
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = counts.get_or_insert_default();
        let Some(count) = counts.get_mut(&memory(&self.region)) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        counts.remove(&memory(&self.region));
        // SAFETY: exactly what `new` registered. Devices drop their registrations when they have no
        // command in flight, and this was the last one.
        let result =
            unsafe { spdk_sys::stn_spdk_mem_unregister(start(&self.region), length(&self.region)) };
        if result != 0 {
            // SPDK may still map it for its devices: the memory must not be reused.
            tracing::error!(error = %os_error(result), "memory cannot be unregistered and stays mapped");
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}

fn start(region: &Region) -> *mut std::ffi::c_void {
    region.base().as_ptr().cast()
}

fn length(region: &Region) -> usize {
    region.len_bytes() as usize
}

fn memory(region: &Region) -> (usize, usize) {
    (start(region) as usize, length(region))
}

fn os_error(result: c_int) -> io::Error {
    io::Error::from_raw_os_error(-result)
}
