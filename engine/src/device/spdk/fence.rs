// SPDX-License-Identifier: Apache-2.0
//! How long a fabric's target may still carry out commands that were sent before its connection was
//! lost.
//!
//! We cannot see when a target releases a lost connection, so time decides. The target gives up a
//! controller from which it received nothing for the keep-alive timeout, and then ends its
//! commands. Until then a write that ended as lost may land. The next owner may write the same
//! place, and the older write must not land last.
//!
//! - A process that loses a drive with commands in flight stores the end of that time in a file
//!   next to the drive's lock file, on this host, where it outlives the process.
//! - Opening the drive for writing, here or in another process, waits until then. Reading does not.
//! - A process that is killed leaves no file: its successor does not wait. Its late writes can only
//!   land on space that its unfinished checkpoints had reserved, and every chunk's checksum is
//!   compared when it is read. The end of a process closes its connections; its target sees that at
//!   once.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::controller::KEEP_ALIVE;

/// Beyond the keep-alive timeout: for the target to notice that it passed, and to end commands.
const MARGIN: Duration = Duration::from_secs(3);

/// Stores in `file` that a lost target may carry out commands from now on until the time has
/// passed.
pub(super) fn raise(file: &Path) -> io::Result<()> {
    let until = since_boot() + KEEP_ALIVE + MARGIN;
    fs::write(file, until.as_millis().to_string())
}

/// How long the next writer has to wait, by `file`.
pub(super) fn remaining(file: &Path) -> Duration {
    fs::read_to_string(file).map_or(Duration::ZERO, |text| until(&text, since_boot()))
}

fn until(text: &str, now: Duration) -> Duration {
    let Ok(until) = text.trim().parse() else { return Duration::ZERO };
    // Never longer than the maximum, whatever the file says.
    Duration::from_millis(until).saturating_sub(now).min(KEEP_ALIVE + MARGIN)
}

/// One clock for all processes, which cannot be set; after a restart the file is gone, or stale.
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
    fn a_raised_fence_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fence");
        assert_eq!(remaining(&file), Duration::ZERO);
        raise(&file).unwrap();
        let left = remaining(&file);
        assert!(left > KEEP_ALIVE && left <= KEEP_ALIVE + MARGIN, "{left:?}");
    }
}
