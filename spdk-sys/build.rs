// SPDX-License-Identifier: Apache-2.0
//! Finds SPDK through pkg-config, links it whole, compiles the shim against its headers and binds
//! `shim.h`.
//!
//! The directories of `PKG_CONFIG_PATH` are searched; when that is not set, also the prefix that
//! `scripts/install-spdk` installs to.
//!
//! Without SPDK the bindings are still generated, so that `cargo check` and editors work. The link
//! then names a library that does not exist, whose name says what to run: no program is ever built
//! with a stub.

#[path = "link_flags.rs"]
mod link_flags;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const DEFAULT_PKG_CONFIG_PATH: &str = "/opt/stanchion-spdk/lib/pkgconfig";

/// The TCP transport opens sockets with spdk_sock_posix, which registers itself: nothing else names
/// it.
const MODULES: [&str; 4] = ["spdk_nvme", "spdk_env_dpdk", "spdk_sock_posix", "spdk_syslibs"];

const SHIM_SOURCES: [&str; 4] =
    ["shim/environment.c", "shim/controller.c", "shim/command.c", "shim/reservation.c"];

fn main() {
    for variable in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    for file in ["shim.h", "shim/internal.h"].iter().chain(&SHIM_SOURCES) {
        println!("cargo::rerun-if-changed={file}");
    }

    println!("cargo::rustc-check-cfg=cfg(without_bindings)");
    // Asked first because only this form names the missing module.
    if let Err(reason) = pkg_config(&[&["--print-errors", "--exists"], &MODULES[..]].concat()) {
        return stand_in(&reason);
    }
    let module_dir = required(&["--variable=pcfiledir", "spdk_nvme"]);
    println!(
        "cargo::rerun-if-changed={}",
        Path::new(module_dir.trim()).join("spdk_nvme.pc").display()
    );
    let libs = required(&[&["--static", "--libs"], &MODULES[..]].concat());
    let cflags = required(&[&["--cflags"], &MODULES[..]].concat());

    // The shim before SPDK: it refers to SPDK's symbols.
    compile_shim(&cflags);
    link(&libs);
    bind();
}

/// Linked when SPDK is missing: the linker reports that it cannot find it.
const MISSING: &str = "SPDK-is-not-installed--run-scripts-install-spdk";

/// Bindings without SPDK, for `cargo check`; code that uses them cannot be linked.
fn stand_in(reason: &str) {
    println!(
        "cargo::warning=SPDK not found, so this can be checked but not linked: run scripts/install-spdk, or set \
         PKG_CONFIG_PATH to the directory of spdk_nvme.pc ({reason})"
    );
    println!("cargo::rustc-link-lib=dylib={MISSING}");
    // bindgen panics where libclang is missing as well, as on a machine that never had SPDK.
    if std::panic::catch_unwind(bind).is_err() {
        println!("cargo::warning=no bindings of shim.h either: apt-get install libclang-dev");
        println!("cargo::rustc-cfg=without_bindings");
    }
}

/// As `pkg_config`; a failure ends the build with one line that says what to run.
fn required(arguments: &[&str]) -> String {
    pkg_config(arguments).unwrap_or_else(|reason| {
        println!("cargo::error=SPDK is incomplete: run scripts/install-spdk ({reason})");
        exit(1);
    })
}

/// Runs pkg-config; on failure returns the first line of its error message.
fn pkg_config(arguments: &[&str]) -> Result<String, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let mut command = Command::new(&program);
    command.args(arguments);
    if env::var_os("PKG_CONFIG_PATH").is_none() {
        command.env("PKG_CONFIG_PATH", DEFAULT_PKG_CONFIG_PATH);
    }
    match command.output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            Err(complaint.lines().next().unwrap_or("no reason given").to_owned())
        }
        Err(error) => Err(format!("cannot run {}: {error}", program.display())),
    }
}

fn compile_shim(cflags: &str) {
    let mut build = cc::Build::new();
    build.files(SHIM_SOURCES).std("gnu11").warnings(true).extra_warnings(true);
    for flag in cflags.split_whitespace() {
        build.flag(flag);
    }
    build.compile("stn_spdk_shim");
}

fn link(libs: &str) {
    let plan = link_flags::parse(libs, |archive| archive.is_file());
    for dir in &plan.search_dirs {
        println!("cargo::rustc-link-search=native={}", dir.display());
    }
    for name in &plan.archives {
        // Drivers, transports, sockets and allocators register themselves in constructors that
        // nothing refers to, so every object must be linked. -bundle: the archives stay where they
        // are, and cargo passes this on to the final link, which it does not do for link arguments.
        println!("cargo::rustc-link-lib=static:+whole-archive,-bundle={name}");
        for dir in &plan.search_dirs {
            let archive = dir.join(format!("lib{name}.a"));
            if archive.is_file() {
                println!("cargo::rerun-if-changed={}", archive.display());
            }
        }
    }
    for name in &plan.shared {
        println!("cargo::rustc-link-lib=dylib={name}");
    }
    for flag in &plan.unknown {
        println!("cargo::warning=unknown pkg-config flag for SPDK ignored: {flag}");
    }
}

fn bind() {
    let out =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    bindgen::Builder::default()
        .header("shim.h")
        .allowlist_item("(stn_spdk|STN_SPDK)_.*")
        .clang_arg("-fparse-all-comments") // carry shim.h's comments over
        .rust_edition(bindgen::RustEdition::Edition2024)
        .use_core()
        .layout_tests(true)
        .derive_default(true)
        .generate()
        .expect("shim.h is plain C")
        .write_to_file(&out)
        .expect("OUT_DIR is writable");
}
