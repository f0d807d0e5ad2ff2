// SPDX-License-Identifier: Apache-2.0
//! Reservations of block devices, by the kernel's calls for them (linux/pr.h).
//!
//! - To the drive, the host is the kernel: all its processes share a registration, and the lock on
//!   the device node keeps them apart. So a key that this host left behind is replaced, and needs
//!   no preemption.
//! - The kernel reports a drive's refusal as a positive number: since 6.4 by a number of its own
//!   (linux/pr.h) or an errno, before by the drive's status as it came.
//! - An NVMe drive is asked to replace a key by 0 where the registration should end, and to keep
//!   registrations through a loss of power (`nvme_pr_register`). So the reservation is released
//!   first, and a registration that is still there is replaced; a drive that cannot keep them
//!   counts as one without reservations.
//! - Kernels before 6.4 have no call that reads who holds a reservation.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::device::reservation::{
    Acquire, CLOSED_KEY, Registrant, ReservationReport, Reservations, Taken,
};
use crate::error::IoError;

/// PR_WRITE_EXCLUSIVE_REG_ONLY.
const TYPE: u32 = 3;
const IGNORE_KEY: u32 = 1;
/// What the calls answer for a reservation conflict: PR_STS_RESERVATION_CONFLICT.
const CONFLICT: i32 = 0x18;
/// A drive's status without its flags; and those of a conflict, and of a command or a field that
/// the drive does not know (NVMe; 2 is also SCSI's "check condition").
const STATUS: i32 = 0x7ff;
const STATUS_CONFLICT: i32 = 0x83;
const STATUS_UNKNOWN: [i32; 2] = [0x01, 0x02];
/// Keys that are read at most.
const MAX_KEYS: usize = 64;

#[repr(C)]
struct Registration {
    old_key: u64,
    new_key: u64,
    flags: u32,
    pad: u32,
}

#[repr(C)]
struct Reservation {
    key: u64,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct Preemption {
    old_key: u64,
    new_key: u64,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct Clearing {
    key: u64,
    flags: u32,
    pad: u32,
}

#[repr(C)]
struct Keys {
    generation: u32,
    count: u32,
    keys: u64,
}

#[repr(C)]
struct Held {
    key: u64,
    generation: u32,
    kind: u32,
}

/// The number of a call: its direction (1: in, 2: out), its argument and its place in the group.
const fn call<T>(direction: u32, number: u32) -> u32 {
    direction << 30 | (size_of::<T>() as u32) << 16 | (b'p' as u32) << 8 | number
}

const REGISTER: u32 = call::<Registration>(1, 200);
const RESERVE: u32 = call::<Reservation>(1, 201);
const RELEASE: u32 = call::<Reservation>(1, 202);
const PREEMPT: u32 = call::<Preemption>(1, 203);
const PREEMPT_ABORT: u32 = call::<Preemption>(1, 204);
const CLEAR: u32 = call::<Clearing>(1, 205);
const READ_KEYS: u32 = call::<Keys>(3, 206);
const READ_RESERVATION: u32 = call::<Held>(2, 207);

/// Calls the kernel with an argument of the type that `number` was made of.
fn call_kernel<T>(file: &File, number: u32, argument: &mut T) -> Result<i32, IoError> {
    // SAFETY: a descriptor that `file` owns; the kernel reads and writes as many bytes as the
    // number says, which is the size of the argument; where that has an address, it is of a local
    // that the caller keeps, with as many entries as it says.
    let result = unsafe {
        libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(number), std::ptr::from_mut(argument))
    };
    if result < 0 {
        let errno = io::Error::last_os_error().raw_os_error();
        return Err(IoError::Os(errno.unwrap_or(libc::EIO)));
    }
    Ok(result)
}

/// The same, with the drive's refusal as an error.
fn ask<T>(file: &File, number: u32, argument: &mut T) -> Result<(), IoError> {
    match call_kernel(file, number, argument)? {
        0 => Ok(()),
        refused => Err(refusal(refused, reports_raw_status(file))),
    }
}

/// A drive's refusal as the kernel reports it; `is_raw`: by the drive's own status.
fn refusal(reported: i32, is_raw: bool) -> IoError {
    let status = reported & STATUS;
    IoError::Os(match is_raw {
        _ if reported == CONFLICT => libc::EBADE,
        true if status == STATUS_CONFLICT => libc::EBADE,
        true if STATUS_UNKNOWN.contains(&status) => libc::EOPNOTSUPP,
        _ => libc::EIO,
    })
}

/// Whether the kernel is older than the call that reads keys, which came with the numbers.
fn reports_raw_status(file: &File) -> bool {
    let mut argument = Keys { generation: 0, count: 0, keys: 0 };
    call_kernel(file, READ_KEYS, &mut argument) == Err(IoError::Os(libc::ENOTTY))
}

/// Whether a block device has reservations, as far as asking shows it. `name` is the kernel's.
pub(super) fn probe(file: &File, name: &str) -> Option<bool> {
    match read_keys(file) {
        Ok(_) => Some(true),
        // A kernel without the call, or a user who may not ask: some drivers have reservations.
        Err(IoError::Os(libc::ENOTTY | libc::EPERM | libc::EACCES)) => {
            let may = ["nvme", "sd", "dm-"].iter().any(|prefix| name.starts_with(prefix));
            if may { None } else { Some(false) }
        }
        Err(_) => Some(false),
    }
}

fn read_keys(file: &File) -> Result<(u32, Vec<u64>), IoError> {
    let mut keys = [0_u64; MAX_KEYS];
    let mut argument =
        Keys { generation: 0, count: MAX_KEYS as u32, keys: keys.as_mut_ptr() as u64 };
    ask(file, READ_KEYS, &mut argument)?;
    let count = (argument.count as usize).min(MAX_KEYS);
    Ok((argument.generation, keys[..count].to_vec()))
}

/// The reservations of a block device that is open for writing.
#[derive(Debug)]
pub(super) struct BlockReservations {
    file: File,
    /// What a drop gives back.
    registered: Option<u64>,
    stays_reserved: bool,
}

impl BlockReservations {
    pub(super) fn of(file: &File) -> io::Result<BlockReservations> {
        Ok(BlockReservations { file: file.try_clone()?, registered: None, stays_reserved: false })
    }
}

impl Reservations for BlockReservations {
    fn register(&mut self, key: u64) -> Result<(), IoError> {
        let register = |old_key| {
            let mut argument = Registration { old_key, new_key: key, flags: IGNORE_KEY, pad: 0 };
            ask(&self.file, REGISTER, &mut argument)
        };
        // With an old key, whichever, the kernel asks the drive to replace what this host has.
        register(0).or_else(|error| match error.is_reservation_conflict() {
            true => register(key),
            false => Err(error),
        })?;
        self.registered = Some(key);
        Ok(())
    }

