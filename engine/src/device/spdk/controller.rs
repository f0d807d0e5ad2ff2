// SPDX-License-Identifier: Apache-2.0
//! Controllers, connected once per process and shared by the namespaces opened on them, and the
//! queue pairs on them.
//!
//! - Connecting and detaching happen under one lock of the process, so that a controller is never
//!   connected again while it is still being detached.
//! - Every other call on a controller happens under its own lock, as SPDK's interface requires. The
//!   polling threads only try that lock: its holder already does the controller's upkeep.
//! - A queue pair holds its controller: it is freed first.
//! - Each wait for a fabric's target has a limit: see [`super::watchdog`], and SPDK's timeouts.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use spdk_sys::{
    stn_spdk_connect_options, stn_spdk_controller, stn_spdk_controller_facts, stn_spdk_namespace,
    stn_spdk_namespace_info, stn_spdk_qpair, stn_spdk_qpair_options,
};

use super::{pcie, watchdog};
use crate::address::{function_of_transport_id, split_host};
use crate::device::health_log::{HEALTH_LOG_BYTES, HealthLog};
use crate::error::Error;

/// Attempts to connect to a busy target that did not answer.
const CONNECT_ATTEMPTS: u32 = 4;
/// No further attempt is made after this long.
const CONNECT_RETRY_TIME: Duration = Duration::from_secs(15);
/// A failure after this long means that no target answered.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a target that accepted a connection has to answer the commands of connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// A fabric's target disconnects us when it receives nothing for this long. Polls come every 50 ms
/// even when idle; between opening a drive and its first poll the other drives are opened.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

static CONNECTED: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    connection: Arc<Connection>,
    users: u32,
}

/// By what drives distinguish this process from others: random, and another one once no controller
/// is connected any more, so that what an earlier opening left behind is foreign to the next one.
static HOST_IDENTIFIER: Mutex<[u8; 16]> = Mutex::new([0; 16]);

/// A connected controller; shared by its users.
struct Connection {
    transport_id: String,
    pci_function: Option<String>,
    host_identifier: [u8; 16],
    /// Valid until its entry is removed from `CONNECTED`. Used by the holder of the lock.
    pointer: Mutex<ControllerPointer>,
    failed: AtomicBool,
    /// The sockets that connecting opened. Making a queue pair waits for answers over these, too.
    sockets: watchdog::Sockets,
}

#[derive(Clone, Copy)]
struct ControllerPointer(NonNull<stn_spdk_controller>);

// SAFETY: SPDK's controllers belong to no thread; the mutex around the pointer separates users.
unsafe impl Send for ControllerPointer {}

/// One user's share in a connected controller.
pub(super) struct Controller {
    connection: Arc<Connection>,
}

