// SPDX-License-Identifier: Apache-2.0
//! Reserving a simulated drive: as the device that has it open, and from another host.

use super::device::SimDevice;
use super::drive::SimDrive;
use super::reservation::{CONFLICT, Host, ReservationState};
use crate::device::reservation::{
    Acquire, CLOSED_KEY, Registrant, ReservationReport, Reservations, Taken,
    WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
};
use crate::error::IoError;

const INVALID_FIELD: IoError = IoError::Nvme { sct: 0, sc: 0x02, dnr: true };
/// The host of [`SimDrive::reserve_from_outside`].
const OUTSIDE: Host = [0xFF; 16];

impl SimDrive {
    /// Another host registers under this key and takes the reservation from its holder.
    pub fn reserve_from_outside(&self, key: u64) {
        let state = &mut self.lock().reservations;
        if let Some(holder) = state.holder {
            state.unregister(|host, _| host == holder);
        }
        state.register(OUTSIDE, key);
        state.holder = Some(OUTSIDE);
    }

    /// The key of the reservation's holder.
    pub fn reservation_holder(&self) -> Option<u64> {
        self.lock().reservations.holder_key()
    }

    /// The keys that are registered.
    pub fn registrants(&self) -> Vec<u64> {
        self.lock().reservations.registrants.iter().map(|(_, key)| *key).collect()
    }
}

impl Reservations for SimDevice {
    fn register(&mut self, key: u64) -> Result<(), IoError> {
        self.with_reservations(|state, host| {
            state.register(host, key);
            Ok(())
        })?;
        self.is_registered = true;
        Ok(())
    }

    fn acquire(&mut self, key: u64, how: Acquire) -> Result<(), IoError> {
        let can_abort = self.drive().lock().config.can_abort;
        self.with_reservations(|state, host| {
            if state.key_of(host) != Some(key) {
                return Err(CONFLICT);
            }
            match how {
                Acquire::Free if state.holder.is_none_or(|holder| holder == host) => {
                    state.holder = Some(host);
                    Ok(())
                }
                Acquire::Free => Err(CONFLICT),
                Acquire::PreemptAndAbort(_) if !can_abort => Err(INVALID_FIELD),
                Acquire::Preempt(other) | Acquire::PreemptAndAbort(other) => {
                    let from_holder = state.holder_key() == Some(other);
                    let any =
                        state.unregister(|registrant, key| key == other && registrant != host);
                    if from_holder {
                        state.holder = Some(host);
                    }
                    if any { Ok(()) } else { Err(CONFLICT) }
                }
            }
        })
    }

    fn release(&mut self, key: u64) -> Result<(), IoError> {
        self.is_registered = false;
        self.with_reservations(|state, host| {
            let any = state.unregister(|registrant, known| registrant == host && known == key);
            if any { Ok(()) } else { Err(CONFLICT) }
        })
    }

    fn clear(&mut self, key: u64) -> Result<(), IoError> {
        self.is_registered = false;
        self.with_reservations(|state, host| {
            if state.key_of(host) != Some(key) {
                return Err(CONFLICT);
            }
            state.unregister(|_, _| true);
            Ok(())
        })
    }

    fn report(&mut self) -> Result<ReservationReport, IoError> {
        if !self.drive().lock().config.can_report {
            return Err(IoError::Os(libc::EOPNOTSUPP));
        }
        self.with_reservations(|state, _| {
            let registrants = state.registrants.iter().map(|(host, key)| Registrant {
                host: *host,
                key: *key,
                holds: state.holder == Some(*host),
            });
            Ok(ReservationReport {
                generation: state.generation,
                kind: state.holder.map_or(0, |_| WRITE_EXCLUSIVE_REGISTRANTS_ONLY),
                registrants: registrants.collect(),
                holder_key: state.holder_key(),
            })
        })
    }

    fn host_identifier(&self) -> [u8; 16] {
        self.host
    }

    fn settle(&mut self, taken: Taken) {
        self.stays_reserved = taken.stays_reserved();
    }
}

impl SimDevice {
    /// Runs on the drive's state, if this device still has the drive.
    fn with_reservations<T>(
        &mut self,
        work: impl FnOnce(&mut ReservationState, Host) -> Result<T, IoError>,
    ) -> Result<T, IoError> {
        let (host, epoch) = (self.host, self.epoch);
        let drive = self.drive();
        let mut hardware = drive.lock();
        if hardware.epoch != epoch || hardware.is_removed || !drive.world().has_power() {
            return Err(IoError::Removed);
        }
        work(&mut hardware.reservations, host)
    }

    /// What a device does that is closed in order.
    pub(super) fn give_up_reservation(&mut self) {
        if std::mem::take(&mut self.is_registered) {
            // Without power, or after a removal, it stays.
            let stays = self.stays_reserved;
            let _ = self.with_reservations(|state, host| {
                match stays {
                    true => state.register(host, CLOSED_KEY),
                    false => drop(state.unregister(|registrant, _| registrant == host)),
                }
                Ok(())
            });
        }
    }
}
