// SPDX-License-Identifier: Apache-2.0
//! What every subcommand gets: the shared options, where output goes, and the signals.

use std::time::{Duration, Instant};

use stanchion_engine::{DriveAddress, ErrorKind, HugePages};
use stanchion_engine::{Pool, PoolMode, PoolOptions};

use crate::config;
use crate::error::CommandError;
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::output::Output;

/// Between two tries to open a pool that another process has: first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A wait of more than a century is one of a century.
const MAX_WAIT_S: f64 = 4e9;

/// What every subcommand gets.
#[derive(Debug)]
pub struct Context {
    options: Options,
    /// Where results and messages go.
    pub output: Output,
    /// Signals that ask the command to end.
    pub interrupt: Interrupt,
}

impl Context {
    /// Makes it.
    pub fn new(options: Options, output: Output, interrupt: Interrupt) -> Context {
        Context { options, output, interrupt }
    }

    /// The drives that were named, maybe none.
    ///
    /// # Errors
    /// As [`config::drives`].
    pub fn drives(&self) -> Result<Vec<DriveAddress>, CommandError> {
        config::drives(&self.options.drives)
    }

    /// The drives that were named, at least one.
    ///
    /// # Errors
    /// As [`config::required_drives`].
    pub fn required_drives(&self) -> Result<Vec<DriveAddress>, CommandError> {
        config::required_drives(&self.options.drives)
    }

    /// Options for opening the pool that was named.
    ///
    /// # Errors
    /// As [`config::required_drives`].
    pub fn pool_options(&self, mode: PoolMode) -> Result<PoolOptions, CommandError> {
        let engine = &self.options.engine;
        let mut options = PoolOptions::new(self.required_drives()?);
        options.mode = mode;
        options.degraded = self.options.write.degraded;
        options.fall_back = engine.fall_back;
        options.take_over = self.options.write.take_over;
        options.huge_pages = engine.huge_pages.map_or(HugePages::Preferred, HugePages::from);
        options.reactors = engine.reactors.map(usize::from);
        options.cores = engine.cores.clone().map(|cores| cores.0);
        options.queue_depth = engine.queue_depth;
        options.checksum_threads = engine.checksum_threads.map(usize::from);
        Ok(options)
    }

    /// Opens the pool and prints what opening it noticed.
    ///
    /// # Errors
    /// As [`Pool::open`], and as [`config::required_drives`].
    pub fn open(&self, mode: PoolMode) -> Result<Pool, CommandError> {
        let pool = self.open_with(&self.pool_options(mode)?)?;
        pool.notices().iter().for_each(|notice| self.output.pool_notice(notice));
        Ok(pool)
    }

    /// Opens the pool. While another process has it, it is tried again, for as long as `--wait`
    /// says.
    ///
    /// # Errors
    /// As [`Pool::open`]; the last error when the time is over.
    pub fn open_with(&self, options: &PoolOptions) -> Result<Pool, CommandError> {
        let wait = Duration::from_secs_f64(self.options.engine.wait.unwrap_or(0.0).min(MAX_WAIT_S));
        let (started, mut was_noticed) = (Instant::now(), false);
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match Pool::open(options) {
                Err(error) if error.kind() == ErrorKind::Busy => error,
                result => return Ok(result?),
            };
            let left = wait.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(error.into());
            }
            if !was_noticed {
                let text = format_args!("waiting up to {} s: {error}", left.as_secs_f64().ceil());
                self.output.notice("waiting", text);
                was_noticed = true;
            }
            std::thread::sleep(pause.min(left));
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}
