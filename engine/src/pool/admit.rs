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
use crate::device::{self, Device, DriveInfo, OpenMode};
use crate::direct::DirectDrives;
use crate::drives::Drives as _;
use crate::error::Error;
use crate::format::{DriveState, Label};
use crate::host::lock::{PoolLock, Sharing};
use crate::host::safety::{self, Findings};
use crate::memory::HugePages;
use crate::pool::context::new_id;
use crate::pool::format::{Content, Survey, label_serial, read_content};
use crate::pool::open::{in_order, metadata_pages, open_usable};
use crate::pool::options::{PoolMode, PoolOptions};
use crate::recover::labels::read_labels;
use crate::recover::membership::Membership;
use crate::recover::opening::{Identified, identify};
use crate::units::DriveIndex;

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

/// Admits `replacement` to the pool of the other drives. The pool must not be open. When this
/// returns the pool can be opened with the drive; [`crate::Pool::verify`] with `repair` then fills
/// it.
///
/// # Errors
/// [`Error::Usage`] when no drive of the pool is missing, or the drive is too small;
/// [`Error::Refused`] when the drive may hold data that `force` would destroy; every error of
/// opening the pool.
pub fn admit(
    options: &PoolOptions,
    replacement: &DriveAddress,
    force: bool,
) -> Result<Admission, Error> {
    let mut options = options.clone();
    options.drives.retain(|address| address != replacement);
    options.mode = PoolMode::ReadWrite;
    options.degraded = true;
    let mut in_use = Findings::default();
    if let DriveAddress::Path(path) = replacement {
        in_use = safety::inspect(path)?;
    }
    let devices = open_usable(&options, &mut Vec::new())?;
    let newcomer = device::open(replacement, OpenMode::ReadWrite, options.queue_depth)?;
    admit_checked(devices, newcomer, in_use, force)
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
    force: bool,
) -> Result<Admission, Error> {
    admit_checked(devices, newcomer, Findings::default(), force)
}

fn admit_checked(
    devices: Vec<Box<dyn Device>>,
    newcomer: Box<dyn Device>,
    in_use: Findings,
    force: bool,
) -> Result<Admission, Error> {
    let devices: Vec<_> = devices.into_iter().map(Retrying::over).collect();
    let alone = vec![Retrying::over(newcomer)];
    let pages = [metadata_pages(&devices), metadata_pages(&alone)];
    let pages = if pages.contains(&HugePages::Required) { HugePages::Required } else { pages[0] };
    let mut given = DirectDrives::new(devices, pages)?;
    let Identified { membership, .. } = identify(&mut given, true, &mut Vec::new())?;
    let _lock = PoolLock::take(membership.label.pool, Sharing::Exclusive)?;

    let mut alone = DirectDrives::new(alone, pages)?;
    let info = alone.info()[0].clone();
    let content = read_content(&mut alone, 0)?;
    let own_label = match content {
        Content::Pool { pool, .. } if pool == membership.label.pool => {
            Some(read_labels(&mut alone, 0)?.label)
        }
        _ => None,
    };
    let vacancy = Vacancy::find(&membership, own_label.as_ref(), &info)?;
    if !vacancy.returning {
        Survey::of(&info, content, in_use).check(force)?;
    }

    let mut devices = in_order(given.into_devices(), &membership);
    let replaced_serial = membership.label.drives[vacancy.place.as_usize()].serial.clone();
    devices[vacancy.place.as_usize()] = alone.into_devices().remove(0);
    let mut drives = DirectDrives::new(devices, pages)?;
    let mut label = membership.without_missing()?;
    label.follow(&membership.label);
    let entry = &mut label.drives[vacancy.place.as_usize()];
    entry.state = DriveState::Rebuilding;
    if !vacancy.returning {
        entry.uuid = new_id();
        entry.serial = label_serial(&info);
    }
    commit::take_in(&mut drives, &label, vacancy.place)?;
    let serial = label.drives[vacancy.place.as_usize()].serial.clone();
    Ok(Admission { serial, replaced_serial, returning: vacancy.returning })
}

/// The place that the drive gets.
struct Vacancy {
    place: DriveIndex,
    returning: bool,
}

impl Vacancy {
    fn find(
        membership: &Membership,
        own_label: Option<&Label>,
        info: &DriveInfo,
    ) -> Result<Vacancy, Error> {
        let label = &membership.label;
        let numbered = || (0..).map(DriveIndex).zip(&label.drives);
        let is_vacant = |place: DriveIndex| membership.order[place.as_usize()].is_none();
        if let Some(own) = own_label {
            let known = numbered().find(|(_, entry)| entry.uuid == own.drive().uuid);
            match known {
                Some((place, _)) if is_vacant(place) => {
                    return Ok(Vacancy { place, returning: true });
                }
                Some((_, entry)) => {
                    let (address, serial) = (info.address.clone(), entry.serial.clone());
                    return Err(Error::DuplicateDrive { address, serial });
                }
                None => {}
            }
        }
        let mut vacant = numbered().filter(|(place, _)| is_vacant(*place)).peekable();
        if vacant.peek().is_none() {
            return Err(Error::Usage(format!(
                "pool {}: no drive is missing, so no drive can be replaced",
                label.pool
            )));
        }
        let needed_bytes = vacant.clone().map(|(_, entry)| entry.capacity_bytes).min();
        let fits = vacant.find(|(_, entry)| entry.capacity_bytes <= info.capacity_bytes);
        match fits {
            Some((place, _)) => Ok(Vacancy { place, returning: false }),
            None => Err(Error::Usage(format!(
                "drive {} ({}) has {} bytes; the drive that it replaces had {}",
                info.address,
                info.serial,
                info.capacity_bytes,
                needed_bytes.unwrap_or(0)
            ))),
        }
    }
}
