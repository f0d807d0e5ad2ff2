// SPDX-License-Identifier: Apache-2.0
//! What opening or verifying a pool found and handled.

use std::fmt;

use crate::drive_info::DriveInfo;
use crate::error::Damage;
use crate::units::Generation;

/// Something that was found and handled, and that a person should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A damaged copy of metadata was overwritten from a sound one.
    Repaired(Damage),
    /// A damaged copy of metadata was found; another copy served.
    DamagedCopy(Damage),
    /// Damaged or unreadable metadata for which there is no other copy; it is not needed any more,
    /// and stays as it is until its place is written again.
    Unusable(Damage),
    /// The newest generation cannot be read on any drive; the one before was opened.
    FellBack {
        /// The generation that was given up.
        lost: Generation,
        /// The generation that was opened.
        opened: Generation,
    },
    /// A drive that was named cannot be used; the pool is opened without it.
    Unreachable {
        /// The drive's address.
        address: String,
        /// Why it cannot be used.
        why: String,
    },
    /// A drive of the pool is missing.
    Missing {
        /// Its serial.
        serial: String,
        /// Where it says so that the pool is written without it from now on.
        written_without: bool,
    },
    /// The pool has been written without a drive.
    Absent {
        /// Its serial.
        serial: String,
    },
    /// What a drive must hold is not all there yet.
    Rebuilding {
        /// Its serial.
        serial: String,
    },
    /// A member of the pool missed a commit: it is a copy of itself from an earlier time.
    Outdated {
        /// Its serial.
        serial: String,
        /// Where it says so that the pool is written without it from now on.
        written_without: bool,
    },
    /// Another owner's root stands where the parent of a later root was: two owners have written
    /// the pool.
    OtherOwner {
        /// The generation that the other owner wrote.
        generation: Generation,
        /// That owner.
        owner: String,
        /// The generation after it, whose parent is gone.
        after: Generation,
        /// Its owner.
        owner_after: String,
    },
    /// Another program made something over a drive; the pool can be read only.
    Foreign {
        /// The drive's address.
        address: String,
        /// Its serial.
        serial: String,
        /// What was made, in words.
        what: String,
    },
    /// The kernel reaches a drive with a volatile cache over a network.
    VolatileOverFabric {
        /// The drive's address.
        address: String,
        /// Its serial.
        serial: String,
        /// The network: "tcp", "rdma", "fc".
        fabric: String,
    },
    /// What another program had made over a drive was erased.
    ForeignErased {
        /// The drive's address.
        address: String,
        /// Its serial.
        serial: String,
        /// What it was, in words.
        what: String,
    },
    /// A drive was reserved by another owner, which was shut out.
    TakenOver {
        /// Its serial.
        serial: String,
        /// Who that was, as far as it is known.
        owner: String,
    },
    /// A commit had reached only some drives when the pool was last used; all have it now.
    RolledForward(Generation),
    /// The newest commit has reached only some drives: it is in progress, or was interrupted. A
    /// reader changes nothing.
    Unfinished(Generation),
}

impl Notice {
    /// About a drive whose cache can lose writes without any error.
    pub fn of_cache(info: &DriveInfo) -> Option<Notice> {
        let fabric = info.origin.fabric.clone()?;
        let is_volatile = info.volatile_cache != Some(false);
        is_volatile.then(|| Notice::VolatileOverFabric {
            address: info.address.clone(),
            serial: info.serial.clone(),
            fabric,
        })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Repaired(damage) => write!(f, "repaired from its copy: {damage}"),
            Notice::DamagedCopy(damage) => write!(
                f,
                "{damage}; another copy is sound: repair this one with `stanchion verify --repair`"
            ),
            Notice::Unusable(damage) => write!(f, "{damage}; there is no other copy"),
            Notice::FellBack { lost, opened } => write!(
                f,
                "generation {lost} cannot be read on any drive; the one before, {opened}, was opened: \
                 the commit or removal that made {lost} is lost"
            ),
            Notice::Unreachable { address, why } => {
                write!(
                    f,
                    "drive {address} cannot be used, so the pool was opened without it: {why}"
                )
            }
            Notice::Missing { serial, written_without: false } => {
                write!(
                    f,
                    "drive {serial} of the pool is missing; checkpoints that need it cannot be \
                     restored"
                )
            }
            Notice::Missing { serial, written_without: true } => write!(
                f,
                "drive {serial} of the pool is missing, and the pool is written without it from now \
                 on; re-admit it with `stanchion verify --repair --replacement ADDRESS`"
            ),
            Notice::Absent { serial } => write!(
                f,
                "drive {serial} is not part of the pool now; admit it, or another drive in its place, \
                 with `stanchion verify --repair --replacement ADDRESS`"
            ),
            Notice::Rebuilding { serial } => write!(
                f,
                "drive {serial} is not rebuilt yet; finish with `stanchion verify --repair`"
            ),
            Notice::Outdated { serial, written_without } => write!(
                f,
                "drive {serial} is a copy of itself from an earlier time: it missed a commit, so {}",
                if *written_without {
                    "the pool is written without it from now on; re-admit it with `stanchion verify \
                     --repair --replacement ADDRESS`"
                } else {
                    "it is only read where no other drive has the data"
                }
            ),
            Notice::OtherOwner { generation, owner, after, owner_after } => write!(
                f,
                "two owners have written the pool: generation {generation}, by {owner}, is not what \
                 generation {after}, by {owner_after}, was made from; a commit of that time may be \
                 lost"
            ),
            Notice::Foreign { address, serial, what } => write!(
                f,
                "drive {address} ({serial}) holds {what}, made over the pool after it was formatted: \
                 the pool can be read, but nothing is written to it. To write again, let another drive \
                 take its place (`stanchion verify --repair --replacement ADDRESS`), or erase that with \
                 `stanchion verify --repair --force`"
            ),
            Notice::VolatileOverFabric { address, serial, fabric } => write!(
                f,
                "drive {address} ({serial}) is reached by the kernel over {fabric} and has a volatile \
                 write cache: if its target restarts between a write and the flush, the kernel \
                 reconnects, the write is lost, and no process notices. Turn the cache off at the target \
                 (`nvme set-feature DEVICE --feature-id 6 --value 0`), or name the drive by an SPDK \
                 address, whose connection does not come back by itself"
            ),
            Notice::ForeignErased { address, serial, what } => write!(
                f,
                "drive {address} ({serial}) held {what}, made over the pool; it was erased"
            ),
            Notice::TakenOver { serial, owner } => write!(
                f,
                "drive {serial} was reserved by {owner}: it was taken over, and nothing that this owner \
                 still writes gets there"
            ),
            Notice::RolledForward(generation) => {
                write!(
                    f,
                    "generation {generation} was on some drives only; it is on all drives now"
                )
            }
            Notice::Unfinished(generation) => write!(
                f,
                "generation {generation} is not on every drive yet: its commit is in progress, or \
                 was interrupted; the next command that writes to the pool completes it"
            ),
        }
    }
}
