// SPDX-License-Identifier: Apache-2.0
//! `stanchion doctor`: whether this machine and the given drives are ready for use. Changes
//! nothing.

mod check;
mod drive;
mod machine;
mod memory;

use std::path::Path;

use clap::Args;
use serde::Serialize;
use stanchion_engine::DriveAddress;
use stanchion_engine::ErrorKind;
use stanchion_engine::host::pci::NvmeFunction;

use self::check::{Check, CheckRecord, Needs, Root, Status};
use super::Subcommand;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;
use crate::output::{self, plain};

const EXAMPLES: &str = "\
Examples:
  stanchion doctor                                            this machine
  stanchion doctor --drive pcie:0000:04:00.0                  also whether SPDK can use this drive
  stanchion doctor --drive /dev/nvme1n1 --json                also whether the kernel can use it

Each line is ok, warn (it works, but worse than it could), fail (it cannot work) or skip (not needed
for these drives). The commands that fix what is not ok follow the table. Nothing is changed; a
drive of SPDK is attached to read its state, which resets it. The exit code is that of the failed
checks: 11 for a drive in use, 10 for a drive that does not exist, otherwise 13.";

/// `stanchion doctor` has no arguments of its own.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Doctor {}

#[derive(Serialize)]
struct Report {
    checks: Vec<CheckRecord>,
}

impl Subcommand for Doctor {
    const NAME: &'static str = "doctor";
    const ABOUT: &'static str = "Check whether this machine and the given drives are ready for use";
    const GROUPS: &'static [Group] = &[Group::Drives, Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let (given, output) = (context.drives()?, context.output);
        let checks = examine(Root(Path::new("/")), &given);
        if output.json {
            let checks = checks.iter().map(CheckRecord::from).collect();
            output.document(Self::NAME, &Report { checks })?;
        } else {
            output.text(table(&checks))?;
        }
        verdict(&checks)
    }
}

/// The error of the failed checks: of their kind where all have the same, else "environment not
/// ready".
fn verdict(checks: &[Check]) -> Result<(), CommandError> {
    let mut kinds = checks.iter().filter(|c| c.status == Status::Fail).map(|check| check.kind);
    let count = kinds.clone().count();
    let Some(first) = kinds.next() else { return Ok(()) };
    let kind = if kinds.all(|kind| kind == first) { first } else { ErrorKind::Environment };
    let text = format!("{} failed; the table says what to run", output::count(count, "check"));
    Err(CommandError::of_kind(kind, text))
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
        text.push_str("\n\nTo fix it:");
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

    /// A simulated machine.
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
    fn the_exit_code_is_that_of_what_failed() {
        let fail = |kind| Check::new("a", Status::Fail, "x").kind(kind);
        let code = |checks: &[Check]| verdict(checks).map_err(|error| error.kind_and_code().1);
        assert_eq!(code(&[Check::ok("a", "fine")]), Ok(()));
        assert_eq!(code(&[Check::new("a", Status::Fail, "x")]), Err(13));
        assert_eq!(code(&[fail(ErrorKind::Busy), Check::ok("a", "fine")]), Err(11));
        assert_eq!(code(&[fail(ErrorKind::NotFound), fail(ErrorKind::NotFound)]), Err(10));
        assert_eq!(code(&[fail(ErrorKind::Busy), fail(ErrorKind::NotFound)]), Err(13));
    }

    #[test]
    fn the_table_ends_with_the_fixes() {
        let checks = [
            Check::ok("a", "fine").fix("not needed"),
            Check::new("b", Status::Warn, "so so").of("S1").fix("do this"),
        ];
        let text = table(&checks);
        assert!(text.contains("warn    b      S1  so so"), "{text}");
        assert!(text.ends_with("To fix it:\n  b of S1: do this"), "{text}");
    }
}
