// SPDX-License-Identifier: Apache-2.0
//! The label: says that a drive belongs to a pool, to which one, with which other drives, and with
//! which layout. Written when a pool is formatted and when its membership changes; four copies of
//! one block.
//!
//! | offset | size    | field                                                  |
//! |--------|---------|--------------------------------------------------------|
//! | 64     | 8       | epoch of the membership                                |
//! | 72     | 8       | created, nanoseconds since 1970                        |
//! | 80     | 8, 8, 8 | features: compatible, read-only compatible, incompatible |
//! | 104    | 2       | index of this drive in the table                       |
//! | 106    | 2       | drives in the table                                    |
//! | 108    | 1       | copies of each chunk: 1 or 2                           |
//! | 109    | 3       | zero                                                   |
//! | 112    | 80      | the layout                                             |
//! | 192    | 96 each | drives: uuid 16, capacity 8, length of the serial 1, state 1, zero 6, serial 64 |
//!
//! Incompatible features: bit 0, chunks have two copies; bit 1, a drive's state is not 0. A bit is
//! set exactly when this holds.

use uuid::Uuid;

use super::codec::{Magic, PROLOGUE_BYTES, Reader, Writer, corrupt, newer};
use super::layout::check_capacity;
use super::{FormatError, Layout, MAJOR, MINOR};
use crate::limits::{BLOCK_BYTES, MAX_DRIVES};
use crate::units::{Copies, DriveIndex, Location};

const MAGIC: Magic = *b"STNLABEL";

/// Bytes of a drive's serial, UTF-8. NVMe has 20.
pub const MAX_SERIAL_BYTES: usize = 64;

/// The most copies of a chunk.
pub(super) const MAX_COPIES: u8 = 2;

/// Incompatible feature: chunks have two copies.
const MIRROR: u64 = 1 << 0;
/// Incompatible feature: the drive table has a drive that is not a full member.
const DRIVE_STATES: u64 = 1 << 1;

const TABLE_AT: u64 = 192;
const DRIVE_BYTES: u64 = 16 + 8 + 8 + MAX_SERIAL_BYTES as u64;
const _: () = assert!(TABLE_AT + MAX_DRIVES as u64 * DRIVE_BYTES <= BLOCK_BYTES);

/// Features that a pool uses beyond its version and that this program does not know, one bit each.
/// The program refuses to read a pool with an incompatible feature that it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// A program that does not know one may read and write the pool.
    pub compat: u64,
    /// A program that does not know one may read the pool.
    pub ro_compat: u64,
}

impl Features {
    /// Whether this program may write the pool: it knows every feature that writing needs.
    pub fn writable(&self) -> Result<(), FormatError> {
        if self.ro_compat == 0 {
            return Ok(());
        }
        Err(newer(format!("{MAJOR}.{MINOR} with read-only features {:#x}", self.ro_compat)))
    }
}

/// How many drives have a copy of each chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Redundancy {
    /// One: the loss of a drive loses its data.
    #[default]
    None,
    /// Two: any one drive may be lost.
    Mirror,
}

impl Redundancy {
    /// Copies of each chunk.
    pub fn copies(self) -> u8 {
        match self {
            Redundancy::None => 1,
            Redundancy::Mirror => 2,
        }
    }
}

/// How a drive takes part in its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum DriveState {
    /// It has everything that the pool's metadata says.
    #[default]
    Member = 0,
    /// The pool was written without it: its contents are out of date.
    Absent = 1,
    /// It takes every write; older data is still being copied to it.
    Rebuilding = 2,
}

impl DriveState {
    fn decode(byte: u8) -> Result<DriveState, FormatError> {
        match byte {
            0 => Ok(DriveState::Member),
            1 => Ok(DriveState::Absent),
            2 => Ok(DriveState::Rebuilding),
            other => Err(corrupt(format!("drive state {other}"))),
        }
    }
}

/// One drive of a pool, as it was when the pool was formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriveEntry {
    /// Given at format; the drive's name for good.
    pub uuid: Uuid,
    /// The drive's own serial, at most [`MAX_SERIAL_BYTES`].
    pub serial: String,
    /// Its capacity; offsets near the end are counted back from it.
    pub capacity_bytes: u64,
    /// How it takes part.
    pub state: DriveState,
}

