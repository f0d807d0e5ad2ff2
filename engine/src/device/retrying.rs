// SPDX-License-Identifier: Apache-2.0
//! A device that retries: a command that [`status`] says to send again is sent again, to the same
//! place with the same memory. Only its last result is reported.
//!
//! - A command is in flight until its last attempt ends: its submitter sees one command and one
//!   completion, and keeps the memory for as long as the trait requires.
//! - Polls check whether the pause between attempts is over: nothing here sleeps, allocates or
//!   makes a system call, and without a failure no clock is read.
//! - Nothing is sent again after its deadline. So a drive that never recovers delays an error by
//!   [`DEADLINE`], and no error is hidden.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::reservation::Reservations;
use super::status::{self, Action};
use super::{Command, Completion, Device, DmaSlice, DriveInfo, Operation, SubmitError};
use crate::error::{Error, IoError};
use crate::memory::Region;

/// The pause before the second attempt; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(256);
/// Longer than a namespace takes to become ready after a reset, or a path to change.
const DEADLINE: Duration = Duration::from_secs(10);

/// One command, from the first attempt to the last.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    command: Command,
    /// Set by the first failure.
    retry: Option<Retry>,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    /// When it is sent again.
    due: Instant,
    /// The pause that ends then.
    pause: Duration,
    deadline: Instant,
    /// It was already read a second time.
    reread: bool,
}

/// The device.
pub(crate) struct Retrying {
    device: Box<dyn Device>,
    /// The number of an attempt is the tag that the device gets.
    attempts: Box<[Attempt]>,
    free: Vec<u32>,
    /// They wait for another attempt.
    paused: VecDeque<u32>,
    /// They ended without the device, which refused to take them again.
    ended: VecDeque<(u32, IoError)>,
    /// A failure was logged since the last time that nothing was paused.
    logged: bool,
}

impl Retrying {
    /// Retries the commands of `device`.
    pub(crate) fn over(device: Box<dyn Device>) -> Box<dyn Device> {
        let depth = device.info().queue_depth.max(1);
        let command = Command {
            operation: Operation::Flush,
            offset_bytes: 0,
            memory: DmaSlice::EMPTY,
            tag: 0,
        };
        Box::new(Retrying {
            device,
            attempts: vec![Attempt { command, retry: None }; depth as usize].into(),
            free: (0..depth).rev().collect(),
            paused: VecDeque::with_capacity(depth as usize),
            ended: VecDeque::with_capacity(depth as usize),
            logged: false,
        })
    }

    /// Whether a failed attempt is followed by another one, which is then scheduled.
    fn goes_on(&mut self, number: u32, error: IoError) -> bool {
        let attempt = &mut self.attempts[number as usize];
        let action = status::action(attempt.command.operation, error);
        if !matches!(action, Action::Retry | Action::RereadOnce) {
            return false;
        }
        let now = Instant::now();
        let mut retry = attempt.retry.unwrap_or(Retry {
            due: now,
            pause: Duration::ZERO,
            deadline: now + DEADLINE,
            reread: false,
        });
        if action == Action::RereadOnce {
            if retry.reread {
                return false;
            }
            retry.reread = true;
            retry.due = now;
        } else {
            retry.pause = (2 * retry.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            retry.due = now + retry.pause;
        }
        if retry.due > retry.deadline {
            return false;
        }
        attempt.retry = Some(retry);
        self.paused.push_back(number);
        if !std::mem::replace(&mut self.logged, true) {
            let info = self.device.info();
            let (drive, serial) = (&info.address, &info.serial);
            let Command { operation, offset_bytes, .. } = attempt.command;
            tracing::warn!(drive, serial, ?operation, offset_bytes, %error, "trying again");
        }
        true
    }

    /// Sends again what is due.
    fn send_again(&mut self) {
        let now = Instant::now();
        for _ in 0..self.paused.len() {
            let Some(number) = self.paused.pop_front() else { return };
            let attempt = self.attempts[number as usize];
            if attempt.retry.is_some_and(|retry| retry.due > now) {
                self.paused.push_back(number);
                continue;
            }
            // SAFETY: the submitter keeps the command's memory until the completion, which was not
            // given yet; the attempt before this one has ended.
            match unsafe { self.device.submit(with_tag(attempt.command, number)) } {
                Ok(()) => {}
                Err(SubmitError::Full) => {
                    self.paused.push_front(number);
                    return;
                }
                Err(SubmitError::Failed(error)) => {
                    if !self.goes_on(number, error) {
                        self.ended.push_back((number, error));
                    }
                }
            }
        }
        self.logged &= !self.paused.is_empty();
    }

    /// Completes the command, under its own tag.
    fn finish(&mut self, number: u32, status: Result<(), IoError>) -> Completion {
        self.free.push(number);
        Completion { tag: self.attempts[number as usize].command.tag, status }
    }
}

fn with_tag(command: Command, number: u32) -> Command {
    Command { tag: u64::from(number), ..command }
}

impl Device for Retrying {
    fn info(&self) -> &DriveInfo {
        self.device.info()
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        self.device.register(region)
    }

