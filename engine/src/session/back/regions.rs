// SPDX-License-Identifier: Apache-2.0
//! The regions that drives have registered for one session.
//!
//! - A region is registered with every drive of the pool or with none: if one drive cannot use it,
//!   the others unregister it.
//! - A region stays registered until each of its registrations, by this session and others, is
//!   taken back.

use std::sync::Arc;

use crate::error::Error;
use crate::memory::{HugePages, Region};
use crate::pool::context::PoolContext;
use crate::reactor::control::Control;
use crate::reactor::queues::Queues;

/// The session's registrations, one entry for each.
pub(super) struct KnownRegions {
    context: Arc<PoolContext>,
    registered: Vec<Arc<Region>>,
}

impl KnownRegions {
    pub(super) fn new(context: &Arc<PoolContext>) -> KnownRegions {
        KnownRegions { context: Arc::clone(context), registered: Vec::new() }
    }

    /// A new region, of the pages that the pool was opened with; not registered yet.
    pub(super) fn make(&self, len_bytes: u64) -> Result<Arc<Region>, Error> {
        let pages = self.context.huge_pages;
        let region = Region::new(len_bytes, pages)?;
        if pages == HugePages::Preferred && !region.is_huge() {
            tracing::warn!(
                "no huge pages for {} bytes of buffers: ordinary pages are used",
                region.len_bytes()
            );
        }
        Ok(Arc::new(region))
    }

    pub(super) fn is_registered(&self, region: &Region) -> bool {
        self.registered.iter().any(|known| known.id() == region.id())
    }

    /// Makes a region usable on every drive.
    pub(super) fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        let queues = &self.context.queues;
        self.context.add_registration(region.id(), || {
            register_everywhere(queues, region)
                .inspect_err(|_| unregister_everywhere(queues, region))
        })?;
        self.registered.push(Arc::clone(region));
        Ok(())
    }

    /// Takes one registration of a region back.
    pub(super) fn unregister(&mut self, region: &Region) {
        let place = self.registered.iter().position(|known| known.id() == region.id());
        if let Some(place) = place {
            self.take_back(place);
        }
    }

    /// Takes all of them back.
    pub(super) fn unregister_all(&mut self) {
        while !self.registered.is_empty() {
            self.take_back(0);
        }
    }

    fn take_back(&mut self, place: usize) {
        let region = self.registered.swap_remove(place);
        let queues = &self.context.queues;
        self.context.remove_registration(region.id(), || unregister_everywhere(queues, &region));
    }
}

fn register_everywhere(queues: &Queues, region: &Arc<Region>) -> Result<(), Error> {
    for end in &queues.reactors {
        end.mailbox.ask(|answer| Control::Register { region: Arc::clone(region), answer })??;
    }
    Ok(())
}

fn unregister_everywhere(queues: &Queues, region: &Arc<Region>) {
    for end in &queues.reactors {
        // A reactor that has ended has no regions any more.
        let _ =
            end.mailbox.ask(|answer| Control::Unregister { region: Arc::clone(region), answer });
    }
}
