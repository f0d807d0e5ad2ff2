// SPDX-License-Identifier: Apache-2.0
//! The condition of each drive of an open pool. Drive queues set it when commands fail; the code
//! that plans the next command reads it.
//!
//! A condition only gets worse while the pool is open. Reopening the pool starts afresh.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Operation;
use super::status::Action;
use crate::error::IoError;
use crate::units::DriveIndex;

/// What a drive can be used for, from best to worst, with the status that showed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    /// Everything.
    Sound,
    /// It takes no new data; what it holds can be read.
    ReadOnly(IoError),
    /// It is reserved by another host: nothing may be written to any drive of the pool.
    Foreign(IoError),
    /// It is lost, or is another drive than the one opened: no command is sent to it.
    Stopped(IoError),
}

/// The conditions of all drives. To read one is a load of one word.
pub(crate) struct Conditions {
    drives: Box<[AtomicU64]>,
    /// The condition of the drive that turned out to be foreign.
    foreign: AtomicU64,
}

impl Conditions {
    /// Sound drives.
    pub(crate) fn new(drives: usize) -> Conditions {
        let sound = |_| AtomicU64::new(0);
        Conditions { drives: (0..drives).map(sound).collect(), foreign: AtomicU64::new(0) }
    }

    /// Records that a command of this drive failed, and what follows from that.
    pub(crate) fn note(&self, drive: DriveIndex, action: Action, error: IoError) {
        let condition = match action {
            Action::ReadOnly => Condition::ReadOnly(error),
            Action::LostOwnership => Condition::Foreign(error),
            Action::StopDrive | Action::Fence => Condition::Stopped(error),
            Action::Retry | Action::RereadOnce | Action::Move | Action::Fail => return,
        };
        self.drives[drive.as_usize()].fetch_max(pack(condition), Ordering::AcqRel);
        if action == Action::LostOwnership {
            self.foreign.fetch_max(pack(condition), Ordering::AcqRel);
        }
    }

    /// The condition of a drive.
    pub(crate) fn of(&self, drive: DriveIndex) -> Condition {
        unpack(self.drives[drive.as_usize()].load(Ordering::Acquire))
    }

    /// All conditions, by drive.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = Condition> {
        self.drives.iter().map(|drive| unpack(drive.load(Ordering::Acquire)))
    }

    /// The error of a command that may not be sent to this drive any more, if it may not.
    pub(crate) fn refusal(&self, drive: DriveIndex, operation: Operation) -> Option<IoError> {
        if let Condition::Stopped(error) = self.of(drive) {
            return Some(error);
        }
        match unpack(self.foreign.load(Ordering::Acquire)) {
            Condition::Foreign(error) if operation != Operation::Read => Some(error),
            _ => None,
        }
    }
}

const KIND_SHIFT: u32 = 56;
const ERROR_SHIFT: u32 = 48;

/// A condition in one word: larger is worse, and 0 is sound.
fn pack(condition: Condition) -> u64 {
    let (kind, error) = match condition {
        Condition::Sound => return 0,
        Condition::ReadOnly(error) => (1, error),
        Condition::Foreign(error) => (2, error),
        Condition::Stopped(error) => (3, error),
    };
    let (form, value) = match error {
        IoError::Nvme { sct, sc, dnr } => {
            (0, u64::from(dnr) << 16 | u64::from(sct) << 8 | u64::from(sc))
        }
        IoError::Os(errno) => (1, u64::from(errno as u32)),
        IoError::Short { moved_bytes } => (2, u64::from(moved_bytes)),
        IoError::Removed => (3, 0),
    };
    kind << KIND_SHIFT | form << ERROR_SHIFT | value
}

fn unpack(word: u64) -> Condition {
    let value = word as u32;
    let error = match (word >> ERROR_SHIFT) & 0xff {
        0 => IoError::Nvme { sct: (value >> 8) as u8, sc: value as u8, dnr: value >> 16 != 0 },
        1 => IoError::Os(value as i32),
        2 => IoError::Short { moved_bytes: value },
        _ => IoError::Removed,
    };
    match word >> KIND_SHIFT {
        0 => Condition::Sound,
        1 => Condition::ReadOnly(error),
        2 => Condition::Foreign(error),
        _ => Condition::Stopped(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: IoError = IoError::Nvme { sct: 0, sc: 0x81, dnr: false };
    const CONFLICT: IoError = IoError::Nvme { sct: 0, sc: 0x83, dnr: true };

    #[test]
    fn a_condition_fits_a_word() {
        let errors = [
            FULL,
            CONFLICT,
            IoError::Nvme { sct: 7, sc: 0xff, dnr: true },
            IoError::Os(libc::ENOSPC),
            IoError::Os(-1),
            IoError::Short { moved_bytes: u32::MAX },
            IoError::Removed,
        ];
        for error in errors {
            for make in [Condition::ReadOnly, Condition::Foreign, Condition::Stopped] {
                assert_eq!(unpack(pack(make(error))), make(error));
                assert_ne!(pack(make(error)), 0);
            }
        }
        assert_eq!(unpack(pack(Condition::Sound)), Condition::Sound);
    }

    #[test]
    fn drives_only_get_worse_and_a_foreign_one_stops_all_writes() {
        let health = Conditions::new(2);
        let (a, b) = (DriveIndex(0), DriveIndex(1));
        let all = [Operation::Read, Operation::Write, Operation::WriteDurable, Operation::Flush];
        let refused = |drive| all.map(|operation| health.refusal(drive, operation).is_some());
        health.note(a, Action::Fail, FULL);
        assert_eq!(health.of(a), Condition::Sound);
        health.note(a, Action::ReadOnly, FULL);
        assert_eq!(health.of(a), Condition::ReadOnly(FULL));
        assert_eq!((refused(a), refused(b)), ([false; 4], [false; 4]));
        health.note(b, Action::LostOwnership, CONFLICT);
        let no_writes = [false, true, true, true];
        assert_eq!((refused(a), refused(b)), (no_writes, no_writes));
        health.note(b, Action::Fence, IoError::Removed);
        assert_eq!((refused(a), refused(b)), (no_writes, [true; 4]));
        health.note(b, Action::ReadOnly, FULL);
        let stopped = Condition::Stopped(IoError::Removed);
        assert!(health.conditions().eq([Condition::ReadOnly(FULL), stopped]));
    }
}
