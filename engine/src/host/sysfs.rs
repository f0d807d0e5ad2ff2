// SPDX-License-Identifier: Apache-2.0
//! What the kernel reports about block devices, locks, mounts and swap in /sys and /proc.
//!
//! Everything is read below a root directory, so that tests can make their own tree. Files come and
//! go during a read: what cannot be read is absent, never an error. A caller that needs certainty
//! opens the device exclusively.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait until the kernel has finished the I/O of an ended process. Usually that is tens
/// of milliseconds; but a kernel with lazy RCU may leave the end of an io_uring to its next sweep,
/// ten seconds later.
pub(crate) const LINGER: Duration = Duration::from_secs(30);
pub(crate) const LINGER_LOOK: Duration = Duration::from_millis(5);
/// The same for a lock whose holder /proc does not show: a pid namespace hides ended processes, and
/// live ones of other namespaces.
pub(crate) const UNSEEN_LINGER: Duration = Duration::from_secs(2);

/// A device number as the kernel prints it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct DeviceNumber {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl DeviceNumber {
    pub(crate) fn from_raw(device: u64) -> Self {
        DeviceNumber { major: libc::major(device), minor: libc::minor(device) }
    }

    /// `MAJOR:MINOR`, decimal.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

/// A process that holds a lock on a file or a device node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LockOwner {
    pub(crate) pid: u32,
    pub(crate) command: String,
}

impl std::fmt::Display for LockOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.pid == std::process::id() {
            write!(f, "this process (pid {})", self.pid)
        } else {
            write!(f, "{} (pid {})", self.command, self.pid)
        }
    }
}

/// What kind of processes hold a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holders {
    /// None any more, or none that this pid namespace shows.
    Unknown,
    /// Processes that were killed and whose I/O in flight still holds the lock: only when the
    /// kernel has finished that may others write.
    Ended,
    /// At least one of them is a running process.
    Alive,
}

impl Holders {
    /// Whether only the I/O of ended processes holds the lock.
    pub(crate) fn has_only_ended(self) -> bool {
        self == Holders::Ended
    }
}

/// The machine whose /sys and /proc lie below a root directory.
#[derive(Clone, Debug)]
pub(crate) struct System {
    root: PathBuf,
}

impl System {
    /// This machine.
    pub(crate) fn live() -> Self {
        System::below(Path::new("/"))
    }

    /// The machine described below `root`.
    pub(crate) fn below(root: &Path) -> Self {
        System { root: root.to_owned() }
    }

    /// An absolute path of the machine, below the root.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// The sysfs directory of a block device: of the partition itself for a partition.
    pub(crate) fn block_dir(&self, device: DeviceNumber) -> Option<PathBuf> {
        let link = self.path(&format!("/sys/dev/block/{}:{}", device.major, device.minor));
        fs::canonicalize(link).ok()
    }

    /// The number of the block device that a path from /proc names.
    pub(crate) fn device_of_path(&self, path: &str) -> Option<DeviceNumber> {
        use std::os::unix::fs::FileTypeExt;
        if let Ok(metadata) = fs::metadata(self.path(path))
            && metadata.file_type().is_block_device()
        {
            return Some(DeviceNumber::from_raw(metadata.rdev()));
        }
        let name = path.strip_prefix("/dev/")?.replace('/', "!");
        let dev = self.path(&format!("/sys/class/block/{name}/dev"));
        DeviceNumber::parse(&read_line(&dev)?)
    }

    /// Mounted file systems: the device number, the source and where it is mounted.
    pub(crate) fn mounts(&self) -> Vec<Mount> {
        let mut mounts = Vec::new();
        // A container sees only its own mounts; process 1 shows the host's where pids are shared.
        for process in ["self", "1"] {
            let path = self.path(&format!("/proc/{process}/mountinfo"));
            let text = fs::read_to_string(path).unwrap_or_default();
            for mount in text.lines().filter_map(Mount::parse) {
                if !mounts.contains(&mount) {
                    mounts.push(mount);
                }
            }
        }
        mounts
    }

