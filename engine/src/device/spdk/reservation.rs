// SPDX-License-Identifier: Apache-2.0
//! The reservation commands of an open namespace. Each waits for its answer: they are sent only
//! before the device's first transfer and after its last one.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use spdk_sys::{stn_spdk_namespace, stn_spdk_qpair, stn_spdk_request};

use super::device::SpdkDevice;
use super::slots::status;
use crate::device::reservation::{
    Acquire, CLOSED_KEY, ReservationReport, Reservations, Taken, decode_report,
};
use crate::error::IoError;

/// Bytes of a report: the head and 63 registrants.
const REPORT_BYTES: usize = 4096;
/// How long a device that is being dropped waits until its reservation is given back.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// A request whose end someone waits for. On the heap: if the answer does not come in time, it is
/// left to the driver for ever.
struct Waiting {
    request: stn_spdk_request,
    ended: Cell<Option<Result<(), IoError>>>,
}

unsafe extern "C" fn ended(context: *mut c_void, sct: u16, sc: u16, dnr: bool) {
    // SAFETY: the context is the cell of a `Waiting` that lives until this was called, or for ever.
    let cell = unsafe { &*context.cast_const().cast::<Cell<Option<Result<(), IoError>>>>() };
    cell.set(Some(status(sct, sc, dnr)));
}

/// Memory of SPDK's.
struct Payload(NonNull<c_void>);

impl Payload {
    fn new() -> Option<Payload> {
        // SAFETY: SPDK runs, since a device is open.
        NonNull::new(unsafe { spdk_sys::stn_spdk_dma_zmalloc(REPORT_BYTES, 4096) }).map(Payload)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: as many bytes as were allocated, zeroed; no command writes them any more.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), REPORT_BYTES) }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        // SAFETY: from stn_spdk_dma_zmalloc; a payload that a command may still touch is forgotten.
        unsafe { spdk_sys::stn_spdk_dma_free(self.0.as_ptr()) }
    }
}

impl SpdkDevice {
    /// Sends one command and waits for its end. `send` gets the queue pair, the namespace and the
    /// request.
    fn command(
        &mut self,
        limit: Duration,
        send: impl FnOnce(*mut stn_spdk_qpair, *mut stn_spdk_namespace, *mut stn_spdk_request) -> c_int,
    ) -> Result<(), IoError> {
        let Some(queue) = &self.queue else { return Err(IoError::Removed) };
        let waiting = Box::into_raw(Box::new(Waiting {
            request: stn_spdk_request::default(),
            ended: Cell::new(None),
        }));
        // SAFETY: just made, and no one else knows it; it is freed once below, when no callback can
        // come any more, and only its cell is touched by the callback.
        let (request, cell) = unsafe {
            (*waiting).request.complete = Some(ended);
            (*waiting).request.context = (&raw mut (*waiting).ended).cast();
            (&raw mut (*waiting).request, &(*waiting).ended)
        };
        let result = send(queue.as_ptr(), self.namespace.pointer.as_ptr(), request);
        let deadline = Instant::now() + limit;
        let outcome = if result == 0 {
            loop {
                self.work();
                if let Some(outcome) = cell.get() {
                    break Some(outcome);
                }
                // A device that is lost has freed its queue, which ends every request.
                if self.queue.is_none() || Instant::now() > deadline {
                    break None;
                }
                std::thread::yield_now();
            }
        } else {
            Some(Err(match -result {
                libc::ENXIO => IoError::Removed,
                errno => IoError::Os(errno),
            }))
        };
        if let Some(outcome) = outcome {
            // SAFETY: the request was not accepted or has ended.
            drop(unsafe { Box::from_raw(waiting) });
            return outcome;
        }
        Err(IoError::Removed)
    }

    fn reservation_command(
        &mut self,
        send: impl FnOnce(*mut stn_spdk_qpair, *mut stn_spdk_namespace, *mut stn_spdk_request) -> c_int,
    ) -> Result<(), IoError> {
        let limit = self.timeout;
        self.command(limit, send)
    }

