// SPDX-License-Identifier: Apache-2.0
//! The mailbox of one of the engine's threads: rare messages that may allocate, block and be
//! answered.
//!
//! - [`Mailbox::send`] does not wait for an answer, [`Mailbox::ask`] does. Neither waits for room.
//! - The thread looks at one flag in each of its turns; only a message costs it a lock.
//! - A thread that ends, also by a panic, closes its mailbox and drops its messages, so that
//!   callers that wait for an answer get an error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam::channel::Sender;
use crossbeam::sync::Unparker;

use crate::error::Error;

/// Messages to one thread, and the way to wake it.
pub(crate) struct Mailbox<M> {
    waiting: AtomicBool,
    /// None once the thread has ended.
    messages: Mutex<Option<Vec<M>>>,
    unparker: Unparker,
}

impl<M> Mailbox<M> {
    /// For a thread that this wakes.
    pub(crate) fn new(unparker: Unparker) -> Mailbox<M> {
        Mailbox {
            waiting: AtomicBool::new(false),
            messages: Mutex::new(Some(Vec::new())),
            unparker,
        }
    }

    /// Sends a message. An error when the thread has ended.
    pub(crate) fn send(&self, message: M) -> Result<(), Error> {
        match self.lock().as_mut() {
            Some(messages) => messages.push(message),
            None => return Err(Error::Closed("the pool")),
        }
        self.waiting.store(true, Ordering::Release);
        self.unparker.unpark();
        Ok(())
    }

    /// Sends a message and waits for its answer. An error when the thread ends before it answers.
    pub(crate) fn ask<T>(&self, message: impl FnOnce(Sender<T>) -> M) -> Result<T, Error> {
        let (answer, answered) = crossbeam::channel::bounded(1);
        self.send(message(answer))?;
        answered.recv().map_err(|_| Error::Closed("the pool"))
    }

    /// Whether a message waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Takes the messages sent so far.
    pub(crate) fn take(&self) -> Vec<M> {
        self.waiting.store(false, Ordering::Release);
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether the thread has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    /// The thread holds this: dropping it closes the mailbox.
    pub(crate) fn open_while_held(&self) -> OpenMailbox<'_, M> {
        OpenMailbox(self)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<M>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes its mailbox at the end of the thread that holds it, however that ends.
pub(crate) struct OpenMailbox<'a, M>(&'a Mailbox<M>);

impl<M> Drop for OpenMailbox<'_, M> {
    fn drop(&mut self) {
        let messages = self.0.lock().take();
        // Outside of the lock: a message may own anything.
        drop(messages);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crossbeam::sync::Parker;

    use super::*;

    /// A number to double.
    struct Double(u32, Sender<u32>);

    fn mailbox() -> (Arc<Mailbox<Double>>, Parker) {
        let parker = Parker::new();
        (Arc::new(Mailbox::new(parker.unparker().clone())), parker)
    }

    #[test]
    fn each_question_gets_its_answer() {
        let (mailbox, parker) = mailbox();
        let theirs = Arc::clone(&mailbox);
        let thread = std::thread::spawn(move || {
            let _open = theirs.open_while_held();
            let mut answered = 0;
            while answered < 100 {
                for Double(number, answer) in theirs.take() {
                    answer.send(2 * number).unwrap();
                    answered += 1;
                }
                // Long enough that a lost wake-up fails the test by its duration.
                parker.park_timeout(Duration::from_secs(60));
            }
        });
        let start = std::time::Instant::now();
        for number in 0..100 {
            assert_eq!(mailbox.ask(|answer| Double(number, answer)).unwrap(), 2 * number);
        }
        mailbox.unparker.unpark();
        thread.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_thread_that_panics_leaves_no_caller_waiting() {
        let (mailbox, parker) = mailbox();
        let theirs = Arc::clone(&mailbox);
        let thread = std::thread::spawn(move || {
            let _open = theirs.open_while_held();
            parker.park();
            assert!(!theirs.is_waiting(), "as planned");
        });
        assert!(mailbox.ask(|answer| Double(1, answer)).is_err());
        assert!(thread.join().is_err());
        assert!(mailbox.is_closed());
        assert!(mailbox.ask(|answer| Double(1, answer)).is_err());
    }
}
