// SPDX-License-Identifier: Apache-2.0
//! One io_uring per drive.
//!
//! Invariants:
//! - A slot has at most one entry in the ring or the kernel at a time, and the submission queue has
//!   room for all slots: a push never fails.
//! - Memory that the kernel may touch belongs to slots whose entry the kernel has taken. Dropping
//!   the device waits for each of them; entries that the kernel never took are dropped with the
//!   ring.
//! - Entries are submitted in batches, by the next poll. It enters the kernel only when there is
//!   something to submit or the kernel reports that it has something to finish.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{EnterFlags, IoUring, opcode, squeue};

use super::file::DriveFile;
use super::transfer::{AfterCall, after_call};
use crate::device::check::check;
use crate::device::reservation::Reservations;
use crate::device::{
    Command, Completion, Device, DmaSlice, DriveInfo, Operation, Regions, SubmitError,
};
use crate::error::Error;
use crate::memory::Region;

/// The longest piece of memory that one entry of the kernel's buffer table may name.
const TABLE_ENTRY_BYTES: u64 = 1 << 30;
/// Entries of the buffer table: a terabyte of regions.
const TABLE_ENTRIES: u16 = 1024;
/// The drive in the ring's file table.
const DRIVE: Fixed = Fixed(0);

/// A command that was accepted and has not been taken from `poll`.
#[derive(Clone, Copy, Debug)]
struct Slot {
    command: Command,
    done_bytes: u32,
    /// The entry of the buffer table that holds the command's memory.
    table_entry: Option<u16>,
}

/// A ring that was shown to work, and whether it has a buffer table.
pub(super) struct Ring {
    ring: IoUring,
    has_table: bool,
}

/// Sets up a ring for `file`, and checks with one empty command that it may be used: a seccomp
/// filter can allow the setup and forbid the rest.
pub(super) fn new_ring(file: &DriveFile, queue_depth: u32) -> io::Result<Ring> {
    // The polling thread enters the kernel often enough, so it need not be interrupted for each
    // completion; kernels before 5.19 do not have that flag.
    let mut ring: IoUring = match IoUring::builder()
        .dontfork()
        .setup_submit_all()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(queue_depth)
    {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().dontfork().build(queue_depth)?
        }
        result => result?,
    };
    ring.submitter().register_files(&[file.file.as_raw_fd()])?;
    // SAFETY: the entry names no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }
        .map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result.map(drop)?,
        }
    }
    if let Some(nop) = ring.completion().next()
        && nop.result() < 0
    {
        return Err(io::Error::from_raw_os_error(-nop.result()));
    }
    let table = ring.submitter().register_buffers_sparse(u32::from(TABLE_ENTRIES));
    if let Err(error) = &table {
        tracing::warn!(%error, "io_uring has no table of registered buffers; each command maps its own");
    }
    Ok(Ring { ring, has_table: table.is_ok() })
}

/// A drive behind an io_uring.
pub(super) struct UringDevice {
    ring: IoUring,
    file: DriveFile,
    info: DriveInfo,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// For each region its first entry in the buffer table, if it has one.
    regions: Regions<Option<u16>>,
    /// Which entries of the buffer table are in use; empty when there is no table.
    table: Vec<bool>,
    /// Whether a failure to enter the kernel was already logged.
    logged: bool,
}

// SAFETY: nothing in it belongs to a thread: the ring's mappings and descriptors are used through
// `&mut` only, and commands are addresses whose use is argued at `submit`.
unsafe impl Send for UringDevice {}

impl UringDevice {
    pub(super) fn new(ring: Ring, file: DriveFile, info: DriveInfo) -> Self {
        let depth = info.queue_depth;
        let idle = Command {
            operation: Operation::Flush,
            offset_bytes: 0,
            memory: DmaSlice::EMPTY,
            tag: 0,
        };
        UringDevice {
            ring: ring.ring,
            file,
            slots: vec![Slot { command: idle, done_bytes: 0, table_entry: None }; depth as usize]
                .into_boxed_slice(),
            free: (0..depth).rev().collect(),
            info,
            regions: Regions::new(),
            table: vec![false; if ring.has_table { usize::from(TABLE_ENTRIES) } else { 0 }],
            logged: false,
        }
    }

