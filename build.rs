// SPDX-License-Identifier: Apache-2.0
//! Gives the shared library its soname. Until 1.0 each minor version is an ABI of its own.
//!
//! Only `stn_` functions are exported: rustc exports nothing else from a cdylib. The installed
//! library also has symbol versions, which `scripts/install` gives it from `stanchion.map`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name| std::env::var(name).unwrap_or_default();
    let (major, minor) = (variable("CARGO_PKG_VERSION_MAJOR"), variable("CARGO_PKG_VERSION_MINOR"));
    let soname = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libstanchion.so.{soname}");
}
