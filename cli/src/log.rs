// SPDX-License-Identifier: Apache-2.0
//! The engine's log on stderr: one line each, and warnings only once.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::output::{Output, plain};
use crate::record::Message;

/// Starts the log: warnings by default, more with `-v`, only errors with `-q`.
pub fn start(output: Output, verbose: u8) {
    let level = match (output.quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let lines = Lines { output, printed: Mutex::default() }.with_filter(level);
    // Fails only if the log runs already.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

/// Writes events as lines.
struct Lines {
    output: Output,
    printed: Mutex<HashSet<String>>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        let mut text = Text::default();
        event.record(&mut text);
        let line = plain(&format!("{}{}", text.message, text.fields));
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        // Every session gives the same warning; it is printed once.
        if level > Level::WARN || printed.insert(line.clone()) {
            self.output.message(&Message::new(name(level), "log", line));
        }
    }
}

fn name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
