// SPDX-License-Identifier: Apache-2.0
//! Reservations: a drive itself keeps everybody out but its owner, whatever host the others are on.
//!
//! - The type is Write Exclusive, Registrants Only: who is registered may write, everybody may
//!   read. Only the owner registers for longer than it takes to find out that there is another.
//! - A drive knows its owner by a host identifier and a key. Both are random for each opening, so
//!   that what an earlier owner, also of this process, left behind is not ours.
//! - Preempting takes the reservation away from its holder, whose later writes fail with a
//!   reservation conflict. Aborting also ends the holder's commands in the drive, before it
//!   answers.
//!
//! [`take`] is the only way to own a drive; dropping the device gives it back.

use std::time::Duration;

use crate::error::IoError;

/// How to take a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquire {
    /// If no one holds it.
    Free,
    /// From who is registered under this key, whose registration ends. Its commands in flight may
    /// still be carried out.
    Preempt(u64),
    /// The same, and its commands in flight have ended.
    PreemptAndAbort(u64),
}

/// The reservation commands of an open drive. Each blocks until the drive has answered.
pub trait Reservations {
    /// Registers under this key, in place of any key that this host identifier has.
    ///
    /// # Errors
    /// A drive without reservations answers [`is_unsupported`] errors.
    fn register(&mut self, key: u64) -> Result<(), IoError>;

    /// Takes the reservation, registered under `key`.
    ///
    /// # Errors
    /// [`is_conflict`] when another one holds it.
    fn acquire(&mut self, key: u64, how: Acquire) -> Result<(), IoError>;

    /// Gives up the reservation, if it is held, and the registration.
    ///
    /// # Errors
    /// Those of the drive.
    fn release(&mut self, key: u64) -> Result<(), IoError>;

    /// Ends the reservation, even another host's, and every registration, also our own.
    ///
    /// # Errors
    /// Those of the drive.
    fn clear(&mut self, key: u64) -> Result<(), IoError>;

    /// Who is registered, and who holds the reservation.
    ///
    /// # Errors
    /// [`is_unsupported`] where the back end cannot ask, or must not.
    fn report(&mut self) -> Result<ReservationReport, IoError>;

    /// By what the drive distinguishes us from other hosts; zeros where the back end does not know
    /// it.
    fn host_identifier(&self) -> [u8; 16];

    /// Keys of earlier owners on this host that certainly have ended.
    fn ended_keys(&self) -> Vec<u64> {
        Vec::new()
    }

    /// The drive was taken so. Waits while commands of an earlier owner that lost the drive on this
    /// host may still reach it.
    fn settle(&mut self, taken: Taken) {
        let _ = taken;
    }

    /// Keys that may be registered: what a later opening on this host has to know, should this
    /// process be killed.
    fn note_keys(&mut self, keys: &[u64]) {
        let _ = keys;
    }
}

/// A host that is registered with a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registrant {
    /// Its identifier.
    pub host: [u8; 16],
    /// Its key.
    pub key: u64,
    /// It holds the reservation.
    pub holds: bool,
}

/// Who may write to a drive.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReservationReport {
    /// Counts changes.
    pub generation: u32,
    /// The type by its NVMe number; 0 without a reservation.
    pub kind: u8,
    /// Who is registered; none of them holds the reservation where only its key is known.
    pub registrants: Vec<Registrant>,
    /// The holder's key.
    pub holder_key: Option<u64>,
}

/// The type that we take, by its NVMe number.
#[cfg(any(test, feature = "internals"))]
pub const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u8 = 3;

/// Whether another host holds the reservation.
pub fn is_conflict(error: IoError) -> bool {
    error.is_reservation_conflict()
}

/// Whether the drive has no reservations, or not the one that we take.
pub fn is_unsupported(error: IoError) -> bool {
    match error {
        // Invalid opcode, invalid field.
        IoError::Nvme { sct: 0, sc: 0x01 | 0x02, .. } => true,
        IoError::Os(errno) => {
            matches!(errno, libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL | libc::ENOSYS)
        }
        _ => false,
    }
}

/// What is known of the holder of a reservation that is not ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holder {
    /// The key of the owner that the pool names, if it certainly has ended.
    pub ended_key: Option<u64>,
    /// The key of the owner that the pool names.
    pub known_key: Option<u64>,
    /// Take the reservation from any holder.
    pub take_over: bool,
}