/// A namespace that exists on a controller.
#[derive(Clone, Copy)]
pub(super) struct Namespace {
    /// Borrowed from the controller; valid until it is reset or detached.
    pub(super) pointer: NonNull<stn_spdk_namespace>,
    pub(super) info: stn_spdk_namespace_info,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// Connects to a controller, or shares an existing connection. SPDK must run.
    ///
    /// A controller that does not answer one of its own commands within `admin_limit` counts as
    /// failed from then on.
    pub(super) fn connect(transport_id: &str, admin_limit: Duration) -> Result<Controller, Error> {
        let mut connected = lock(&CONNECTED);
        if let Some(entry) =
            connected.iter_mut().find(|e| e.connection.transport_id == transport_id)
        {
            if entry.connection.failed.load(Ordering::Acquire) {
                return Err(Error::DriveNotFound {
                    address: transport_id.into(),
                    detail: "its connection was lost; close what still uses it, then open it again"
                        .into(),
                });
            }
            entry.users += 1;
            return Ok(Controller { connection: Arc::clone(&entry.connection) });
        }
        let host_identifier = {
            let mut identifier = lock(&HOST_IDENTIFIER);
            if connected.is_empty() {
                *identifier = uuid::Uuid::now_v7().into_bytes();
            }
            *identifier
        };
        let pci_function = function_of_transport_id(transport_id);
        if let Some(function) = pci_function {
            pcie::check_driver(transport_id, function)?;
        }
        let (target, host) = split_host(transport_id);
        let text = |text: &str| {
            CString::new(text)
                .map_err(|_| Error::Usage(format!("drive address {transport_id:?} has a NUL byte")))
        };
        let (address, host) = (text(&target)?, host.map(text).transpose()?);
        let options = stn_spdk_connect_options {
            // Null: SPDK makes up a name for this process.
            hostnqn: host.as_ref().map_or(std::ptr::null(), |host| host.as_ptr()),
            host_identifier: host_identifier.as_ptr(),
            keep_alive_timeout_ms: KEEP_ALIVE.as_millis() as u32,
            no_error_logging: true, // each error reaches the caller of the command
            ..Default::default()
        };
        let mut pointer = std::ptr::null_mut();
        let mut result = 0;
        let first = Instant::now();
        let (peer, none) = (watchdog::peer(transport_id), watchdog::Sockets::new());
        let before = watchdog::open_sockets();
        for _ in 0..CONNECT_ATTEMPTS {
            let started = Instant::now();
            result = watchdog::bounded(CONNECT_LIMIT, peer, &none, || {
                // SAFETY: NUL-terminated strings and 16 bytes that outlive the call, and two
                // locals; no other thread connects meanwhile.
                unsafe {
                    spdk_sys::stn_spdk_controller_connect(
                        address.as_ptr(),
                        &raw const options,
                        &raw mut pointer,
                    )
                }
            });
            // A target that is present but busy does not answer within the two seconds that SPDK
            // waits; an absent one refuses at once.
            let busy = pci_function.is_none() && started.elapsed() >= SILENCE;
            if result == 0 || !busy || first.elapsed() >= CONNECT_RETRY_TIME {
                break;
            }
            tracing::warn!(drive = transport_id, "the target is slow to answer; trying again");
        }
        let Some(pointer) = NonNull::new(pointer).filter(|_| result == 0) else {
            return Err(why_not(transport_id, pci_function, result));
        };
        let connection = Arc::new(Connection {
            transport_id: transport_id.into(),
            pci_function: pci_function.map(str::to_owned),
            host_identifier,
            pointer: Mutex::new(ControllerPointer(pointer)),
            failed: AtomicBool::new(false),
            sockets: watchdog::open_sockets().difference(&before).cloned().collect(),
        });
        let limit_us = admin_limit.as_micros() as u64;
        // SAFETY: a connected controller that no other code knows yet. The context lives until it
        // is detached: its last user, which detaches it, holds it.
        unsafe {
            spdk_sys::stn_spdk_controller_on_timeout(
                pointer.as_ptr(),
                limit_us,
                limit_us,
                Some(timed_out),
                Arc::as_ptr(&connection).cast_mut().cast(),
            );
        }
        connected.push(Entry { connection: Arc::clone(&connection), users: 1 });
        Ok(Controller { connection })
    }

