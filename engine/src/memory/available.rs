// SPDX-License-Identifier: Apache-2.0
//! How much ordinary memory this process can still take: what the kernel calls available, and what
//! the control groups of the process leave.
//!
//! Asked before a region's pages are touched: past the end there is no error, but the out-of-memory
//! killer.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Page tables and what else grows with a region, and what the process itself needs meanwhile.
const SPARE_BYTES: u64 = 16 << 20;
/// The part of a region that its page tables take, and some more.
const SPARE_SHARE: u64 = 128;

/// What bounds the memory of this process, and how much of it is left.
#[derive(Debug, PartialEq, Eq)]
struct Bound {
    /// For a message: "the machine", "the control group /jobs/7".
    of: String,
    left_bytes: u64,
}

/// Refuses a region that would not fit into the memory that is left.
///
/// # Errors
/// [`Error::Os`] with ENOMEM, which names the bound.
pub(super) fn require(len_bytes: u64) -> Result<(), Error> {
    let needed = len_bytes.saturating_add(len_bytes / SPARE_SHARE).saturating_add(SPARE_BYTES);
    let tightest = bounds(Path::new("/")).into_iter().min_by_key(|bound| bound.left_bytes);
    match tightest {
        Some(Bound { of, left_bytes }) if left_bytes < needed => Err(Error::os(
            format!(
                "{len_bytes} bytes of buffer memory, where {of} has {left_bytes} bytes left; ask for \
                 less, or free some"
            ),
            std::io::Error::from_raw_os_error(libc::ENOMEM),
        )),
        _ => Ok(()),
    }
}

/// All bounds that can be read; none where /proc is missing.
fn bounds(root: &Path) -> Vec<Bound> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let machine = field_kib(&read("proc/meminfo"), "MemAvailable:");
    let machine = machine.map(|left_bytes| Bound { of: "the machine".into(), left_bytes });
    let groups = read("proc/self/cgroup");
    let mounts = read("proc/self/mountinfo");
    machine.into_iter().chain(group_bounds(root, &groups, &mounts)).collect()
}

/// A line "NAME   123 kB" of /proc/meminfo, in bytes.
fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The bounds of the process's control group and of those above it, in both versions of the
/// interface.
fn group_bounds(root: &Path, groups: &str, mounts: &str) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let files = match controllers {
            "" => &VERSION_2,
            _ if controllers.split(',').any(|name| name == "memory") => &VERSION_1,
            _ => continue,
        };
        let Some((top, below)) = folder_of(mounts, files.is_of, group) else { continue };
        for ancestor in below.ancestors() {
            let folder = root.join(top.strip_prefix("/").unwrap_or(&top)).join(ancestor);
            if let Some(left_bytes) = left_in(&folder, files) {
                let of = format!("the control group {}", Path::new("/").join(ancestor).display());
                bounds.push(Bound { of, left_bytes });
            }
        }
    }
    bounds
}

/// The names of one version of the interface.
struct Files {
    is_of: fn(file_system: &str, options: &str) -> bool,
    limit: &'static str,
    used: &'static str,
    /// Pages that the kernel takes back before it refuses any.
    reclaimable: [&'static str; 2],
}

const VERSION_1: Files = Files {
    is_of: |file_system, options| {
        file_system == "cgroup" && options.split(',').any(|option| option == "memory")
    },
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file ", "total_active_file "],
};

const VERSION_2: Files = Files {
    is_of: |file_system, _| file_system == "cgroup2",
    limit: "memory.max",
    used: "memory.current",
    reclaimable: ["inactive_file ", "active_file "],
};

/// Where a hierarchy is mounted, and the group's folder below that: what is mounted may begin at a
/// group itself, in a container.
fn folder_of(
    mounts: &str,
    is_of: fn(&str, &str) -> bool,
    group: &str,
) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        // 31 24 0:27 /root /mount/point options - type source super-options
        let (mount, kind) = line.split_once(" - ")?;
        let (file_system, rest) = kind.split_once(' ')?;
        let options = rest.split(' ').next_back()?;
        if !is_of(file_system, options) {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (mounted, point) = (fields.next()?, fields.next()?);
        let below = Path::new(group).strip_prefix(mounted).ok();
        let below = below.or_else(|| Path::new(group).strip_prefix("/").ok())?;
        Some((PathBuf::from(point), below.to_path_buf()))
    })
}

/// What a group has left; `None` where it has no limit.
fn left_in(folder: &Path, files: &Files) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
    };
    let limit = number(files.limit)?;
    let used = number(files.used)?;
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let reclaimable = files.reclaimable.iter().filter_map(|name| {
        let line = statistics.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    });
    Some(limit.saturating_sub(used.saturating_sub(reclaimable.sum())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       16000000 kB\nMemFree:          100 kB\nMemAvailable:    4096 kB\n";

    fn place(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_machine_and_each_group_above_bound_a_process() {
        let root = place(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "4:cpu:/x\n0::/jobs/7\n"),
            ("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/jobs/memory.max", "1000\n"),
            ("sys/fs/cgroup/jobs/memory.current", "900\n"),
            ("sys/fs/cgroup/jobs/memory.stat", "anon 5\ninactive_file 300\nactive_file 100\n"),
            ("sys/fs/cgroup/jobs/7/memory.max", "max\n"),
            ("sys/fs/cgroup/jobs/7/memory.current", "50\n"),
        ]);
        let found = bounds(root.path());
        let bound = |of: &str, left_bytes| Bound { of: of.into(), left_bytes };
        assert_eq!(
            found,
            [bound("the machine", 4096 << 10), bound("the control group /jobs", 500)]
        );
    }

    #[test]
    fn the_first_version_and_a_container_that_sees_its_own_group_only() {
        let root = place(&[
            ("proc/self/cgroup", "9:pids:/a\n4:memory,x:/docker/abc\n"),
            (
                "proc/self/mountinfo",
                "33 32 0:30 /docker/abc /c/memory ro - cgroup cgroup rw,memory\n",
            ),
            ("c/memory/memory.limit_in_bytes", "1000\n"),
            ("c/memory/memory.usage_in_bytes", "1200\n"),
        ]);
        let found = bounds(root.path());
        assert_eq!(found, [Bound { of: "the control group /".into(), left_bytes: 0 }]);
    }

    #[test]
    fn text_that_is_none_of_these_bounds_nothing() {
        for text in ["", "0::", "::::\n-\n", "0::relative\n1:memory:\n"] {
            let mounts = "1 2\n - \n - cgroup2\n3 4 5 / - cgroup2 x y\n";
            assert!(group_bounds(Path::new("/none"), text, mounts).is_empty());
            assert_eq!(field_kib(text, "MemAvailable:"), None);
        }
        assert_eq!(field_kib("MemAvailable: 99999999999999999999 kB", "MemAvailable:"), None);
        assert_eq!(field_kib("MemAvailable: 18446744073709551615 kB", "MemAvailable:"), None);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_number() {
        let refused = require(1 << 50).unwrap_err();
        let Error::Os { what, source } = refused else { panic!("{refused}") };
        assert_eq!(source.raw_os_error(), Some(libc::ENOMEM));
        assert!(what.contains("1125899906842624 bytes"), "{what}");
        assert!(require(1).is_ok());
        assert!(require(u64::MAX).is_err());
    }
}