    /// Submits pending entries to the kernel and lets it finish what it has. Never waits.
    fn enter(&mut self) {
        let queue = self.ring.submission();
        let needed = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if !needed {
            return;
        }
        loop {
            match self.ring.submit() {
                Ok(_) => return,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Short of memory or of room for completions: the next poll tries again.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => return,
                    _ => {
                        if !std::mem::replace(&mut self.logged, true) {
                            let drive = &self.info.address;
                            tracing::error!(drive, %error, "io_uring_enter fails; trying again");
                        }
                        return;
                    }
                },
            }
        }
    }

    /// The first of `count` adjacent free entries of the buffer table.
    fn free_entries(&self, count: usize) -> Option<usize> {
        (0..(self.table.len() + 1).saturating_sub(count))
            .find(|first| self.table[*first..*first + count].iter().all(|used| !used))
    }

    /// Puts a region into the buffer table, so that the kernel need not map it for each command.
    fn register_fixed(&mut self, region: &Region) -> io::Result<Option<u16>> {
        if self.table.is_empty() {
            return Ok(None);
        }
        let count = entries_of(region);
        let Some(first) = self.free_entries(count) else {
            return Err(io::Error::other("the table of registered buffers is full"));
        };
        for index in 0..count {
            let start = index as u64 * TABLE_ENTRY_BYTES;
            let length = (region.len_bytes() - start).min(TABLE_ENTRY_BYTES);
            let Some(address) = region.at(start, length) else { continue };
            let piece = libc::iovec { iov_base: address.as_ptr().cast(), iov_len: length as usize };
            if let Err(error) = self.set_entry(first + index, piece) {
                self.clear_entries(first, index);
                return Err(error);
            }
        }
        self.table[first..first + count].fill(true);
        Ok(u16::try_from(first).ok())
    }

    fn set_entry(&self, index: usize, piece: libc::iovec) -> io::Result<()> {
        // SAFETY: the piece is empty or lies within a region that `self.regions` keeps alive until
        // the entry is cleared or the ring is gone.
        unsafe { self.ring.submitter().register_buffers_update(index as u32, &[piece], None) }
    }

    fn clear_entries(&mut self, first: usize, count: usize) {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        for index in first..first + count {
            match self.set_entry(index, nothing) {
                Ok(()) => self.table[index] = false,
                // The entry stays pinned and is not used again, which is safe and costs memory.
                Err(error) => {
                    tracing::warn!(%error, index, "a registered buffer cannot be released")
                }
            }
        }
    }
}

/// How many entries of the buffer table a region takes.
fn entries_of(region: &Region) -> usize {
    region.len_bytes().div_ceil(TABLE_ENTRY_BYTES) as usize
}

/// The entry of the buffer table that holds a command's memory, if one alone does.
fn table_entry(region: &Region, first: Option<u16>, memory: &DmaSlice) -> Option<u16> {
    let start = memory.address.as_ptr() as u64 - region.base().as_ptr() as u64;
    let last = start + u64::from(memory.len_bytes) - 1;
    let index = u16::try_from(start / TABLE_ENTRY_BYTES).ok()?;
    (start / TABLE_ENTRY_BYTES == last / TABLE_ENTRY_BYTES).then_some(first? + index)
}

impl Slot {
    /// The ring entry for the rest of the command.
    fn entry(&self, index: u32) -> squeue::Entry {
        let memory = self.command.memory;
        let length = memory.len_bytes - self.done_bytes;
        let offset = self.command.offset_bytes + u64::from(self.done_bytes);
        // The address is not used here: wrapping arithmetic needs no argument about its memory.
        let address = memory.address.as_ptr().wrapping_add(self.done_bytes as usize);
        let flags =
            if self.command.operation == Operation::WriteDurable { libc::RWF_DSYNC } else { 0 };
        match (self.command.operation, self.table_entry) {
            (Operation::Read, Some(table)) => {
                opcode::ReadFixed::new(DRIVE, address, length, table).offset(offset).build()
            }
            (Operation::Read, None) => {
                opcode::Read::new(DRIVE, address, length).offset(offset).build()
            }
            (Operation::Write | Operation::WriteDurable, Some(table)) => {
                opcode::WriteFixed::new(DRIVE, address, length, table)
                    .offset(offset)
                    .rw_flags(flags)
                    .build()
            }
            (Operation::Write | Operation::WriteDurable, None) => {
                opcode::Write::new(DRIVE, address, length).offset(offset).rw_flags(flags).build()
            }
            (Operation::Flush, _) => opcode::Fsync::new(DRIVE).flags(FsyncFlags::DATASYNC).build(),
        }
        .user_data(u64::from(index))
    }
}