    /// Paths of active swap devices and swap files.
    pub(crate) fn swaps(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("/proc/swaps")).unwrap_or_default();
        text.lines().skip(1).filter_map(|line| Some(unescape(line.split(' ').next()?))).collect()
    }

    /// The processes with a lock of any kind on an inode, as far as this pid namespace shows them.
    pub(crate) fn lock_owners(&self, device: DeviceNumber, inode: u64) -> Vec<LockOwner> {
        let text = fs::read_to_string(self.path("/proc/locks")).unwrap_or_default();
        let wanted = format!("{:02x}:{:02x}:{inode}", device.major, device.minor);
        let mut owners: Vec<LockOwner> = Vec::new();
        for line in text.lines() {
            // NUMBER: KIND MODE ACCESS PID DEVICE:INODE START END; a waiter has `->` as KIND.
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, kind, _, _, pid, at, ..] = fields[..] else { continue };
            let (Ok(pid), true) = (pid.parse::<u32>(), at == wanted && kind != "->") else {
                continue;
            };
            if owners.iter().all(|owner| owner.pid != pid) {
                let comm = read_line(&self.path(&format!("/proc/{pid}/comm")));
                let command = comm.unwrap_or_else(|| "an ended process with I/O in flight".into());
                owners.push(LockOwner { pid, command });
            }
        }
        owners
    }

    /// What kind of processes hold locks on an inode.
    pub(crate) fn lock_holders(&self, device: DeviceNumber, inode: u64) -> Holders {
        let owners = self.lock_owners(device, inode);
        match owners.iter().all(|owner| self.has_ended(owner.pid)) {
            _ if owners.is_empty() => Holders::Unknown,
            true => Holders::Ended,
            false => Holders::Alive,
        }
    }

    /// Waits while an inode is locked by ended processes only, at most [`LINGER`].
    pub(crate) fn outlast_ended_holders(&self, device: DeviceNumber, inode: u64) {
        let deadline = Instant::now() + LINGER;
        while self.lock_holders(device, inode) == Holders::Ended && Instant::now() < deadline {
            std::thread::sleep(LINGER_LOOK);
        }
    }

    /// Processes that have one of these device nodes open, as far as this pid namespace shows them.
    pub(crate) fn processes_with_open(&self, nodes: &[String]) -> Vec<LockOwner> {
        let processes = names(&self.path("/proc"));
        let pids = processes.iter().filter_map(|name| name.parse::<u32>().ok());
        let has_one = |pid: &u32| {
            let descriptors = self.path(&format!("/proc/{pid}/fd"));
            names(&descriptors).iter().any(|descriptor| {
                fs::read_link(descriptors.join(descriptor))
                    .is_ok_and(|target| nodes.iter().any(|node| target == Path::new(node)))
            })
        };
        let owner = |pid| {
            let command = read_line(&self.path(&format!("/proc/{pid}/comm"))).unwrap_or_default();
            LockOwner { pid, command }
        };
        pids.filter(has_one).map(owner).collect()
    }

    /// Writes a sysfs attribute, or its file in a test's tree.
    pub(crate) fn write(&self, absolute: &str, text: &str) -> std::io::Result<()> {
        use std::io::Write as _;
        // Never creates it: sysfs would refuse, and so does a tree of a test.
        let mut file =
            fs::OpenOptions::new().write(true).truncate(true).open(self.path(absolute))?;
        file.write_all(text.as_bytes())
    }

    /// Whether a process has ended, even if its exit status was not collected yet.
    fn has_ended(&self, pid: u32) -> bool {
        let Some(stat) = read_line(&self.path(&format!("/proc/{pid}/stat"))) else { return true };
        // PID (COMMAND) STATE ...; a command may have parentheses, too.
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        matches!(state, Some('Z' | 'X'))
    }
}

/// One line of mountinfo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mount {
    pub(crate) device: DeviceNumber,
    pub(crate) source: String,
    pub(crate) target: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Mount> {
        let (head, tail) = line.split_once(" - ")?;
        let mut head = head.split(' ');
        let device = DeviceNumber::parse(head.nth(2)?)?;
        let target = unescape(head.nth(1)?);
        let source = unescape(tail.split(' ').nth(1)?);
        Some(Mount { device, source, target })
    }
}

