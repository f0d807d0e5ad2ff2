// SPDX-License-Identifier: Apache-2.0
//! What a verification reports: as it goes on, and at its end.
//!
//! Each damage is in one list: of those that are left, or of those that are repaired.

use crate::error::Damage;
use crate::notice::Notice;

/// Called now and then with the bytes of data checked so far and the bytes to check in all.
pub type VerifyProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// What a verification found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Checkpoints looked at.
    pub checkpoints: usize,
    /// Bytes of data whose checksum was compared; each copy counts.
    pub data_bytes: u64,
    /// Copies of metadata objects looked at.
    pub metadata_copies: u64,
    /// What is damaged and was not repaired.
    pub damages: Vec<Damage>,
    /// What was damaged and is repaired.
    pub repaired: Vec<Damage>,
    /// Serials of drives that were being rebuilt and hold everything now.
    pub rebuilt: Vec<String>,
}

impl VerifyReport {
    /// Whether nothing is damaged (any more).
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty()
    }

    pub(super) fn take_notices(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Repaired(damage) => self.repaired.push(damage),
                Notice::DamagedCopy(damage) => self.damages.push(damage),
                _ => {}
            }
        }
    }
}