/// The label of one drive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// The pool.
    pub pool: Uuid,
    /// Raised whenever the drive table changes.
    pub epoch: u64,
    /// When the pool was formatted, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Features that this program does not know; default for a new pool.
    pub features: Features,
    /// Copies of each chunk that a checkpoint gets while enough drives take part: 1 or 2.
    pub copies: u8,
    /// Which of `drives` this drive is.
    pub index: DriveIndex,
    /// All drives of the pool.
    pub drives: Vec<DriveEntry>,
    /// Where everything lies.
    pub layout: Layout,
}

impl Label {
    /// The entry of the drive that carries this label.
    pub fn drive(&self) -> &DriveEntry {
        &self.drives[self.index.as_usize()]
    }

    /// The redundancy that the pool was made for.
    pub fn redundancy(&self) -> Redundancy {
        if self.copies > 1 { Redundancy::Mirror } else { Redundancy::None }
    }

    /// The drives that take part, in the order of the table: commits reach all of them.
    pub fn live(&self) -> impl Iterator<Item = DriveIndex> + '_ {
        self.with_state(|state| state != DriveState::Absent)
    }

    /// The drives with complete metadata, in the order of the table.
    pub fn members(&self) -> impl Iterator<Item = DriveIndex> + '_ {
        self.with_state(|state| state == DriveState::Member)
    }

    /// The copies of a chunk in the order in which to read them: a member's first.
    pub fn to_read(&self, copies: Copies) -> Copies {
        let is_member = |location: &Location| {
            self.drives[location.drive.as_usize()].state == DriveState::Member
        };
        match copies.second {
            Some(second) if !is_member(&copies.first) && is_member(&second) => {
                Copies { first: second, second: Some(copies.first) }
            }
            _ => copies,
        }
    }

    fn with_state(&self, wanted: fn(DriveState) -> bool) -> impl Iterator<Item = DriveIndex> + '_ {
        let numbered = (0..).map(DriveIndex).zip(&self.drives);
        numbered.filter(move |(_, drive)| wanted(drive.state)).map(|(index, _)| index)
    }

    fn incompat(&self) -> u64 {
        let any_state = self.drives.iter().any(|drive| drive.state != DriveState::Member);
        let mirror = if self.copies > 1 { MIRROR } else { 0 };
        mirror | if any_state { DRIVE_STATES } else { 0 }
    }

    /// Why a reader would refuse this label.
    pub fn check(&self) -> Result<(), String> {
        if self.pool.is_nil() {
            return Err("the pool has no uuid".into());
        }
        if self.drives.is_empty() || self.drives.len() > MAX_DRIVES {
            return Err(format!("{} drives; a pool has 1 to {MAX_DRIVES}", self.drives.len()));
        }
        if self.index.as_usize() >= self.drives.len() {
            return Err(format!("drive {} of {} drives", self.index, self.drives.len()));
        }
        if self.copies == 0 || self.copies > MAX_COPIES {
            return Err(format!("{} copies of each chunk", self.copies));
        }
        if usize::from(self.copies) > self.drives.len() {
            return Err(format!("{} copies on {} drives", self.copies, self.drives.len()));
        }
        if self.members().next().is_none() {
            return Err("no drive is a member".into());
        }
        for (i, drive) in self.drives.iter().enumerate() {
            if drive.uuid.is_nil() || self.drives[..i].iter().any(|d| d.uuid == drive.uuid) {
                return Err(format!("drive {i} has no uuid of its own"));
            }
            if drive.serial.len() > MAX_SERIAL_BYTES {
                return Err(format!("a serial of {} bytes", drive.serial.len()));
            }
            check_capacity(drive.capacity_bytes)?;
            if self.layout.data_slots(drive.capacity_bytes) == 0 {
                return Err(format!("drive {i} has no room for data"));
            }
        }
        Ok(())
    }

    /// One block, to be written at `offset_bytes`.
    ///
    /// # Panics
    /// When [`Label::check`] fails: a label that no reader accepts must not be written.
    pub fn encode(&self, offset_bytes: u64) -> Vec<u8> {
        assert_eq!(self.check(), Ok(()), "an impossible label");
        let mut writer = Writer::new(MAGIC, self.pool, BLOCK_BYTES);
        writer.u64(self.epoch);
        writer.u64(self.created_unix_ns);
        writer.u64(self.features.compat);
        writer.u64(self.features.ro_compat);
        writer.u64(self.incompat());
        writer.u16(self.index.0);
        writer.u16(self.drives.len() as u16);
        writer.u8(self.copies);
        writer.zeros(3);
        self.layout.encode(&mut writer);
        debug_assert_eq!(writer.body().len() as u64 + PROLOGUE_BYTES, TABLE_AT);
        for drive in &self.drives {
            writer.uuid(drive.uuid);
            writer.u64(drive.capacity_bytes);
            writer.u8(drive.serial.len() as u8);
            writer.u8(drive.state as u8);
            writer.zeros(6);
            writer.put(drive.serial.as_bytes());
            writer.zeros(MAX_SERIAL_BYTES - drive.serial.len());
        }
        writer.seal(offset_bytes).bytes
    }

    /// Reads one block that was read at `offset_bytes`.
    pub fn decode(bytes: &[u8], offset_bytes: u64) -> Result<Label, FormatError> {
        let mut reader = Reader::open(MAGIC, bytes, offset_bytes)?;
        if bytes.len() as u64 != BLOCK_BYTES {
            return Err(corrupt(format!("a label of {} bytes", bytes.len())));
        }
        let (epoch, created_unix_ns) = (reader.u64()?, reader.u64()?);
        let features = Features { compat: reader.u64()?, ro_compat: reader.u64()? };
        let incompat = reader.u64()?;
        if incompat & !(MIRROR | DRIVE_STATES) != 0 {
            return Err(newer(format!("{MAJOR}.{MINOR} with features {incompat:#x}")));
        }
        let index = DriveIndex(reader.u16()?);
        let count = reader.u16()?;
        let copies = reader.u8()?;
        reader.zeros(3)?;
        let layout = Layout::decode(&mut reader)?;
        let mut drives = Vec::with_capacity(reader.count(count.into(), DRIVE_BYTES)?);
        for _ in 0..count {
            drives.push(decode_drive(&mut reader)?);
        }
        let pool = reader.pool;
        reader.finish()?;
        let label = Label { pool, epoch, created_unix_ns, features, copies, index, drives, layout };
        label.check().map_err(FormatError::Corrupt)?;
        if incompat != label.incompat() {
            return Err(corrupt(format!("features {incompat:#x} that its content does not have")));
        }
        Ok(label)
    }
}

