// SPDX-License-Identifier: Apache-2.0
//! Buffer memory that a control group, the machine or a fork would take away: each is an error
//! before anything is touched, never a signal, and never memory that stays taken.
//!
//! By real control groups and forks: they need root, and say so where it is missing.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::kept::Kept;
use stanchion_testing::internals::memory::{HugePages, Region};
use stanchion_testing::{DriveAddress, Error, SessionOptions};

const MIB: u64 = 1 << 20;

/// A control group of this test's own that this process is in.
struct Group {
    folder: PathBuf,
    /// The group that the process was in before.
    former: PathBuf,
    /// What was switched on for it there, and is switched off again.
    enabled: Option<String>,
}

impl Group {
    /// `None`, with a message, where this process may not have one of this controller.
    fn enter(controller: &str) -> Option<Group> {
        if !common::is_alone() {
            return None;
        }
        let Some((former, enabled)) = former_group(controller) else {
            eprintln!("skipped: no control groups of {controller} that this process may change");
            return None;
        };
        let folder = former.join(format!("stanchion-test-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&folder) {
            eprintln!("skipped: {}: {error}", folder.display());
            return None;
        }
        let group = Group { folder, former, enabled };
        fs::write(group.folder.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        Some(group)
    }

    /// Sets the first of these files that the group has.
    fn limit(&self, files: &[&str], bytes: u64) {
        let file = files.iter().map(|file| self.folder.join(file)).find(|file| file.exists());
        let file =
            file.unwrap_or_else(|| panic!("{} has none of {files:?}", self.folder.display()));
        fs::write(file, bytes.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.former.join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(&self.folder);
        if let Some(controller) = &self.enabled {
            let _ = fs::write(self.former.join("cgroup.subtree_control"), format!("-{controller}"));
        }
    }
}

/// The folder of this process's group in the hierarchy of a controller, of either version; and the
/// controller, if groups below did not have it.
fn former_group(controller: &str) -> Option<(PathBuf, Option<String>)> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let folder = |version_2: bool| {
        let group = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (names, group) = (fields.next()?, fields.next()?);
            let is_it = if version_2 {
                names.is_empty()
            } else {
                names.split(',').any(|name| name == controller)
            };
            is_it.then_some(group)
        })?;
        let point = mounts.lines().find_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let is_it = if version_2 {
                kind.starts_with("cgroup2 ")
            } else {
                kind.starts_with("cgroup ") && kind.split([',', ' ']).any(|name| name == controller)
            };
            is_it.then(|| mount.split(' ').nth(4))?
        })?;
        Some(Path::new(point).join(group.trim_start_matches('/')))
    };
    if let Some(first) = folder(false).filter(|folder| folder.is_dir()) {
        return Some((first, None));
    }
    let second = folder(true)?;
    let given = fs::read_to_string(second.join("cgroup.subtree_control")).ok()?;
    if given.split_whitespace().any(|name| name == controller) {
        return Some((second, None));
    }
    fs::write(second.join("cgroup.subtree_control"), format!("+{controller}")).ok()?;
    Some((second, Some(controller.into())))
}

fn errno(result: Result<Region, Error>) -> (Option<i32>, String) {
    match result {
        Err(Error::Os { what, source }) => (source.raw_os_error(), what),
        Err(other) => panic!("{other:?}"),
        Ok(_) => (None, String::new()),
    }
}

fn huge_pages_within(group: &Group, files: &[&str]) {
    if Region::new(32 * MIB, HugePages::Required).is_err() {
        eprintln!("skipped: no 16 huge pages are free");
        return;
    }
    group.limit(files, 8 * MIB);
    let error = Region::new(32 * MIB, HugePages::Required).unwrap_err();
    assert!(matches!(error, Error::Environment(_)), "{error:?}");
    assert!(error.to_string().contains("--huge-pages off"), "{error}");
    let instead = Region::new(32 * MIB, HugePages::Preferred).unwrap();
    assert!(!instead.is_huge());
    let (address, len) = (instead.base().as_ptr(), instead.len_bytes() as usize);
    // SAFETY: the region's own memory, which nothing else knows.
    unsafe { address.write_bytes(7, len) };
    let within = Region::new(8 * MIB, HugePages::Required).unwrap();
    assert!(within.is_huge());
    drop((within, instead));
    // What was refused was given back.
    assert!(Region::new(8 * MIB, HugePages::Required).is_ok());
}

/// As in a pod that asked for fewer huge pages than the node has: mmap succeeds, and a touch would
/// be SIGBUS; or mmap itself fails. One test, as both switch the controller on and off.
#[test]
fn huge_pages_that_a_control_group_does_not_admit() {
    for files in [
        ["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"],
        ["hugetlb.2MB.rsvd.max", "hugetlb.2MB.rsvd.limit_in_bytes"],
    ] {
        let Some(group) = Group::enter("hugetlb") else { return };
        huge_pages_within(&group, &files);
    }
}

