// SPDX-License-Identifier: Apache-2.0
//! Two hosts, by their identifiers, and one namespace: the target enforces who may write.

use std::ffi::CStr;
use std::ptr;

use spdk_sys::*;

use super::drive::{Buffer, Command, Drive, OwnTarget, SUCCESS};

const CONFLICT: (u16, u16) = (0, 0x83);
const INVALID_FIELD: (u16, u16) = (0, 0x02);
const BYTES: usize = 4096;

/// The serial of the drive was checked by the caller of the target.
fn connect_as(target: &OwnTarget, address: &CStr, host: &[u8; 16]) -> Drive {
    let mut controller = ptr::null_mut();
    let mut facts = stn_spdk_controller_facts::default();
    let mut info = stn_spdk_namespace_info::default();
    let options = stn_spdk_connect_options {
        hostnqn: target.host.as_ptr(),
        host_identifier: host.as_ptr(),
        no_error_logging: true,
        ..Default::default()
    };
    // SAFETY: the environment is up; pointers to locals; the controller is used only when
    // connecting succeeded.
    unsafe {
        let rc = stn_spdk_controller_connect(address.as_ptr(), &options, &mut controller);
        assert_eq!(rc, 0);
        stn_spdk_controller_facts(controller, &mut facts);
        assert!(facts.has_reservations && facts.has_long_host_identifier);
        let namespace = stn_spdk_controller_namespace(controller, 1);
        stn_spdk_namespace_info(namespace, &mut info);
        assert_eq!(info.reservations & 0x08, 0x08, "write exclusive, registrants only");
        let qpair = stn_spdk_qpair_alloc(controller, &Default::default());
        Drive {
            controller,
            namespace,
            qpair,
            sector_bytes: info.sector_bytes as usize,
            sector_count: info.sector_count,
        }
    }
}

impl Drive {
    fn register(&self, key: u64, action: u32, status: (u16, u16)) {
        let mut command = Command::new();
        // SAFETY: as every call on a drive.
        let rc = unsafe {
            let request = &mut command.request;
            stn_spdk_reservation_register(self.qpair, self.namespace, request, key, action, false)
        };
        assert_eq!(rc, 0);
        self.finish_with(command, status);
    }

    fn acquire(&self, key: u64, other: u64, action: u32, status: (u16, u16)) {
        let mut command = Command::new();
        // SAFETY: as every call on a drive.
        let rc = unsafe {
            let request = &mut command.request;
            stn_spdk_reservation_acquire(self.qpair, self.namespace, request, key, other, action)
        };
        assert_eq!(rc, 0);
        self.finish_with(command, status);
    }

    fn release(&self, key: u64, clear: bool, status: (u16, u16)) {
        let mut command = Command::new();
        // SAFETY: as every call on a drive.
        let rc = unsafe {
            let request = &mut command.request;
            stn_spdk_reservation_release(self.qpair, self.namespace, request, key, clear)
        };
        assert_eq!(rc, 0);
        self.finish_with(command, status);
    }

    /// Type, and the registrants as (host identifier, key, holds it).
    fn report(&self) -> (u8, Vec<([u8; 16], u64, bool)>) {
        let (mut command, mut buffer) = (Command::new(), Buffer::new(BYTES));
        // SAFETY: as every call on a drive; the buffer outlives the command.
        let rc = unsafe {
            let (request, data) = (&mut command.request, buffer.start.cast());
            stn_spdk_reservation_report(self.qpair, self.namespace, request, data, BYTES as u32)
        };
        assert_eq!(rc, 0);
        self.finish_with(command, SUCCESS);
        let bytes = buffer.slice();
        let count = usize::from(u16::from_le_bytes([bytes[5], bytes[6]]));
        let entries = bytes[64..].chunks_exact(64).take(count).map(|entry| {
            let key = u64::from_le_bytes(entry[8..16].try_into().unwrap());
            (entry[16..32].try_into().unwrap(), key, entry[2] & 1 == 1)
        });
        (bytes[4], entries.collect())
    }