impl Device for UringDevice {
    fn info(&self) -> &DriveInfo {
        &self.info
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        if self.regions.holds(region) {
            return Ok(());
        }
        let first = self.register_fixed(region).unwrap_or_else(|error| {
            tracing::warn!(
                drive = self.info.address,
                %error,
                "memory cannot be registered with io_uring, each command maps its own; \
                 raise the limit of locked memory (`ulimit -l`)"
            );
            None
        });
        self.regions.add(region, first);
        Ok(())
    }

    fn unregister(&mut self, region: &Arc<Region>) {
        if let Some(Some(first)) = self.regions.remove(region) {
            self.clear_entries(usize::from(first), entries_of(region));
        }
    }

    unsafe fn submit(&mut self, command: Command) -> Result<(), SubmitError> {
        let mut entry = None;
        check(&command, &self.info, self.file.mode, |address, length| {
            let found = self.regions.find(address, length);
            entry = found.and_then(|(region, first)| table_entry(region, *first, &command.memory));
            found.is_some()
        })?;
        let Some(index) = self.free.pop() else { return Err(SubmitError::Full) };
        let slot = Slot { command, done_bytes: 0, table_entry: entry };
        self.slots[index as usize] = slot;
        // SAFETY: the caller keeps the memory valid until the completion or the drop, which waits.
        if unsafe { self.ring.submission().push(&slot.entry(index)) }.is_err() {
            // Not reached: there are no more slots than entries. Nothing was submitted.
            self.free.push(index);
            return Err(SubmitError::Full);
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.enter();
        let mut taken = 0;
        let mut again = false;
        let (_, mut submissions, mut finished) = self.ring.split();
        while taken < completions.len() {
            let Some(end) = finished.next() else { break };
            let Ok(index) = u32::try_from(end.user_data()) else { continue };
            let Some(slot) = self.slots.get_mut(index as usize) else { continue };
            let command = slot.command;
            let length = command.memory.len_bytes;
            let status = match after_call(
                length,
                slot.done_bytes,
                i64::from(end.result()),
                self.file.unit_bytes,
            ) {
                AfterCall::Done(status) => status,
                AfterCall::Continue { done_bytes } => {
                    slot.done_bytes = done_bytes;
                    // SAFETY: as in `submit`: the command is still in flight.
                    let pushed = unsafe { submissions.push(&slot.entry(index)) };
                    debug_assert!(pushed.is_ok(), "a slot has one entry at a time");
                    again = true;
                    continue;
                }
            };
            completions[taken] = Completion { tag: command.tag, status };
            taken += 1;
            self.free.push(index);
        }
        drop((submissions, finished));
        if again {
            self.enter();
        }
        taken
    }

    fn in_flight(&self) -> u32 {
        self.info.queue_depth - self.free.len() as u32
    }

    fn reservations(&mut self) -> Option<&mut dyn Reservations> {
        self.file.reservations.as_mut().map(|reservations| reservations as &mut dyn Reservations)
    }
}

impl Drop for UringDevice {
    fn drop(&mut self) {
        let waiting = self.ring.submission().len();
        let mut in_kernel = (self.in_flight() as usize).saturating_sub(waiting);
        loop {
            in_kernel = in_kernel.saturating_sub(self.ring.completion().count());
            if in_kernel == 0 {
                break;
            }
            // SAFETY: waits for one completion and hands over nothing.
            let entered = unsafe {
                self.ring.submitter().enter::<libc::sigset_t>(
                    0,
                    1,
                    EnterFlags::GETEVENTS.bits(),
                    None,
                )
            };
            if entered.is_err() {
                // Interrupted, or not allowed any more: the completions come all the same, and
                // nothing may be freed before that.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // The kernel destroys a ring some time after its descriptor was closed; the drive must be
        // free for the next owner now.
        if let Err(error) = self.ring.submitter().unregister_files() {
            tracing::debug!(%error, "the ring keeps its drive open until the kernel is done with it");
        }
    }
}
