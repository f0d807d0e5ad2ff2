//! Opening a pool: devices, labels, lock, recovery, then the threads.

use std::sync::Arc;

use crate::address::DriveAddress;
use crate::device::kernel::OpenMode;
use crate::device::missing::MissingDrive;
use crate::device::retrying::Retrying;
use crate::device::{self, Device, DriveInfo};
use crate::direct::DirectDrives;
use crate::drives::{DriveCommand, Drives, flush_all, run_all};
use crate::error::{Error, ErrorKind};
use crate::format::{Catalogue, DriveState, Label, Layout};
use crate::lock::{PoolLock, Sharing};
use crate::membership::Membership;
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
    let mut notices = Vec::new();
    let devices = open_usable(options, &mut notices)?;
    open_noting(devices, options, notices)
}

/// Opens the pool on devices that are open already.
pub(super) fn open_on(devices: Vec<Box<dyn Device>>, options: &PoolOptions) -> Result<Pool, Error> {
    open_noting(devices, options, Vec::new())
}

fn open_noting(
    devices: Vec<Box<dyn Device>>,
    options: &PoolOptions,
    mut notices: Vec<Notice>,
) -> Result<Pool, Error> {
    let writable = options.mode == PoolMode::ReadWrite;
    let devices: Vec<_> = devices.into_iter().map(Retrying::over).collect();
    let pages = metadata_pages(&devices);
    let mut given = DirectDrives::new(devices, pages)?;
    let Identified { labels, membership } =
        identify(&mut given, options.tolerates_missing(), &mut notices)?;
    let sharing = if writable { Sharing::Exclusive } else { Sharing::Shared };
    let lock = PoolLock::take(membership.label.pool, sharing)?;
    let devices = in_order(given.into_devices(), &membership);
    let mut drives = DirectDrives::new(devices, pages)?;
    let opening = Opening { writable, degraded: options.degraded, now_unix_ns: unix_ns() };
    let state = recover_state(&mut drives, labels, &membership, opening, &mut notices)?;
    let info = drives.info().to_vec();
    let (shared, threads) = start(options, drives, info, pages, state)?;
    let open = Arc::new(Open { _threads: threads, _lock: lock });
    Ok(Pool { shared, notices, open })
}

/// Opens every drive, each by the back end that its address names.
pub(super) fn open_devices(
    drives: &[DriveAddress],
    mode: OpenMode,
    queue_depth: Option<u32>,
) -> Result<Vec<Box<dyn Device>>, Error> {
    drives.iter().map(|address| device::open(address, mode, queue_depth)).collect()
}

