// SPDX-License-Identifier: Apache-2.0
//! Opening a pool: the devices, the lock, recovery, then the threads.

use std::sync::Arc;

use uuid::Uuid;

use crate::address::DriveAddress;
use crate::device::missing::MissingDrive;
use crate::device::retrying::Retrying;
use crate::device::{self, Device, DriveInfo, OpenMode};
use crate::direct::DirectDrives;
use crate::drives::Drives as _;
use crate::error::{Error, ErrorKind};
use crate::format::Layout;
use crate::host::lock::PoolLock;
use crate::memory::HugePages;
use crate::notice::Notice;
use crate::pool::content::{Content, read_content};
use crate::pool::context::{PoolContext, unix_ns};
use crate::pool::foreign;
use crate::pool::open_pool::{Held, OpenPool};
use crate::pool::options::{PoolMode, PoolOptions};
use crate::pool::ownership::Ownership;
use crate::pool::threads::{self, Threads};
use crate::recover::currency::rings;
use crate::recover::labels::DriveLabels;
use crate::recover::membership::Membership;
use crate::recover::opening::{Identified, Opening, identify, recover_state};
use crate::state::State;

/// Opens the pool on the drives that the options name. The notices are what opening handled.
pub(super) fn open(options: &PoolOptions) -> Result<(OpenPool, Vec<Notice>), Error> {
    if options.drives.is_empty() {
        return Err(Error::Usage("no drive was named; name each drive of the pool".into()));
    }
    let mut notices = Vec::new();
    let devices = open_usable(options, &mut notices)?;
    open_noting(devices, options, notices)
}

/// Opens the pool on devices that are already open.
#[cfg(any(test, feature = "internals"))]
pub(super) fn open_on(
    devices: Vec<Box<dyn Device>>,
    options: &PoolOptions,
) -> Result<(OpenPool, Vec<Notice>), Error> {
    open_noting(devices, options, Vec::new())
}

fn open_noting(
    devices: Vec<Box<dyn Device>>,
    options: &PoolOptions,
    mut notices: Vec<Notice>,
) -> Result<(OpenPool, Vec<Notice>), Error> {
    let writable = options.mode == PoolMode::ReadWrite;
    let devices: Vec<_> = devices.into_iter().map(Retrying::over).collect();
    let pages = metadata_pages(&devices);
    let mut given = DirectDrives::new(devices, pages)?;
    // Before anything is read: until then another owner may change it.
    let ownership = match writable {
        true => Some(Ownership::take(&mut given, options.take_over, &mut notices)?),
        false => None,
    };
    let (mut given, found) = identify_given(given, options, &mut notices)?;
    let held = match ownership {
        Some(ownership) => Some(Held { ownership, _lock: lock_pool(found.membership.label.pool)? }),
        None => None,
    };
    if writable && !options.degraded {
        found.membership.require_all()?;
    }
    // It may erase, so the pool is locked before.
    foreign::check(&mut given, &found, options, &mut notices)?;
    let Identified { labels, membership } = found;
    let devices = in_order(given.into_devices(), &membership);
    let mut drives = DirectDrives::new(devices, pages)?;
    let opening = Opening {
        writable,
        degraded: options.degraded,
        fall_back: options.fall_back,
        now_unix_ns: unix_ns(),
        owner: held.as_ref().map(|held| held.ownership.owner.clone()).unwrap_or_default(),
    };
    let state = match writable {
        true => recover_state(&mut drives, labels, &membership, opening, &mut notices)?,
        false => recover_beside(&mut drives, &labels, &membership, &opening, &mut notices)?,
    };
    foreign::leave_out_its_damage(&mut notices);
    if writable {
        notices.extend(drives.info().iter().filter_map(Notice::of_cache));
    }
    let info = drives.info().to_vec();
    let (context, threads) = start(options, drives, info, pages, state)?;
    Ok((OpenPool::new(context, threads, held), notices))
}

/// Recovers for reading, beside an owner that may go on writing. What is damaged may be what it
/// just writes: then it is read again.
fn recover_beside(
    drives: &mut DirectDrives,
    labels: &[Option<DriveLabels>],
    membership: &Membership,
    opening: &Opening,
    notices: &mut Vec<Notice>,
) -> Result<State, Error> {
    /// The owner may commit some thousand times a second, and this takes milliseconds.
    const ATTEMPTS: u32 = 100;
    let label = membership.for_reading()?;
    let mut before = None;
    for attempt in 1.. {
        let mut found = Vec::new();
        let labels = labels.to_vec();
        let result = recover_state(drives, labels, membership, opening.clone(), &mut found);
        let is_doubtful = match &result {
            Ok(_) => !found.iter().all(is_about_membership),
            Err(error) => error.kind() == ErrorKind::Damaged,
        };
        if is_doubtful && attempt < ATTEMPTS {
            // Real damage stays while no one writes.
            let now = Some(rings(drives, &label)?);
            if now != before {
                before = now;
                continue;
            }
        }
        notices.extend(found);
        return result;
    }
    unreachable!("the last attempt returns")
}

