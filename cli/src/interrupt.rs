// SPDX-License-Identifier: Apache-2.0
//! Signals that end a process: each ends the command, but for KILL, which no process sees, and
//! those of a crash.
//!
//! Most commands leave nothing to clean up, and a signal ends them at once, with code 130. Those
//! that do call `defer`: from then on the first signal only sets a flag, which they check
//! between two pieces of work, and the second signal ends the process at once.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::signal::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGXCPU, SIGXFSZ,
};
use signal_hook::flag;

use crate::error::CommandError;

const EXIT_CODE: i32 = 130;
/// Those that would end the process and that are not a crash.
const ENDING: [i32; 13] = [
    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU,
    SIGIO, SIGSTKFLT, SIGPWR,
];
const SIGSTKFLT: i32 = 16;
const SIGPWR: i32 = 30;
/// Real-time signals; the C library keeps the two before them.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

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
        // `nohup` ignores SIGHUP for the programs that it starts.
        let ignored = ignored();
        let is_wanted = |signal: &i32| *signal != SIGHUP || ignored & 1 << (signal - 1) == 0;
        for signal in ENDING.into_iter().chain(REAL_TIME).filter(is_wanted) {
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

/// The signals that this process was started with as ignored: bit N - 1 is signal N.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
