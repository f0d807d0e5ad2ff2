// SPDX-License-Identifier: Apache-2.0
//! Rare messages to a reactor: they may allocate, and are answered through a channel.
//!
//! A message owns what it carries, so that a message that is never taken leaks nothing; its asker
//! then gets an error, because its channel closes.

use std::sync::Arc;

use crossbeam::channel::Sender;
use crossbeam::sync::Unparker;

use crate::error::Error;
use crate::memory::{Region, Registration};
use crate::reactor::segment::Segment;
use crate::ring;

/// A failed reactor's question to another one.
pub(crate) struct Quiesce {
    /// The one that asks. It sends no more requests.
    pub(crate) asker: u16,
    /// Dropped without an answer when a drive may still carry out one of its requests.
    pub(crate) answer: Sender<()>,
}

/// Requests to a reactor apart from entries.
pub(crate) enum Control {
    /// Make a region usable on all drives of this reactor.
    Register { region: Arc<Region>, answer: Sender<Result<(), Error>> },
    /// Remove a region.
    Unregister { region: Arc<Region>, answer: Sender<()> },
    /// Serve a session's ring from now on. The answer is the port's number, None when there are too
    /// many.
    OpenPort { ring: ring::Engine, client: Unparker, answer: Sender<Option<u32>> },
    /// Stop taking entries, finish those in flight, then remove the session.
    ClosePort { port: u32, answer: Sender<()> },
    /// Also signal an event when the session's client is to be woken.
    SetEvent { port: u32, event: Arc<ring::Event>, answer: Sender<()> },
    /// Let a session's entries name a buffer. The answer is its key, None when there are too many.
    AddBuffer { port: u32, registration: Registration, answer: Sender<Option<u32>> },
    /// Take a buffer's key back.
    RemoveBuffer { port: u32, key: u32 },
    /// Let a session's entries name a segment. The answer is its handle.
    AddSegment { port: u32, segment: Arc<Segment>, answer: Sender<Option<u64>> },
    /// Take a segment's handle back once none of its entries is in flight.
    RemoveSegment { port: u32, handle: u64, answer: Sender<()> },
    /// Answer when nothing of a reactor that failed is in flight here.
    Quiesce(Quiesce),
    /// Finish what is in flight and end the thread.
    Stop,
}