    fn unregister(&mut self, region: &Arc<Region>) {
        self.device.unregister(region);
    }

    unsafe fn submit(&mut self, command: Command) -> Result<(), SubmitError> {
        let Some(&number) = self.free.last() else { return Err(SubmitError::Full) };
        self.attempts[number as usize] = Attempt { command, retry: None };
        // SAFETY: the caller's promise holds until the completion that we give.
        match unsafe { self.device.submit(with_tag(command, number)) } {
            Ok(()) => {}
            Err(SubmitError::Failed(error)) if self.goes_on(number, error) => {}
            Err(error) => return Err(error),
        }
        self.free.pop();
        Ok(())
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        if !self.paused.is_empty() {
            self.send_again();
        }
        let mut given = 0;
        while given < completions.len() {
            let Some((number, error)) = self.ended.pop_front() else { break };
            completions[given] = self.finish(number, Err(error));
            given += 1;
        }
        let (first, count) = (given, self.device.poll(&mut completions[given..]));
        for at in first..first + count {
            let Completion { tag, status } = completions[at];
            let number = tag as u32;
            if let Err(error) = status
                && self.goes_on(number, error)
            {
                continue;
            }
            completions[given] = self.finish(number, status);
            given += 1;
        }
        given
    }

    fn in_flight(&self) -> u32 {
        (self.attempts.len() - self.free.len()) as u32
    }

