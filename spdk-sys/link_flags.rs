// SPDX-License-Identifier: Apache-2.0
//! The output of `pkg-config --static --libs` for SPDK, sorted by how to link it. Pure: reads no
//! file.
//!
//! The order of the flags carries no meaning once every archive is linked whole, so duplicates are
//! dropped.

use std::path::{Path, PathBuf};

/// Each list in order of first appearance, without duplicates.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LinkPlan {
    pub search_dirs: Vec<PathBuf>,
    /// Names of static archives (`foo` for `libfoo.a`): SPDK, DPDK and their dependencies; linked
    /// whole.
    pub archives: Vec<String>,
    /// Names of libraries that the system's linker finds.
    pub shared: Vec<String>,
    pub unknown: Vec<String>,
}

/// `is_archive` says whether there is a file at a path; a library with a `.a` in one of the printed
/// directories is an archive, any other is the system's.
pub fn parse(flags: &str, is_archive: impl Fn(&Path) -> bool) -> LinkPlan {
    let mut plan = LinkPlan::default();
    for flag in flags.split_whitespace() {
        if let Some(dir) = flag.strip_prefix("-L") {
            push(&mut plan.search_dirs, PathBuf::from(dir));
        }
    }
    for flag in flags.split_whitespace() {
        if flag.starts_with("-L") || flag.starts_with("-Wl,") {
            // Of the linker's own options only those around --whole-archive matter; ours replace
            // them.
            continue;
        } else if flag == "-pthread" {
            push(&mut plan.shared, "pthread".to_owned());
        } else if let Some(file) = flag.strip_prefix("-l:") {
            match archive_name(file) {
                Some(name) => push(&mut plan.archives, name),
                None => push(&mut plan.unknown, flag.to_owned()),
            }
        } else if let Some(name) = flag.strip_prefix("-l").filter(|name| !name.is_empty()) {
            let file = format!("lib{name}.a");
            if plan.search_dirs.iter().any(|dir| is_archive(&dir.join(&file))) {
                push(&mut plan.archives, name.to_owned());
            } else {
                push(&mut plan.shared, name.to_owned());
            }
        } else if let Some((dir, file)) = flag.rsplit_once('/').filter(|_| flag.starts_with('/')) {
            match archive_name(file) {
                Some(name) => {
                    push(&mut plan.search_dirs, PathBuf::from(dir));
                    push(&mut plan.archives, name);
                }
                None => push(&mut plan.unknown, flag.to_owned()),
            }
        } else {
            push(&mut plan.unknown, flag.to_owned());
        }
    }
    plan
}

fn archive_name(file: &str) -> Option<String> {
    let name = file.strip_prefix("lib")?.strip_suffix(".a")?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn push<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spdk_only(path: &Path) -> bool {
        let file = path.file_name().unwrap().to_str().unwrap();
        path.starts_with("/spdk/lib")
            && (file.starts_with("libspdk_") || file.starts_with("librte_"))
    }

    #[test]
    fn sorts_archives_from_system_libraries() {
        let plan = parse("-L/spdk/lib -lspdk_nvme -lrte_eal -lnuma -lcrypto\n", spdk_only);
        assert_eq!(plan.search_dirs, [PathBuf::from("/spdk/lib")]);
        assert_eq!(plan.archives, ["spdk_nvme", "rte_eal"]);
        assert_eq!(plan.shared, ["numa", "crypto"]);
        assert!(plan.unknown.is_empty());
    }

    #[test]
    fn drops_duplicates() {
        let plan = parse("-L/spdk/lib -lspdk_log -L/spdk/lib -lspdk_log -lrt -lrt", spdk_only);
        assert_eq!((plan.search_dirs.len(), plan.archives.len(), plan.shared.len()), (1, 1, 1));
    }

    #[test]
    fn finds_an_archive_whose_directory_comes_later() {
        let plan = parse("-lspdk_log -L/spdk/lib", spdk_only);
        assert_eq!(plan.archives, ["spdk_log"]);
    }

    #[test]
    fn takes_a_library_of_another_directory_from_the_system() {
        let plan = parse("-L/elsewhere -lspdk_log", spdk_only);
        assert_eq!((plan.archives.len(), plan.shared), (0, vec!["spdk_log".to_owned()]));
    }

    #[test]
    fn takes_exact_file_names() {
        // DPDK's own .pc files name archives like this, between whole-archive options.
        let plan = parse(
            "-Wl,--whole-archive -L/dpdk/lib -l:librte_eal.a -Wl,--no-whole-archive -Wl,--export-dynamic",
            |_| false,
        );
        assert_eq!(plan.archives, ["rte_eal"]);
        assert!(plan.unknown.is_empty());
    }

    #[test]
    fn takes_archives_by_path() {
        let plan = parse("/isal/.libs/libisal.a", |_| false);
        assert_eq!(plan.search_dirs, [PathBuf::from("/isal/.libs")]);
        assert_eq!(plan.archives, ["isal"]);
    }

    #[test]
    fn knows_pthread_under_both_names() {
        assert_eq!(parse("-pthread -lpthread", |_| false).shared, ["pthread"]);
    }

    #[test]
    fn reports_unknown_flags() {
        let plan = parse("-framework -l:libfoo.so /usr/lib/libbar.so -l", |_| false);
        assert_eq!(plan.unknown, ["-framework", "-l:libfoo.so", "/usr/lib/libbar.so", "-l"]);
        assert!(plan.archives.is_empty() && plan.shared.is_empty());
    }

    #[test]
    fn nothing_gives_nothing() {
        assert_eq!(parse(" \n", |_| true), LinkPlan::default());
    }
}
