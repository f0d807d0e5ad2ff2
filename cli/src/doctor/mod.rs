//! `stanchion doctor`: what keeps this machine, and the given drives, from being used. Changes nothing.

mod check;
mod drive;
mod machine;
mod memory;

use std::path::Path;

use clap::Args;
use serde::Serialize;
use stanchion_engine::DriveAddress;
use stanchion_engine::Error;
use stanchion_engine::host::pci::NvmeFunction;

use self::check::{Check, Needs, Root, Status};
use crate::args::Common;
use crate::config;
use crate::exit::Failure;
use crate::output::{self, Output, plain};

const EXAMPLES: &str = "\
Examples:
  stanchion doctor                                            this machine
  stanchion doctor --drive pcie:0000:04:00.0                  and whether this drive can be used, by SPDK
  stanchion doctor --drive /dev/nvme1n1 --json                or by the kernel

Each line is ok, warn (it works, but worse than it could), fail (what was asked for cannot work) or skip
(not needed for these drives). After the table stand the commands that mend what is not ok. Nothing is
changed; a drive that SPDK drives is attached to be asked, which resets it. Exit code 13 when a line is
fail.";

/// `stanchion doctor` has no arguments of its own.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {}

#[derive(Serialize)]
struct Document {
    format_version: u32,
    checks: Vec<Check>,
}

/// Runs it.
///
/// # Errors
/// When a check has failed; they are told before.
pub fn run(_: &DoctorArgs, common: &Common, output: Output) -> Result<(), Failure> {
    let given = config::drives(common)?;
    let root = Root(Path::new("/"));
    let checks = examine(root, &given);
    let failed = checks.iter().filter(|check| check.status == Status::Fail).count();
    if output.json {
        output.document(&Document { format_version: 1, checks })?;
    } else {
        output.text(table(&checks))?;
    }
    match failed {
        0 => Ok(()),
        count => Err(Error::Environment(format!("{count} checks failed")).into()),
    }
}

fn examine(root: Root<'_>, given: &[DriveAddress]) -> Vec<Check> {
    let functions = drive::functions(root);
    let needs = needs(&functions, given);
    let mut checks = memory::checks(root, needs);
    checks.extend(machine::checks(root, needs));
    checks.extend(drive::function_checks(&functions, given));
    for address in given {
        let is_reachable = match address.pci_function() {
            None => true,
            Some(wanted) => functions.iter().any(|f| f.address == wanted && f.is_for_user_space()),
        };
        checks.extend(drive::drive_checks(root, address, is_reachable));
    }
    checks
}

fn needs(functions: &[NvmeFunction], given: &[DriveAddress]) -> Needs {
    let is_spdk = |drive: &&DriveAddress| matches!(drive, DriveAddress::Spdk { .. });
    let bound = functions.iter().any(NvmeFunction::is_for_user_space);
    Needs {
        spdk: bound || given.iter().any(|drive| is_spdk(&drive)),
        pcie: bound || given.iter().any(|drive| drive.pci_function().is_some()),
        kernel: given.is_empty() || !given.iter().all(|drive| is_spdk(&drive)),
    }
}

fn table(checks: &[Check]) -> String {
    let mut table = output::table(&["STATUS", "CHECK", "OF", "FOUND"], &[]);
    for check in checks {
        table.add_row([
            check.status.word().to_owned(),
            check.name.to_owned(),
            check.subject.as_deref().map_or_else(|| "-".into(), plain),
            plain(&check.evidence),
        ]);
    }
    let mut text = output::lines(&table);
    let fixes: Vec<&Check> =
        checks.iter().filter(|c| c.status >= Status::Warn && c.fix.is_some()).collect();
    if !fixes.is_empty() {
        text.push_str("\n\nTo mend it:");
    }
    for check in fixes {
        let subject =
            check.subject.as_deref().map_or_else(String::new, |s| format!(" of {}", plain(s)));
        let fix = check.fix.as_deref().unwrap_or_default();
        text.push_str(&format!("\n  {}{subject}: {}", check.name, plain(fix)));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A made machine.
    pub struct Tree(tempfile::TempDir);

    impl Tree {
        pub fn new() -> Tree {
            Tree(tempfile::tempdir().unwrap())
        }

        pub fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub fn root(&self) -> Root<'_> {
            Root(self.0.path())
        }
    }

    #[test]
    fn only_what_the_drives_need_can_fail() {
        let tree = Tree::new();
        let failing = |given: &[&str]| {
            let given: Vec<DriveAddress> = given.iter().map(|a| a.parse().unwrap()).collect();
            let checks = examine(tree.root(), &given);
            let failed = checks.into_iter().filter(|check| check.status == Status::Fail);
            failed.map(|check| check.name).collect::<Vec<_>>()
        };
        assert!(failing(&[]).is_empty());
        let pcie = failing(&["pcie:0000:04:00.0"]);
        assert!(pcie.starts_with(&["huge pages", "hugetlbfs"]) && pcie.ends_with(&["driver"]));
        assert_eq!(failing(&["/nonexistent/a.img"]), Vec::<&str>::new());
    }

    #[test]
    fn the_table_ends_with_what_mends() {
        let checks = [
            Check::ok("a", "fine").fix("not needed"),
            Check::new("b", Status::Warn, "so so").of("S1").fix("do this"),
        ];
        let text = table(&checks);
        assert!(text.contains("warn    b      S1  so so"), "{text}");
        assert!(text.ends_with("To mend it:\n  b of S1: do this"), "{text}");
    }
}
