// SPDX-License-Identifier: Apache-2.0
//! Faults of a simulated drive: which commands they hit, and what happens to those.

use std::ops::Range;

use super::rng::SimRng;
use crate::device::Operation;
use crate::error::IoError;

/// Which of the matching commands a fault hits. Counting starts at 0 when the fault is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// This one only; then the fault is gone.
    Nth(u64),
    /// This one and every later one.
    From(u64),
    /// One in this many, by the drive's seed.
    OneIn(u64),
}

/// What happens to a command that is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Not accepted: `submit` answers [`crate::device::SubmitError::Failed`].
    Refuse(IoError),
    /// Completes with this error and has no effect.
    Fail(IoError),
    /// A write completes with this error, and still lands after some polls: a drive may do that
    /// with an aborted command until it is reset. Other operations just fail.
    FailThenLand {
        /// The status.
        error: IoError,
        /// Polls between the completion and the landing.
        after_polls: u32,
    },
    /// Completes successfully and has no effect: a lost write, a flush that lies, a read that
    /// leaves the memory as it was.
    Lose,
    /// Reads from, or writes to, this place instead; moved down to fit the drive if necessary.
    Misdirect {
        /// Block aligned.
        offset_bytes: u64,
    },
    /// A read sees what each block held before its newest completed write. No effect on others.
    Stale,
    /// Completes only after this many polls.
    Delay {
        /// Polls without it.
        polls: u32,
    },
}

/// A fault to set on a drive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Only this operation, or all.
    pub operation: Option<Operation>,
    /// Only commands that touch these bytes of the drive, or all. A flush touches none.
    pub range_bytes: Option<Range<u64>>,
    /// Which of the matching commands.
    pub when: When,
    /// What happens to them.
    pub effect: Effect,
}

impl Fault {
    /// A fault anywhere on the drive.
    pub fn new(operation: Operation, when: When, effect: Effect) -> Fault {
        Fault { operation: Some(operation), range_bytes: None, when, effect }
    }

    /// The same fault, for commands that touch `range_bytes` only.
    pub fn within(mut self, range_bytes: Range<u64>) -> Fault {
        self.range_bytes = Some(range_bytes);
        self
    }

    fn matches(&self, operation: Operation, offset_bytes: u64, len_bytes: u64) -> bool {
        self.operation.is_none_or(|wanted| wanted == operation)
            && self.range_bytes.as_ref().is_none_or(|range| {
                offset_bytes < range.end && range.start < offset_bytes.saturating_add(len_bytes)
            })
    }
}

/// The faults set on one drive.
#[derive(Debug)]
pub(super) struct Faults {
    armed: Vec<(Fault, u64)>,
    rng: SimRng,
}

impl Faults {
    pub(super) fn new(seed: u64) -> Faults {
        Faults { armed: Vec::new(), rng: SimRng::new(seed ^ 0xfa17) }
    }

    pub(super) fn set(&mut self, fault: Fault) {
        self.armed.push((fault, 0));
    }

    pub(super) fn clear(&mut self) {
        self.armed.clear();
    }

    /// What happens to this command: the effect of the first fault, in the order they were set,
    /// that hits it. Every matching fault counts it.
    pub(super) fn hit(&mut self, operation: Operation, offset: u64, len: u64) -> Option<Effect> {
        let mut effect = None;
        let rng = &mut self.rng;
        self.armed.retain_mut(|(fault, seen)| {
            if !fault.matches(operation, offset, len) {
                return true;
            }
            let number = *seen;
            *seen += 1;
            let (hit, spent) = match fault.when {
                When::Nth(n) => (number == n, number >= n),
                When::From(n) => (number >= n, false),
                When::OneIn(n) => (rng.one_in(n), false),
            };
            if hit && effect.is_none() {
                effect = Some(fault.effect);
            }
            !spent
        });
        effect
    }
}