    fn lock(&self) -> MutexGuard<'_, ControllerPointer> {
        lock(&self.connection.pointer)
    }

    pub(super) fn info(&self) -> stn_spdk_controller_facts {
        let pointer = self.lock();
        let mut info = stn_spdk_controller_facts::default();
        // SAFETY: a connected controller, under its lock, and a local.
        unsafe { spdk_sys::stn_spdk_controller_facts(pointer.0.as_ptr(), &raw mut info) };
        info
    }

    /// The namespace with this number, if it is active.
    pub(super) fn namespace(&self, id: u32) -> Option<Namespace> {
        let pointer = self.lock();
        // SAFETY: a connected controller, under its lock.
        unsafe { namespace(pointer.0, id) }
    }

    /// Numbers of the active namespaces.
    pub(super) fn namespaces(&self) -> Vec<u32> {
        let pointer = self.lock();
        // SAFETY: a connected controller, under its lock.
        unsafe { namespaces(pointer.0) }
    }

    /// The controller's health log. Blocks until it has answered.
    pub(super) fn health(&self) -> Result<HealthLog, Error> {
        let pointer = self.lock();
        let mut log = [0_u8; HEALTH_LOG_BYTES];
        // SAFETY: a connected controller, under its lock, and a local of the length that is given.
        let result = unsafe {
            spdk_sys::stn_spdk_controller_health(
                pointer.0.as_ptr(),
                log.as_mut_ptr().cast(),
                HEALTH_LOG_BYTES,
            )
        };
        match result {
            0 => Ok(HealthLog::decode(&log)),
            _ => Err(Error::os(
                format!("reading the health log of drive {}", self.connection.transport_id),
                std::io::Error::from_raw_os_error(-result),
            )),
        }
    }

    /// By what the drive distinguishes this process from others. A PCIe drive may know only the
    /// first half.
    pub(super) fn host_identifier(&self) -> [u8; 16] {
        self.connection.host_identifier
    }

    /// Whether commands go over PCIe.
    pub(super) fn is_pcie(&self) -> bool {
        self.connection.pci_function.is_some()
    }

    /// Keeps the connection alive and completes administrative commands. Never waits. Returns
    /// whether the controller still works.
    pub(super) fn tend(&self) -> bool {
        self.tend_with(|_| true)
    }

    /// The same, and whether the namespace is still the one that was opened: it may have been
    /// removed or replaced.
    pub(super) fn tend_namespace(&self, opened: &Namespace) -> bool {
        self.tend_with(|pointer| {
            // SAFETY: a connected controller, under its lock.
            let found = unsafe { namespace(pointer, opened.info.id) };
            found.is_some_and(|found| {
                found.pointer == opened.pointer
                    && found.info.sector_bytes == opened.info.sector_bytes
                    && found.info.metadata_bytes == opened.info.metadata_bytes
                    && found.info.sector_count >= opened.info.sector_count
            })
        })
    }

    fn tend_with(&self, check: impl FnOnce(NonNull<stn_spdk_controller>) -> bool) -> bool {
        let pointer = match self.connection.pointer.try_lock() {
            Ok(pointer) => pointer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return !self.connection.failed.load(Ordering::Acquire);
            }
        };
        // SAFETY: a connected controller, under its lock.
        let (failed, removed) = unsafe {
            (
                spdk_sys::stn_spdk_controller_process_admin(pointer.0.as_ptr()) < 0
                    || spdk_sys::stn_spdk_controller_is_failed(pointer.0.as_ptr()),
                // In an orderly unplug, the kernel waits until no process uses it any more.
                spdk_sys::stn_spdk_controller_is_removed(pointer.0.as_ptr())
                    || spdk_sys::stn_spdk_controller_is_absent(pointer.0.as_ptr()),
            )
        };
        if removed && !self.connection.failed.swap(true, Ordering::AcqRel) {
            let controller = &self.connection.transport_id;
            tracing::error!(
                controller,
                "the drive is being unplugged or unbound, or was pulled out"
            );
        }
        if failed {
            self.connection.failed.store(true, Ordering::Release);
        }
        !self.connection.failed.load(Ordering::Acquire) && check(pointer.0)
    }

    /// Makes a queue pair with room for this many requests.
    pub(super) fn queue_pair(self, requests: u32) -> Result<QueuePair, Error> {
        let options = stn_spdk_qpair_options {
            io_queue_size: 0, // as large as the controller allows, at most 256: SPDK queues the rest
            io_queue_requests: requests,
            delay_submit: true, // one doorbell a poll; polls follow submissions at once
        };
        let pointer = {
            let _connected = lock(&CONNECTED);
            let controller = self.lock();
            // No other thread connects meanwhile, so a connection that is cut is ours.
            let peer = watchdog::peer(&self.connection.transport_id);
            watchdog::bounded(CONNECT_LIMIT, peer, &self.connection.sockets, || {
                // SAFETY: a connected controller, under its lock, and a local.
                unsafe { spdk_sys::stn_spdk_qpair_alloc(controller.0.as_ptr(), &raw const options) }
            })
        };
        match NonNull::new(pointer) {
            Some(pointer) => Ok(QueuePair { pointer, controller: self }),
            None if !self.tend() => Err(Error::DriveNotFound {
                address: self.connection.transport_id.clone(),
                detail: "its connection was lost while it was being opened; try again".into(),
            }),
            None => Err(Error::Environment(format!(
                "drive {}: no queue pair for {requests} requests; the drive has no more queues, or SPDK \
                 no memory: lower the queue depth, or raise {}",
                self.connection.transport_id,
                super::environment::MEMORY_VARIABLE,
            ))),
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let mut connected = lock(&CONNECTED);
        let Some(at) = connected.iter().position(|e| Arc::ptr_eq(&e.connection, &self.connection))
        else {
            return;
        };
        connected[at].users -= 1;
        if connected[at].users > 0 {
            return;
        }
        connected.swap_remove(at);
        let pointer = self.lock();
        // SAFETY: the last user, whose queue pair is freed; under both locks.
        let result = unsafe {
            if !self.is_pcie() {
                // An orderly shutdown would wait for its answer without a limit, and a target that
                // has completed every command needs none.
                spdk_sys::stn_spdk_controller_fail(pointer.0.as_ptr());
            }
            spdk_sys::stn_spdk_controller_detach(pointer.0.as_ptr())
        };
        if result != 0 {
            let error = std::io::Error::from_raw_os_error(-result);
            tracing::debug!(controller = self.connection.transport_id, %error, "detaching");
        }
    }
}

