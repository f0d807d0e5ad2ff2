//! Opening a pool: devices, labels, lock, recovery, then the threads.

use std::sync::Arc;

use crate::address::DriveAddress;
use crate::device::kernel::OpenMode;
use crate::device::patient::Patient;
use crate::device::{self, Device};
use crate::direct::DirectDrives;
use crate::drives::{DriveCommand, Drives};
use crate::error::Error;
use crate::format::{Catalogue, Layout};
use crate::lock::{PoolLock, Sharing};
use crate::memory::HugePages;
use crate::metadata::{self, BadCopy};
use crate::pool::options::{PoolMode, PoolOptions};
use crate::pool::shared::{Shared, unix_ns};
use crate::pool::threads::{self, Threads};
use crate::pool::{Notice, Open, Pool};
use crate::recover::{self, DriveLabels, Newest, Roots};
use crate::state::{Committed, Holding, State};
use crate::units::DriveIndex;

pub(super) fn open(options: &PoolOptions) -> Result<Pool, Error> {
    if options.drives.is_empty() {
        return Err(Error::Usage("no drive was named; give --drive for each drive".into()));
    }
    let writable = options.mode == PoolMode::ReadWrite;
    let mode = if writable { OpenMode::ReadWrite } else { OpenMode::ReadOnly };
    open_on(open_devices(&options.drives, mode, options.queue_depth)?, options)
}

/// Opens the pool on devices that are open already.
pub(super) fn open_on(devices: Vec<Box<dyn Device>>, options: &PoolOptions) -> Result<Pool, Error> {
    let writable = options.mode == PoolMode::ReadWrite;
    let devices: Vec<_> = devices.into_iter().map(Patient::over).collect();
    let pages = metadata_pages(&devices);
    let mut given = DirectDrives::new(devices, pages)?;
    let (labels, order) = identify(&mut given)?;
    let sharing = if writable { Sharing::Exclusive } else { Sharing::Shared };
    let lock = PoolLock::take(labels[0].label.pool, sharing)?;

    let mut drives = DirectDrives::new(in_order(given.into_devices(), &order), pages)?;
    let labels = in_order(labels, &order);
    let mut notices = Vec::new();
    let state = recover_state(&mut drives, labels, writable, unix_ns(), &mut notices)?;
    let facts = drives.facts().to_vec();
    let (shared, threads) = start(options, drives, facts, pages, state)?;
    let open = Arc::new(Open { _threads: threads, _lock: lock });
    Ok(Pool { shared, notices, open })
}

/// Opens every drive, each by the back end that its address names.
pub(super) fn open_devices(
    drives: &[DriveAddress],
    mode: OpenMode,
    queue_depth: u32,
) -> Result<Vec<Box<dyn Device>>, Error> {
    drives.iter().map(|address| device::open(address, mode, queue_depth)).collect()
}

/// Pages for metadata: SPDK reads and writes huge pages only; the kernel takes any, and metadata is
/// too little to be worth huge ones.
pub(super) fn metadata_pages(devices: &[Box<dyn Device>]) -> HugePages {
    let any_spdk = devices.iter().any(|device| device.facts().back_end == device::SPDK);
    if any_spdk { HugePages::Required } else { HugePages::Off }
}

/// Brings things into the order of the pool's drive table.
fn in_order<T>(things: Vec<T>, order: &[usize]) -> Vec<T> {
    let mut things: Vec<Option<T>> = things.into_iter().map(Some).collect();
    order.iter().filter_map(|given| things[*given].take()).collect()
}

/// Reads the labels, and says which of the drives belongs where in the pool's drive table.
pub(crate) fn identify(drives: &mut dyn Drives) -> Result<(Vec<DriveLabels>, Vec<usize>), Error> {
    let count = drives.facts().len();
    let labels =
        (0..count).map(|i| recover::read_labels(drives, i)).collect::<Result<Vec<_>, _>>()?;
    let order = recover::order_drives(&labels, drives.facts())?;
    Ok((labels, order))
}

