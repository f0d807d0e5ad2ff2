// SPDX-License-Identifier: Apache-2.0
//! Who may write to a simulated drive.
//!
//! A power cut keeps them, as a drive does that was asked to.

use crate::error::IoError;

pub(super) const CONFLICT: IoError = IoError::Nvme { sct: 0, sc: 0x83, dnr: true };

pub(super) type Host = [u8; 16];

/// Who may write.
#[derive(Clone, Default)]
pub(super) struct ReservationState {
    pub(super) registrants: Vec<(Host, u64)>,
    pub(super) holder: Option<Host>,
    pub(super) generation: u32,
    /// Hosts so far.
    hosts: u64,
}

impl ReservationState {
    pub(super) fn new_host(&mut self) -> Host {
        self.hosts += 1;
        let mut host = [0; 16];
        host[..8].copy_from_slice(&self.hosts.to_le_bytes());
        host
    }

    /// Whether a host may not write.
    pub(super) fn excludes(&self, host: Host) -> bool {
        self.holder.is_some() && self.key_of(host).is_none()
    }

    pub(super) fn key_of(&self, host: Host) -> Option<u64> {
        self.registrants.iter().find(|(other, _)| *other == host).map(|(_, key)| *key)
    }

    pub(super) fn register(&mut self, host: Host, key: u64) {
        self.registrants.retain(|(other, _)| *other != host);
        self.registrants.push((host, key));
        self.generation += 1;
    }

    pub(super) fn unregister(&mut self, gone: impl Fn(Host, u64) -> bool) -> bool {
        let before = self.registrants.len();
        self.registrants.retain(|(host, key)| !gone(*host, *key));
        if self.holder.is_some_and(|holder| self.key_of(holder).is_none()) {
            self.holder = None;
        }
        self.generation += 1;
        self.registrants.len() < before
    }

    pub(super) fn holder_key(&self) -> Option<u64> {
        self.holder.and_then(|holder| self.key_of(holder))
    }
}