/// A queue pair. Dropping it completes what is outstanding, as aborted, and frees it.
pub(super) struct QueuePair {
    pointer: NonNull<stn_spdk_qpair>,
    controller: Controller,
}

impl QueuePair {
    pub(super) fn as_ptr(&self) -> *mut stn_spdk_qpair {
        self.pointer.as_ptr()
    }

    pub(super) fn controller(&self) -> &Controller {
        &self.controller
    }

    /// False once the connection is known to be lost.
    pub(super) fn is_connected(&self) -> bool {
        // SAFETY: a queue pair of ours, on the one thread that uses it.
        unsafe { spdk_sys::stn_spdk_qpair_is_connected(self.as_ptr()) }
    }

    /// Prevents a drive from touching memory although commands are outstanding. A PCIe controller
    /// is disabled by a reset: deleting a queue does not end the commands that the drive already
    /// works on. The reset affects every queue of a controller, so it is omitted when others use
    /// it. A fabric's controller is given up without a command: it reaches memory only through its
    /// connections, and we hold their ends.
    ///
    /// Blocks until the controller has answered or its own timeout (CAP.TO) has passed. Returns
    /// whether the drive can no longer touch memory.
    pub(super) fn fence(&mut self) -> bool {
        if !self.controller.is_pcie() {
            let controller = self.controller.lock();
            self.controller.connection.failed.store(true, Ordering::Release);
            // SAFETY: a connected controller, under its lock. Other users find it failed.
            unsafe { spdk_sys::stn_spdk_controller_fail(controller.0.as_ptr()) };
            return true;
        }
        let connected = lock(&CONNECTED);
        let connection = &self.controller.connection;
        let users =
            connected.iter().find(|e| Arc::ptr_eq(&e.connection, connection)).map(|e| e.users);
        if users != Some(1) {
            return false;
        }
        let controller = self.controller.lock();
        // SAFETY: one user, and both locks are held: no other code uses this controller or its
        // queues.
        unsafe {
            if spdk_sys::stn_spdk_controller_is_absent(controller.0.as_ptr()) {
                // A drive that was pulled touches nothing, and a link that comes back has reset its
                // drive.
                spdk_sys::stn_spdk_controller_fail(controller.0.as_ptr());
                return true;
            }
            if spdk_sys::stn_spdk_controller_reset(controller.0.as_ptr()) == 0 {
                // A queue that exists at the controller can be freed in the normal way.
                let _ = spdk_sys::stn_spdk_qpair_reconnect(self.pointer.as_ptr());
                return true;
            }
            // One that does not answer to a reset is still a PCI function: without bus mastering it
            // reaches no memory, whatever it does.
            spdk_sys::stn_spdk_controller_stop_dma(controller.0.as_ptr())
        }
    }

    /// Makes SPDK fail the next commands with this opcode; delayed by `hold` if that is given.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn inject(&self, opcode: u8, hold: Option<Duration>, count: u32, sct: u8, sc: u8) {
        let hold_us = hold.map_or(0, |hold| hold.as_micros() as u64);
        let controller = self.controller.lock();
        // SAFETY: a connected controller, under its lock, and a queue pair of this thread.
        let result = unsafe {
            spdk_sys::stn_spdk_inject_error(
                controller.0.as_ptr(),
                self.as_ptr(),
                opcode,
                true,
                hold_us,
                count,
                sct,
                sc,
            )
        };
        assert_eq!(result, 0, "a fault cannot be injected");
    }

    /// Ends what [`QueuePair::inject`] began.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn remove_injected(&self, opcode: u8) {
        let controller = self.controller.lock();
        // SAFETY: a connected controller, under its lock, and a queue pair of this thread.
        unsafe {
            spdk_sys::stn_spdk_remove_injected_error(controller.0.as_ptr(), self.as_ptr(), opcode);
        }
    }
}

