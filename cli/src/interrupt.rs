// SPDX-License-Identifier: Apache-2.0
//! Ctrl-C, SIGTERM and SIGHUP: each ends the command.
//!
//! Most commands leave nothing to clean up, and a signal ends them at once, with code 130. Those
//! that do call `defer`: from then on the first signal only sets a flag, which they check
//! between two pieces of work, and the second signal ends the process at once.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::error::CommandError;

const EXIT_CODE: i32 = 130;

/// Whether signals end the process at once. It is also what the first deferred signal sets.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the handlers; a signal ends the process at once.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn install() -> io::Result<Interrupt> {
        let at_once = Arc::new(AtomicBool::new(true));
        let signals = [SIGINT, SIGTERM, SIGHUP];
        // `nohup` ignores SIGHUP for the programs that it starts.
        for signal in signals.into_iter().filter(|s| *s != SIGHUP || !is_ignored(SIGHUP)) {
            // In this order, so that the signal that sets the flag does not yet end the process.
            flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(&at_once))?;
            flag::register(signal, Arc::clone(&at_once))?;
        }
        // Caught, so that a limit on the size of files fails a write instead of ending the process.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(Interrupt(at_once))
    }

    /// From now on the first signal only sets the flag that [`Interrupt::check`] reads.
    pub fn defer(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Fails if a signal came since [`Interrupt::defer`].
    ///
    /// # Errors
    /// [`CommandError::Interrupted`] with what the interruption means.
    pub fn check(&self, meaning: &str) -> Result<(), CommandError> {
        if self.0.load(Ordering::SeqCst) {
            return Err(CommandError::Interrupted(meaning.to_owned()));
        }
        Ok(())
    }
}

/// Whether this process was started with the signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal - 1) != 0
}
