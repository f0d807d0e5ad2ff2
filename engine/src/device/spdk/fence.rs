//! How long a fabric's target may still carry out what it was sent before its connection was lost.
//!
//! Nobody here can see a target let go of a lost connection, so time has to do: the target gives up
//! a controller of which it heard nothing for the keep-alive timeout, and then ends its commands. A
//! write that ended as lost may land until then. So may a write of the same place by whoever opens
//! the drive next, and the older one must not be the last.
//!
//! - Whoever loses a drive with commands under way leaves the end of that time beside the drive's
//!   lock, on this host, where it outlives the process.
//! - Opening the drive for writing, here or in another process, waits until then. Reading does not.
//! - A process that is killed leaves nothing: its successor does not wait. Its late writes can only
//!   fall on what its unfinished checkpoints had reserved, and every chunk's checksum is compared
//!   when it is read. The end of a process ends its connections, which its target notices at once.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::controller::KEEP_ALIVE;

/// Beyond the keep-alive timeout: for the target to notice that it has passed, and to end commands.
const MARGIN: Duration = Duration::from_secs(3);

/// Notes in the file `beside` that a lost target may carry out commands from now on until the time
/// has passed.
pub(super) fn raise(beside: &Path) -> io::Result<()> {
    let until = since_boot() + KEEP_ALIVE + MARGIN;
    fs::write(beside, until.as_millis().to_string())
}

/// How long whoever wants to write has to wait, by the file `beside`.
pub(super) fn remaining(beside: &Path) -> Duration {
    fs::read_to_string(beside).map_or(Duration::ZERO, |text| until(&text, since_boot()))
}

fn until(text: &str, now: Duration) -> Duration {
    let Ok(until) = text.trim().parse() else { return Duration::ZERO };
    // Never longer than it can have been, whatever the file says.
    Duration::from_millis(until).saturating_sub(now).min(KEEP_ALIVE + MARGIN)
}

/// The same clock for every process, which nobody sets; the file is gone after a restart, or stale.
fn since_boot() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_ends_and_is_never_longer_than_it_can_be() {
        let now = Duration::from_secs(100);
        assert_eq!(until("101500", now), Duration::from_millis(1500));
        assert_eq!(until("99000", now), Duration::ZERO);
        assert_eq!(until("999999999", now), KEEP_ALIVE + MARGIN);
        for nonsense in ["", "-1", "soon", "99999999999999999999999999"] {
            assert_eq!(until(nonsense, now), Duration::ZERO);
        }
    }

    #[test]
    fn what_is_raised_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let beside = directory.path().join("fence");
        assert_eq!(remaining(&beside), Duration::ZERO);
        raise(&beside).unwrap();
        let left = remaining(&beside);
        assert!(left > KEEP_ALIVE && left <= KEEP_ALIVE + MARGIN, "{left:?}");
    }
}