    /// Gives back what the device holds, before its queue pair is freed.
    pub(super) fn give_up_reservation(&mut self) {
        let Some(key) = self.held.key.take() else { return };
        let result = match self.held.stays_reserved {
            true => self.register_with(CLOSED_KEY, spdk_sys::STN_SPDK_REPLACE, RELEASE_LIMIT),
            false => self.unregister(key, RELEASE_LIMIT),
        };
        if result.is_ok() {
            self.note_in_lock(&[]);
        }
    }

    fn unregister(&mut self, key: u64, limit: Duration) -> Result<(), IoError> {
        self.register_with(key, spdk_sys::STN_SPDK_UNREGISTER, limit)
    }

    fn register_with(&mut self, key: u64, action: u32, limit: Duration) -> Result<(), IoError> {
        let persists = self.held.persists && action != spdk_sys::STN_SPDK_UNREGISTER;
        self.command(limit, |queue, namespace, request| {
            // SAFETY: a live queue pair and its namespace, used by this thread alone, and a request
            // that is not in flight.
            unsafe {
                spdk_sys::stn_spdk_reservation_register(
                    queue, namespace, request, key, action, persists,
                )
            }
        })
    }
}

impl Reservations for SpdkDevice {
    fn register(&mut self, key: u64) -> Result<(), IoError> {
        let limit = self.timeout;
        let mut result = self.register_with(key, spdk_sys::STN_SPDK_REGISTER, limit);
        if result.is_err_and(IoError::is_reservation_conflict) {
            result = self.register_with(key, spdk_sys::STN_SPDK_REPLACE, limit);
        }
        if result.is_ok() {
            self.held.key = Some(key);
        }
        result
    }

    fn acquire(&mut self, key: u64, how: Acquire) -> Result<(), IoError> {
        let (other, action) = match how {
            Acquire::Free => (0, spdk_sys::STN_SPDK_ACQUIRE),
            Acquire::Preempt(other) => (other, spdk_sys::STN_SPDK_PREEMPT),
            Acquire::PreemptAndAbort(other) => (other, spdk_sys::STN_SPDK_PREEMPT_AND_ABORT),
        };
        self.reservation_command(|queue, namespace, request| {
            // SAFETY: as in `unregister`.
            unsafe {
                spdk_sys::stn_spdk_reservation_acquire(
                    queue, namespace, request, key, other, action,
                )
            }
        })
    }

    fn release(&mut self, key: u64) -> Result<(), IoError> {
        self.held.key = None;
        let limit = self.timeout;
        self.unregister(key, limit)
    }

    fn clear(&mut self, key: u64) -> Result<(), IoError> {
        self.held.key = None;
        self.reservation_command(|queue, namespace, request| {
            // SAFETY: as in `unregister`.
            unsafe { spdk_sys::stn_spdk_reservation_release(queue, namespace, request, key, true) }
        })
    }

    fn report(&mut self) -> Result<ReservationReport, IoError> {
        if !self.held.may_report {
            return Err(IoError::Os(libc::EOPNOTSUPP));
        }
        let Some(payload) = Payload::new() else { return Err(IoError::Os(libc::ENOMEM)) };
        let data = payload.0.as_ptr();
        let result = self.reservation_command(|queue, namespace, request| {
            let length = REPORT_BYTES as u32;
            // SAFETY: as in `unregister`; the payload lives until the command has ended.
            unsafe {
                spdk_sys::stn_spdk_reservation_report(queue, namespace, request, data, length)
            }
        });
        match result {
            Ok(()) => Ok(decode_report(payload.bytes(), self.held.has_long_host_identifier)),
            Err(error) => {
                if error == IoError::Removed {
                    // Its command may not have ended.
                    std::mem::forget(payload);
                }
                Err(error)
            }
        }
    }

    fn host_identifier(&self) -> [u8; 16] {
        self.queue.as_ref().map_or([0; 16], |queue| queue.controller().host_identifier())
    }

    fn ended_keys(&self) -> Vec<u64> {
        self.held.ended_keys.clone()
    }

    fn settle(&mut self, taken: Taken) {
        self.held.stays_reserved = taken.stays_reserved();
        match taken {
            // Who lost the drive was registered, and is not any more: what it sent is refused.
            Taken::Preempted { .. } => self.remove_fence(),
            Taken::Free | Taken::Closed | Taken::Without => self.wait_for_fence(),
        }
    }

    fn note_keys(&mut self, keys: &[u64]) {
        self.note_in_lock(keys);
    }
}
