//! Finds SPDK through pkg-config, links it whole, compiles the shim against its headers and binds `shim.h`.
//!
//! SPDK is looked for where `PKG_CONFIG_PATH` says; when that is not set, also in the prefix that
//! `scripts/install-spdk` installs to.

#[path = "link_flags.rs"]
mod link_flags;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const DEFAULT_PKG_CONFIG_PATH: &str = "/opt/stanchion-spdk/lib/pkgconfig";

/// spdk_sock_posix is what the TCP transport opens sockets with; it registers itself and nothing names it otherwise.
const MODULES: [&str; 4] = ["spdk_nvme", "spdk_env_dpdk", "spdk_sock_posix", "spdk_syslibs"];

const SHIM_SOURCES: [&str; 3] = ["shim/environment.c", "shim/controller.c", "shim/command.c"];

fn main() {
    for variable in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    for file in ["shim.h", "shim/internal.h"].iter().chain(&SHIM_SOURCES) {
        println!("cargo::rerun-if-changed={file}");
    }

    // Asked first because only this form says which module is missing.
    pkg_config(&[&["--print-errors", "--exists"], &MODULES[..]].concat());
    let module_dir = pkg_config(&["--variable=pcfiledir", "spdk_nvme"]);
    println!(
        "cargo::rerun-if-changed={}",
        Path::new(module_dir.trim()).join("spdk_nvme.pc").display()
    );
    let libs = pkg_config(&[&["--static", "--libs"], &MODULES[..]].concat());
    let cflags = pkg_config(&[&["--cflags"], &MODULES[..]].concat());

    // The shim before SPDK: it refers to SPDK's symbols.
    compile_shim(&cflags);
    link(&libs);
    bind();
}

/// Runs pkg-config; a failure ends the build with one line that says what to run.
fn pkg_config(arguments: &[&str]) -> String {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let mut command = Command::new(&program);
    command.args(arguments);
    if env::var_os("PKG_CONFIG_PATH").is_none() {
        command.env("PKG_CONFIG_PATH", DEFAULT_PKG_CONFIG_PATH);
    }
    let reason = match command.output() {
        Ok(output) if output.status.success() => {
            return String::from_utf8_lossy(&output.stdout).into_owned();
        }
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            complaint.lines().next().unwrap_or("no reason given").to_owned()
        }
        Err(error) => format!("cannot run {}: {error}", program.display()),
    };
    println!(
        "cargo::error=SPDK not found: run scripts/install-spdk, or set PKG_CONFIG_PATH to the directory that holds \
         spdk_nvme.pc ({reason})"
    );
    exit(1);
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
        // Drivers, transports, sockets and allocators register themselves in constructors that nothing refers to, so
        // every object must be linked. -bundle: the archives stay where they are, and cargo passes this on to the
        // final link, which it does not do for link arguments.
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
        println!("cargo::warning=pkg-config flag for SPDK not understood and left out: {flag}");
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
