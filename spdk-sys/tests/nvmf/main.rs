// SPDX-License-Identifier: Apache-2.0
//! The shim against a real controller over NVMe/TCP: written data is read back, and every request
//! completes exactly once.
//!
//! Starts its own targets, and is skipped, with a message, where that is not possible. Only a drive
//! with the serial number of such a target is accepted. SPDK initialises once per process, so this
//! is one test in a binary of its own.

#![cfg(not(without_bindings))]

mod drive;
mod reservations;

use std::ffi::CStr;
use std::fs::File;
use std::ptr;
use std::time::{Duration, Instant};

use spdk_sys::*;

use drive::{Buffer, Command, Drive, OwnTarget, SUCCESS, fill};

const MIB: usize = 1 << 20;
const WRITE_OPCODE: u8 = 1;
const READ_OPCODE: u8 = 2;
/// (status code type, status code)
const LBA_OUT_OF_RANGE: (u16, u16) = (0, 0x80);
const WRITE_FAULT: (u16, u16) = (2, 0x80);
const READ_ERROR: (u16, u16) = (2, 0x81);

#[test]
fn shim_over_nvme_tcp() {
    if !OwnTarget::can_start() {
        return;
    }
    // One target at a time on this machine, whatever runs the tests. A lock on a folder leaves
    // nothing behind.
    let turn = File::open("/sys/kernel/mm").unwrap();
    turn.lock().unwrap();
    let target = OwnTarget::start(0);
    let address = target.address.clone();

    refuses_without_environment(&address);
    let options = stn_spdk_env_options {
        mem_size_mib: 128,
        no_pci: false,
        quiet: true,
        ..Default::default()
    };
    // SAFETY: the strings are null, and this thread calls nothing else of SPDK meanwhile.
    unsafe {
        stn_spdk_set_log_level(0);
        assert_eq!(
            stn_spdk_env_init(&options),
            0,
            "SPDK did not start: huge pages? run scripts/hugepages"
        );
        assert_eq!(stn_spdk_env_init(&options), -libc::EALREADY);
        stn_spdk_unaffinitize_thread();
    }

    let mut drive = connect(&target);
    writes_are_read_back(&drive);
    bad_arguments_are_refused(&drive);
    errors_reach_the_request(&drive);
    full_queue_is_reported(&mut drive);
    foreign_memory_can_be_registered(&drive);
    reset_keeps_the_drive_usable(&mut drive);
    reset_under_load(&mut drive);
    freeing_a_queue_completes_what_is_on_it(&mut drive);

    // SAFETY: the last use of the controller; its queue pair is freed before.
    unsafe {
        assert_eq!(stn_spdk_controller_detach(drive.controller), -libc::EBUSY);
        assert_eq!(stn_spdk_qpair_free(drive.qpair), 0);
        assert_eq!(stn_spdk_controller_detach(drive.controller), 0);
    }
    reservations::one_host_writes_and_the_other_takes_over(&target);
    lost_target_is_noticed();
    // SAFETY: no controller is attached and no buffer allocated any more.
    unsafe { stn_spdk_env_fini() }
}

fn refuses_without_environment(address: &CStr) {
    let mut controller = ptr::null_mut();
    let mut parsed = stn_spdk_address::default();
    // SAFETY: pointers to locals and NUL-terminated strings.
    unsafe {
        let refused =
            stn_spdk_controller_connect(address.as_ptr(), &Default::default(), &mut controller);
        assert_eq!((refused, controller.is_null()), (-libc::EPERM, true));
        assert_eq!(stn_spdk_address_parse(address.as_ptr(), &mut parsed), 0);
        assert_eq!((CStr::from_ptr(parsed.transport.as_ptr()), parsed.is_pcie), (c"TCP", false));
        for bad in [c"", c"/dev/nvme0n1", c"traddr:0000:04:00.0", c"trtype:floppy traddr:a"] {
            assert_eq!(stn_spdk_address_parse(bad.as_ptr(), &mut parsed), -libc::EINVAL, "{bad:?}");
        }
    }
}

