// SPDX-License-Identifier: Apache-2.0
//! Who we are to other processes and hosts, and whether another owner has certainly ended.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use uuid::Uuid;

use super::sysfs::{System, read_line};
use crate::error::Error;
use crate::format::{Owner, OwnerProcess};

/// The effective user.
pub(crate) fn user() -> Result<u32, Error> {
    let about = std::fs::metadata("/proc/self/status");
    about.map(|about| about.uid()).map_err(|error| Error::os("asking /proc for the user", error))
}

/// The name of this program.
pub(crate) fn command() -> String {
    let path = std::env::current_exe().ok();
    let name =
        path.as_deref().and_then(|p| p.file_name()).map(|n| n.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "unknown".into())
}

/// The owner record of an opening for writing that begins now, in this process.
pub(crate) fn this_process(reservation_key: u64, host_id: [u8; 16]) -> Owner {
    let system = System::live();
    let process = process(&system, "self").unwrap_or_default();
    let host = read_line(&system.path("/proc/sys/kernel/hostname")).unwrap_or_default();
    let owner = Owner::new(Uuid::now_v7(), process, &host, &command());
    Owner { reservation_key, host_id, ..owner }
}

/// A process of this pid namespace.
fn process(system: &System, pid: &str) -> Option<OwnerProcess> {
    let boot_id = read_line(&system.path("/proc/sys/kernel/random/boot_id"))?;
    let stat = read_line(&system.path(&format!("/proc/{pid}/stat")))?;
    // PID (COMMAND) STATE PPID ...; a command may have parentheses and spaces, too. The start is
    // the 22nd field.
    let (head, tail) = stat.rsplit_once(')')?;
    let number = head.split_once(' ')?.0;
    let started = tail.split_whitespace().nth(19)?;
    Some(OwnerProcess {
        boot_id: boot_id.parse().ok()?,
        pid_namespace: pid_namespace(system)?,
        pid: number.parse().ok()?,
        started_ticks: started.parse().ok()?,
    })
}

/// The inode number of our pid namespace.
fn pid_namespace(system: &System) -> Option<u64> {
    let link = std::fs::read_link(system.path("/proc/self/ns/pid")).ok()?;
    let text = link.to_str()?;
    text.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// Whether an owner has certainly ended: it ran in this boot and in our pid namespace, where there
/// is no such process any more. `is_open` tells which openings of this process are not closed.
pub(crate) fn has_ended(owner: &Owner, is_open: impl FnOnce(Uuid) -> bool) -> bool {
    has_ended_on(&System::live(), owner, is_open)
}

fn has_ended_on(system: &System, owner: &Owner, is_open: impl FnOnce(Uuid) -> bool) -> bool {
    let Some(ours) = process(system, "self") else { return false };
    let theirs = &owner.process;
    if theirs.pid == 0
        || theirs.boot_id != ours.boot_id
        || theirs.pid_namespace != ours.pid_namespace
    {
        return false;
    }
    if *theirs == ours {
        return !is_open(owner.open_id);
    }
    if !is_readable(system) {
        return false;
    }
    match process(system, &theirs.pid.to_string()) {
        // The number was given to another process.
        Some(found) => found.started_ticks != theirs.started_ticks || is_zombie(system, theirs.pid),
        None => !system.path(&format!("/proc/{}", theirs.pid)).exists(),
    }
}

/// Whether /proc shows other users' processes: with `hidepid` it does not.
fn is_readable(system: &System) -> bool {
    Path::new(&system.path("/proc/1")).exists()
}

fn is_zombie(system: &System, pid: u32) -> bool {
    let stat = read_line(&system.path(&format!("/proc/{pid}/stat"))).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('Z' | 'X'))
}

/// An owner, for people.
pub(crate) fn describe(owner: &Owner) -> String {
    let or = |text: &str, other: &str| if text.is_empty() { other.into() } else { text.to_owned() };
    let command = or(&owner.command, "a program");
    let host = or(&owner.host_name, "an unknown host");
    format!("{command} (pid {}) on host {host}, boot {}", owner.process.pid, owner.process.boot_id)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const BOOT: &str = "6f8b0b0e-0000-4000-8000-000000000001";

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Machine {
            let machine = Machine(tempfile::tempdir().unwrap());
            let proc = machine.0.path().join("proc");
            fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
            fs::write(proc.join("sys/kernel/random/boot_id"), BOOT).unwrap();
            for pid in ["self", "1", "42"] {
                fs::create_dir_all(proc.join(pid).join("ns")).unwrap();
            }
            std::os::unix::fs::symlink("pid:[77]", proc.join("self/ns/pid")).unwrap();
            machine.stat("self", 10, 'R', 500);
            machine.stat("42", 42, 'S', 600);
            machine
        }

        fn stat(&self, dir: &str, pid: u32, state: char, started: u64) {
            let rest = format!("{state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0 0");
            let path = self.0.path().join("proc").join(dir).join("stat");
            fs::write(path, format!("{pid} (a) b) {rest}")).unwrap();
        }

        fn ended(&self, owner: &Owner) -> bool {
            has_ended_on(&System::below(self.0.path()), owner, |open| open == Uuid::from_u128(1))
        }
    }

    fn owner(open: u128, pid: u32, started_ticks: u64) -> Owner {
        let boot_id = BOOT.parse().unwrap();
        let process = OwnerProcess { boot_id, pid_namespace: 77, pid, started_ticks };
        Owner::new(Uuid::from_u128(open), process, "node-7", "trainer")
    }

    #[test]
    fn only_what_is_certain_counts_as_ended() {
        let machine = Machine::new();
        assert!(!machine.ended(&owner(5, 42, 600)), "it runs");
        assert!(machine.ended(&owner(5, 42, 599)), "another process has its number");
        assert!(machine.ended(&owner(5, 43, 600)), "there is no such process");
        machine.stat("42", 42, 'Z', 600);
        assert!(machine.ended(&owner(5, 42, 600)), "its exit status was not collected yet");
        assert!(!machine.ended(&owner(1, 10, 500)), "an opening of this process");
        assert!(machine.ended(&owner(2, 10, 500)), "an earlier opening of this process");
        let elsewhere = |change: fn(&mut OwnerProcess)| {
            let mut owner = owner(5, 43, 600);
            change(&mut owner.process);
            machine.ended(&owner)
        };
        assert!(!elsewhere(|process| process.boot_id = Uuid::from_u128(9)), "another boot or host");
        assert!(!elsewhere(|process| process.pid_namespace = 78), "another pid namespace");
        assert!(!elsewhere(|process| process.pid = 0), "it is not known");
        fs::remove_dir_all(machine.0.path().join("proc/1")).unwrap();
        assert!(!machine.ended(&owner(5, 43, 600)), "/proc hides processes");
        fs::remove_file(machine.0.path().join("proc/self/ns/pid")).unwrap();
        assert!(!machine.ended(&owner(2, 10, 500)), "we do not know who we are");
    }

    #[test]
    fn this_process_is_known_to_itself() {
        let ours = this_process(7, [3; 16]);
        assert_eq!(ours.process.pid, std::process::id());
        assert_eq!((ours.reservation_key, ours.host_id), (7, [3; 16]));
        assert!(!has_ended(&ours, |open| open == ours.open_id));
        assert!(has_ended(&ours, |_| false));
        assert!(describe(&ours).contains(&format!("(pid {})", std::process::id())));
        assert_ne!(this_process(7, [3; 16]).open_id, ours.open_id);
    }
}