/// The kernel writes space, tab, newline and backslash as `\ooo`.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match (bytes[at], octal) {
            (b'\\', Some(value)) => {
                out.push(value);
                at += 4;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The trimmed text of a small file, if it exists and is not empty.
pub(crate) fn read_line(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    // Serial and model numbers are padded with spaces, and some devices pad with NUL.
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Names in a directory, sorted; none if there is no such directory.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The directory of the whole disk, for a partition's directory or the disk's own.
pub(crate) fn disk_dir(block_dir: &Path) -> PathBuf {
    match block_dir.parent() {
        Some(parent) if block_dir.join("partition").exists() => parent.to_owned(),
        _ => block_dir.to_owned(),
    }
}

/// The directories of a disk's partitions.
pub(crate) fn partition_dirs(disk_dir: &Path) -> Vec<PathBuf> {
    names(disk_dir)
        .into_iter()
        .map(|name| disk_dir.join(name))
        .filter(|dir| dir.join("partition").exists())
        .collect()
}

/// Whether it is only one path to a multipath namespace: only the namespace itself can be opened.
pub(crate) fn is_hidden(block_dir: &Path) -> bool {
    read_line(&block_dir.join("hidden")).is_some_and(|hidden| hidden != "0")
}

/// Whether completed writes to a block device may sit in a volatile cache.
pub(crate) fn volatile_cache(block_dir: &Path) -> Option<bool> {
    match read_line(&disk_dir(block_dir).join("queue/write_cache"))?.as_str() {
        "write back" => Some(true),
        "write through" => Some(false),
        _ => None,
    }
}

/// Whether a block device takes writes only in the order of its zones.
pub(crate) fn needs_zone_order(block_dir: &Path) -> bool {
    read_line(&disk_dir(block_dir).join("queue/zoned")).is_some_and(|model| model == "host-managed")
}

/// A block device's own serial number or world-wide name; for a partition, its disk's and its
/// number.
pub(crate) fn serial(block_dir: &Path) -> Option<String> {
    let disk = disk_dir(block_dir);
    let files = ["device/serial", "serial", "wwid", "device/wwid"];
    let serial = files.iter().find_map(|file| read_line(&disk.join(file)))?;
    Some(match read_line(&block_dir.join("partition")) {
        Some(number) => format!("{serial}-part{number}"),
        None => serial,
    })
}

/// A block device's model.
pub(crate) fn model(block_dir: &Path) -> Option<String> {
    read_line(&disk_dir(block_dir).join("device/model"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines() {
        let line = r"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.device, DeviceNumber { major: 98, minor: 0 });
        assert_eq!((mount.target.as_str(), mount.source.as_str()), ("/mnt 2", "/dev/root"));
        assert_eq!(Mount::parse("36 35 garbage"), None);
        assert_eq!(unescape(r"\134\"), r"\\");
    }

    #[test]
    fn only_zones_that_the_host_manages_need_an_order() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("nvme0n1");
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        assert!(!needs_zone_order(&disk));
        for (model, expected) in [("none", false), ("host-aware", false), ("host-managed", true)] {
            std::fs::write(disk.join("queue/zoned"), format!("{model}\n")).unwrap();
            assert_eq!(needs_zone_order(&disk), expected, "{model}");
        }
    }

    #[test]
    fn locks_of_one_inode() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/42")).unwrap();
        fs::write(root.path().join("proc/42/comm"), "trainer\n").unwrap();
        let locks = "1: FLOCK  ADVISORY  WRITE 42 fe:00:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 43 fe:00:77 0 EOF\n\
                     3: POSIX  ADVISORY  READ 44 fe:00:78 0 EOF\nnonsense\n";
        fs::write(root.path().join("proc/locks"), locks).unwrap();
        let system = System::below(root.path());
        let owners = system.lock_owners(DeviceNumber { major: 254, minor: 0 }, 77);
        assert_eq!(owners, [LockOwner { pid: 42, command: "trainer".into() }]);
        assert_eq!(owners[0].to_string(), "trainer (pid 42)");
    }
    #[test]
    fn ended_processes_are_distinguished_from_running_ones() {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("proc/42");
        fs::create_dir_all(&process).unwrap();
        let locks = root.path().join("proc/locks");
        fs::write(&locks, "1: FLOCK  ADVISORY  WRITE 42 fe:00:77 0 EOF\n").unwrap();
        let system = System::below(root.path());
        let at = DeviceNumber { major: 254, minor: 0 };
        fs::write(process.join("stat"), "42 (Z) S) S 1 42\n").unwrap();
        assert_eq!(system.lock_holders(at, 77), Holders::Alive);
        assert_eq!(system.lock_holders(at, 78), Holders::Unknown);
        fs::write(process.join("stat"), "42 (trainer) Z 1 42\n").unwrap();
        assert_eq!(system.lock_holders(at, 77), Holders::Ended);
        fs::remove_dir_all(process).unwrap();
        assert_eq!(system.lock_holders(at, 77), Holders::Ended);
        // The lock is released during the wait.
        let waits = std::thread::spawn(move || {
            system.outlast_ended_holders(at, 77);
            system.lock_holders(at, 77)
        });
        std::thread::sleep(2 * LINGER_LOOK);
        fs::write(&locks, "").unwrap();
        assert_eq!(waits.join().unwrap(), Holders::Unknown);
    }
}
