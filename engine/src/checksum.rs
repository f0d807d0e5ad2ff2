// SPDX-License-Identifier: Apache-2.0
//! Checksums of data chunks: CRC-64/NVME, computed by helper threads.
//!
//! A reactor must keep polling and a trainer's thread must keep training, so neither computes
//! checksums. A helper polls while the engine is busy and parks when it has been idle for a while,
//! so that a job costs a reactor no system call while entries flow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam::queue::ArrayQueue;
use crossbeam::sync::{Parker, Unparker};

use crate::backoff::{Backoff, Pause};
use crate::error::Error;
use crate::format::crc64;
use crate::memory::Span;
use crate::planted::{Bug, Victim, may_panic, planted};
use crate::reactor::answer::Answer;

/// One chunk to compute a checksum of.
pub(crate) struct ChecksumJob {
    /// Whole blocks. None once it is answered.
    span: Option<Span>,
    /// How many of them are data; the rest is padding.
    data_bytes: u32,
    /// The queue of the answer.
    reply: Arc<ArrayQueue<Answer>>,
    /// Comes back in the answer.
    token: u64,
}

impl ChecksumJob {
    pub(crate) fn new(
        span: Span,
        data_bytes: u32,
        reply: Arc<ArrayQueue<Answer>>,
        token: u64,
    ) -> ChecksumJob {
        ChecksumJob { span: Some(span), data_bytes, reply, token }
    }

    /// Computes and sends the answer.
    fn answer(mut self) {
        may_panic(Victim::Helper);
        if let Some(span) = &self.span {
            let (data, padding) = span.bytes().split_at(self.data_bytes as usize);
            let (crc64, padding_is_zero) = (crc64(data), padding.iter().all(|byte| *byte == 0));
            self.send(Answer::Checksum { token: self.token, crc64, padding_is_zero });
        }
    }

    fn send(&mut self, answer: Answer) {
        // The span is dropped before the answer: after it the buffer may be freed.
        self.span = None;
        let mut pushed = Err(answer);
        while let Err(answer) = pushed {
            pushed = self.reply.push(answer);
        }
    }
}

impl Drop for ChecksumJob {
    /// A job that ends without a checksum, by a panic, is answered too.
    fn drop(&mut self) {
        if self.span.is_some() {
            self.send(Answer::NoChecksum { token: self.token });
        }
    }
}

/// Whether a chunk that was read is intact: its checksum is the recorded one, and the padding to
/// whole blocks is zero.
pub(crate) fn chunk_is_sound(recorded: u64, computed: u64, padding_is_zero: bool) -> bool {
    (recorded == computed && padding_is_zero) || planted(Bug::ChecksumNotCompared)
}

/// The helper threads and their queue.
pub(crate) struct ChecksumHelpers {
    queue: Arc<ArrayQueue<ChecksumJob>>,
    unparkers: Vec<Unparker>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// A reactor's handle on the helpers.
#[derive(Clone)]
pub(crate) struct ChecksumQueue {
    queue: Arc<ArrayQueue<ChecksumJob>>,
    unparkers: Vec<Unparker>,
}

impl ChecksumQueue {
    /// Pushes a job; [`ChecksumQueue::wake`] follows. The queue holds as many jobs as all reactors
    /// may have chunks in flight, so it cannot be full.
    pub(crate) fn push(&self, job: ChecksumJob) {
        let pushed = self.queue.push(job);
        assert!(pushed.is_ok(), "more checksum jobs than chunks in flight");
    }

    /// Wakes the helpers: once for all jobs of a turn, since each wake-up costs an exchange with
    /// every helper.
    pub(crate) fn wake(&self) {
        self.unparkers.iter().for_each(Unparker::unpark);
    }

    /// Runs the helpers' waiting jobs on this thread. Returns whether there were any.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn answer_waiting(&self) -> bool {
        let mut progress = false;
        while let Some(job) = self.queue.pop() {
            job.answer();
            progress = true;
        }
        progress
    }
}

impl ChecksumHelpers {
    /// Starts `threads` helpers that hold at most `capacity` jobs.
    pub(crate) fn start(threads: usize, capacity: usize) -> Result<ChecksumHelpers, Error> {
        let queue = Arc::new(ArrayQueue::new(capacity));
        let stop = Arc::new(AtomicBool::new(false));
        let mut helpers =
            ChecksumHelpers { queue, unparkers: Vec::new(), stop, threads: Vec::new() };
        for number in 0..threads {
            let parker = Parker::new();
            helpers.unparkers.push(parker.unparker().clone());
            let (queue, stop) = (Arc::clone(&helpers.queue), Arc::clone(&helpers.stop));
            let thread = std::thread::Builder::new()
                .name(format!("stn-checksum-{number}"))
                .spawn(move || {
                    // A panic costs the chunk that it is about. The next one is computed.
                    let run = || work(&queue, &stop, &parker);
                    while catch_unwind(AssertUnwindSafe(run)).is_err() {}
                })
                .map_err(|e| Error::os("starting a checksum thread", e))?;
            helpers.threads.push(thread);
        }
        Ok(helpers)
    }

    pub(crate) fn queue(&self) -> ChecksumQueue {
        ChecksumQueue { queue: Arc::clone(&self.queue), unparkers: self.unparkers.clone() }
    }
}

impl Drop for ChecksumHelpers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for unparker in &self.unparkers {
            unparker.unpark();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(queue: &ArrayQueue<ChecksumJob>, stop: &AtomicBool, parker: &Parker) {
    crate::backoff::shorten_timer_slack();
    let mut backoff = Backoff::helper();
    loop {
        if let Some(job) = queue.pop() {
            backoff.reset();
            job.answer();
            continue;
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
        match backoff.next(false) {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Nap(time) => std::thread::sleep(time),
            Pause::Park(time) => parker.park_timeout(time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HugePages, Region};

    #[test]
    fn helpers_answer_every_job() {
        let region = Arc::new(Region::new(1, HugePages::Off).unwrap());
        let helpers = ChecksumHelpers::start(2, 64).unwrap();
        let replies = Arc::new(ArrayQueue::new(64));
        let queue = helpers.queue();
        for token in 0..64 {
            let span = Span::new(&region, token * 4096, 4096).unwrap();
            span.fill_from(&[token as u8; 4096]);
            let reply = Arc::clone(&replies);
            queue.push(ChecksumJob::new(span, 4000, reply, token));
        }
        queue.wake();
        let mut seen = 0;
        while seen < 64 {
            let Some(answer) = replies.pop() else { continue };
            let Answer::Checksum { token, crc64: found, padding_is_zero } = answer else {
                panic!("not a checksum")
            };
            assert_eq!(found, crc64(&[token as u8; 4000]));
            assert_eq!(padding_is_zero, token == 0);
            seen += 1;
        }
    }
}
