// SPDX-License-Identifier: Apache-2.0
//! What goes to stdout (results) and to stderr (everything else), and how numbers are written.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use bytesize::ByteSize;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use stanchion_engine::Notice;

use crate::error::CommandError;
use crate::record::{Document, Message};
pub use crate::text::{count, plain};

/// Where results and messages go.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// One JSON document instead of text, and messages as JSON lines.
    pub json: bool,
    /// No progress, no notices, no summaries.
    pub quiet: bool,
}

impl Output {
    /// Prints the JSON document. `schema` is the name of its schema in docs/json.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn document(&self, schema: &str, content: &impl Serialize) -> Result<(), CommandError> {
        let text = serde_json::to_string_pretty(&Document::new(schema, content))
            .map_err(|error| CommandError::Failed(format!("making JSON: {error}")))?;
        self.text(text)
    }

    /// Prints a line, or lines, of the result for people.
    ///
    /// # Errors
    /// When stdout cannot be written. A reader that has closed the pipe is not an error: it has
    /// seen what it wanted.
    pub fn text(&self, text: impl Display) -> Result<(), CommandError> {
        let mut stdout = io::stdout().lock();
        match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(CommandError::os("writing to stdout", error))
            }
            _ => Ok(()),
        }
    }

    /// Prints a line about what was done, unless quiet.
    ///
    /// # Errors
    /// As [`Output::text`].
    pub fn summary(&self, text: impl Display) -> Result<(), CommandError> {
        if self.quiet { Ok(()) } else { self.text(text) }
    }

    /// Takes the result of printing a report of what was done for good: where stdout cannot be
    /// written, it was done all the same, and stderr says so. `done` says what was done.
    pub fn reported(&self, printed: Result<(), CommandError>, done: impl Display) {
        if let Err(error) = printed {
            self.notice("report_lost", format_args!("{done}, but not reported: {error}"));
        }
    }

    /// Prints something that the user should know. `kind` is its name in JSON.
    pub fn notice(&self, kind: &str, notice: impl Display) {
        if !self.quiet {
            self.message(&Message::new("notice", kind, plain(&notice.to_string())));
        }
    }

    /// Prints what opening a pool noticed.
    pub fn pool_notice(&self, notice: &Notice) {
        if !self.quiet {
            self.message(&Message::from(notice));
        }
    }

    /// Prints a message on stderr. A closed stderr loses the message and nothing else.
    pub fn message(&self, message: &Message) {
        let line = match self.json {
            true => serde_json::to_string(&Document::new("message", message)).unwrap_or_default(),
            false => format!("stanchion: {}: {}", message.level, message.text),
        };
        let _ = writeln!(io::stderr(), "{line}");
    }

    /// Prints the error, if there is one, and gives the exit code.
    pub fn end(&self, result: Result<(), CommandError>) -> ExitCode {
        let Err(error) = result else { return ExitCode::SUCCESS };
        let (kind, code) = error.kind_and_code();
        // The engine's messages are one line, and may hold names that come from a drive.
        let text = match &error {
            CommandError::Engine(error) => plain(&error.to_string()),
            other => other.to_string(),
        };
        self.message(&Message { exit_code: Some(code), ..Message::new("error", kind, text) });
        ExitCode::from(code)
    }
}

/// A table as text, without spaces at the ends of lines.
pub fn lines(table: &Table) -> String {
    table.trim_fmt()
}

/// A table without lines, whose named columns are numbers.
pub fn table(header: &[&str], numbers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    for (index, title) in header.iter().enumerate() {
        let Some(column) = table.column_mut(index) else { continue };
        column.set_padding((0, 2));
        if numbers.contains(title) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// `1.23 GB/s`, of 10^9 bytes.
pub fn rate(bytes: u64, time: Duration) -> String {
    format!("{:.2} GB/s", gb_per_s(bytes, time))
}

/// 10^9 bytes a second.
pub fn gb_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64().max(1e-9)
}

/// RFC 3339, UTC, in whole seconds: for people.
pub fn time(unix_ns: u64) -> String {
    // 2^64 nanoseconds after 1970 is the year 2554, which the formatter can write.
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(unix_ns)).to_string()
}

/// RFC 3339, UTC, in nanoseconds: for JSON.
pub fn exact_time(unix_ns: u64) -> String {
    humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(unix_ns)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(rate(2_500_000_000, Duration::from_secs(2)), "1.25 GB/s");
        assert_eq!(time(1_700_000_000_999_999_999), "2023-11-14T22:13:20Z");
        assert_eq!(exact_time(1_700_000_000_000_000_009), "2023-11-14T22:13:20.000000009Z");
        assert!(time(u64::MAX).starts_with("2554-"));
    }
}
