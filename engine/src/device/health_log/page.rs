// SPDX-License-Identifier: Apache-2.0
//! NVMe log page 02h: the drive's report of its own health.

use serde::Serialize;

/// Bytes of the log page.
pub const HEALTH_LOG_BYTES: usize = 512;

/// The health log of a drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HealthLog {
    /// Warning bits; [`HealthLog::warnings`] has them in words.
    pub critical_warning: u8,
    /// Degrees Celsius; absent where the drive does not report it.
    pub temperature_celsius: Option<i32>,
    /// Spare blocks that remain, of 100.
    pub spare_percent: u8,
    /// The drive warns below this value.
    pub spare_threshold_percent: u8,
    /// Share of the rated endurance that is used; may exceed 100; 255 means 255 or more.
    pub used_percent: u8,
    /// Losses of power without notice.
    pub unsafe_shutdowns: u64,
    /// Media errors that the drive could not correct.
    pub media_errors: u64,
}

impl HealthLog {
    /// Reads the log page. Every value of its bytes means something.
    pub fn decode(log: &[u8; HEALTH_LOG_BYTES]) -> HealthLog {
        // 128-bit counters; a value beyond 64 bits is given as the largest 64-bit number.
        let counter = |at: usize| {
            let bytes: [u8; 16] = std::array::from_fn(|byte| log[at + byte]);
            u64::try_from(u128::from_le_bytes(bytes)).unwrap_or(u64::MAX)
        };
        let kelvin = u16::from_le_bytes([log[1], log[2]]);
        HealthLog {
            critical_warning: log[0],
            temperature_celsius: (kelvin != 0).then(|| i32::from(kelvin) - 273),
            spare_percent: log[3],
            spare_threshold_percent: log[4],
            used_percent: log[5],
            unsafe_shutdowns: counter(144),
            media_errors: counter(160),
        }
    }

    /// The critical warnings, in words.
    pub fn warnings(&self) -> Vec<&'static str> {
        const WORDS: [&str; 8] = [
            "spare blocks run out",
            "temperature out of bounds",
            "reliability degraded by media or internal errors",
            "the medium is read-only",
            "the backup of its volatile memory has failed",
            "its persistent memory region is read-only",
            "an unknown warning (bit 6)",
            "an unknown warning (bit 7)",
        ];
        let is_set = |bit: &usize| self.critical_warning & (1 << bit) != 0;
        (0..WORDS.len()).filter(is_set).map(|bit| WORDS[bit]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_page() {
        let mut log = [0; HEALTH_LOG_BYTES];
        log[0] = 0b1001;
        log[1..3].copy_from_slice(&323_u16.to_le_bytes());
        log[3..6].copy_from_slice(&[7, 10, 120]);
        log[144] = 3;
        log[160..176].fill(0xff);
        let health = HealthLog::decode(&log);
        assert_eq!(health.warnings(), ["spare blocks run out", "the medium is read-only"]);
        assert_eq!(health.temperature_celsius, Some(50));
        assert_eq!((health.spare_percent, health.spare_threshold_percent), (7, 10));
        assert_eq!((health.used_percent, health.unsafe_shutdowns), (120, 3));
        assert_eq!(health.media_errors, u64::MAX);
        let silent = HealthLog::decode(&[0; HEALTH_LOG_BYTES]);
        assert!(silent.warnings().is_empty() && silent.temperature_celsius.is_none());
        assert_eq!(HealthLog::decode(&[0xff; HEALTH_LOG_BYTES]).warnings().len(), 8);
    }
}
