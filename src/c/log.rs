// SPDX-License-Identifier: Apache-2.0
//! Log records, given to a callback of the program's.
//!
//! The library's threads log through `tracing`; no record is made until `stn_set_log` is called.  
//! Panics are log records too, so that none is written to standard error.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::sync::{Once, PoisonError, RwLock};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::error::{CallError, invalid};
use super::ffi::call;

/// See `stanchion.h`.
pub const STN_LOG_OFF: u32 = 0;
/// See `stanchion.h`.
pub const STN_LOG_ERROR: u32 = 1;
/// See `stanchion.h`.
pub const STN_LOG_WARN: u32 = 2;
/// See `stanchion.h`.
pub const STN_LOG_INFO: u32 = 3;
/// See `stanchion.h`.
pub const STN_LOG_DEBUG: u32 = 4;
/// See `stanchion.h`.
pub const STN_LOG_TRACE: u32 = 5;

/// See `stanchion.h`.
#[allow(non_camel_case_types)]
pub type stn_log_fn = extern "C" fn(*mut c_void, u32, *const c_char, *const c_char);

struct Sink {
    callback: stn_log_fn,
    context: *mut c_void,
    level: u32,
}

// SAFETY: the context is only passed to the callback, and the header says that any thread does so.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

/// Held for reading while the callback runs, so that replacing the callback waits for it.
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// See `stanchion.h`.
///
/// # Safety
/// `callback` may be called with `context` from any thread until the next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stn_set_log(
    callback: Option<stn_log_fn>,
    context: *mut c_void,
    level: u32,
) -> c_int {
    call(|| {
        if level > STN_LOG_TRACE {
            return Err(invalid(format!("{level} is not one of STN_LOG_")));
        }
        if INSIDE.get() {
            return Err(CallError::new(libc::EDEADLK, "stn_set_log inside a log callback"));
        }
        listen()?;
        let sink = callback.filter(|_| level != STN_LOG_OFF);
        *SINK.write().unwrap_or_else(PoisonError::into_inner) =
            sink.map(|callback| Sink { callback, context, level });
        tracing::callsite::rebuild_interest_cache();
        Ok(0)
    })
}

/// Becomes the process's tracing subscriber, once.
fn listen() -> Result<(), CallError> {
    static LISTENS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if *LISTENS.get_or_init(|| tracing::subscriber::set_global_default(Listener).is_ok()) {
        return Ok(());
    }
    Err(CallError::new(libc::EEXIST, "the Rust program has set a global tracing subscriber itself"))
}

/// Panics of the library's threads go to the log. In a Rust program the hook is the program's.
pub(crate) fn log_panics() {
    static ONCE: Once = Once::new();
    if cfg!(test) {
        return;
    }
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| tracing::error!("a defect of stanchion: {info}")));
    });
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.max_level_hint().is_some_and(|most| *metadata.level() <= most)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // A record made by the callback itself does not wait for the lock.
        let level = SINK
            .try_read()
            .map_or(STN_LOG_TRACE, |sink| sink.as_ref().map_or(STN_LOG_OFF, |sink| sink.level));
        Some(match level {
            STN_LOG_OFF => LevelFilter::OFF,
            STN_LOG_ERROR => LevelFilter::ERROR,
            STN_LOG_WARN => LevelFilter::WARN,
            STN_LOG_INFO => LevelFilter::INFO,
            STN_LOG_DEBUG => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if INSIDE.get() {
            return;
        }
        let sink = SINK.read().unwrap_or_else(PoisonError::into_inner);
        let Some(sink) = sink.as_ref() else { return };
        let level = level_number(*event.metadata().level());
        if level > sink.level {
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        let target = CString::new(event.metadata().target()).unwrap_or_default();
        let message = CString::new(text.0.replace('\0', " ")).unwrap_or_default();
        INSIDE.set(true);
        (sink.callback)(sink.context, level, target.as_ptr(), message.as_ptr());
        INSIDE.set(false);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn level_number(level: Level) -> u32 {
    match level {
        Level::ERROR => STN_LOG_ERROR,
        Level::WARN => STN_LOG_WARN,
        Level::INFO => STN_LOG_INFO,
        Level::DEBUG => STN_LOG_DEBUG,
        Level::TRACE => STN_LOG_TRACE,
    }
}

/// A record as one line: its message, then its other fields.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a String does not fail.
        let _ = if field.name() == "message" {
            let rest = std::mem::take(&mut self.0);
            write!(self.0, "{value:?}{rest}")
        } else {
            write!(self.0, ", {} {value:?}", field.name())
        };
    }
}
