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
            Notice::RolledForward(generation) => {
                write!(f, "generation {generation} had reached only some drives; all have it now")
            }
        }
    }
}
