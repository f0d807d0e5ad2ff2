// SPDX-License-Identifier: Apache-2.0
//! The border to C: pointers become values, panics and errors become numbers.
//!
//! - [`call`] is the body of every function: no panic leaves it.
//! - A structure of the caller's may be shorter or longer than ours: its first field says.
//! - Every pointer is compared with NULL before it is used; the rest is the caller's promise, in
//!   the function's comment.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::error::{CallError, STN_E_PANIC, invalid, remember};

/// Runs a function's body; its result, or the failure's number, negated.
pub(crate) fn call64(body: impl FnOnce() -> Result<i64, CallError>) -> i64 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        // The panic hook has logged it.
        Err(_) => {
            CallError::new(STN_E_PANIC, "a defect of the stanchion library: a panic; see the log")
        }
    };
    let code = failure.code;
    remember(failure.detail);
    -i64::from(code)
}

/// The same for functions that return int.
pub(crate) fn call(body: impl FnOnce() -> Result<c_int, CallError>) -> c_int {
    call64(|| body().map(i64::from)) as c_int
}

/// Fails with EFAULT when a pointer is NULL.
pub(crate) fn required<T>(pointer: *const T, what: &'static str) -> Result<(), CallError> {
    if pointer.is_null() {
        return Err(CallError::with(libc::EFAULT, format!("{what} is NULL")));
    }
    Ok(())
}

/// A string of the caller's.
///
/// # Safety
/// `text` is NULL or a string that ends with a NUL and outlives the result.
pub(crate) unsafe fn text<'a>(
    text: *const c_char,
    what: &'static str,
) -> Result<&'a str, CallError> {
    required(text, what)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| invalid(format!("{what} is not UTF-8")))
}

/// An array of the caller's.
///
/// # Safety
/// `items` is NULL or has `count` items that outlive the result.
pub(crate) unsafe fn array<'a, T>(
    items: *const T,
    count: u32,
    what: &'static str,
) -> Result<&'a [T], CallError> {
    if count == 0 {
        return Ok(&[]);
    }
    required(items, what)?;
    if !items.is_aligned() {
        return Err(invalid(format!("{what} is not aligned")));
    }
    // SAFETY: not NULL, aligned; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(items, count as usize) })
}

/// A structure whose first field is its size.
///
/// # Safety
/// `repr(C)`, without padding, starting with a `u32`; any bytes are a valid value.
pub(crate) unsafe trait Sized32: Copy {
    /// Its size when it was first published. Never changes.
    const FIRST_SIZE: usize;
}

/// More than any structure of ours will ever have: a larger size is garbage.
const LARGEST: usize = 4096;

fn check_size<T: Sized32>(size: usize) -> Result<(), CallError> {
    if (T::FIRST_SIZE..=LARGEST).contains(&size) {
        return Ok(());
    }
    Err(invalid(format!(
        "a structure of {size} bytes, below the {} that it has at least; set its size to sizeof",
        T::FIRST_SIZE
    )))
}

/// Options of the caller's: those that it does not know are zero.
///
/// # Safety
/// `opts` is NULL, or points to a `u32` that says how many bytes can be read there.
pub(crate) unsafe fn options<T: Sized32>(
    opts: *const T,
    what: &'static str,
) -> Result<T, CallError> {
    required(opts, what)?;
    // SAFETY: the caller's promise.
    let size = unsafe { opts.cast::<u32>().read_unaligned() } as usize;
    check_size::<T>(size)?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(opts.cast::<u8>(), size) };
    let ours = size_of::<T>();
    if bytes.len() > ours && bytes[ours..].iter().any(|byte| *byte != 0) {
        return Err(CallError::with(
            libc::E2BIG,
            format!("{what} has options that this version of the library does not know"),
        ));
    }
    // SAFETY: zeroes are a valid value, and so is what is copied over them, within both.
    unsafe {
        let mut value: T = std::mem::zeroed();
        let known = bytes.len().min(ours);
        (&raw mut value).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), known);
        Ok(value)
    }
}

