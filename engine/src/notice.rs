//! What opening or verifying a pool noticed and dealt with.

use std::fmt;

use crate::error::Damage;
use crate::units::Generation;

/// Something that was noticed and dealt with, and that a person should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A damaged copy of metadata was overwritten from a sound one.
    Repaired(Damage),
    /// A damaged copy of metadata was found; another copy served.
    DamagedCopy(Damage),
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
    /// A drive of the pool is not at hand.
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
    /// A commit had reached only some drives when the pool was last used; all have it now.
    RolledForward(Generation),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Repaired(damage) => write!(f, "repaired from its copy: {damage}"),
            Notice::DamagedCopy(damage) => write!(
                f,
                "{damage}; another copy is sound, and `stanchion verify --repair` mends this one"
            ),
            Notice::FellBack { lost, opened } => write!(
                f,
                "generation {lost} cannot be read on any drive; generation {opened}, the one \
                 before, was opened: what was committed or removed since is lost"
            ),
            Notice::Unreachable { address, why } => {
                write!(
                    f,
                    "drive {address} cannot be used, and the pool is opened without it: {why}"
                )
            }
            Notice::Missing { serial, written_without: false } => {
                write!(f, "drive {serial} of the pool is missing: what needs it cannot be restored")
            }
            Notice::Missing { serial, written_without: true } => write!(
                f,
                "drive {serial} of the pool is missing and the pool is written without it from now \
                 on: when it comes back, take it in again with `stanchion verify --repair \
                 --replacement ADDRESS`"
            ),
            Notice::Absent { serial } => write!(
                f,
                "drive {serial} is no part of the pool at present: take it, or a drive to replace \
                 it, in with `stanchion verify --repair --replacement ADDRESS`"
            ),
            Notice::Rebuilding { serial } => write!(
                f,
                "drive {serial} does not hold all its data yet: finish with `stanchion verify --repair`"
            ),
            Notice::RolledForward(generation) => {
                write!(f, "generation {generation} had reached only some drives; all have it now")
            }
        }
    }
}
