// SPDX-License-Identifier: Apache-2.0
//! The version of the library.

use std::ffi::{c_char, c_int};

/// See `stanchion.h`.
pub const STN_VERSION: u32 = version();

/// From the package's version, so that there is one place to change.
const fn version() -> u32 {
    number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | number(env!("CARGO_PKG_VERSION_PATCH"))
}

const fn number(digits: &str) -> u32 {
    let (bytes, mut at, mut value) = (digits.as_bytes(), 0, 0);
    while at < bytes.len() {
        value = value * 10 + (bytes[at] - b'0') as u32;
        at += 1;
    }
    value
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
pub extern "C" fn stn_version() -> u32 {
    STN_VERSION
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
pub extern "C" fn stn_version_string() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// See `stanchion.h`.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
pub extern "C" fn stn_has_spdk() -> c_int {
    c_int::from(cfg!(feature = "spdk"))
}