fn connect(target: &OwnTarget) -> Drive {
    let address = &target.address;
    let mut controller = ptr::null_mut();
    let mut info = stn_spdk_controller_facts::default();
    let mut namespace_info = stn_spdk_namespace_info::default();
    // SAFETY: the environment is up; pointers to locals; the controller is used only when
    // connecting succeeded.
    unsafe {
        let absent = c"trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:1 subnqn:nqn.2026-01.io.stanchion:absent";
        stn_spdk_set_log_level(-1);
        let refused =
            stn_spdk_controller_connect(absent.as_ptr(), &Default::default(), &mut controller);
        stn_spdk_set_log_level(0);
        assert_eq!((refused, controller.is_null()), (-libc::ENODEV, true));

        // It admits one host, by its name.
        stn_spdk_set_log_level(-1);
        let refused =
            stn_spdk_controller_connect(address.as_ptr(), &Default::default(), &mut controller);
        stn_spdk_set_log_level(0);
        assert_eq!((refused, controller.is_null()), (-libc::ENODEV, true));
        let options = stn_spdk_connect_options {
            hostnqn: target.host.as_ptr(),
            no_error_logging: true,
            ..Default::default()
        };
        let rc = stn_spdk_controller_connect(address.as_ptr(), &options, &mut controller);
        assert_eq!(rc, 0, "cannot connect to {address:?}");
        stn_spdk_controller_facts(controller, &mut info);
        let serial = CStr::from_ptr(info.serial.as_ptr()).to_str().unwrap();
        assert!(
            serial.starts_with("STNDRIVE"),
            "'{serial}' is not a drive of scripts/nvmf-target: refusing to write"
        );
        assert!(info.max_transfer_bytes >= 4096);

        let id = stn_spdk_controller_next_namespace(controller, 0);
        assert_ne!(id, 0);
        assert_eq!(
            stn_spdk_controller_next_namespace(controller, id),
            0,
            "one namespace per drive"
        );
        assert!(stn_spdk_controller_namespace(controller, id + 1).is_null());
        let namespace = stn_spdk_controller_namespace(controller, id);
        stn_spdk_namespace_info(namespace, &mut namespace_info);
        assert_eq!((namespace_info.id, namespace_info.metadata_bytes), (id, 0));
        assert_ne!(namespace_info.nguid, [0; 16]);
        assert!(!namespace_info.is_write_protected);
        let version = CStr::from_ptr(stn_spdk_version_string()).to_str().unwrap();
        eprintln!("{version}: {serial}, {info:?}, {namespace_info:?}");

        let qpair = stn_spdk_qpair_alloc(controller, &Default::default());
        assert!(!qpair.is_null() && stn_spdk_qpair_is_connected(qpair));
        Drive {
            controller,
            namespace,
            qpair,
            sector_bytes: namespace_info.sector_bytes as usize,
            sector_count: namespace_info.sector_count,
        }
    }
}

fn writes_are_read_back(drive: &Drive) {
    const CHUNKS: usize = 32;
    let mut written = Buffer::new(CHUNKS * MIB);
    let mut read = Buffer::new(CHUNKS * MIB);
    // The time as seed: data of an earlier run must not pass for this run's.
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64 & 0xFFFF_FFFF;
    fill(written.slice(), seed);
    let lba = |chunk: usize| (chunk * MIB / drive.sector_bytes) as u64;

    let start = Instant::now();
    let mut commands: Vec<_> = (0..CHUNKS).map(|_| Command::new()).collect();
    for (chunk, command) in commands.iter_mut().enumerate() {
        // Every second one with FUA.
        let flags = if chunk % 2 == 0 { 0 } else { STN_SPDK_FLAG_FUA };
        // SAFETY: within the buffer.
        let from = unsafe { written.start.add(chunk * MIB) };
        assert_eq!(drive.write(command, from, lba(chunk), MIB, flags), 0);
        assert_eq!(drive.write(command, from, lba(chunk), MIB, flags), -libc::EBUSY);
        assert_eq!(command.completions.get(), 0, "a submission must not complete anything");
    }
    drive.finish(&commands);
    assert!(commands.iter().all(|command| command.status.get() == SUCCESS));
    eprintln!("{CHUNKS} MiB written in {:?}", start.elapsed());

    let mut flush = Command::new();
    assert_eq!(drive.flush(&mut flush), 0);
    drive.finish_with(flush, SUCCESS);

    let mut commands: Vec<_> = (0..CHUNKS).map(|_| Command::new()).collect();
    for (chunk, command) in commands.iter_mut().enumerate() {
        // SAFETY: within the buffer.
        assert_eq!(drive.read(command, unsafe { read.start.add(chunk * MIB) }, lba(chunk), MIB), 0);
    }
    drive.finish(&commands);
    assert!(commands.iter().all(|command| command.status.get() == SUCCESS));
    assert!(written.slice() == read.slice(), "the data read is not the data written");
}