/// From the drives, in the order of the pool's drive table, to the newest whole state; for writing
/// also repairs and commits. `now_unix_ns` is the time of that commit.
pub(crate) fn recover_state(
    drives: &mut dyn Drives,
    labels: Vec<DriveLabels>,
    writable: bool,
    now_unix_ns: u64,
    notices: &mut Vec<Notice>,
) -> Result<State, Error> {
    let label = labels[0].label.clone();
    if writable {
        label.features.writable().map_err(|error| Error::Refused {
            address: drives.facts()[0].address.clone(),
            serial: label.drive().serial.clone(),
            reason: error.to_string(),
        })?;
    }
    notices.extend(repair_labels(drives, &labels, writable)?);
    let roots = recover::read_roots(drives, &label)?;
    if writable {
        recover::unread_root(drives, &roots)?;
    }
    let newest = recover::choose_generation(drives, &label, &roots)?;
    notices.extend(recover::repair_roots(drives, &label, &roots, writable));
    let committed = if writable {
        let mut repair = |drives: &mut dyn Drives, bad: &[BadCopy], sound: Option<&[u8]>| {
            notices.extend(repair_metadata(drives, bad, sound));
        };
        recover::read_holdings(drives, &label, &newest.catalogue, &mut repair)?
    } else {
        without_holdings(&newest.catalogue, label.drives.len())
    };
    tell(&newest, &roots, writable, notices);
    let mut state = State::new(label, newest.root, newest.before, newest.newest_seen, committed);
    if writable {
        // Above every epoch that left a trace, also that of a generation that was given up.
        let newest_epoch = roots.by_generation.values().map(|root| root.epoch).max().unwrap_or(0);
        let planned = state.plan_empty(Some(newest_epoch + 1), now_unix_ns)?;
        planned.plan.run(drives).map_err(|failure| failure.error)?;
        state.committed(planned);
    }
    Ok(state)
}

/// Readers need to know what there is, not where everything else lies.
fn without_holdings(catalogue: &Catalogue, drives: usize) -> Vec<Committed> {
    let committed = |entry: &crate::format::CatalogueEntry| Committed {
        entry: entry.clone(),
        holding: Holding::new(drives),
        damage: None,
    };
    catalogue.entries.iter().map(committed).collect()
}

/// Rewrites bad label copies from the sound one, where that is allowed.
pub(super) fn repair_labels(
    drives: &mut dyn Drives,
    labels: &[DriveLabels],
    writable: bool,
) -> Result<Vec<Notice>, Error> {
    let mut notices = Vec::new();
    for (index, labels) in labels.iter().enumerate() {
        for (offset, damage) in &labels.bad {
            if !writable {
                notices.push(Notice::DamagedCopy(damage.clone()));
                continue;
            }
            let block = labels.label.encode(*offset);
            let drive = DriveIndex(index as u16);
            let mut batch =
                [DriveCommand::Write { drive, offset_bytes: *offset, data: &block, durable: true }];
            crate::commit::run_all(drives, &mut batch)?;
            notices.push(Notice::Repaired(damage.clone()));
        }
    }
    Ok(notices)
}

/// Rewrites bad copies of a manifest or segment table from a sound one. A copy that cannot be
/// rewritten stays a damaged copy; the object is not lost.
pub(super) fn repair_metadata(
    drives: &mut dyn Drives,
    bad: &[BadCopy],
    sound: Option<&[u8]>,
) -> Vec<Notice> {
    let Some(sound) = sound else { return Vec::new() };
    let repaired = metadata::repair_copies(drives, bad, sound);
    bad.iter()
        .zip(repaired)
        .map(|(copy, repaired)| {
            let damage = copy.damage.clone();
            if repaired { Notice::Repaired(damage) } else { Notice::DamagedCopy(damage) }
        })
        .collect()
}

/// Notices about the catalogue and about a commit that was cut short. A pool opened for writing gets
/// a new catalogue and a new root on every drive at once, which repairs both.
fn tell(newest: &Newest, roots: &Roots, writable: bool, notices: &mut Vec<Notice>) {
    if let Some(lost) = newest.given_up {
        notices.push(Notice::FellBack { lost, opened: newest.root.generation });
        notices.extend(newest.bad.iter().map(|copy| Notice::DamagedCopy(copy.damage.clone())));
        return;
    }
    for copy in &newest.bad {
        let damage = copy.damage.clone();
        notices.push(if writable { Notice::Repaired(damage) } else { Notice::DamagedCopy(damage) });
    }
    if writable && roots.bad.is_empty() && !roots.incomplete.is_empty() {
        notices.push(Notice::RolledForward(newest.newest_seen));
    }
}

/// Hands the devices to their reactors and starts the keeper.
fn start(
    options: &PoolOptions,
    drives: DirectDrives,
    facts: Vec<device::DriveFacts>,
    metadata_pages: HugePages,
    state: State,
) -> Result<(Arc<Shared>, Threads), Error> {
    let layout: Layout = state.label().layout.clone();
    let needs_huge = metadata_pages == HugePages::Required;
    let session_pages = if needs_huge { HugePages::Required } else { options.huge_pages };
    let plan = threads::Plan::new(options, drives.into_devices(), metadata_pages, layout)?;
    plan.start(|fabric, calls| {
        Shared::new(options.mode, session_pages, facts, fabric, calls, state)
    })
}