/// The key under which an owner leaves a drive reserved when it closes it, and an earlier owner was
/// shut out: that one may still live, stopped or cut off, and must find no drive that takes its
/// writes. The next owner takes the drive from this key without asking.
pub const CLOSED_KEY: u64 = u64::from_be_bytes(*b"STN DONE");

/// How a drive became ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It has no reservations.
    Without,
    /// No one had it.
    Free,
    /// The last owner had closed it, and left it reserved: see [`CLOSED_KEY`].
    Closed,
    /// Another owner had it. `aborted`: its commands in flight have ended.
    Preempted {
        /// Its commands in flight have ended.
        aborted: bool,
    },
}

impl Taken {
    /// Whether an earlier owner may still live: then the drive stays reserved when it is closed.
    pub(crate) fn stays_reserved(self) -> bool {
        matches!(self, Taken::Closed | Taken::Preempted { .. })
    }
}

/// How often, and after which time, a drive is asked again that an ended owner may hold.
const LATE_ATTEMPTS: u32 = 8;
const LATE_LOOK: Duration = Duration::from_millis(250);

/// Takes the reservation of a drive for `key`. A conflict is returned with nothing left behind:
/// ask who holds it, and try again with what is known of it.
pub fn take(
    drive: &mut dyn Reservations,
    key: u64,
    holder: Option<&Holder>,
) -> Result<Taken, IoError> {
    let ended = drive.ended_keys();
    drive.note_keys(&[&ended[..], &[key]].concat());
    let taken = match drive.register(key) {
        Ok(()) => acquire(drive, key, &ended, holder),
        Err(error) if is_unsupported(error) => Ok(Taken::Without),
        Err(error) => Err(error),
    };
    match taken {
        Ok(Taken::Without) => drive.note_keys(&[]),
        Ok(_) => {
            for other in ended {
                // It may have ended between its registration and its reservation. Usually no one
                // has that key, which some drives call a conflict.
                let _ = drive.acquire(key, Acquire::Preempt(other));
            }
            drive.note_keys(&[key]);
        }
        Err(_) => {
            // The error is the reason; a registration that stays keeps no one out.
            let _ = drive.release(key);
            drive.note_keys(&ended);
        }
    }
    taken
}

fn acquire(
    drive: &mut dyn Reservations,
    key: u64,
    ended: &[u64],
    holder: Option<&Holder>,
) -> Result<Taken, IoError> {
    let named = holder.and_then(|holder| holder.ended_key);
    let mut attempt = 1;
    let conflict = loop {
        let conflict = match drive.acquire(key, Acquire::Free) {
            Ok(()) => return Ok(Taken::Free),
            Err(error) if is_conflict(error) => error,
            Err(error) if is_unsupported(error) => return Ok(Taken::Without),
            Err(error) => return Err(error),
        };
        if preempt(drive, key, CLOSED_KEY)?.is_some() {
            return Ok(Taken::Closed);
        }
        for other in ended.iter().copied().chain(named) {
            if let Some(aborted) = preempt(drive, key, other)? {
                return Ok(Taken::Preempted { aborted });
            }
        }
        // What an ended owner sent last, such as the key that it closed with, may arrive meanwhile.
        if ended.is_empty() || attempt == LATE_ATTEMPTS {
            break conflict;
        }
        attempt += 1;
        std::thread::sleep(LATE_LOOK);
    };
    let Some(holder) = holder.filter(|holder| holder.take_over) else { return Err(conflict) };
    // A drive or kernel that cannot say who holds it leaves the key that the pool names.
    let reported = drive.report().ok().and_then(|report| report.holder_key);
    for other in [reported, holder.known_key].into_iter().flatten() {
        if let Some(aborted) = preempt(drive, key, other)? {
            return Ok(Taken::Preempted { aborted });
        }
    }
    // Any holder. Between the two steps another one may take it: then it has it.
    drive.clear(key)?;
    drive.register(key)?;
    drive.acquire(key, Acquire::Free)?;
    Ok(Taken::Preempted { aborted: false })
}