fn bad_arguments_are_refused(drive: &Drive) {
    let buffer = Buffer::new(MIB);
    let mut command = Command::new();
    assert_eq!(drive.write(&mut command, buffer.start, 0, 0, 0), -libc::EINVAL, "no blocks");
    assert_eq!(drive.write(&mut command, buffer.start, 0, 4096, 2), -libc::EINVAL, "unknown flag");
    // SAFETY: within the buffer.
    let odd = unsafe { buffer.start.add(2) };
    assert_eq!(drive.write(&mut command, odd, 0, 4096, 0), -libc::EINVAL, "alignment");
    assert_eq!(command.completions.get(), 0);
    let ordinary = vec![0u8; 4096];
    // SAFETY: addresses are looked up, not followed.
    unsafe {
        assert!(stn_spdk_mem_is_reachable(buffer.start.cast(), buffer.bytes));
        assert!(!stn_spdk_mem_is_reachable(ordinary.as_ptr().cast(), ordinary.len()));
    }
}

fn errors_reach_the_request(drive: &Drive) {
    let buffer = Buffer::new(MIB);

    let mut beyond = Command::new();
    assert_eq!(drive.write(&mut beyond, buffer.start, drive.sector_count, 4096, 0), 0);
    drive.finish_with(beyond, LBA_OUT_OF_RANGE);

    // SAFETY: controller and queue pair are valid and this thread's.
    let inject = |opcode, park, hold_us, (sct, sc): (u16, u16)| unsafe {
        stn_spdk_inject_error(
            drive.controller,
            drive.qpair,
            opcode,
            park,
            hold_us,
            1,
            sct as u8,
            sc as u8,
        )
    };
    assert_eq!(inject(WRITE_OPCODE, false, 0, WRITE_FAULT), 0);
    let mut faulty = Command::new();
    assert_eq!(drive.write(&mut faulty, buffer.start, 0, 4096, 0), 0);
    drive.finish_with(faulty, WRITE_FAULT);

    let held = Duration::from_millis(100);
    assert_eq!(inject(READ_OPCODE, true, held.as_micros() as u64, READ_ERROR), 0);
    let mut parked = Command::new();
    let start = Instant::now();
    assert_eq!(drive.read(&mut parked, buffer.start, 0, 4096), 0);
    drive.finish_with(parked, READ_ERROR);
    assert!(start.elapsed() >= held, "a parked command completed after {:?}", start.elapsed());

    // SAFETY: as above.
    unsafe {
        stn_spdk_remove_injected_error(drive.controller, drive.qpair, WRITE_OPCODE);
        stn_spdk_remove_injected_error(drive.controller, drive.qpair, READ_OPCODE);
    }
    let mut sound = Command::new();
    assert_eq!(drive.write(&mut sound, buffer.start, 0, 4096, 0), 0);
    drive.finish_with(sound, SUCCESS);
}

