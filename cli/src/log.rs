//! The engine's warnings on stderr: one line each, and each only once.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts it: warnings, with `-v` more, with `-q` only errors.
pub fn start(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let lines = Lines::default().with_filter(level);
    // Fails only when it was started before, and then it runs.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

/// Writes events as lines.
#[derive(Default)]
struct Lines {
    told: Mutex<HashSet<String>>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        let mut text = Text::default();
        event.record(&mut text);
        let line = format!(
            "stanchion: {}: {}{}",
            level.as_str().to_lowercase().replace("warn", "warning"),
            text.message,
            text.fields
        );
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        // Every session says it anew; once is enough for a person.
        if level > Level::WARN || told.insert(line.clone()) {
            // A stderr that is closed loses the line and nothing else.
            let _ = writeln!(io::stderr(), "{line}");
        }
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
