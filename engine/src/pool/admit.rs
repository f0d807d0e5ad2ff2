// SPDX-License-Identifier: Apache-2.0
//! Admitting a drive to a pool in place of a drive that it lost.
//!
//! The drive gets the place, the number and the slots of the lost drive, so no checkpoint's
//! metadata changes. From then on it is rebuilding: it takes every write, and a verification with
//! repair writes the older data. A crash at any moment leaves a pool that opens without the drive,
//! or with the drive rebuilding.

use crate::address::DriveAddress;
use crate::commit;
use crate::device::retrying::Retrying;
use crate::device::{self, Device, OpenMode};
use crate::direct::DirectDrives;
use crate::drives::Drives as _;
use crate::error::Error;
use crate::host::safety::{self, Findings};
use crate::memory::HugePages;
use crate::pool::content::{Content, Survey, read_content};
use crate::pool::context::new_id;
use crate::pool::foreign;
use crate::pool::format::label_serial;
use crate::pool::open::{in_order, lock_pool, metadata_pages, open_usable};
use crate::pool::options::{PoolMode, PoolOptions};
use crate::pool::ownership::Ownership;
use crate::pool::same_drive;
use crate::recover::labels::read_labels;
use crate::recover::opening::{Identified, identify};
use crate::recover::vacancy::{Choice, Vacancy, past_of};

/// A drive that was admitted.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Its serial.
    pub serial: String,
    /// The serial of the drive that it replaces.
    pub replaced_serial: String,
    /// It is the same drive again: its old contents count once they have been verified.
    pub returning: bool,
}

/// A drive to admit.
#[derive(Clone, Debug)]
pub struct Replacement {
    /// The drive.
    pub drive: DriveAddress,
    /// The serial of the drive whose place it gets. Needed where more than one drive is missing: a
    /// drive that was merely not named is not given away.
    pub replaces: Option<String>,
    /// Use it although it holds data, which is lost.
    pub force: bool,
}

/// Admits a drive to the pool of the other drives. The pool must not be open. When this returns the
/// pool can be opened with the drive; [`crate::Pool::verify`] with `repair` then fills it.
///
/// # Errors
/// [`Error::Usage`] when no drive of the pool is missing, the drive is too small, or it is not
/// clear which drive it replaces; [`Error::MissingDrives`] when another drive is missing, too, and
/// the options do not allow that; [`Error::Refused`] when the drive may hold data that `force`
/// would destroy, or a later state of this pool; every error of opening the pool.
pub fn admit(options: &PoolOptions, replacement: &Replacement) -> Result<Admission, Error> {
    let mut options = options.clone();
    let Replacement { drive, replaces, force } = replacement;
    options.drives.retain(|address| address != drive);
    options.mode = PoolMode::ReadWrite;
    let wanted = Wanted {
        replaces: replaces.as_deref(),
        force: *force,
        degraded: options.degraded,
        take_over: options.take_over,
    };
    options.degraded = true;
    // `force` is about the newcomer only.
    options.erase_foreign = false;
    let mut in_use = Findings::default();
    if let DriveAddress::Path(path) = drive {
        in_use = safety::inspect(path)?;
    }
    let devices = open_usable(&options, &mut Vec::new())?;
    let newcomer = device::open(drive, OpenMode::ReadWrite, options.queue_depth)?;
    admit_checked(devices, newcomer, in_use, &options, wanted)
}

/// The same with devices that are already open. The same rules apart from what only the kernel
/// knows.
///
/// # Errors
/// As [`admit`].
#[cfg(any(test, feature = "internals"))]
pub fn admit_on(
    devices: Vec<Box<dyn Device>>,
    newcomer: Box<dyn Device>,
    replaces: Option<&str>,
    force: bool,
    degraded: bool,
) -> Result<Admission, Error> {
    let wanted = Wanted { replaces, force, degraded, take_over: false };
    admit_checked(devices, newcomer, Findings::default(), &PoolOptions::new(Vec::new()), wanted)
}

/// What the caller wants and allows.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    replaces: Option<&'a str>,
    force: bool,
    /// Other drives may be missing.
    degraded: bool,
    /// Other owners are shut out.
    take_over: bool,
}

fn admit_checked(
    devices: Vec<Box<dyn Device>>,
    newcomer: Box<dyn Device>,
    in_use: Findings,
    options: &PoolOptions,
    wanted: Wanted<'_>,
) -> Result<Admission, Error> {
    let devices: Vec<_> = devices.into_iter().map(Retrying::over).collect();
    let alone = vec![Retrying::over(newcomer)];
    let pages = [metadata_pages(&devices), metadata_pages(&alone)];
    let pages = if pages.contains(&HugePages::Required) { HugePages::Required } else { pages[0] };
    let mut given = DirectDrives::new(devices, pages)?;
    let _ownership = Ownership::take(&mut given, wanted.take_over, &mut Vec::new())?;
    let found = identify(&mut given, true, &mut Vec::new())?;
    let _lock = lock_pool(found.membership.label.pool)?;
    foreign::check(&mut given, &found, options, &mut Vec::new())?;
    let Identified { membership, .. } = found;
    let mut drives = DirectDrives::new(in_order(given.into_devices(), &membership), pages)?;

    let mut alone = DirectDrives::new(alone, pages)?;
    let _newcomers = Ownership::take(&mut alone, wanted.take_over, &mut Vec::new())?;
    let info = alone.info()[0].clone();
    let content = read_content(&mut alone, 0)?;
    let own_label = match content {
        Content::Pool { pool, .. } if pool == membership.label.pool => {
            Some(read_labels(&mut alone, 0)?.label)
        }
        _ => None,
    };
    same_drive::refuse_same(&info, drives.info())?;
    if membership.label.copies > 1 && !wanted.force {
        same_drive::refuse_one_medium(&info, drives.info())?;
    }
    let choice =
        Choice { replaces: wanted.replaces, force: wanted.force, degraded: wanted.degraded };
    let past = match &own_label {
        Some(own) => past_of(own, &membership, &mut drives, &mut alone, choice)?,
        None => None,
    };
    let vacancy = Vacancy::find(&membership, past.as_ref(), &info, choice)?;
    if !vacancy.returning {
        Survey::of(&info, content, in_use).check(wanted.force)?;
    }

    let place = vacancy.place.as_usize();
    let mut devices = drives.into_devices();
    devices[place] = alone.into_devices().remove(0);
    let mut drives = DirectDrives::new(devices, pages)?;
    let replaced_serial = membership.label.drives[place].serial.clone();
    let label = vacancy.label(&membership, new_id(), label_serial(&info));
    commit::take_in(&mut drives, &label, vacancy.place, &vacancy.there(&membership))?;
    same_drive::read_back_newcomer(&mut drives, &label, vacancy.place)?;
    let serial = label.drives[place].serial.clone();
    Ok(Admission { serial, replaced_serial, returning: vacancy.returning })
}