/// Takes the reservation from the owner with this key; `None` when another one holds it.
fn preempt(drive: &mut dyn Reservations, key: u64, other: u64) -> Result<Option<bool>, IoError> {
    if other == key || other == 0 {
        return Ok(None);
    }
    let mut aborted = true;
    let mut result = drive.acquire(key, Acquire::PreemptAndAbort(other));
    if result.is_err_and(is_unsupported) {
        aborted = false;
        result = drive.acquire(key, Acquire::Preempt(other));
    }
    match result {
        // Some drives report success when no one has that key.
        Ok(()) => match drive.acquire(key, Acquire::Free) {
            Ok(()) => Ok(Some(aborted)),
            Err(error) if is_conflict(error) => Ok(None),
            Err(error) => Err(error),
        },
        Err(error) if is_conflict(error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the Reservation Status data structure; `extended` has long host identifiers. Its bytes
/// come from a drive: what does not lie in them is left out.
#[cfg(any(test, feature = "spdk"))]
pub(crate) fn decode_report(bytes: &[u8], extended: bool) -> ReservationReport {
    let (head, entry_bytes) = if extended { (64, 64) } else { (24, 24) };
    let Some(entries) = bytes.get(head..) else { return ReservationReport::default() };
    let count = usize::from(u16::from_le_bytes([bytes[5], bytes[6]]));
    let number =
        |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    let registrant = |entry: &[u8]| {
        let mut host = [0; 16];
        let key = if extended {
            host.copy_from_slice(&entry[16..32]);
            number(&entry[8..16])
        } else {
            host[..8].copy_from_slice(&entry[8..16]);
            number(&entry[16..24])
        };
        Registrant { host, key, holds: entry[2] & 1 == 1 }
    };
    let registrants: Vec<_> =
        entries.chunks_exact(entry_bytes).take(count).map(registrant).collect();
    let kind = bytes[4];
    let holder = registrants.iter().find(|registrant| registrant.holds && kind != 0);
    ReservationReport {
        generation: number(&bytes[..4]) as u32,
        kind,
        holder_key: holder.map(|holder| holder.key),
        registrants,
    }
}

/// What it means that a drive has no reservations, for people.
pub const WITHOUT_RESERVATIONS: &str = "without NVMe reservations a drive cannot keep a second host out: if two hosts, or two \
     containers, open the pool for writing at once, one acknowledged commit may be lost or \
     damaged; the host that lost it notices before it acknowledges another one, and the next opening \
     or a checksum reports it";

#[cfg(test)]
mod tests {
    use super::super::sim::{SimConfig, SimDrive};
    use super::super::{Device, reservation};
    use super::*;

    const OURS: u64 = 7;
    const OTHER: u64 = 9;

    fn drive() -> SimDrive {
        SimDrive::new(SimConfig { reservations: true, ..SimConfig::default() }).unwrap()
    }

    fn take(sim: &SimDrive, holder: Option<&Holder>) -> Result<Taken, IoError> {
        let mut device = sim.open().unwrap();
        let reservations = device.reservations().unwrap();
        let taken = reservation::take(reservations, OURS, holder);
        taken.iter().for_each(|taken| reservations.settle(*taken));
        taken
    }

    #[test]
    fn a_free_drive_is_taken_and_given_back() {
        let sim = drive();
        let mut device = sim.open().unwrap();
        let reservations = device.reservations().unwrap();
        let host = reservations.host_identifier();
        assert_eq!(reservation::take(reservations, OURS, None), Ok(Taken::Free));
        let report = reservations.report().unwrap();
        assert_eq!(report.kind, WRITE_EXCLUSIVE_REGISTRANTS_ONLY);
        assert_eq!(report.registrants, [Registrant { host, key: OURS, holds: true }]);
        drop(device);
        assert_eq!(sim.reservation_holder(), None);
        let mut later = sim.open().unwrap();
        assert_ne!(later.reservations().unwrap().host_identifier(), host, "it is random");
        assert!(later.reservations().unwrap().report().unwrap().registrants.is_empty());
    }

    #[test]
    fn a_foreign_holder_stays_unless_it_has_ended_or_is_preempted_on_demand() {
        let known = Holder { known_key: Some(OTHER), ..Holder::default() };
        let ended = Holder { ended_key: Some(OTHER), ..known };
        let other_ended = Holder { ended_key: Some(OTHER + 1), ..known };
        let on_demand = Holder { take_over: true, ..known };
        let anybody = Holder { take_over: true, ..Holder::default() };
        let wrong = Holder { take_over: true, known_key: Some(OTHER + 1), ended_key: None };
        for (holder, aborts, is_ours) in [
            (None, true, false),
            (Some(known), true, false),
            (Some(other_ended), true, false),
            (Some(ended), true, true),
            (Some(ended), false, true),
            (Some(on_demand), true, true),
            (Some(anybody), true, true),
            (Some(wrong), false, true),
        ] {
            let sim = SimDrive::new(SimConfig {
                reservations: true,
                can_abort: aborts,
                ..SimConfig::default()
            })
            .unwrap();
            sim.reserve_from_outside(OTHER);
            let taken = take(&sim, holder.as_ref());
            if is_ours {
                assert_eq!(taken, Ok(Taken::Preempted { aborted: aborts }), "{holder:?}");
                // The owner that was shut out must stay out when the new one has closed.
                assert_eq!(sim.reservation_holder(), Some(CLOSED_KEY), "{holder:?}");
                assert_eq!(take(&sim, None), Ok(Taken::Closed), "{holder:?}");
                assert_eq!(sim.registrants(), [CLOSED_KEY], "{holder:?}");
            } else {
                assert!(taken.is_err_and(is_conflict), "{holder:?}: {taken:?}");
                assert_eq!(sim.reservation_holder(), Some(OTHER), "{holder:?}");
                assert_eq!(sim.registrants(), [OTHER], "nothing is left behind");
            }
        }
    }

    #[test]
    fn a_holder_that_nobody_can_name_is_cleared_on_demand() {
        let sim = SimDrive::new(SimConfig {
            reservations: true,
            can_report: false,
            ..SimConfig::default()
        })
        .unwrap();
        sim.reserve_from_outside(OTHER);
        let holder = Holder { take_over: true, ..Holder::default() };
        assert_eq!(take(&sim, Some(&holder)), Ok(Taken::Preempted { aborted: false }));
        assert_eq!(sim.registrants(), [CLOSED_KEY]);
    }

    #[test]
    fn a_drive_without_reservations_says_so() {
        let sim = SimDrive::new(SimConfig::default()).unwrap();
        let mut device = sim.open().unwrap();
        assert!(device.reservations().is_none());
        assert_eq!(device.info().reservations, Some(false));
        assert_eq!(drive().open().unwrap().info().reservations, Some(true));
    }

    #[test]
    fn reports_of_both_forms_and_of_hostile_drives() {
        let mut extended = vec![0; 64 + 2 * 64];
        extended[..8].copy_from_slice(&[5, 0, 0, 0, 3, 2, 0, 0]);
        for (at, (host, key, holds)) in [(0xAA, 1_u64, 0), (0xBB, 2, 1)].into_iter().enumerate() {
            let entry = &mut extended[64 + 64 * at..][..64];
            entry[2] = holds;
            entry[8..16].copy_from_slice(&key.to_le_bytes());
            entry[16..32].fill(host);
        }
        let report = decode_report(&extended, true);
        assert_eq!((report.generation, report.kind, report.holder_key), (5, 3, Some(2)));
        let first = Registrant { host: [0xAA; 16], key: 1, holds: false };
        assert_eq!(
            report.registrants,
            [first, Registrant { host: [0xBB; 16], key: 2, holds: true }]
        );

        let mut short = vec![0; 24 + 24];
        short[..8].copy_from_slice(&[1, 0, 0, 0, 3, 1, 0, 0]);
        short[24 + 2] = 1;
        short[24 + 8..24 + 16].fill(0xCC);
        short[24 + 16..].copy_from_slice(&77_u64.to_le_bytes());
        let report = decode_report(&short, false);
        assert_eq!(report.holder_key, Some(77));
        assert_eq!(report.registrants[0].host[..8], [0xCC; 8]);

        // More are announced than there are bytes; cut anywhere.
        short[5] = 0xFF;
        short[6] = 0xFF;
        for len in 0..=short.len() {
            for extended in [false, true] {
                assert!(decode_report(&short[..len], extended).registrants.len() <= 1);
            }
        }
    }
}