/// A second queue pair with few request objects: it returns -ENOMEM, loses nothing, and has room
/// again.
fn full_queue_is_reported(drive: &mut Drive) {
    let buffer = Buffer::new(4096);
    let options =
        stn_spdk_qpair_options { io_queue_size: 8, io_queue_requests: 16, delay_submit: true };
    // SAFETY: the controller is valid.
    let small = unsafe { stn_spdk_qpair_alloc(drive.controller, &options) };
    assert!(!small.is_null());
    let large = std::mem::replace(&mut drive.qpair, small);

    let mut commands = Vec::new();
    let full = loop {
        let mut command = Command::new();
        match drive.write(&mut command, buffer.start, 0, 4096, 0) {
            0 => commands.push(command),
            rc => break rc,
        }
        assert!(commands.len() <= 16);
    };
    assert_eq!(full, -libc::ENOMEM);
    assert!(commands.len() >= 8);
    drive.finish(&commands);
    let mut again = Command::new();
    assert_eq!(drive.write(&mut again, buffer.start, 0, 4096, 0), 0);
    drive.finish_with(again, SUCCESS);

    drive.qpair = large;
    // SAFETY: nothing is outstanding on it and it is not used again.
    assert_eq!(unsafe { stn_spdk_qpair_free(small) }, 0);
}

fn foreign_memory_can_be_registered(drive: &Drive) {
    const BYTES: usize = 4 * MIB;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    // SAFETY: a fresh mapping of huge pages, checked, touched by `fill` before it is registered,
    // and unmapped last.
    unsafe {
        let start =
            libc::mmap(ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED, "no huge pages left: run scripts/hugepages");
        fill(std::slice::from_raw_parts_mut(start.cast(), BYTES), 7);
        assert!(!stn_spdk_mem_is_reachable(start, BYTES));
        assert_eq!(stn_spdk_mem_register(start, BYTES), 0);
        assert_eq!(stn_spdk_mem_register(start, BYTES), -libc::EBUSY);
        assert!(stn_spdk_mem_is_reachable(start, BYTES));
        assert!(!stn_spdk_mem_is_reachable(start, BYTES + 1));
        let mut command = Command::new();
        assert_eq!(drive.write(&mut command, start.cast(), 0, MIB, STN_SPDK_FLAG_FUA), 0);
        drive.finish_with(command, SUCCESS);
        assert_eq!(stn_spdk_mem_unregister(start, BYTES), 0);
        assert!(!stn_spdk_mem_is_reachable(start, BYTES));
        assert_eq!(libc::munmap(start, BYTES), 0);
    }
}

fn reset_keeps_the_drive_usable(drive: &mut Drive) {
    let buffer = Buffer::new(MIB);
    // SAFETY: one thread uses the controller, and the namespace is looked up again.
    unsafe {
        assert!(stn_spdk_controller_process_admin(drive.controller) >= 0);
        assert_eq!(stn_spdk_controller_reset(drive.controller), 0);
        assert!(!stn_spdk_controller_is_failed(drive.controller));
        assert_eq!(stn_spdk_qpair_reconnect(drive.qpair), 0);
        assert!(stn_spdk_qpair_is_connected(drive.qpair));
        let id = stn_spdk_controller_next_namespace(drive.controller, 0);
        drive.namespace = stn_spdk_controller_namespace(drive.controller, id);
    }
    let mut command = Command::new();
    assert_eq!(drive.write(&mut command, buffer.start, 0, MIB, 0), 0);
    drive.finish_with(command, SUCCESS);
}

