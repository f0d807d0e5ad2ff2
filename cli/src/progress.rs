//! A bar with rate and time left, on a terminal's stderr only.

use std::io::{IsTerminal as _, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

const TEMPLATE: &str =
    "{msg} [{wide_bar}] {bytes} of {total_bytes}, {decimal_bytes_per_sec}, {eta} left";

/// A progress bar; it is gone when it is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar for so many bytes, if somebody looks.
    pub fn new(output: Output, what: &str, total_bytes: u64) -> Progress {
        if output.quiet || !stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(total_bytes).with_message(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        // It moves also while a drive is slow.
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    /// So many bytes are done.
    pub fn set(&self, bytes: u64) {
        self.0.set_position(bytes);
    }

    /// So many bytes there are.
    pub fn set_total(&self, bytes: u64) {
        self.0.set_length(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