/// Opens the drives that the options name. Where the pool may be opened without some, one that is
/// not there or does not answer is left out.
pub(super) fn open_usable(
    options: &PoolOptions,
    notices: &mut Vec<Notice>,
) -> Result<Vec<Box<dyn Device>>, Error> {
    let writable = options.mode == PoolMode::ReadWrite;
    let mode = if writable { OpenMode::ReadWrite } else { OpenMode::ReadOnly };
    let mut devices = Vec::new();
    let mut first_error = None;
    for address in &options.drives {
        match device::open(address, mode, options.queue_depth) {
            Ok(device) => devices.push(device),
            Err(error)
                if options.tolerates_missing()
                    && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Failed) =>
            {
                let (address, why) = (address.to_string(), error.to_string());
                notices.push(Notice::Unreachable { address, why });
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match first_error {
        Some(error) if devices.is_empty() => Err(error),
        _ => Ok(devices),
    }
}

/// Pages for metadata: SPDK reads and writes huge pages only; the kernel takes any, and metadata is
/// too little to be worth huge ones.
pub(super) fn metadata_pages(devices: &[Box<dyn Device>]) -> HugePages {
    let any_spdk = devices.iter().any(|device| device.info().back_end == device::SPDK);
    if any_spdk { HugePages::Required } else { HugePages::Off }
}

/// The devices in the order of the pool's drive table, with stand-ins for those that are not at hand.
pub(super) fn in_order(
    devices: Vec<Box<dyn Device>>,
    membership: &Membership,
) -> Vec<Box<dyn Device>> {
    let mut devices: Vec<_> = devices.into_iter().map(Some).collect();
    let places = membership.order.iter().zip(&membership.label.drives);
    places
        .map(|(given, entry)| {
            let device = given.and_then(|given| devices[given].take());
            device.unwrap_or_else(|| Box::new(MissingDrive::new(entry)))
        })
        .collect()
}

/// What the labels of the drives at hand say.
pub(crate) struct Identified {
    /// By place in the pool's drive table.
    pub(crate) labels: Vec<Option<DriveLabels>>,
    /// Which drive is which, by the number that it was given.
    pub(crate) membership: Membership,
}

/// Reads the labels, and says which of the drives belongs where in the pool's drive table. With
/// `tolerant`, a drive that does not let its labels be read counts as missing.
pub(crate) fn identify(
    drives: &mut dyn Drives,
    tolerant: bool,
    notices: &mut Vec<Notice>,
) -> Result<Identified, Error> {
    let info = drives.info().to_vec();
    // The number that a drive was given, and what it said.
    let mut read: Vec<(usize, DriveLabels)> = Vec::new();
    let mut first_error = None;
    for (given, info) in info.iter().enumerate() {
        match recover::read_labels(drives, given) {
            Ok(labels) => read.push((given, labels)),
            Err(error @ Error::Io { .. }) if tolerant => {
                let (address, why) = (info.address.clone(), error.to_string());
                notices.push(Notice::Unreachable { address, why });
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(error) = first_error.filter(|_| read.is_empty()) {
        return Err(error);
    }
    let labels: Vec<&Label> = read.iter().map(|(_, labels)| &labels.label).collect();
    let readable: Vec<DriveInfo> = read.iter().map(|(given, _)| info[*given].clone()).collect();
    let mut membership = Membership::new(&labels, &readable)?;
    let mut read: Vec<_> = read.into_iter().map(Some).collect();
    let mut by_place = Vec::new();
    for place in &mut membership.order {
        let (given, labels) = place.and_then(|number| read[number].take()).unzip();
        *place = given;
        by_place.push(labels);
    }
    Ok(Identified { labels: by_place, membership })
}

/// How a pool is opened.
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) writable: bool,
    /// Also for writing without drives that are missing.
    pub(crate) degraded: bool,
    /// The time of the commit that opening for writing makes.
    pub(crate) now_unix_ns: u64,
}

/// From the drives, in the order of the pool's drive table, to the newest whole state; for writing
/// also repairs and commits.
pub(crate) fn recover_state(
    drives: &mut dyn Drives,
    labels: Vec<Option<DriveLabels>>,
    membership: &Membership,
    opening: Opening,
    notices: &mut Vec<Notice>,
) -> Result<State, Error> {
    let Opening { writable, degraded, now_unix_ns } = opening;
    if writable && !degraded {
        membership.require_all()?;
    }
    let mut label = membership.without_missing()?;
    if writable {
        let drive = label.live().next().map_or(0, DriveIndex::as_usize);
        label.features.writable().map_err(|error| Error::Refused {
            address: drives.info()[drive].address.clone(),
            serial: label.drives[drive].serial.clone(),
            reason: error.to_string(),
        })?;
    }
    tell_membership(membership, writable, notices);
    notices.extend(repair_labels(drives, &labels, writable)?);
    let roots = recover::read_roots(drives, &label)?;
    if writable {
        recover::unread_root(drives, &roots)?;
    }
    let newest = recover::choose_generation(drives, &label, &roots)?;
    notices.extend(recover::repair_roots(drives, &label, &roots, writable));
    let all_here = label.copies == 1 && label.members().count() == label.drives.len();
    let committed = if writable || !all_here {
        let mut repair = |drives: &mut dyn Drives, bad: &[BadCopy], sound: Option<&[u8]>| {
            notices.extend(if writable {
                repair_metadata(drives, bad, sound)
            } else {
                let damage = |copy: &BadCopy| Notice::DamagedCopy(copy.damage.clone());
                bad.iter().map(damage).collect()
            });
        };
        recover::read_holdings(drives, &label, &newest.catalogue, &mut repair)?
    } else {
        without_holdings(&newest.catalogue, label.drives.len())
    };
    tell(&newest, &roots, writable, notices);
    if writable {
        // Nothing is committed before every drive that takes part knows who does.
        let some_outdated = labels.iter().flatten().any(|labels| labels.label.epoch < label.epoch);
        if !membership.missing.is_empty() {
            label.epoch += 1;
        }
        if some_outdated || !membership.missing.is_empty() {
            write_labels(drives, &label)?;
        }
    }
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

/// Writes the label to every drive that takes part, durably. Back to front: a drive whose first copy
/// can be read has all of them.
pub(crate) fn write_labels(drives: &mut dyn Drives, label: &Label) -> Result<(), Error> {
    for index in label.live() {
        let own = Label { index, ..label.clone() };
        for offset_bytes in Layout::label_offsets(own.drive().capacity_bytes).into_iter().rev() {
            let block = own.encode(offset_bytes);
            let write =
                DriveCommand::Write { drive: index, offset_bytes, data: &block, durable: true };
            run_all(drives, &mut [write])?;
        }
    }
    flush_all(drives, label.live())
}

/// Notices about drives that take no part, or not yet the whole part.
fn tell_membership(membership: &Membership, writable: bool, notices: &mut Vec<Notice>) {
    for serial in membership.missing_serials() {
        notices.push(Notice::Missing { serial, written_without: writable });
    }
    for entry in &membership.label.drives {
        let serial = entry.serial.clone();
        match entry.state {
            DriveState::Member => {}
            DriveState::Absent => notices.push(Notice::Absent { serial }),
            DriveState::Rebuilding => notices.push(Notice::Rebuilding { serial }),
        }
    }
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
    labels: &[Option<DriveLabels>],
    writable: bool,
) -> Result<Vec<Notice>, Error> {
    let mut notices = Vec::new();
    for (index, labels) in labels.iter().enumerate() {
        let Some(labels) = labels else { continue };
        for (offset, damage) in &labels.bad {
            if !writable {
                notices.push(Notice::DamagedCopy(damage.clone()));
                continue;
            }
            let block = labels.label.encode(*offset);
            let drive = DriveIndex(index as u16);
            let mut batch =
                [DriveCommand::Write { drive, offset_bytes: *offset, data: &block, durable: true }];
            run_all(drives, &mut batch)?;
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
    info: Vec<DriveInfo>,
    metadata_pages: HugePages,
    state: State,
) -> Result<(Arc<Shared>, Threads), Error> {
    let layout: Layout = state.label().layout.clone();
    let needs_huge = metadata_pages == HugePages::Required;
    let session_pages = if needs_huge { HugePages::Required } else { options.huge_pages };
    let plan = threads::Plan::new(options, drives.into_devices(), metadata_pages, layout)?;
    plan.start(|queues, calls| Shared::new(options.mode, session_pages, info, queues, calls, state))
}
