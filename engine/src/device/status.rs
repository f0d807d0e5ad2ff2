// SPDX-License-Identifier: Apache-2.0
//! What to do about a failed command: one table, from the status and the kind of command to an
//! [`Action`]. Pure.
//!
//! - All callers follow the table and add no cases of their own: [`super::retrying`] retries and
//!   reads again, [`super::condition`] keeps what a drive has become, the reactor fails or moves
//!   chunks.
//! - A flush is never repeated. A second flush that succeeds would say nothing about the writes
//!   that the first one lost, so a failed flush ends its commit.
//! - A write is repeated to the same place only, with the same bytes: whichever of the two reaches
//!   the drive last, the bytes are right.
//! - An unknown status is handled like a bad place: another place is tried; it is never ignored.

use super::Operation;
use crate::error::IoError;

/// What to do about a failed command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Action {
    /// A temporary failure: send the same command again, after a pause, until a deadline. Then
    /// [`Action::when_retries_end`] decides.
    Retry,
    /// Read it once more; if that fails too, the chunk is bad.
    RereadOnce,
    /// The place is bad and the drive is not: write the chunk elsewhere, and do not use the place
    /// again.
    Move,
    /// It may or may not have been carried out, and may still be. Its memory and its place stay
    /// reserved until the drive is fenced; the drive is lost until it is reopened.
    Fence,
    /// The drive takes no new data; what it holds can be read.
    ReadOnly,
    /// Another host has reserved the drive: no more writes to any drive of the pool.
    LostOwnership,
    /// The drive is not the one that was opened, or we use it wrongly: no more commands are sent.
    StopDrive,
    /// Its caller gets the error, and nothing else follows.
    Fail,
}

impl Action {
    /// What follows when a command has been retried as often as it may be.
    pub(crate) fn when_retries_end(self, operation: Operation) -> Action {
        match (self, operation) {
            (Action::Retry, Operation::Write) => Action::Move,
            (Action::Retry | Action::RereadOnce, _) => Action::Fail,
            (action, _) => action,
        }
    }
}

/// What to do about `error`, which ended a command of this kind.
pub(crate) fn action(operation: Operation, error: IoError) -> Action {
    match error {
        IoError::Nvme { sct, sc, dnr } => of_nvme(operation, sct, sc, dnr),
        IoError::Os(errno) => of_errno(operation, errno),
        // The file ends there. To read again does not make it longer.
        IoError::Short { .. } => of_bad_place(operation, Action::Fail),
        IoError::Removed => Action::Fence,
    }
}

fn of_nvme(operation: Operation, sct: u8, sc: u8, dnr: bool) -> Action {
    match (sct, sc) {
        // Generic. Invalid opcode, field, namespace, PRP, SGL: our error, or another namespace.
        (0, 0x01 | 0x02 | 0x0b | 0x0d..=0x13) => Action::StopDrive,
        // Data transfer error; command interrupted; transient transport error; namespace not ready.
        (0, 0x04 | 0x21 | 0x22 | 0x82) => of_transient(operation, dnr),
        // Aborted: power loss, by request, its queue deleted. SPDK's release decides which of the
        // latter two it reports for a lost queue, and the retry bit.
        (0, 0x05 | 0x07 | 0x08) => Action::Fence,
        // Sanitize failed or in progress; LBA out of range; format in progress: the drive has
        // changed.
        (0, 0x1c | 0x1d | 0x80 | 0x84) => Action::StopDrive,
        // Write protected; capacity exceeded. And command-specific: write to a read-only range.
        (0, 0x20 | 0x81) | (1, 0x82) => of_no_new_data(operation),
        (0, 0x83) => Action::LostOwnership,
        // Media. Access denied: the range is locked.
        (2, 0x86) => of_no_new_data(operation),
        // Path. Persistently lost; inaccessible, changing, or another internal error: temporary.
        (3, 0x01) => Action::StopDrive,
        (3, 0x00 | 0x02 | 0x03 | 0x60 | 0x70) => of_transient(operation, dnr),
        (3, 0x71) => Action::Fence,
        // Internal error, write fault, unrecovered read, guard and tag checks, unwritten block,
        // vendor's.
        _ => of_bad_place(operation, Action::RereadOnce),
    }
}

