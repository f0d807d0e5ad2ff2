// SPDX-License-Identifier: Apache-2.0
//! The threads of an open pool: reactors, the keeper, checksum helpers; how they start and end.

use std::sync::Arc;
use std::thread::JoinHandle;

use core_affinity::CoreId;
use crossbeam::sync::Parker;

use crate::checksum::ChecksumHelpers;
use crate::device::Device;
use crate::device::condition::Conditions;
use crate::direct::DirectDrives;
use crate::error::Error;
use crate::format::Layout;
use crate::limits::MAX_DRIVES;
use crate::memory::HugePages;
use crate::pool::context::PoolContext;
use crate::pool::keeper::{Call, Keeper};
use crate::pool::options::PoolOptions;
use crate::reactor::Reactor;
use crate::reactor::answer::Reply;
use crate::reactor::control::Control;
use crate::reactor::drive_queue::DriveQueue;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::queues::{CREDITS, KEEPER_CREDITS, Queues, Route};
use crate::reactor::remote_drive::RemoteDrive;
use crate::units::DriveIndex;

/// Which reactor serves each drive, and which core runs each reactor.
pub(super) struct Plan {
    options: PoolOptions,
    devices: Vec<Box<dyn Device>>,
    metadata_pages: HugePages,
    layout: Layout,
    /// By reactor.
    cores: Vec<Option<CoreId>>,
}

impl Plan {
    pub(super) fn new(
        options: &PoolOptions,
        devices: Vec<Box<dyn Device>>,
        metadata_pages: HugePages,
        layout: Layout,
    ) -> Result<Plan, Error> {
        let available = core_affinity::get_core_ids().unwrap_or_default();
        let wanted = match &options.cores {
            Some(cores) => choose_cores(cores, &available)?,
            // The last cores: the first ones serve most interrupts and most other programs.
            None => available.iter().rev().copied().collect(),
        };
        let spare = available.len().saturating_sub(1).max(1);
        let by_default = options.cores.as_ref().map_or(spare, Vec::len).min(devices.len());
        let reactors = options.reactors.unwrap_or(by_default).clamp(1, devices.len());
        let cores = (0..reactors).map(|reactor| wanted.get(reactor).copied()).collect();
        Ok(Plan { options: options.clone(), devices, metadata_pages, layout, cores })
    }

    /// Starts everything. `make_context` is called once the queues are there.
    pub(super) fn start(
        self,
        make_context: impl FnOnce(Arc<Queues>) -> PoolContext,
    ) -> Result<(Arc<PoolContext>, Threads), Error> {
        let reactors = self.cores.len();
        let helpers =
            ChecksumHelpers::start(self.options.checksum_thread_count(), reactors * CREDITS)?;
        let info: Vec<_> = self.devices.iter().map(|device| device.info().clone()).collect();
        let depths = info.iter().map(|info| info.queue_depth).collect();
        let inbox_capacity = Queues::inbox_capacity(reactors);
        let mut drive_queues: Vec<Vec<DriveQueue<Reply>>> =
            (0..reactors).map(|_| Vec::new()).collect();
        let mut routes = Vec::new();
        let conditions = Arc::new(Conditions::new(info.len()));
        for (drive, device) in self.devices.into_iter().enumerate() {
            let reactor = drive % reactors;
            let local = drive_queues[reactor].len() as u16;
            routes.push(Route { reactor: reactor as u16, local });
            let depth = device.info().queue_depth;
            let (drive, conditions) = (DriveIndex(drive as u16), Arc::clone(&conditions));
            drive_queues[reactor].push(DriveQueue::new(
                device,
                depth,
                inbox_capacity,
                drive,
                conditions,
            ));
        }
        let keeper_parker = Parker::new();
        let parkers: Vec<Parker> = (0..reactors).map(|_| Parker::new()).collect();
        let queue = helpers.queue();
        let queues =
            Queues::new(&parkers, &keeper_parker, queue, routes, depths, self.layout, conditions);
        let queues = Arc::new(queues);

        let mailbox = Arc::new(Mailbox::new(keeper_parker.unparker().clone()));
        let context = Arc::new(make_context(Arc::clone(&queues)));
        let mut threads = Threads {
            queues: Arc::clone(&queues),
            keeper_mailbox: Arc::clone(&mailbox),
            keeper: None,
            reactors: Vec::new(),
            helpers: Some(helpers),
        };
        for (index, ((parker, drives), core)) in
            parkers.into_iter().zip(drive_queues).zip(self.cores).enumerate()
        {
            let reactor = Reactor::new(index as u16, Arc::clone(&queues), parker, drives);
            let run = move || {
                if let Some(core) = core
                    && !core_affinity::set_for_current(core)
                {
                    tracing::warn!("reactor {index} could not be pinned to core {}", core.id);
                }
                reactor.run();
            };
            threads.reactors.push(spawn(format!("stn-reactor-{index}"), run)?);
        }
        let remote = info.into_iter().enumerate().map(|(drive, info)| {
            let drive = DriveIndex(drive as u16);
            Box::new(RemoteDrive::new(drive, info, Arc::clone(&queues))) as Box<dyn Device>
        });
        let drives = DirectDrives::new(remote.collect(), self.metadata_pages)?;
        let drives = drives.sleeping_on(keeper_parker);
        let keeper = Keeper::new(Arc::clone(&context), drives);
        threads.keeper = Some(spawn("stn-keeper".into(), move || keeper.run(&mailbox))?);
        Ok((context, threads))
    }
}

fn choose_cores(wanted: &[usize], available: &[CoreId]) -> Result<Vec<CoreId>, Error> {
    let find = |core: &usize| available.iter().find(|id| id.id == *core).copied();
    let missing: Vec<_> = wanted.iter().filter(|core| find(core).is_none()).collect();
    if wanted.is_empty() || !missing.is_empty() {
        let known: Vec<_> = available.iter().map(|id| id.id).collect();
        return Err(Error::Usage(format!(
            "cores {missing:?} cannot be used; this process may use {known:?}"
        )));
    }
    Ok(wanted.iter().filter_map(find).collect())
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let what = format!("starting thread {name}");
    std::thread::Builder::new().name(name).spawn(run).map_err(|e| Error::os(what, e))
}

/// The running threads. Dropping them ends them in the order that lets each finish its work.
pub(super) struct Threads {
    queues: Arc<Queues>,
    keeper_mailbox: Arc<Mailbox<Call>>,
    keeper: Option<JoinHandle<()>>,
    reactors: Vec<JoinHandle<()>>,
    helpers: Option<ChecksumHelpers>,
}

impl Threads {
    /// The keeper's mailbox.
    pub(super) fn keeper(&self) -> &Mailbox<Call> {
        &self.keeper_mailbox
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // A thread that panicked has printed that on standard error; join the others all the same.
        if let Some(keeper) = self.keeper.take() {
            let _ = self.keeper_mailbox.send(Call::Stop);
            let _ = keeper.join();
        }
        for end in &self.queues.reactors {
            let _ = end.mailbox.send(Control::Stop);
        }
        for reactor in self.reactors.drain(..) {
            let _ = reactor.join();
        }
        drop(self.helpers.take());
    }
}

const _: () = assert!(MAX_DRIVES <= KEEPER_CREDITS);
