// SPDX-License-Identifier: Apache-2.0
//! Owning the drives that are to be written, before the first write.
//!
//! - A drive with reservations is reserved: it keeps everybody else out, on whatever host. Where
//!   another owner has it, the newest root says who that is.
//! - An owner that certainly has ended is preempted. Any other is preempted only on request.
//! - A drive without reservations is protected on this host only, by locks. What remains is checked
//!   before each commit: see [`crate::commit`].
//! - What is taken is given back when the devices are dropped, also after an error.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::device::reservation::{self, Holder, Taken};
use crate::direct::DirectDrives;
use crate::drives::Drives as _;
use crate::error::{Error, IoError};
use crate::format::Owner;
use crate::host::owner::{describe, has_ended, this_process};
use crate::notice::Notice;
use crate::recover::one_drive::newest_root;

/// How long a preempted owner's commands may still work inside a drive that cannot abort them. The
/// drive has refused all that it did not begin before the preemption.
const SETTLE: Duration = Duration::from_secs(1);

/// The openings for writing of this process.
static OPEN: Mutex<BTreeSet<Uuid>> = Mutex::new(BTreeSet::new());

fn with_open<T>(work: impl FnOnce(&mut BTreeSet<Uuid>) -> T) -> T {
    work(&mut OPEN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// An opening for writing. Drop it after the devices.
#[derive(Debug)]
pub(super) struct Ownership {
    /// What the roots say of it.
    pub(super) owner: Owner,
}

impl Drop for Ownership {
    fn drop(&mut self) {
        with_open(|open| open.remove(&self.owner.open_id));
    }
}

impl Ownership {
    /// Takes every drive that has reservations.
    ///
    /// # Errors
    /// [`Error::Busy`] that names the owner of a drive; the failure of a drive.
    pub(super) fn take(
        drives: &mut DirectDrives,
        take_over: bool,
        notices: &mut Vec<Notice>,
    ) -> Result<Ownership, Error> {
        let mut ownership = Ownership { owner: this_process(new_key(), [0; 16]) };
        with_open(|open| open.insert(ownership.owner.open_id));
        let key = ownership.owner.reservation_key;
        let (mut any, mut settled) = (false, true);
        for index in 0..drives.info().len() {
            let device = &mut drives.devices_mut()[index];
            let Some(reservations) = device.reservations() else { continue };
            let mut taken = reservation::take(reservations, key, None);
            let mut earlier = None;
            if taken.is_err_and(reservation::is_conflict) {
                earlier = newest_root(drives, index).map(|root| root.owner);
                let holder = holder_of(earlier.as_ref(), take_over);
                let device = &mut drives.devices_mut()[index];
                let Some(reservations) = device.reservations() else { continue };
                taken = reservation::take(reservations, key, Some(&holder));
            }
            let taken = taken.map_err(|error| not_taken(drives, index, error, earlier.as_ref()))?;
            let serial = drives.info()[index].serial.clone();
            if let Some(reservations) = drives.devices_mut()[index].reservations() {
                reservations.settle(taken);
                if taken != Taken::Without {
                    any = true;
                    ownership.owner.host_id = reservations.host_identifier();
                }
            }
            if let Taken::Preempted { aborted } = taken {
                settled &= aborted;
                let owner = earlier.as_ref().map_or_else(|| "an ended process".into(), describe);
                notices.push(Notice::TakenOver { serial, owner });
            }
        }
        if !settled {
            std::thread::sleep(SETTLE);
        }
        if !any {
            ownership.owner.reservation_key = 0;
        }
        Ok(ownership)
    }
}

/// A key of 62 random bits; never 0.
fn new_key() -> u64 {
    Uuid::now_v7().as_u64_pair().1
}

fn holder_of(owner: Option<&Owner>, take_over: bool) -> Holder {
    let known_key = owner.map(|owner| owner.reservation_key).filter(|key| *key != 0);
    let ended = owner.is_some_and(|owner| has_ended(owner, |id| with_open(|o| o.contains(&id))));
    Holder { known_key, ended_key: known_key.filter(|_| ended), take_over }
}

/// The error of a drive that is not ours.
fn not_taken(drives: &DirectDrives, index: usize, error: IoError, owner: Option<&Owner>) -> Error {
    let info = &drives.info()[index];
    let (serial, address) = (info.serial.clone(), info.address.clone());
    if !reservation::is_conflict(error) {
        return Error::Io { serial, address, what: "reserve", offset_bytes: 0, source: error };
    }
    let owner = match owner {
        Some(owner) => format!("{}, or an owner that came after it,", describe(owner)),
        None => "another owner".into(),
    };
    Error::Busy {
        what: format!("drive {serial} ({address})"),
        owner: format!(
            "{owner} by an NVMe reservation (if it has ended, --take-over takes the pool from it)"
        ),
    }
}