fn decode_drive(reader: &mut Reader<'_>) -> Result<DriveEntry, FormatError> {
    let (uuid, capacity_bytes) = (reader.uuid()?, reader.u64()?);
    let serial_bytes = usize::from(reader.u8()?);
    let state = DriveState::decode(reader.u8()?)?;
    reader.zeros(6)?;
    let serial = reader.text(serial_bytes, MAX_SERIAL_BYTES)?;
    reader.zeros(MAX_SERIAL_BYTES - serial_bytes)?;
    Ok(DriveEntry { uuid, serial, capacity_bytes, state })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{
        MIB, any_label, edited, edits, edits_give_an_error_or_another_value, every_cut_is_noticed,
        every_flip_is_noticed,
    };
    use super::*;

    fn label() -> Label {
        let drive = |n: u128, capacity_bytes| DriveEntry {
            uuid: Uuid::from_u128(n),
            serial: format!("SERIAL-{n}"),
            capacity_bytes,
            state: DriveState::Member,
        };
        let drives = vec![drive(1, 64 * MIB), drive(2, 100 * MIB)];
        Label {
            pool: Uuid::from_u128(0xABCD),
            epoch: 1,
            created_unix_ns: 1_700_000_000_000_000_000,
            features: Features::default(),
            copies: 1,
            index: DriveIndex(1),
            layout: Layout::plan(&[64 * MIB, 100 * MIB], MIB).unwrap(),
            drives,
        }
    }

    proptest! {
        #[test]
        fn round_trip(label in any_label()) {
            prop_assert_eq!(Label::decode(&label.encode(MIB), MIB), Ok(label));
        }

        #[test]
        fn edits_under_a_right_hash(label in any_label(), edits in edits()) {
            edits_give_an_error_or_another_value(
                &label.encode(MIB),
                &edits,
                |bytes, _| Label::decode(bytes, MIB),
                |label, at| label.encode(at),
            )?;
        }
    }

    #[test]
    fn damage_is_detected() {
        let bytes = label().encode(MIB);
        every_flip_is_noticed(&bytes, |bytes| Label::decode(bytes, MIB));
        every_cut_is_noticed(&bytes, |bytes, _| Label::decode(bytes, MIB));
        assert!(Label::decode(&bytes, 2 * MIB).is_err(), "a copy in the place of another one");
    }

    #[test]
    fn fields_lie_as_specified() {
        let label = label();
        let bytes = label.encode(MIB);
        assert_eq!(bytes[..8], *b"STNLABEL");
        assert_eq!(bytes[64..72], 1_u64.to_le_bytes());
        assert_eq!(bytes[72..80], label.created_unix_ns.to_le_bytes());
        assert_eq!(bytes[104..112], [1, 0, 2, 0, 1, 0, 0, 0]);
        assert_eq!(bytes[112..120], MIB.to_le_bytes());
        assert_eq!(bytes[184..192], label.layout.slot_offset(0).to_le_bytes());
        assert_eq!(bytes[288..304], *Uuid::from_u128(2).as_bytes());
        assert_eq!(bytes[304..312], (100 * MIB).to_le_bytes());
        assert_eq!(bytes[312..329], *b"\x08\0\0\0\0\0\0\0SERIAL-2\0");
        assert_eq!(label.drive().serial, "SERIAL-2");
    }

    #[test]
    fn features_decide_which_programs_may_read_and_write() {
        let good = label().encode(MIB);
        let decode = |at: usize| Label::decode(&edited(&good, |b| b[at] = 4).0, MIB);
        assert_eq!(decode(80).unwrap().features.writable(), Ok(()));
        let read_only = decode(88).unwrap();
        assert!(matches!(read_only.features.writable(), Err(FormatError::Newer { .. })));
        assert!(
            matches!(decode(96), Err(FormatError::Newer { found, .. }) if found.contains("0x4"))
        );
        let mut unsealed = good.clone();
        unsealed[96] = 4;
        assert!(matches!(Label::decode(&unsealed, MIB), Err(FormatError::Corrupt(_))));
        assert!(matches!(decode(108), Err(FormatError::Corrupt(t)) if t.contains("copies")));
    }

    #[test]
    fn features_say_what_an_older_program_would_get_wrong() {
        let incompat = |label: &Label| label.encode(MIB)[96];
        let mut label = label();
        assert_eq!(incompat(&label), 0);
        label.copies = 2;
        assert_eq!(incompat(&label), 1);
        label.drives[0].state = DriveState::Absent;
        assert_eq!(incompat(&label), 3);
        let (lying, _) = edited(&label.encode(MIB), |bytes| bytes[96] = 1);
        assert!(matches!(Label::decode(&lying, MIB), Err(FormatError::Corrupt(_))));
        assert_eq!(label.live().collect::<Vec<_>>(), [DriveIndex(1)]);
        label.drives[1].state = DriveState::Rebuilding;
        assert!(label.check().unwrap_err().contains("member"));
    }

    #[test]
    fn impossible_labels_are_refused_under_a_right_hash() {
        let good = label().encode(MIB);
        let refused = |what: &str, at: usize, value: &[u8]| {
            let (bytes, _) = edited(&good, |b| b[at..at + value.len()].copy_from_slice(value));
            let result = Label::decode(&bytes, MIB);
            assert!(matches!(&result, Err(FormatError::Corrupt(_))), "{what}: {result:?}");
        };
        refused("index beyond the table", 104, &[2]);
        refused("more drives than fit", 106, &[0xFF, 0xFF]);
        refused("no drives", 106, &[0]);
        refused("a chunk that is not a power of two", 112, &[1]);
        refused("other root slots", 120, &[65]);
        refused("other root stride", 125, &[0x20]);
        refused("other catalogue slots", 144, &[5]);
        refused("no checkpoints", 148, &[0]);
        refused("another metadata area", 168, &[1]);
        refused("no metadata", 176, &[0; 8]);
        refused("metadata beyond any drive", 176, &[0xFF; 8]);
        refused("metadata beyond this drive", 176, &[0, 0, 1]);
        refused("another data area", 186, &[1]);
        refused("a drive without uuid", 192, &[0; 16]);
        refused("a tiny drive", 208, &[0; 8]);
        refused("a drive state that does not exist", 217, &[3]);
        refused("an absent drive without the feature", 217, &[1]);
        refused("two drives with one uuid", 288, Uuid::from_u128(1).as_bytes());
        refused("a serial that is too long", 216, &[65]);
        refused("a serial that is not text", 224, &[0xFF]);
    }

    #[test]
    #[should_panic(expected = "an impossible label")]
    fn impossible_labels_are_not_written() {
        Label { drives: Vec::new(), ..label() }.encode(MIB);
    }
}