#[test]
fn ordinary_memory_beyond_a_control_group() {
    let Some(group) = Group::enter("memory") else { return };
    group.limit(&["memory.max", "memory.limit_in_bytes"], 128 * MIB);
    for pages in [HugePages::Off, HugePages::Preferred] {
        // More than there are huge pages, so that ordinary ones are asked for.
        let (errno, what) = errno(Region::new(64 << 30, pages));
        assert_eq!(errno, Some(libc::ENOMEM), "{what}");
    }
    let (errno, what) = errno(Region::new(256 * MIB, HugePages::Off));
    assert_eq!(errno, Some(libc::ENOMEM));
    assert!(what.contains("control group") && what.contains("stanchion-test"), "{what}");
    let within = Region::new(64 * MIB, HugePages::Off).unwrap();
    assert!(Region::new(64 * MIB, HugePages::Off).is_err(), "what is taken counts");
    drop(within);
    assert!(Region::new(64 * MIB, HugePages::Off).is_ok());
}

#[test]
fn ordinary_memory_beyond_the_machine() {
    for pages in [HugePages::Off, HugePages::Preferred] {
        let (errno, what) = errno(Region::new(1 << 40, pages));
        assert_eq!(errno, Some(libc::ENOMEM), "{what}");
        assert!(what.contains("1099511627776 bytes"), "{what}");
    }
}

/// A forked child, which lives until this is dropped.
struct Child(libc::pid_t);

impl Child {
    /// Returns when the child runs: until then it has not closed what it is to close.
    fn fork() -> Child {
        let mut pipe = [0; 2];
        // SAFETY: the child only says that it runs, and waits for its end.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let pid = libc::fork();
            if pid == 0 {
                libc::write(pipe[1], b"r".as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
            assert!(pid > 0);
            let child = Child(pid);
            let mut byte = 0_u8;
            assert_eq!(libc::read(pipe[0], (&raw mut byte).cast(), 1), 1);
            assert_eq!((libc::close(pipe[0]), libc::close(pipe[1])), (0, 0));
            child
        }
    }

    /// What it has of the engine's buffers: mappings, and descriptors.
    fn holds(&self) -> (usize, usize) {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.0)).unwrap();
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.0)).unwrap();
        let links = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let is_ours = |link: &PathBuf| link.to_string_lossy().contains("memfd:stanchion");
        (maps.matches("memfd:stanchion").count(), links.filter(is_ours).count())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: plain calls on a child of ours.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn a_forked_child_holds_no_buffer_memory() {
    for pages in [HugePages::Preferred, HugePages::Off] {
        let regions: Vec<_> = (0..3).map(|_| Region::new(4 * MIB, pages).unwrap()).collect();
        let child = Child::fork();
        assert_eq!(child.holds(), (0, 0), "{pages:?}");
        // The parent's are whole.
        for region in &regions {
            // SAFETY: the region's own memory, which nothing else knows.
            assert_eq!(unsafe { region.base().read() }, 0);
        }
        assert_eq!(Child(std::process::id() as libc::pid_t).holds_and_forgets(), (3, 3));
        drop(regions);
        let later = Child::fork();
        assert_eq!(later.holds(), (0, 0));
    }
}

impl Child {
    /// For this process itself, which is not to be killed.
    fn holds_and_forgets(self) -> (usize, usize) {
        let held = self.holds();
        std::mem::forget(self);
        held
    }
}

/// As a DataLoader's workers, forked while a pool is open, which live on.
#[test]
fn a_pool_is_closed_and_opened_again_while_a_child_lives() {
    let directory = tempfile::tempdir().unwrap();
    let path = |number| DriveAddress::Path(directory.path().join(format!("drive{number}")));
    let mut kept = Kept::format((0..2).map(path).collect(), Some(48 * MIB));
    let pool = kept.open();
    let mut session = pool.session(&SessionOptions::default()).unwrap();
    let buffer = session.alloc(MIB).unwrap();
    let child = Child::fork();
    // Its ring, which is small, is there; no buffers are.
    let (mappings, descriptors) = child.holds();
    let rings = Child(std::process::id() as libc::pid_t).holds_and_forgets();
    assert!(mappings < rings.0 && descriptors < rings.1, "{mappings} {descriptors} {rings:?}");
    drop(buffer);
    drop(session);
    kept.save(&pool, 3 * MIB);
    drop(pool);
    // The child has the drives' descriptors, and no lock.
    let again = kept.open();
    kept.save(&again, 3 * MIB);
    drop(again);
    kept.check();
    drop(child);
}

#[test]
fn a_child_that_drops_its_copy_harms_nothing() {
    let region = Region::new(4 * MIB, HugePages::Off).unwrap();
    let base = region.base();
    // SAFETY: the child maps, drops, looks and ends; it takes no lock that another thread holds.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Another mapping where the region was, and another file under its descriptor's number.
        let fixed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the child has nothing at this address; `drop` is what is tested; `_exit` ends it.
        unsafe {
            let (start, len) = (base.as_ptr().cast::<libc::c_void>(), (4 * MIB) as usize);
            let mine = libc::mmap(start, len, libc::PROT_READ, fixed, -1, 0);
            let file = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
            if mine != start || file < 0 {
                libc::_exit(2);
            }
            drop(region);
            let is_mapped = libc::madvise(start, len, libc::MADV_POPULATE_READ) == 0;
            let is_open = libc::fcntl(file, libc::F_GETFD) >= 0;
            libc::_exit(i32::from(!(is_mapped && is_open)));
        }
    }
    let mut status = 0;
    // SAFETY: plain call on a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 0);
    // SAFETY: the region's own memory, which nothing else knows.
    assert_eq!(unsafe { base.read() }, 0);
    drop(region);
}
