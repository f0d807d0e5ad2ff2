// SPDX-License-Identifier: Apache-2.0
//! What every subcommand gets: the shared options, where output goes, and the signals.

use stanchion_engine::DriveAddress;
use stanchion_engine::HugePages;
use stanchion_engine::{Pool, PoolMode, PoolOptions};

use crate::config;
use crate::error::CommandError;
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::output::Output;

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
        let pool = Pool::open(&self.pool_options(mode)?)?;
        pool.notices().iter().for_each(|notice| self.output.pool_notice(notice));
        Ok(pool)
    }
}
