// SPDX-License-Identifier: Apache-2.0
//! Huge pages, hugetlbfs, and the limit of locked memory.

use std::path::Path;

use rustix::process::{Resource, getrlimit};
use stanchion_engine::{HugePages, Region};

use super::check::{Check, Needs, Root, Status};
use crate::output;

const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// What a command takes with its default buffers: SPDK's own 64 MiB, 64 MiB of buffers, and what
/// the metadata needs.
const WANTED_PAGES: u64 = 96;
const POOL: &str = "hugepages/hugepages-2048kB";

pub fn checks(root: Root<'_>, needs: Needs) -> Vec<Check> {
    vec![huge_pages(root, needs), hugetlbfs(root, needs), locked_memory(needs)]
}

fn huge_pages(root: Root<'_>, needs: Needs) -> Check {
    const NAME: &str = "huge pages";
    let all = "/sys/kernel/mm";
    let count = |dir: &str, file: &str| root.number(&format!("{dir}/{POOL}/{file}"));
    let (Some(total), Some(free)) = (count(all, "nr_hugepages"), count(all, "free_hugepages"))
    else {
        return Check::lacking(NAME, needs.spdk, "this kernel has no huge pages of 2 MiB");
    };
    let nodes: Vec<String> = root
        .names("/sys/devices/system/node")
        .into_iter()
        .filter_map(|node| {
            let free = count(&format!("/sys/devices/system/node/{node}"), "free_hugepages")?;
            Some(format!("{node}: {free}"))
        })
        .collect();
    let free_by_node =
        if nodes.is_empty() { String::new() } else { format!(" (free on {})", nodes.join(", ")) };
    let evidence = format!(
        "{free} of {total} pages of 2 MiB are free, {}{free_by_node}",
        output::size(free * HUGE_PAGE_BYTES)
    );
    if free >= WANTED_PAGES {
        return match refusal(root) {
            None => Check::ok(NAME, evidence),
            Some(error) if needs.spdk => {
                Check::new(NAME, Status::Fail, format!("{evidence}; {error}"))
            }
            Some(error) => Check::new(NAME, Status::Warn, format!("{evidence}; {error}")),
        };
    }
    let evidence = format!("{evidence}; {WANTED_PAGES} are needed");
    let fix = format!("echo {} > /proc/sys/vm/nr_hugepages", total + WANTED_PAGES - free);
    match needs.spdk {
        true => Check::new(NAME, Status::Fail, evidence).fix(fix),
        false => {
            let evidence = format!("{evidence}: buffers lie in ordinary pages instead");
            Check::new(NAME, Status::Warn, evidence).fix(fix)
        }
    }
}

/// Why this process cannot have the pages, though they are free: a control group may admit fewer.
/// Only taking them shows it; they are given back at once.
fn refusal(root: Root<'_>) -> Option<String> {
    if root.0 != Path::new("/") {
        return None;
    }
    let taken = Region::new(WANTED_PAGES * HUGE_PAGE_BYTES, HugePages::Required);
    taken.err().map(|error| error.to_string())
}

fn hugetlbfs(root: Root<'_>, needs: Needs) -> Check {
    const NAME: &str = "hugetlbfs";
    let mounts = root.text("/proc/self/mounts").unwrap_or_default();
    let is_huge = |line: &&str| line.split(' ').nth(2) == Some("hugetlbfs");
    match mounts.lines().find(is_huge).and_then(|line| line.split(' ').nth(1)) {
        Some(target) => Check::ok(NAME, format!("mounted at {target}")),
        None => Check::lacking(NAME, needs.spdk, "not mounted; SPDK needs it for its memory").fix(
            "mkdir -p /dev/hugepages && mount -t hugetlbfs -o pagesize=2M nodev /dev/hugepages",
        ),
    }
}

fn locked_memory(needs: Needs) -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    locked_memory_of(limit, rustix::process::geteuid().is_root(), needs)
}

fn locked_memory_of(limit: Option<u64>, is_root: bool, needs: Needs) -> Check {
    const NAME: &str = "locked memory";
    match limit {
        None => Check::ok(NAME, "RLIMIT_MEMLOCK is unlimited"),
        Some(bytes) => {
            let evidence = format!("RLIMIT_MEMLOCK is {}", output::size(bytes));
            if is_root {
                // vfio does not count the pages of a process that may lock any memory.
                Check::ok(NAME, format!("{evidence}, which does not apply to root"))
            } else if bytes >= WANTED_PAGES * HUGE_PAGE_BYTES {
                Check::ok(NAME, evidence)
            } else {
                let evidence = format!("{evidence}; vfio counts every buffer against it");
                Check::lacking(NAME, needs.pcie, evidence)
                    .fix("ulimit -l unlimited (in a systemd unit: LimitMEMLOCK=infinity)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;

    const SPDK: Needs = Needs { spdk: true, pcie: true, kernel: false };

    fn pages(tree: &Tree, dir: &str, total: &str, free: &str) {
        tree.file(&format!("{dir}/{POOL}/nr_hugepages"), total);
        tree.file(&format!("{dir}/{POOL}/free_hugepages"), free);
    }

    #[test]
    fn huge_pages_by_node() {
        let tree = Tree::new();
        assert_eq!(huge_pages(tree.root(), SPDK).status, Status::Fail);
        assert_eq!(huge_pages(tree.root(), Needs::default()).status, Status::Skip);
        pages(&tree, "sys/kernel/mm", "100\n", "10\n");
        let few = huge_pages(tree.root(), SPDK);
        assert_eq!(few.status, Status::Fail);
        assert_eq!(few.fix.as_deref(), Some("echo 186 > /proc/sys/vm/nr_hugepages"));
        assert_eq!(huge_pages(tree.root(), Needs::default()).status, Status::Warn);
        pages(&tree, "sys/kernel/mm", "1000\n", "900\n");
        pages(&tree, "sys/devices/system/node/node0", "500\n", "400\n");
        pages(&tree, "sys/devices/system/node/node1", "500\n", "500\n");
        let many = huge_pages(tree.root(), SPDK);
        assert_eq!(many.status, Status::Ok);
        assert!(many.evidence.contains("free on node0: 400, node1: 500"), "{}", many.evidence);
    }

    #[test]
    fn hugetlbfs_is_found_among_the_mounts() {
        let tree = Tree::new();
        tree.file("proc/self/mounts", "tmpfs /hugetlbfs tmpfs rw 0 0\n");
        let missing = hugetlbfs(tree.root(), SPDK);
        assert!(missing.status == Status::Fail && missing.fix.is_some());
        tree.file("proc/self/mounts", "nodev /mnt/huge hugetlbfs rw,pagesize=2M 0 0\n");
        assert_eq!(hugetlbfs(tree.root(), SPDK).evidence, "mounted at /mnt/huge");
    }

    #[test]
    fn locked_memory_limits_users_that_are_not_root() {
        let status = |limit, is_root, needs| locked_memory_of(limit, is_root, needs).status;
        assert_eq!(status(None, false, SPDK), Status::Ok);
        assert_eq!(status(Some(8 << 20), true, SPDK), Status::Ok);
        assert_eq!(status(Some(8 << 20), false, SPDK), Status::Fail);
        assert_eq!(status(Some(8 << 20), false, Needs::default()), Status::Skip);
    }
}