/// SPDK's callback for a late command. Those of a queue pair have their own clock; a late command
/// to the controller itself, such as a keep-alive, means that the controller does not answer.
unsafe extern "C" fn timed_out(context: *mut c_void, qpair: *mut stn_spdk_qpair, _command: u16) {
    if !qpair.is_null() {
        return;
    }
    // SAFETY: what `connect` gave, which lives as long as the controller is connected.
    let connection = unsafe { &*context.cast_const().cast::<Connection>() };
    if !connection.failed.swap(true, Ordering::AcqRel) {
        tracing::error!(
            controller = connection.transport_id,
            "a command to the controller itself was not answered in time"
        );
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let controller = self.controller.lock();
        // SAFETY: the pointer is not used again; its controller is still connected, and locked.
        let result = unsafe { spdk_sys::stn_spdk_qpair_free(self.pointer.as_ptr()) };
        if result != 0 {
            let error = std::io::Error::from_raw_os_error(-result);
            tracing::debug!(
                controller = self.controller.connection.transport_id,
                %error,
                "freeing a queue pair"
            );
        }
        drop(controller);
    }
}

/// # Safety
/// A connected controller that no other thread uses meanwhile.
pub(super) unsafe fn namespace(
    controller: NonNull<stn_spdk_controller>,
    id: u32,
) -> Option<Namespace> {
    let mut info = stn_spdk_namespace_info::default();
    // SAFETY: the caller's controller; the namespace is read while it cannot change.
    unsafe {
        let pointer = spdk_sys::stn_spdk_controller_namespace(controller.as_ptr(), id);
        let pointer = NonNull::new(pointer)?;
        spdk_sys::stn_spdk_namespace_info(pointer.as_ptr(), &raw mut info);
        Some(Namespace { pointer, info })
    }
}

/// # Safety
/// As [`namespace`].
pub(super) unsafe fn namespaces(controller: NonNull<stn_spdk_controller>) -> Vec<u32> {
    let next = |previous| {
        // SAFETY: the caller's controller.
        let id =
            unsafe { spdk_sys::stn_spdk_controller_next_namespace(controller.as_ptr(), previous) };
        // Ascending, so that a controller with invalid answers cannot keep this in a loop.
        (id > previous).then_some(id)
    };
    std::iter::successors(next(0), |id| next(*id)).take(1024).collect()
}

/// Text that the shim terminated, without the padding that NVMe asks for.
pub(super) fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|byte| *byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().trim().to_owned()
}

fn why_not(transport_id: &str, pci_function: Option<&str>, result: i32) -> Error {
    let not_found = |detail: String| Error::DriveNotFound { address: transport_id.into(), detail };
    match (-result, pci_function) {
        (libc::ENODEV, Some(function)) => match pcie::owner(function) {
            Some(owner) => Error::Busy { what: format!("drive {transport_id}"), owner },
            None => not_found(
                "SPDK could not attach the drive, and the log says why; a drive that did not answer \
                 needs a reset, vfio-pci needs the IOMMU and a limit of locked memory (`ulimit -l`)"
                    .into(),
            ),
        },
        (libc::ENODEV, None) => not_found(
            "no NVMe controller answered there, and the log says why: check that the target runs, \
             that the port is right and that it serves this subnqn to this host, whose name an \
             address gives as hostnqn:..."
                .into(),
        ),
        (libc::EPROTONOSUPPORT, _) => {
            let transport = transport_id.split(' ').next().unwrap_or_default();
            Error::Environment(format!(
                "drive {transport_id}: SPDK was built without {}; use trtype:TCP, or an SPDK that \
                 has it",
                transport.trim_start_matches("trtype:")
            ))
        }
        (libc::EINVAL, _) => {
            Error::Usage(format!("drive address {transport_id:?}: SPDK does not know it"))
        }
        (errno, _) => Error::os(
            format!("connecting to {transport_id}"),
            std::io::Error::from_raw_os_error(errno),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_text_is_trimmed() {
        let field: Vec<c_char> = b"S123   \0garbage".iter().map(|byte| *byte as c_char).collect();
        assert_eq!(text(&field), "S123");
        assert_eq!(text(&[b'x' as c_char]), ""); // not terminated: not text
        assert_eq!(text(&[]), "");
    }
}
