// SPDX-License-Identifier: Apache-2.0
//! What a verification reports, during and after it.
//!
//! Each damage is in exactly one list: not repaired, or repaired.

use crate::error::Damage;
use crate::notice::Notice;

/// Called regularly with the bytes of data checked so far and the bytes to check in total.
pub type VerifyProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// The result of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Checkpoints checked.
    pub checkpoints: usize,
    /// Bytes of data whose checksum was compared; each copy counts.
    pub data_bytes: u64,
    /// Copies of metadata objects checked.
    pub metadata_copies: u64,
    /// Damage that was not repaired.
    pub damages: Vec<Damage>,
    /// Damage that was repaired.
    pub repaired: Vec<Damage>,
    /// Serials of drives that were rebuilding and hold everything now.
    pub rebuilt: Vec<String>,
}

impl VerifyReport {
    /// Whether no damage remains.
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