/// A reset with commands in flight ends each of them once, and the result of each write is correct:
/// one that succeeded can be read back, and one that was aborted can be repeated at the same place.
fn reset_under_load(drive: &mut Drive) {
    const CHUNKS: usize = 16;
    let mut written = Buffer::new(CHUNKS * MIB);
    let mut found = Buffer::new(CHUNKS * MIB);
    let lba = |chunk: usize, drive: &Drive| (chunk * MIB / drive.sector_bytes) as u64;
    let mut aborted = 0;
    for round in 0..8 {
        fill(written.slice(), 100 + round);
        let mut commands: Vec<_> = (0..CHUNKS).map(|_| Command::new()).collect();
        for (chunk, command) in commands.iter_mut().enumerate() {
            // SAFETY: within the buffer.
            let at = unsafe { written.start.add(chunk * MIB) };
            assert_eq!(drive.write(command, at, lba(chunk, drive), MIB, 0), 0);
        }
        // SAFETY: one thread uses the controller, and the namespace is looked up again.
        unsafe {
            for _ in 0..round {
                assert!(stn_spdk_qpair_process_completions(drive.qpair, 0) >= 0);
            }
            assert_eq!(stn_spdk_controller_reset(drive.controller), 0);
            assert_eq!(stn_spdk_qpair_reconnect(drive.qpair), 0);
            let id = stn_spdk_controller_next_namespace(drive.controller, 0);
            drive.namespace = stn_spdk_controller_namespace(drive.controller, id);
        }
        let counts: Vec<_> = commands.iter().map(|command| command.completions.get()).collect();
        assert_eq!(counts, [1; CHUNKS], "each command ends once");
        for (chunk, command) in commands.iter().enumerate() {
            if command.status.get() == SUCCESS {
                continue;
            }
            aborted += 1;
            let mut again = Command::new();
            // SAFETY: within the buffer.
            let at = unsafe { written.start.add(chunk * MIB) };
            assert_eq!(drive.write(&mut again, at, lba(chunk, drive), MIB, 0), 0);
            drive.finish_with(again, SUCCESS);
        }
        for chunk in 0..CHUNKS {
            let mut command = Command::new();
            // SAFETY: within the buffer.
            let at = unsafe { found.start.add(chunk * MIB) };
            assert_eq!(drive.read(&mut command, at, lba(chunk, drive), MIB), 0);
            drive.finish_with(command, SUCCESS);
        }
        assert!(found.slice() == written.slice(), "round {round}");
    }
    assert!(aborted > 0, "no reset found a command in flight");
}

/// Leaves the drive with a new queue pair.
fn freeing_a_queue_completes_what_is_on_it(drive: &mut Drive) {
    let buffer = Buffer::new(16 * MIB);
    let mut commands: Vec<_> = (0..16).map(|_| Command::new()).collect();
    for (chunk, command) in commands.iter_mut().enumerate() {
        // SAFETY: within the buffer.
        assert_eq!(drive.write(command, unsafe { buffer.start.add(chunk * MIB) }, 0, MIB, 0), 0);
    }
    // SAFETY: freed once; `drive` gets another at once.
    unsafe {
        assert_eq!(stn_spdk_qpair_free(drive.qpair), 0);
        drive.qpair = stn_spdk_qpair_alloc(drive.controller, &Default::default());
    }
    let counts: Vec<_> = commands.iter().map(|command| command.completions.get()).collect();
    assert_eq!(counts, [1; 16], "each command completes exactly once when its queue pair goes");
    assert!(
        commands.iter().any(|command| command.status.get() != SUCCESS),
        "nothing was outstanding"
    );
    assert!(!drive.qpair.is_null());
}

/// A target of the test's own, killed while commands are outstanding.
fn lost_target_is_noticed() {
    let target = OwnTarget::start(1);
    let drive = connect(&target);
    let buffer = Buffer::new(16 * MIB);
    let mut commands: Vec<_> = (0..16).map(|_| Command::new()).collect();
    for (chunk, command) in commands.iter_mut().enumerate() {
        // SAFETY: within the buffer.
        assert_eq!(drive.write(command, unsafe { buffer.start.add(chunk * MIB) }, 0, MIB, 0), 0);
    }
    target.kill();
    let deadline = Instant::now() + Duration::from_secs(30);
    // SAFETY: freed and detached once, in this order; nothing of the drive is used after.
    unsafe {
        stn_spdk_set_log_level(-1);
        while stn_spdk_qpair_process_completions(drive.qpair, 0) >= 0 {
            assert!(Instant::now() < deadline, "the lost connection was not noticed in 30 s");
        }
        assert!(!stn_spdk_qpair_is_connected(drive.qpair));
        let mut late = Command::new();
        let refused = drive.flush(&mut late);
        stn_spdk_qpair_free(drive.qpair);
        assert_eq!(
            late.completions.get(),
            u32::from(refused == 0),
            "refused: never completed; accepted: once"
        );
        stn_spdk_controller_detach(drive.controller);
        stn_spdk_set_log_level(0);
    }
    let counts: Vec<_> = commands.iter().map(|command| command.completions.get()).collect();
    assert_eq!(counts, [1; 16], "each command completes exactly once when the target is lost");
    assert!(
        commands.iter().any(|command| command.status.get() != SUCCESS),
        "nothing was outstanding"
    );
}
