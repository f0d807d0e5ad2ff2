// SPDX-License-Identifier: Apache-2.0
//! `stn_list`: the checkpoints of a pool at one moment.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use stanchion_engine::{CheckpointInfo, check_base_name};

use super::checkpoint::{describe, stn_checkpoint_info};
use super::error::{CallError, STN_E_PANIC};
use super::ffi::{self, call, call64};
use super::handle::{SharedHold, Table};
use super::pool::OpenPool;

/// Lists that one process may have.
const LISTS: usize = 1024;

static LIST_TABLE: Table<Vec<CheckpointInfo>, LISTS> =
    Table::new(3, "too many lists: free some first");

/// The list of a handle. A thread that holds it alone is freeing it.
fn list_of(handle: u64) -> Result<SharedHold<Vec<CheckpointInfo>>, CallError> {
    LIST_TABLE.shared(handle).map_err(|failure| failure.instead(libc::EBUSY, libc::EBADF))
}

/// See `stanchion.h`.
///
/// # Safety
/// `list` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_list_create(pool: u64, list: *mut u64) -> c_int {
    call(|| {
        let held = OpenPool::of(pool)?;
        ffi::required(list, "list")?;
        let handle = LIST_TABLE.insert(held.get()?.pool.list())?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { list.write(handle) };
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_list_count(list: u64) -> i64 {
    call64(|| Ok(list_of(list)?.get()?.len() as i64))
}

/// See `stanchion.h`.
///
/// # Safety
/// `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_list_get(
    list: u64,
    index: u64,
    info: *mut stn_checkpoint_info,
) -> c_int {
    call(|| {
        let held = list_of(list)?;
        // SAFETY: the caller's promise.
        unsafe { ffi::check_info(info, "info")? };
        let list = held.get()?;
        let found = usize::try_from(index).ok().and_then(|index| list.get(index));
        let found = found.ok_or_else(|| {
            CallError::with(
                libc::ERANGE,
                format!("checkpoint {index}: the list has {}", list.len()),
            )
        })?;
        // SAFETY: checked above.
        unsafe { ffi::fill(info, &describe(found)) };
        Ok(0)
    })
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
pub extern "C" fn stn_list_free(list: u64) -> c_int {
    call(|| {
        let freed = LIST_TABLE.alone(list)?.take();
        drop(freed.ok_or(CallError::new(STN_E_PANIC, "a live handle has no object"))?);
        Ok(0)
    })
}

/// See `stanchion.h`.
///
/// # Safety
/// `name` is a string; `info` can be written, as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_latest(
    pool: u64,
    name: *const c_char,
    info: *mut stn_checkpoint_info,
) -> c_int {
    call(|| {
        let held = OpenPool::of(pool)?;
        // SAFETY: the caller's promise.
        let name = unsafe {
            ffi::check_info(info, "info")?;
            ffi::text(name, "name")?
        };
        check_base_name(name)?;
        let latest = held.get()?.pool.latest(name).ok_or_else(|| {
            CallError::with(libc::ENOENT, format!("no checkpoint {name}@... in this pool"))
        })?;
        // SAFETY: checked above.
        unsafe { ffi::fill(info, &describe(&latest)) };
        Ok(0)
    })
}
