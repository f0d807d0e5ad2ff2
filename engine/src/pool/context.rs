// SPDX-License-Identifier: Apache-2.0
//! The context of one open pool: what its keeper and its sessions share.
//!
//! - The state's lock is held to plan and to adopt, never during I/O.
//! - What is in use, and so stays where it is, is part of the state.
//! - A region that a session has registered is known to every drive.
//! - A segment that is being saved is still there when it is committed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::commit::StateCell;
use crate::device::DriveInfo;
use crate::device::condition::Condition;
use crate::error::Error;
use crate::format::Access;
use crate::memory::HugePages;
use crate::pool::options::PoolMode;
use crate::reactor::queues::Queues;
use crate::reactor::segment::Segment;
use crate::state::{Identity, State};
use crate::units::DriveIndex;

/// Held by the pool, its keeper and its sessions.
pub(crate) struct PoolContext {
    pub(crate) mode: PoolMode,
    /// Pages of session memory.
    pub(crate) huge_pages: HugePages,
    pub(crate) info: Vec<DriveInfo>,
    pub(crate) queues: Arc<Queues>,
    state: Mutex<State>,
    /// By open checkpoint and participant: segments being saved.
    saving: Mutex<HashMap<(u64, u32), Arc<Segment>>>,
    /// Sessions made so far: they are spread round-robin over the reactors.
    sessions: AtomicUsize,
    /// By region: how many registrations of sessions it has.
    registered: Mutex<HashMap<u64, usize>>,
}

impl StateCell for PoolContext {
    fn with_state<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.state())
    }
}

impl PoolContext {
    pub(crate) fn new(
        mode: PoolMode,
        huge_pages: HugePages,
        info: Vec<DriveInfo>,
        queues: Arc<Queues>,
        state: State,
    ) -> PoolContext {
        PoolContext {
            mode,
            huge_pages,
            info,
            queues,
            state: Mutex::new(state),
            saving: Mutex::default(),
            sessions: AtomicUsize::new(0),
            registered: Mutex::default(),
        }
    }

    /// The state. Hold the guard only for one expression.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reactor that serves the next session: one that has not failed, if there is one.
    pub(crate) fn next_reactor(&self) -> u16 {
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        let reactors = &self.queues.reactors;
        let places = (number..number + reactors.len()).map(|place| place % reactors.len());
        let works = |place: &usize| !reactors[*place].has_failed();
        places.clone().find(works).unwrap_or(number % reactors.len()) as u16
    }

    pub(crate) fn remember_segment(&self, open: u64, segment: &Arc<Segment>) {
        self.saving_map().insert((open, segment.participant), Arc::clone(segment));
    }

    pub(crate) fn forget_segment(&self, open: u64, participant: u32) {
        self.saving_map().remove(&(open, participant));
    }

    pub(crate) fn forget_checkpoint(&self, open: u64) {
        self.saving_map().retain(|(number, _), _| *number != open);
    }

    /// The checksum of each chunk of a segment that is whole.
    pub(crate) fn checksums_of(&self, open: u64, participant: u32) -> Vec<u64> {
        let segment = self.saving_map().get(&(open, participant)).cloned();
        segment.map_or_else(Vec::new, |s| (0..s.chunk_count()).map(|c| s.crc64(c)).collect())
    }

    fn saving_map(&self) -> MutexGuard<'_, HashMap<(u64, u32), Arc<Segment>>> {
        self.saving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more registration of a region; the first one runs `register`. Several sessions
    /// may register one region: the drives know it until the last of them unregisters it.
    pub(crate) fn add_registration(
        &self,
        region: u64,
        register: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Held while the reactors answer, so that no other thread unregisters the region meanwhile.
        let mut registered = self.registered_map();
        if !registered.contains_key(&region) {
            register()?;
        }
        *registered.entry(region).or_default() += 1;
        Ok(())
    }

    /// Counts one registration less; the last one runs `unregister`.
    pub(crate) fn remove_registration(&self, region: u64, unregister: impl FnOnce()) {
        let mut registered = self.registered_map();
        if let Some(count) = registered.get_mut(&region) {
            *count -= 1;
            if *count == 0 {
                registered.remove(&region);
                unregister();
            }
        }
    }

    fn registered_map(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails when a drive that takes part cannot take a new checkpoint.
    pub(crate) fn check_drives(&self) -> Result<(), Error> {
        self.poison_if_foreign();
        self.state().check_poison()?;
        let live: Vec<DriveIndex> = self.state().label().live().collect();
        for drive in live {
            let info = &self.info[drive.as_usize()];
            let (why, source) = match self.queues.conditions.of(drive) {
                Condition::Sound | Condition::Foreign(_) => continue,
                Condition::ReadOnly(source) => ("takes no new data", source),
                Condition::Stopped(source) => ("is lost", source),
            };
            let (serial, address) = (info.serial.clone(), info.address.clone());
            return Err(Error::DriveUnfit { serial, address, why, source });
        }
        Ok(())
    }

    /// Whether every drive that takes part keeps other owners out by itself.
    pub(crate) fn is_reserved(&self) -> bool {
        let state = self.state();
        let has = |drive: DriveIndex| self.info[drive.as_usize()].reservations == Some(true);
        state.label().live().all(has)
    }

    /// Poisons the pool when another host has reserved one of its drives: nothing is committed
    /// then.
    pub(crate) fn poison_if_foreign(&self) {
        for (info, condition) in self.info.iter().zip(self.queues.conditions.conditions()) {
            if let Condition::Foreign(status) = condition {
                let (serial, address) = (&info.serial, &info.address);
                let detail =
                    format!("drive {serial} ({address}) is reserved by another host ({status})");
                self.state().poison("reservation", detail);
            }
        }
    }

    pub(crate) fn require_writable(&self) -> Result<(), Error> {
        if self.mode == PoolMode::ReadOnly {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }
}

/// Now, as stored in metadata.
pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// Of a checkpoint that this process begins.
pub(crate) fn new_identity() -> Identity {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Identity { id: new_id(), access: Access::of(uid.as_raw(), gid.as_raw()) }
}

/// A new identity, ordered by time.
pub(crate) fn new_id() -> Uuid {
    Uuid::now_v7()
}
