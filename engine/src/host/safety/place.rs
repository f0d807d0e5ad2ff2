// SPDX-License-Identifier: Apache-2.0
//! Where the file of a drive lies, and whether it is there after a restart.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use crate::error::Error;
use crate::host::sysfs::{DeviceNumber, System};

/// The folder of a path.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Whether the path lies where the kernel keeps its device nodes: a file there is a mistyped name
/// of a device, lies in memory, and is gone after a restart. /dev/shm is meant for files.
pub(crate) fn is_among_devices(path: &Path) -> bool {
    let folder = folder_of(path);
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    folder.starts_with("/dev") && !folder.starts_with("/dev/shm")
}

/// Refuses to make a file where device nodes are.
///
/// # Errors
/// [`Error::DriveNotFound`]: it is no file that is missing there, but a device.
pub(crate) fn refuse_new_file_among_devices(path: &Path) -> Result<(), Error> {
    if !is_among_devices(path) {
        return Ok(());
    }
    Err(Error::DriveNotFound {
        address: path.display().to_string(),
        detail: "no such device, and no file is made below /dev, where it would be gone after a \
                 restart; `stanchion drives` lists the drives of this machine"
            .into(),
    })
}

/// What keeps the contents of a drive only until the machine or the container ends, in words; for a
/// file that does not exist yet, too. `None` where nothing of that kind is known.
pub fn volatile_place(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path);
    if let Ok(metadata) = &metadata
        && metadata.file_type().is_block_device()
    {
        let system = System::live();
        let dir = system.block_dir(DeviceNumber::from_raw(metadata.rdev()))?;
        let name = dir.file_name()?.to_string_lossy();
        let in_memory = ["ram", "zram"].iter().any(|prefix| {
            name.strip_prefix(prefix).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        });
        return in_memory.then(|| "memory: what it holds is gone after a restart".to_owned());
    }
    // An overlay shows its own number on folders only.
    let kind = rustix::fs::statfs(folder_of(path)).ok()?.f_type;
    let text = match u32::try_from(kind).ok()? {
        0x0102_1994 => "tmpfs, in memory: what it holds is gone after a restart",
        0x8584_58f6 => "ramfs, in memory: what it holds is gone after a restart",
        0x794c_7630 => {
            "an overlay, usually a container's: what it holds is gone with the container"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_made_among_devices() {
        for (path, among) in [
            ("/dev/nvme7n1", true),
            ("/dev/nvme7/n1", true),
            ("/dev/../dev/x", true),
            ("/dev/shm/a.img", false),
            ("/developer/a.img", false),
            ("a.img", false),
        ] {
            assert_eq!(is_among_devices(Path::new(path)), among, "{path}");
            assert_eq!(refuse_new_file_among_devices(Path::new(path)).is_err(), among);
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev", dir.path().join("link")).unwrap();
        assert!(is_among_devices(&dir.path().join("link/x")));
        let error = crate::device::kernel::create_file(Path::new("/dev/stanchion-none"), 1 << 20);
        assert!(matches!(error, Err(Error::DriveNotFound { .. })), "{error:?}");
        assert!(!Path::new("/dev/stanchion-none").exists());
    }

    #[test]
    fn memory_is_no_place_for_checkpoints() {
        let shm = Path::new("/dev/shm");
        if rustix::fs::statfs(shm).is_ok_and(|found| found.f_type == 0x0102_1994) {
            assert!(volatile_place(&shm.join("not-there")).unwrap().contains("tmpfs"));
        }
        // What it says of a usual folder depends on the machine; /proc is neither of the three.
        assert_eq!(volatile_place(Path::new("/proc/version")), None);
    }
}
