// SPDX-License-Identifier: Apache-2.0
//! The C interface inside a Rust program: the errors that a C program cannot provoke.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::ffi::{CString, c_char};
use std::os::unix::fs::FileExt as _;

use stanchion::c::*;

/// Options that make a pool of one file of 64 MiB.
fn format_opts(drives: &[*const c_char; 1]) -> stn_format_opts {
    stn_format_opts {
        size: size_of::<stn_format_opts>() as u32,
        flags: 0,
        drives: drives.as_ptr(),
        drive_count: 1,
        reserved: 0,
        chunk_bytes: 0,
        create_bytes: 64 << 20,
        metadata_bytes: 0,
    }
}

/// Options that open a pool of one file.
fn pool_opts(drives: &[*const c_char; 1], flags: u32) -> stn_pool_opts {
    stn_pool_opts {
        size: size_of::<stn_pool_opts>() as u32,
        flags,
        drives: drives.as_ptr(),
        cores: std::ptr::null(),
        drive_count: 1,
        core_count: 0,
        huge_pages: STN_HUGE_OFF,
        reactors: 0,
        queue_depth: 0,
        checksum_threads: 0,
    }
}

/// A pool on one file, and the file's name as a C string.
fn pool(directory: &tempfile::TempDir) -> CString {
    let path = directory.path().join("drive");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let drives = [name.as_ptr()];
    let opts = format_opts(&drives);
    // SAFETY: all that the options point to is readable.
    assert_eq!(unsafe { stn_format(&raw const opts) }, 0);
    name
}

/// What opening a new pool gives once its labels say that they have this major version.
fn result_of_major(major: u8) -> i32 {
    const BLOCK_BYTES: usize = 4096;
    let directory = tempfile::tempdir().unwrap();
    let name = pool(&directory);
    let file =
        std::fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    for offset in [1 << 20, 2 << 20, 62 << 20, 63 << 20] {
        let mut label = vec![0; BLOCK_BYTES];
        file.read_exact_at(&mut label, offset).unwrap();
        assert_eq!(&label[..8], b"STNLABEL");
        let hash = |label: &[u8]| xxhash_rust::xxh3::xxh3_128(&label[24..]).to_le_bytes();
        assert_eq!(label[8..24], hash(&label), "the hash is made as the format says");
        label[24] = major;
        let fresh = hash(&label);
        label[8..24].copy_from_slice(&fresh);
        file.write_all_at(&label, offset).unwrap();
    }
    let drives = [name.as_ptr()];
    let opts = pool_opts(&drives, 0);
    let mut pool = 0;
    // SAFETY: all that the options point to is readable.
    unsafe { stn_pool_open(&raw const opts, &raw mut pool) }
}

#[test]
fn a_pool_of_a_newer_version() {
    assert_eq!(result_of_major(99), -STN_E_NEWER_FORMAT);
}

#[test]
fn a_pool_of_an_older_version() {
    assert_eq!(result_of_major(1), -STN_E_OLDER_FORMAT);
}

#[test]
fn a_program_that_listens_itself() {
    extern "C" fn ignore(
        _: *mut std::ffi::c_void,
        _: u32,
        _: *const std::ffi::c_char,
        _: *const std::ffi::c_char,
    ) {
    }
    tracing::subscriber::set_global_default(tracing::subscriber::NoSubscriber::new()).unwrap();
    // SAFETY: the callback may be called with any context.
    let result = unsafe { stn_set_log(Some(ignore), std::ptr::null_mut(), STN_LOG_WARN) };
    assert_eq!(result, -libc::EEXIST);
}

/// How many checkpoints a pool of one file has room for.
fn max_checkpoints(name: &CString) -> u64 {
    let drives = [name.as_ptr()];
    let opts = pool_opts(&drives, STN_POOL_READ_ONLY);
    let mut pool = 0;
    // SAFETY: zeros are a value of a structure of integers.
    let mut info: stn_pool_info = unsafe { std::mem::zeroed() };
    info.size = size_of::<stn_pool_info>() as u32;
    // SAFETY: all that the options point to is readable, and the rest is ours to write.
    unsafe {
        assert_eq!(stn_pool_open(&raw const opts, &raw mut pool), 0);
        assert_eq!(stn_pool_info(pool, &raw mut info), 0);
        assert_eq!(stn_pool_close(pool), 0);
    }
    info.max_checkpoints
}

/// The size of the metadata area came later than the structure: a program that was built before has
/// a shorter one, and what lies behind it is not the library's.
#[test]
fn metadata_size_counts_where_the_program_knows_it() {
    const FIRST_SIZE: usize = 40;
    let size = size_of::<stn_format_opts>();
    for (size, metadata_mib, expected) in
        [(size, 0, 32), (size, 1, 16), (size, 16, 64), (FIRST_SIZE, 1, 32)]
    {
        let directory = tempfile::tempdir().unwrap();
        let name = CString::new(directory.path().join("drive").to_str().unwrap()).unwrap();
        let drives = [name.as_ptr()];
        let opts = stn_format_opts {
            size: size as u32,
            metadata_bytes: metadata_mib << 20,
            ..format_opts(&drives)
        };
        // SAFETY: all that the options point to is readable.
        assert_eq!(unsafe { stn_format(&raw const opts) }, 0);
        assert_eq!(max_checkpoints(&name), expected, "{size} bytes, {metadata_mib} MiB");
    }
}
