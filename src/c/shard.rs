// SPDX-License-Identifier: Apache-2.0
//! Shards: `stn_shard` and `stn_save_shard`, which declare one, and `stn_shard_info`.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;

use stanchion_engine::Shard;
use stanchion_engine::limits::{MAX_SHARD_DIMENSIONS, MAX_SHARDS};

use super::error::{CallError, invalid};
use super::ffi::{self, Sized32};

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_shard {
    pub name: *const c_char,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub dtype: *const c_char,
    pub shape: *const u64,
    pub dimensions: u32,
    pub reserved: u32,
}

// SAFETY: integers and pointers without padding.
unsafe impl Element for stn_shard {
    const FIRST_SIZE: usize = 48;
    const WHAT: &str = "stn_shard";
}

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_save_shard {
    pub name: *const c_char,
    pub bytes: *const c_void,
    pub len_bytes: u64,
    pub dtype: *const c_char,
    pub shape: *const u64,
    pub dimensions: u32,
    pub reserved: u32,
}

// SAFETY: integers and pointers without padding.
unsafe impl Element for stn_save_shard {
    const FIRST_SIZE: usize = 48;
    const WHAT: &str = "stn_save_shard";
}

/// See `stanchion.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, non_camel_case_types)]
pub struct stn_shard_info {
    pub size: u32,
    pub dimensions: u32,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub name: *const c_char,
    pub dtype: *const c_char,
    pub shape: *const u64,
}

// SAFETY: integers and pointers without padding, the size first.
unsafe impl Sized32 for stn_shard_info {
    const FIRST_SIZE: usize = 48;
}

/// A structure in an array. The caller gives its size, which may be smaller or larger than ours.
///
/// # Safety
/// `repr(C)`, without padding; any bytes are a valid value.
unsafe trait Element: Copy {
    /// Its size when it was first published. Never changes.
    const FIRST_SIZE: usize;
    /// Its name.
    const WHAT: &str;
}

/// A size above this is garbage.
const LARGEST: usize = 4096;

/// The structures of an array of the caller's.
///
/// # Safety
/// `items` is NULL or has `count` structures of `stride` bytes.
unsafe fn elements<T: Element>(
    items: *const T,
    count: u32,
    stride: u32,
) -> Result<Vec<T>, CallError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let stride = stride as usize;
    if !(T::FIRST_SIZE..=LARGEST).contains(&stride) {
        let what = T::WHAT;
        return Err(invalid(format!("shard_size {stride}; set it to sizeof(struct {what})")));
    }
    if count as usize > MAX_SHARDS {
        return Err(invalid(format!("{count} shards in one segment")));
    }
    ffi::required(items, "shards")?;
    let mut elements = Vec::with_capacity(count as usize);
    for index in 0..count as usize {
        // SAFETY: the caller's promise; zeroes are valid, and so is what is copied over them.
        elements.push(unsafe {
            let place = items.cast::<u8>().add(index * stride);
            let bytes = std::slice::from_raw_parts(place, stride);
            let known = stride.min(size_of::<T>());
            if bytes[known..].iter().any(|byte| *byte != 0) {
                let detail = "a shard has a field that this version of the library does not know";
                return Err(CallError::new(libc::E2BIG, detail));
            }
            let mut value: T = std::mem::zeroed();
            (&raw mut value).cast::<u8>().copy_from_nonoverlapping(place, known);
            value
        });
    }
    Ok(elements)
}

/// What both structures say of a shard in the same way.
struct Described {
    name: *const c_char,
    dtype: *const c_char,
    shape: *const u64,
    dimensions: u32,
    reserved: u32,
}

/// One shard of a segment.
///
/// # Safety
/// What it points to is readable.
unsafe fn shard(given: &Described, offset_bytes: u64, len_bytes: u64) -> Result<Shard, CallError> {
    ffi::unused(given.reserved, "a shard's reserved")?;
    if given.dimensions as usize > MAX_SHARD_DIMENSIONS {
        return Err(invalid(format!("a shard of {} dimensions", given.dimensions)));
    }
    // SAFETY: the caller's promise.
    unsafe {
        let dtype = if given.dtype.is_null() { "" } else { ffi::text(given.dtype, "a dtype")? };
        Ok(Shard {
            name: ffi::text(given.name, "a shard's name")?.to_owned(),
            offset_bytes,
            len_bytes,
            dtype: dtype.to_owned(),
            shape: ffi::array(given.shape, given.dimensions, "a shape")?.to_vec(),
            ..Shard::default()
        })
    }
}

/// The shards that `stn_begin` is given.
///
/// # Safety
/// `shards` is NULL or has `count` structures of `size` bytes; what they point to is readable.
pub(crate) unsafe fn declared(
    shards: *const stn_shard,
    count: u32,
    size: u32,
) -> Result<Vec<Shard>, CallError> {
    // SAFETY: the caller's promise.
    let given = unsafe { elements(shards, count, size)? };
    let declared = |one: &stn_shard| {
        let &stn_shard { name, dtype, shape, dimensions, reserved, .. } = one;
        let described = Described { name, dtype, shape, dimensions, reserved };
        // SAFETY: the caller's promise.
        unsafe { shard(&described, one.offset_bytes, one.len_bytes) }
    };
    given.iter().map(declared).collect()
}

/// A shard and where its bytes are; `None` for one without bytes.
pub(crate) type ShardInMemory = (Shard, Option<NonNull<u8>>);

/// The shards that `stn_save` is given, one after the other in the segment.
///
/// # Safety
/// As [`declared`].
pub(crate) unsafe fn in_memory(
    shards: *const stn_save_shard,
    count: u32,
    size: u32,
) -> Result<Vec<ShardInMemory>, CallError> {
    // SAFETY: the caller's promise.
    let given = unsafe { elements(shards, count, size)? };
    let mut offset_bytes: u64 = 0;
    let mut packed = Vec::with_capacity(given.len());
    for given in given {
        let stn_save_shard { name, bytes, len_bytes, dtype, shape, dimensions, reserved, .. } =
            given;
        let address = NonNull::new(bytes.cast_mut().cast::<u8>());
        if len_bytes > 0 && address.is_none() {
            return Err(CallError::new(libc::EFAULT, "a shard's bytes are NULL"));
        }
        let described = Described { name, dtype, shape, dimensions, reserved };
        // SAFETY: the caller's promise.
        let declared = unsafe { shard(&described, offset_bytes, len_bytes)? };
        packed.push((declared, address.filter(|_| len_bytes > 0)));
        offset_bytes = offset_bytes
            .checked_add(len_bytes)
            .ok_or_else(|| invalid("the shards are longer than a segment can be"))?;
    }
    Ok(packed)
}
