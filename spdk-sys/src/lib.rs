// SPDX-License-Identifier: Apache-2.0
//! Raw bindings of `shim.h`, a C interface of our own over SPDK's NVMe driver.
//!
//! Nothing of SPDK itself appears here: its structures and their differences between releases stay
//! on the C side, and the layout of the types here is asserted at compile time. `shim.h` documents
//! every function's errors, thread rules and ownership; the bindings carry those comments.
//!
//! SPDK is linked whole and statically; see `build.rs` for how it is found.

#![allow(non_camel_case_types)]

#[cfg(not(without_bindings))]
include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

// The build script's parser, for its unit tests.
#[cfg(test)]
#[path = "../link_flags.rs"]
mod link_flags;
