// SPDX-License-Identifier: Apache-2.0
//! The owner record: who has, or had, the pool open for writing. Part of every root.
//!
//! | offset | size | field                                            |
//! |--------|------|--------------------------------------------------|
//! | 152    | 16   | open id: random for each opening                 |
//! | 168    | 16   | boot id of the machine                           |
//! | 184    | 8    | pid namespace: its inode number                  |
//! | 192    | 4    | pid in that namespace                            |
//! | 196    | 4    | zero                                             |
//! | 200    | 8    | start of the process, clock ticks since the boot |
//! | 208    | 16   | NVMe host identifier                             |
//! | 224    | 8    | reservation key                                  |
//! | 232    | 1    | length of the host name                          |
//! | 233    | 1    | length of the command                            |
//! | 234    | 6    | zero                                             |
//! | 240    | 64   | host name, then zeros                            |
//! | 304    | 32   | command, then zeros                              |
//!
//! Whatever is not known is zero. Texts are UTF-8 without control characters.

use uuid::Uuid;

use super::FormatError;
use super::codec::{Reader, Writer};

/// Bytes of a host's name: as many as the kernel allows.
pub const MAX_HOST_NAME_BYTES: usize = 64;
/// Bytes of a command's name.
pub const MAX_COMMAND_BYTES: usize = 32;

const _: () = assert!(MAX_HOST_NAME_BYTES <= u8::MAX as usize && MAX_COMMAND_BYTES <= 255);

/// A process, in a way that distinguishes it from every other process of any machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OwnerProcess {
    /// Random for each boot of a machine.
    pub boot_id: Uuid,
    /// The inode number of the namespace in which `pid` counts.
    pub pid_namespace: u64,
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the boot.
    pub started_ticks: u64,
}

/// Who has, or had, a pool open for writing. By default no one is named.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// Random for each opening: two openings never have the same.
    pub open_id: Uuid,
    /// The process that opened the pool.
    pub process: OwnerProcess,
    /// The NVMe host identifier with which it registered.
    pub host_id: [u8; 16],
    /// The key of its reservation; 0 where the drives have none.
    pub reservation_key: u64,
    /// The name of its host, as the host says it; see [`Owner::new`].
    pub host_name: String,
    /// The name of its program; see [`Owner::new`].
    pub command: String,
}

impl Owner {
    /// An owner without reservations. What does not fit of a text is cut off, and what cannot be
    /// printed becomes `?`.
    pub fn new(open_id: Uuid, process: OwnerProcess, host_name: &str, command: &str) -> Owner {
        Owner {
            open_id,
            process,
            host_name: fitting(host_name, MAX_HOST_NAME_BYTES),
            command: fitting(command, MAX_COMMAND_BYTES),
            ..Owner::default()
        }
    }

    /// Why a reader would refuse it.
    pub(super) fn check(&self) -> Result<(), String> {
        let texts = [(&self.host_name, MAX_HOST_NAME_BYTES), (&self.command, MAX_COMMAND_BYTES)];
        match texts.into_iter().find(|(text, most)| *text != &fitting(text, *most)) {
            Some((text, most)) => Err(format!("text {text:?} is not printable in {most} bytes")),
            None => Ok(()),
        }
    }

    /// All but the open id, which the root's id covers and which is written before.
    pub(super) fn encode_rest(&self, writer: &mut Writer) {
        let Owner { open_id: _, process, host_id, reservation_key, host_name, command } = self;
        writer.uuid(process.boot_id);
        writer.u64(process.pid_namespace);
        writer.u32(process.pid);
        writer.zeros(4);
        writer.u64(process.started_ticks);
        writer.put(host_id);
        writer.u64(*reservation_key);
        writer.u8(host_name.len() as u8);
        writer.u8(command.len() as u8);
        writer.zeros(6);
        writer.put(host_name.as_bytes());
        writer.zeros(MAX_HOST_NAME_BYTES - host_name.len());
        writer.put(command.as_bytes());
        writer.zeros(MAX_COMMAND_BYTES - command.len());
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Owner, FormatError> {
        let open_id = reader.uuid()?;
        let (boot_id, pid_namespace, pid) = (reader.uuid()?, reader.u64()?, reader.u32()?);
        reader.zeros(4)?;
        let started_ticks = reader.u64()?;
        let (host_id, reservation_key) = (reader.hash()?, reader.u64()?);
        let (host_name_bytes, command_bytes) = (reader.u8()?, reader.u8()?);
        reader.zeros(6)?;
        let host_name = reader.padded_text(host_name_bytes.into(), MAX_HOST_NAME_BYTES)?;
        let command = reader.padded_text(command_bytes.into(), MAX_COMMAND_BYTES)?;
        let process = OwnerProcess { boot_id, pid_namespace, pid, started_ticks };
        Ok(Owner { open_id, process, host_id, reservation_key, host_name, command })
    }
}

/// As many characters of a text as fit, printable.
fn fitting(text: &str, max_bytes: usize) -> String {
    let printable = text.chars().map(|c| if c.is_control() { '?' } else { c });
    let mut fitting = String::new();
    for character in printable {
        if fitting.len() + character.len_utf8() > max_bytes {
            break;
        }
        fitting.push(character);
    }
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_and_can_be_printed() {
        let long = format!("{}\u{20AC}", "h".repeat(62));
        let owner = Owner::new(Uuid::nil(), OwnerProcess::default(), &long, "py\nthon\0");
        assert_eq!((owner.host_name.len(), owner.command.as_str()), (62, "py?thon?"));
        let all = "c".repeat(MAX_COMMAND_BYTES);
        assert_eq!(owner.check(), Ok(()));
        let owner = Owner::new(Uuid::nil(), OwnerProcess::default(), "", &format!("{all}c"));
        assert_eq!((owner.host_name.as_str(), &owner.command), ("", &all));
        let long = Owner { command: format!("{all}c"), ..owner.clone() };
        let hidden = Owner { host_name: "\u{1B}[2J".into(), ..owner };
        assert!(long.check().is_err() && hidden.check().is_err());
    }
}