    fn reservations(&mut self) -> Option<&mut dyn Reservations> {
        self.device.reservations()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::{Effect, Fault, SimConfig, SimDrive, When};
    use super::*;
    use crate::memory::HugePages;

    const NOT_READY: IoError = IoError::Nvme { sct: 0, sc: 0x82, dnr: false };
    const UNRECOVERED: IoError = IoError::Nvme { sct: 2, sc: 0x81, dnr: false };

    struct Rig {
        sim: SimDrive,
        device: Box<dyn Device>,
        region: Arc<Region>,
    }

    impl Rig {
        fn new() -> Rig {
            let sim = SimDrive::new(SimConfig::default()).unwrap();
            let mut device = Retrying::over(Box::new(sim.open().unwrap()));
            let region = Arc::new(Region::new(1 << 20, HugePages::Off).unwrap());
            device.register(&region).unwrap();
            Rig { sim, device, region }
        }

        fn fail(&self, operation: Operation, when: When, effect: Effect) {
            self.sim.inject(Fault::new(operation, when, effect)).unwrap();
        }

        /// Commands that failed since the trace was started.
        fn failures(&self) -> usize {
            let trace = self.sim.take_trace();
            trace.iter().filter(|event| matches!(event.ended, Some(Err(_)))).count()
        }

        fn submit(&mut self, operation: Operation, tag: u64) -> Result<(), SubmitError> {
            let len_bytes = if operation == Operation::Flush { 0 } else { 4096 };
            let memory = DmaSlice { address: self.region.base(), len_bytes };
            let command = Command { operation, offset_bytes: 8192, memory, tag };
            // SAFETY: the region outlives the device, and nothing else uses it in these tests.
            unsafe { self.device.submit(command) }
        }

        fn run(&mut self, operation: Operation) -> Result<(), IoError> {
            match self.submit(operation, 77) {
                Ok(()) => {}
                Err(SubmitError::Failed(error)) => return Err(error),
                Err(SubmitError::Full) => panic!("full"),
            }
            let mut completions = [Completion { tag: 0, status: Ok(()) }; 4];
            loop {
                match self.device.poll(&mut completions) {
                    0 => assert_eq!(self.device.in_flight(), 1),
                    count => {
                        assert_eq!((count, completions[0].tag), (1, 77));
                        assert_eq!(self.device.in_flight(), 0);
                        return completions[0].status;
                    }
                }
            }
        }
    }

    #[test]
    fn a_transient_failure_is_retried_with_growing_pauses() {
        let mut rig = Rig::new();
        for operation in [Operation::Read, Operation::Write, Operation::WriteDurable] {
            for effect in [Effect::Fail(NOT_READY), Effect::Refuse(NOT_READY)] {
                for _ in 0..4 {
                    rig.fail(operation, When::Nth(0), effect);
                    rig.fail(operation, When::Nth(1), effect);
                }
                let start = Instant::now();
                assert_eq!(rig.run(operation), Ok(()));
                // Eight failures may share attempts, but at least two are apart: 1 and 2 ms.
                assert!(start.elapsed() >= Duration::from_millis(3), "{:?}", start.elapsed());
            }
        }
        // A flush is not sent again.
        rig.fail(Operation::Flush, When::Nth(0), Effect::Fail(NOT_READY));
        assert_eq!(rig.run(Operation::Flush), Err(NOT_READY));
        assert_eq!(rig.run(Operation::Flush), Ok(()));
    }

    #[test]
    fn a_lasting_failure_ends_at_the_deadline() {
        let mut rig = Rig::new();
        rig.fail(Operation::Write, When::From(0), Effect::Fail(NOT_READY));
        let start = Instant::now();
        assert_eq!(rig.run(Operation::Write), Err(NOT_READY));
        let took = start.elapsed();
        assert!(took > DEADLINE - LONGEST_PAUSE - FIRST_PAUSE, "{took:?}");
        assert!(took < DEADLINE + Duration::from_secs(5), "{took:?}");
    }

    #[test]
    fn a_read_is_repeated_once_and_a_write_is_not() {
        let mut rig = Rig::new();
        rig.fail(Operation::Read, When::Nth(0), Effect::Fail(UNRECOVERED));
        assert_eq!(rig.run(Operation::Read), Ok(()));
        rig.fail(Operation::Read, When::From(0), Effect::Fail(UNRECOVERED));
        rig.sim.start_trace(16);
        assert_eq!(rig.run(Operation::Read), Err(UNRECOVERED));
        assert_eq!(rig.failures(), 2);
        rig.fail(Operation::Write, When::From(0), Effect::Fail(UNRECOVERED));
        rig.sim.start_trace(16);
        assert_eq!(rig.run(Operation::Write), Err(UNRECOVERED));
        assert_eq!(rig.failures(), 1);
    }

    #[test]
    fn a_paused_command_counts_as_in_flight_and_a_full_queue_is_reported() {
        let mut rig = Rig::new();
        let depth = rig.device.info().queue_depth;
        rig.fail(Operation::Write, When::From(0), Effect::Refuse(NOT_READY));
        for tag in 0..u64::from(depth) {
            assert_eq!(rig.submit(Operation::Write, tag), Ok(()));
        }
        assert_eq!(rig.submit(Operation::Write, 0), Err(SubmitError::Full));
        assert_eq!(rig.device.in_flight(), depth);
        rig.sim.clear_faults();
        let mut seen = vec![false; depth as usize];
        let mut completions = [Completion { tag: 0, status: Ok(()) }; 3];
        while rig.device.in_flight() > 0 {
            let count = rig.device.poll(&mut completions);
            for completion in &completions[..count] {
                assert_eq!(completion.status, Ok(()));
                assert!(!std::mem::replace(&mut seen[completion.tag as usize], true), "twice");
            }
        }
        assert!(seen.iter().all(|seen| *seen));
        // Dropped with commands that are paused: there is nothing to wait for.
        rig.fail(Operation::Write, When::From(0), Effect::Refuse(NOT_READY));
        rig.submit(Operation::Write, 0).unwrap();
        drop(rig);
    }
}