/// Checks a structure to be filled, before anything is done.
///
/// # Safety
/// `info` is NULL, or points to a `u32`.
pub(crate) unsafe fn check_info<T: Sized32>(
    info: *const T,
    what: &'static str,
) -> Result<(), CallError> {
    required(info, what)?;
    // SAFETY: the caller's promise.
    check_size::<T>(unsafe { info.cast::<u32>().read_unaligned() } as usize)
}

/// Fills a structure of the caller's, apart from its size: fields that it lacks are left out, and
/// fields that we lack become zero.
///
/// # Safety
/// `info` passed [`check_info`], and as many bytes as it says can be written there.
pub(crate) unsafe fn fill<T: Sized32>(info: *mut T, value: &T) {
    // SAFETY: the caller's promise; the ranges lie within both structures.
    unsafe {
        let size = info.cast::<u32>().read_unaligned() as usize;
        let known = size.min(size_of::<T>());
        let (from, to) = ((&raw const *value).cast::<u8>(), info.cast::<u8>());
        to.add(4).copy_from_nonoverlapping(from.add(4), known - 4);
        to.add(known).write_bytes(0, size - known);
    }
}

/// Fails when a field that has no meaning yet is not zero.
pub(crate) fn unused(value: u32, what: &'static str) -> Result<(), CallError> {
    known_flags(value, 0, what)
}

/// Fails when a flag is set that is not among those known.
pub(crate) fn known_flags(flags: u32, known: u32, what: &'static str) -> Result<(), CallError> {
    if flags & !known != 0 {
        return Err(invalid(format!("{what} has {:#x} set, which are not flags", flags & !known)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Debug)]
    #[repr(C)]
    struct Two {
        size: u32,
        first: u32,
        second: u64,
    }

    // SAFETY: integers without padding, the size first.
    unsafe impl Sized32 for Two {
        const FIRST_SIZE: usize = 8;
    }

    #[repr(C)]
    struct Three {
        two: Two,
        third: u64,
    }

    #[test]
    fn a_panic_becomes_a_number() {
        assert_eq!(call(|| panic!("on purpose")), -STN_E_PANIC);
        assert_eq!(call(|| Ok(7)), 7);
        assert_eq!(call(|| Err(invalid("no"))), -libc::EINVAL);
    }

    #[test]
    fn options_may_be_shorter_or_longer() {
        // SAFETY: each size says what is there.
        let read = |two: *const Two| unsafe { options(two, "opts") }.map_err(|e| e.code);
        let whole = Two { size: 16, first: 1, second: 2 };
        assert_eq!(read(&whole), Ok(whole));
        assert_eq!(read(&Two { size: 8, ..whole }), Ok(Two { size: 8, first: 1, second: 0 }));
        let longer = |third| Three { two: Two { size: 24, ..whole }, third };
        let zero = longer(0);
        assert_eq!(read((&raw const zero).cast()), Ok(Two { size: 24, ..whole }));
        let unknown = longer(1);
        assert_eq!(read((&raw const unknown).cast()), Err(libc::E2BIG));
        for size in [0, 7, u32::MAX] {
            assert_eq!(read(&Two { size, ..whole }), Err(libc::EINVAL));
        }
        assert_eq!(read(std::ptr::null()), Err(libc::EFAULT));
    }

    #[test]
    fn infos_may_be_shorter_or_longer() {
        let value = Two { size: 0, first: 1, second: 2 };
        let mut shorter = Two { size: 8, first: 9, second: 9 };
        // SAFETY: each size says what is there.
        unsafe { fill(&raw mut shorter, &value) };
        assert_eq!(shorter, Two { size: 8, first: 1, second: 9 });
        let mut longer = Three { two: Two { size: 24, first: 9, second: 9 }, third: 9 };
        // SAFETY: as above.
        unsafe { fill((&raw mut longer).cast(), &value) };
        assert_eq!((longer.two, longer.third), (Two { size: 24, first: 1, second: 2 }, 0));
    }
}