    fn acquire(&mut self, key: u64, how: Acquire) -> Result<(), IoError> {
        let (number, old_key) = match how {
            Acquire::Free => {
                return ask(&self.file, RESERVE, &mut Reservation { key, kind: TYPE, flags: 0 });
            }
            Acquire::Preempt(other) => (PREEMPT, other),
            Acquire::PreemptAndAbort(other) => (PREEMPT_ABORT, other),
        };
        ask(&self.file, number, &mut Preemption { old_key, new_key: key, kind: TYPE, flags: 0 })
    }

    fn release(&mut self, key: u64) -> Result<(), IoError> {
        self.registered = None;
        // The end of the registration would end the reservation, too, where the kernel ends it.
        let _ = ask(&self.file, RELEASE, &mut Reservation { key, kind: TYPE, flags: 0 });
        ask(&self.file, REGISTER, &mut Registration { old_key: key, new_key: 0, flags: 0, pad: 0 })
    }

    fn clear(&mut self, key: u64) -> Result<(), IoError> {
        self.registered = None;
        ask(&self.file, CLEAR, &mut Clearing { key, flags: 0, pad: 0 })
    }

    fn report(&mut self) -> Result<ReservationReport, IoError> {
        let mut held = Held { key: 0, generation: 0, kind: 0 };
        ask(&self.file, READ_RESERVATION, &mut held)?;
        let (generation, keys) = read_keys(&self.file)?;
        let is_held = held.kind != 0;
        let registrant =
            |key: &u64| Registrant { host: [0; 16], key: *key, holds: is_held && held.key == *key };
        Ok(ReservationReport {
            generation,
            kind: held.kind as u8,
            registrants: keys.iter().map(registrant).collect(),
            holder_key: is_held.then_some(held.key),
        })
    }

    fn host_identifier(&self) -> [u8; 16] {
        [0; 16]
    }

    fn settle(&mut self, taken: Taken) {
        self.stays_reserved = taken.stays_reserved();
    }
}

impl Drop for BlockReservations {
    fn drop(&mut self) {
        if let Some(key) = self.registered {
            // A drive that is gone, or another host's by now, has nothing of ours to give back.
            if !self.stays_reserved {
                let _ = self.release(key);
                return;
            }
            let mut argument = Registration { old_key: key, new_key: CLOSED_KEY, flags: 0, pad: 0 };
            let _ = ask(&self.file, REGISTER, &mut argument);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As linux/pr.h makes them.
    #[test]
    fn the_calls_have_their_numbers() {
        assert_eq!(REGISTER, 0x4018_70C8);
        assert_eq!(RESERVE, 0x4010_70C9);
        assert_eq!(RELEASE, 0x4010_70CA);
        assert_eq!(PREEMPT, 0x4018_70CB);
        assert_eq!(PREEMPT_ABORT, 0x4018_70CC);
        assert_eq!(CLEAR, 0x4010_70CD);
        assert_eq!(READ_KEYS, 0xC010_70CE);
        assert_eq!(READ_RESERVATION, 0x8010_70CF);
    }

    #[test]
    fn refusals_are_known_by_either_kernel_s_numbers() {
        use crate::device::reservation::{is_conflict, is_unsupported};
        // As the drive reports it, also with "do not retry".
        for status in [0x18, 0x83, 0x4083] {
            assert!(is_conflict(refusal(status, true)), "{status:#x}");
        }
        for status in [0x01, 0x4001, 0x02, 0x4002] {
            assert!(is_unsupported(refusal(status, true)), "{status:#x}");
        }
        for status in [0x06, 0x4281, 0x371] {
            let error = refusal(status, true);
            assert!(!is_conflict(error) && !is_unsupported(error), "{status:#x}");
        }
        // By the kernel's numbers: 2 is any other error, 0x10000 a path that failed.
        assert!(is_conflict(refusal(0x18, false)));
        for reported in [0x02, 0x83, 0x10000] {
            let error = refusal(reported, false);
            assert!(!is_conflict(error) && !is_unsupported(error), "{reported:#x}");
        }
    }

    #[test]
    fn a_file_has_none() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(probe(&file, "a.img"), Some(false));
        let mut reservations = BlockReservations::of(&file).unwrap();
        let refused = reservations.register(7).unwrap_err();
        assert!(crate::device::reservation::is_unsupported(refused), "{refused}");
    }
}