fn of_errno(operation: Operation, errno: i32) -> Action {
    match errno {
        // The kernel is short of memory or of tags.
        libc::EAGAIN | libc::ENOMEM | libc::EBUSY | libc::EINTR => of_transient(operation, false),
        // The kernel stopped waiting; the drive may still work on it.
        libc::ETIMEDOUT | libc::ECANCELED => Action::Fence,
        // A thin device, a file system, a quota or a limit is full; write protected.
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EROFS | libc::EPERM => {
            of_no_new_data(operation)
        }
        // Reservation conflict.
        libc::EBADE => Action::LostOwnership,
        libc::ENODEV | libc::ENXIO | libc::ENOLINK => Action::Fence,
        // Our error: the drive is fine.
        libc::EINVAL | libc::EFAULT | libc::EBADF | libc::EOPNOTSUPP => Action::Fail,
        _ => of_bad_place(operation, Action::RereadOnce),
    }
}

fn of_transient(operation: Operation, do_not_retry: bool) -> Action {
    match operation {
        Operation::Flush => Action::Fail,
        _ if do_not_retry => Action::Retry.when_retries_end(operation),
        _ => Action::Retry,
    }
}

fn of_no_new_data(operation: Operation) -> Action {
    match operation {
        Operation::Read => Action::Fail,
        Operation::Write | Operation::WriteDurable | Operation::Flush => Action::ReadOnly,
    }
}