/// Whether it says which drives take part, which no owner changes for a moment only.
fn is_about_membership(notice: &Notice) -> bool {
    matches!(
        notice,
        Notice::Unreachable { .. }
            | Notice::Missing { .. }
            | Notice::Absent { .. }
            | Notice::Rebuilding { .. }
            | Notice::Foreign { .. }
    )
}

/// The lock of a pool. Without a folder for it, the locks of the drives are what keeps other
/// processes out: every drive that is not locked itself has a file in that folder, and was not
/// opened without it.
pub(super) fn lock_pool(pool: Uuid) -> Result<Option<PoolLock>, Error> {
    match PoolLock::take(pool) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind() == ErrorKind::Environment => {
            tracing::debug!("the pool is locked by its drives only: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Finds the place of each drive in the pool. A drive without a label is refused for writing;
/// for reading the others are enough.
fn identify_given(
    mut given: DirectDrives,
    options: &PoolOptions,
    notices: &mut Vec<Notice>,
) -> Result<(DirectDrives, Identified), Error> {
    loop {
        let mut found_notices = Vec::new();
        let identified = identify(&mut given, options.tolerates_missing(), &mut found_notices);
        let error = match identified {
            Ok(found) => {
                notices.append(&mut found_notices);
                return Ok((given, found));
            }
            Err(error) => error,
        };
        let Error::NotFormatted { address, serial } = &error else { return Err(error) };
        let is_it = |info: &DriveInfo| info.address == *address;
        let Some(index) = given.info().iter().position(is_it) else { return Err(error) };
        if options.mode == PoolMode::ReadWrite {
            return match read_content(&mut given, index)? {
                Content::Foreign(what) => {
                    let reason = format!("it has no label of a pool; it holds {what}");
                    let (address, serial) = (address.clone(), serial.clone());
                    Err(Error::Refused { address, serial, reason })
                }
                _ => Err(error),
            };
        }
        if given.info().len() == 1 {
            return Err(error);
        }
        notices.push(Notice::Unreachable { address: address.clone(), why: error.to_string() });
        let mut devices = given.into_devices();
        devices.remove(index);
        let pages = metadata_pages(&devices);
        given = DirectDrives::new(devices, pages)?;
    }
}

/// Hands the devices to their reactors and starts the keeper.
fn start(
    options: &PoolOptions,
    drives: DirectDrives,
    info: Vec<DriveInfo>,
    metadata_pages: HugePages,
    state: State,
) -> Result<(Arc<PoolContext>, Threads), Error> {
    let layout: Layout = state.label().layout.clone();
    let needs_huge = metadata_pages == HugePages::Required;
    let session_pages = if needs_huge { HugePages::Required } else { options.huge_pages };
    let plan = threads::Plan::new(options, drives.into_devices(), metadata_pages, layout)?;
    plan.start(|queues| PoolContext::new(options.mode, session_pages, info, queues, state))
}

/// Opens every drive, each by the back end that its address selects.
pub(super) fn open_devices(
    drives: &[DriveAddress],
    mode: OpenMode,
    queue_depth: Option<u32>,
) -> Result<Vec<Box<dyn Device>>, Error> {
    drives.iter().map(|address| device::open(address, mode, queue_depth)).collect()
}

/// Opens the drives that the options name. Where the pool may be opened without some drives, a
/// drive that is absent or does not answer is left out.
pub(super) fn open_usable(
    options: &PoolOptions,
    notices: &mut Vec<Notice>,
) -> Result<Vec<Box<dyn Device>>, Error> {
    let writable = options.mode == PoolMode::ReadWrite;
    let mode = if writable { OpenMode::ReadWrite } else { OpenMode::ReadOnly };
    let mut devices = Vec::new();
    let mut first_error = None;
    for address in &options.drives {
        foreign::refuse_in_use(address, options)?;
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

/// Pages for metadata: huge ones where a drive needs them. Metadata is too small to gain from them.
pub(super) fn metadata_pages(devices: &[Box<dyn Device>]) -> HugePages {
    let needed = devices.iter().any(|device| device.info().needs_huge_pages);
    if needed { HugePages::Required } else { HugePages::Off }
}

/// The devices in the order of the pool's drive table, with placeholders for those that are
/// missing.
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
