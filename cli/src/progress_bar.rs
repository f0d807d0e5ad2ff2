// SPDX-License-Identifier: Apache-2.0
//! A bar with rate and time left, on a terminal's stderr only, and never where JSON is printed.

use std::io::{IsTerminal as _, stderr};
use std::time::Duration;

use indicatif::ProgressStyle;

use crate::output::Output;

const TEMPLATE: &str =
    "{msg} [{wide_bar}] {bytes} of {total_bytes}, {decimal_bytes_per_sec}, {eta} left";

/// A progress bar; dropping it clears it.
pub struct ProgressBar(indicatif::ProgressBar);

impl ProgressBar {
    /// A bar for this many bytes; hidden where stderr is not a terminal.
    pub fn new(output: Output, what: &str, total_bytes: u64) -> ProgressBar {
        if output.quiet || output.json || !stderr().is_terminal() {
            return ProgressBar(indicatif::ProgressBar::hidden());
        }
        let bar = indicatif::ProgressBar::new(total_bytes).with_message(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        // It moves also while a drive is slow.
        bar.enable_steady_tick(Duration::from_millis(200));
        ProgressBar(bar)
    }

    /// Sets how many bytes are done.
    pub fn set(&self, bytes: u64) {
        self.0.set_position(bytes);
    }

    /// Sets how many bytes there are.
    pub fn set_total(&self, bytes: u64) {
        self.0.set_length(bytes);
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