/// Metadata has a fixed place and is not moved.
fn of_bad_place(operation: Operation, when_read: Action) -> Action {
    match operation {
        Operation::Read => when_read,
        Operation::Write => Action::Move,
        Operation::WriteDurable | Operation::Flush => Action::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Operation; 4] =
        [Operation::Read, Operation::Write, Operation::WriteDurable, Operation::Flush];

    fn nvme(sct: u8, sc: u8, dnr: bool) -> IoError {
        IoError::Nvme { sct, sc, dnr }
    }

    /// Every possible NVMe status, every errno, and the rest.
    fn every_error() -> impl Iterator<Item = IoError> {
        let statuses = (0..8).flat_map(|sct| (0..=255).map(move |sc| (sct, sc)));
        let nvme = statuses.flat_map(|(sct, sc)| [nvme(sct, sc, false), nvme(sct, sc, true)]);
        let others = [IoError::Removed, IoError::Short { moved_bytes: 512 }];
        nvme.chain((0..4096).map(IoError::Os)).chain(others)
    }

    #[test]
    fn the_rules_hold_for_every_status_and_every_command() {
        let mut seen = std::collections::HashSet::new();
        let mut judged = 0;
        for error in every_error() {
            for operation in ALL {
                let action = action(operation, error);
                let what = format!("{operation:?}, {error}: {action:?}");
                judged += 1;
                seen.insert(action);
                let is_flush = operation == Operation::Flush;
                let again = matches!(action, Action::Retry | Action::RereadOnce);
                assert!(!(is_flush && again), "a flush is never sent again: {what}");
                if let IoError::Nvme { dnr: true, .. } = error {
                    assert_ne!(action, Action::Retry, "{what}");
                }
                match action {
                    Action::Move => assert_eq!(operation, Operation::Write, "{what}"),
                    Action::RereadOnce => assert_eq!(operation, Operation::Read, "{what}"),
                    Action::ReadOnly => assert_ne!(operation, Operation::Read, "{what}"),
                    _ => {}
                }
                // The action after the last retry is final.
                let last = action.when_retries_end(operation);
                assert!(!matches!(last, Action::Retry | Action::RereadOnce), "{what}");
                assert_eq!(last.when_retries_end(operation), last, "{what}");
                // An action on the drive does not depend on the operation.
                if matches!(action, Action::Fence | Action::StopDrive | Action::LostOwnership) {
                    assert!(
                        ALL.iter().all(|other| super::action(*other, error) == action),
                        "{what}"
                    );
                }
            }
        }
        assert_eq!(judged, (8 * 256 * 2 + 4096 + 2) * 4);
        assert_eq!(seen.len(), 8, "every action is used: {seen:?}");
    }

    /// For each status: the action for a read, a write, a durable write and a flush.
    #[test]
    fn the_table() {
        use Action::{Fail, Fence, LostOwnership, Move, ReadOnly, RereadOnce, Retry, StopDrive};
        let transient = [Retry, Retry, Retry, Fail];
        let bad_place = [RereadOnce, Move, Fail, Fail];
        let full = [Fail, ReadOnly, ReadOnly, ReadOnly];
        let table: &[(&str, IoError, [Action; 4])] = &[
            ("command interrupted", nvme(0, 0x21, false), transient),
            ("transient transport error", nvme(0, 0x22, false), transient),
            ("namespace not ready", nvme(0, 0x82, false), transient),
            ("internal path error", nvme(3, 0x00, false), transient),
            ("asymmetric access changing", nvme(3, 0x03, false), transient),
            ("the same, and the drive says not to", nvme(0, 0x82, true), [Fail, Move, Fail, Fail]),
            ("aborted by request", nvme(0, 0x07, false), [Fence; 4]),
            ("aborted, queue deleted", nvme(0, 0x08, true), [Fence; 4]),
            ("aborted by host", nvme(3, 0x71, false), [Fence; 4]),
            ("removed", IoError::Removed, [Fence; 4]),
            ("internal error", nvme(0, 0x06, false), bad_place),
            ("write fault", nvme(2, 0x80, false), bad_place),
            ("unrecovered read", nvme(2, 0x81, true), bad_place),
            ("guard check", nvme(2, 0x82, false), bad_place),
            ("application tag check", nvme(2, 0x83, false), bad_place),
            ("reference tag check", nvme(2, 0x84, false), bad_place),
            ("unwritten block", nvme(2, 0x87, false), bad_place),
            ("vendor's own", nvme(7, 0x01, false), bad_place),
            ("LBA out of range", nvme(0, 0x80, false), [StopDrive; 4]),
            ("invalid field", nvme(0, 0x02, true), [StopDrive; 4]),
            ("invalid PRP offset", nvme(0, 0x13, false), [StopDrive; 4]),
            ("invalid namespace", nvme(0, 0x0b, true), [StopDrive; 4]),
            ("format in progress", nvme(0, 0x84, false), [StopDrive; 4]),
            ("sanitize in progress", nvme(0, 0x1d, false), [StopDrive; 4]),
            ("capacity exceeded", nvme(0, 0x81, false), full),
            ("namespace is write protected", nvme(0, 0x20, true), full),
            ("write to a read-only range", nvme(1, 0x82, false), full),
            ("reservation conflict", nvme(0, 0x83, true), [LostOwnership; 4]),
            ("EIO", IoError::Os(libc::EIO), bad_place),
            ("ENODATA", IoError::Os(libc::ENODATA), bad_place),
            ("EILSEQ", IoError::Os(libc::EILSEQ), bad_place),
            ("ENOSPC", IoError::Os(libc::ENOSPC), full),
            ("EROFS", IoError::Os(libc::EROFS), full),
            ("EFBIG", IoError::Os(libc::EFBIG), full),
            ("ENOMEM", IoError::Os(libc::ENOMEM), transient),
            ("ETIMEDOUT", IoError::Os(libc::ETIMEDOUT), [Fence; 4]),
            ("EBADE", IoError::Os(libc::EBADE), [LostOwnership; 4]),
            ("EFAULT", IoError::Os(libc::EFAULT), [Fail; 4]),
            ("the file was cut", IoError::Short { moved_bytes: 0 }, [Fail, Move, Fail, Fail]),
        ];
        for (what, error, expected) in table {
            let found = ALL.map(|operation| action(operation, *error));
            assert_eq!(found, *expected, "{what} ({error})");
        }
    }
}