    fn ends_with(&self, buffer: &Buffer, write: (u16, u16), read: (u16, u16)) {
        let mut command = Command::new();
        assert_eq!(self.write(&mut command, buffer.start, 0, BYTES, 0), 0);
        self.finish_with(command, write);
        let mut command = Command::new();
        assert_eq!(self.flush(&mut command), 0);
        self.finish_with(command, write);
        let mut command = Command::new();
        assert_eq!(self.read(&mut command, buffer.start, 0, BYTES), 0);
        self.finish_with(command, read);
    }

    fn disconnect(self) {
        // SAFETY: the last use of both.
        unsafe {
            assert_eq!(stn_spdk_qpair_free(self.qpair), 0);
            assert_eq!(stn_spdk_controller_detach(self.controller), 0);
        }
    }
}

pub fn one_host_writes_and_the_other_takes_over(target: &OwnTarget) {
    let (first_id, second_id) = ([0xA1; 16], [0xB2; 16]);
    let first = connect_as(target, &target.address, &first_id);
    let second = connect_as(target, &target.add_address(), &second_id);
    let buffer = Buffer::new(BYTES);
    first.acquire(11, 0, STN_SPDK_ACQUIRE, CONFLICT);
    first.register(11, STN_SPDK_REGISTER, SUCCESS);
    first.acquire(11, 0, STN_SPDK_ACQUIRE, SUCCESS);
    first.acquire(11, 0, STN_SPDK_ACQUIRE, SUCCESS);
    first.ends_with(&buffer, SUCCESS, SUCCESS);
    second.ends_with(&buffer, CONFLICT, SUCCESS);
    second.register(22, STN_SPDK_REGISTER, SUCCESS);
    second.register(33, STN_SPDK_REGISTER, CONFLICT);
    second.register(33, STN_SPDK_REPLACE, SUCCESS);
    second.acquire(33, 0, STN_SPDK_ACQUIRE, CONFLICT);
    // Both hosts are connected: then the report of an old target is safe.
    assert_eq!(first.report(), (3, vec![(first_id, 11, true), (second_id, 33, false)]));

    // SPDK's targets abort only since v26.01.
    let mut command = Command::new();
    // SAFETY: as every call on a drive.
    let rc = unsafe {
        let (request, action) = (&mut command.request, STN_SPDK_PREEMPT_AND_ABORT);
        stn_spdk_reservation_acquire(second.qpair, second.namespace, request, 33, 11, action)
    };
    assert_eq!(rc, 0);
    let commands = [command];
    second.finish(&commands);
    if commands[0].status.get() == INVALID_FIELD {
        second.acquire(33, 11, STN_SPDK_PREEMPT, SUCCESS);
    } else {
        assert_eq!(commands[0].status.get(), SUCCESS);
    }
    first.ends_with(&buffer, CONFLICT, SUCCESS);
    second.ends_with(&buffer, SUCCESS, SUCCESS);
    assert_eq!(second.report(), (3, vec![(second_id, 33, true)]));

    second.release(33, false, SUCCESS);
    first.ends_with(&buffer, SUCCESS, SUCCESS);
    first.register(11, STN_SPDK_REGISTER, SUCCESS);
    first.acquire(11, 0, STN_SPDK_ACQUIRE, SUCCESS);
    second.release(33, true, SUCCESS);
    assert_eq!(first.report(), (0, vec![]));
    second.register(33, STN_SPDK_REGISTER, SUCCESS);
    second.acquire(33, 0, STN_SPDK_ACQUIRE, SUCCESS);
    // The end of the holder's registration ends the reservation.
    second.register(33, STN_SPDK_UNREGISTER, SUCCESS);
    first.ends_with(&buffer, SUCCESS, SUCCESS);

    // SAFETY: as every call on a drive; the arguments are refused.
    unsafe {
        let request = &mut Command::new().request;
        let (qpair, namespace) = (first.qpair, first.namespace);
        let refused = stn_spdk_reservation_register(qpair, namespace, request, 1, 3, false);
        assert_eq!(refused, -libc::EINVAL);
        assert_eq!(stn_spdk_reservation_acquire(qpair, namespace, request, 1, 0, 3), -libc::EINVAL);
        let data = buffer.start.cast();
        let refused = stn_spdk_reservation_report(qpair, namespace, request, data, 6);
        assert_eq!(refused, -libc::EINVAL);
    }
    first.disconnect();
    second.disconnect();
}
