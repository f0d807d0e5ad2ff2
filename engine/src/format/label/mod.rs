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
//! | 109    | 1       | copies of each segment table: 1 to 8                   |
//! | 110    | 2       | zero                                                   |
//! | 112    | 80      | the layout                                             |
//! | 192    | 32      | zero, for what hosts may have to know                  |
//! | 224    | 288     | zero                                                   |
//! | 512    | 16 each | ancestors: ids of the 32 labels before, newest first, then zeros |
//! | 1024   | 96 each | drives: uuid 16, capacity 8, length of the serial 1, state 1, zero 6, serial 64 |
//!
//! The id of a label is the hash of the pool's uuid, bytes 64 to 104, and bytes 106 to the end of
//! the table. It is the same on every drive, and stands for the whole history of the membership:
//! the ids of the labels before are part of it.
//!
//! Incompatible features: bit 0, chunks have two copies; bit 1, a drive's state is not 0. A bit is
//! set exactly when this holds.

use uuid::Uuid;

use crate::format::codec::{Magic, PROLOGUE_BYTES, Reader, Writer, corrupt, newer};
use crate::format::layout::check_capacity;
use crate::format::{FormatError, Layout, MAJOR, MINOR, hash128};
use crate::limits::{BLOCK_BYTES, MAX_DRIVES, MAX_NUMBER};
use crate::units::{Copies, DriveIndex, Location};

const MAGIC: Magic = *b"STNLABEL";

/// Bytes of a drive's serial, UTF-8. NVMe has 20.
pub const MAX_SERIAL_BYTES: usize = 64;

/// The most copies of a chunk.
pub(in crate::format) const MAX_COPIES: u8 = 2;

/// Incompatible feature: chunks have two copies.
const MIRROR: u64 = 1 << 0;
/// Incompatible feature: the drive table has a drive that is not a full member.
const DRIVE_STATES: u64 = 1 << 1;

/// Copies of each segment table, where there are as many drives.
const TABLE_COPIES: usize = 3;
/// The most copies of a segment table.
pub(in crate::format) const MAX_TABLE_COPIES: u8 = 8;

/// Ids of earlier labels that a label keeps.
pub const MAX_ANCESTORS: usize = 32;

const FOR_HOSTS_BYTES: usize = 32;
const LAYOUT_END: usize = 192;
const ANCESTORS_AT: usize = 512;
const TABLE_AT: u64 = 1024;
const DRIVE_BYTES: u64 = 16 + 8 + 8 + MAX_SERIAL_BYTES as u64;
/// The index, which is the drive's own: the id covers what lies before and after it.
const INDEX_IN_BODY: usize = 40;
const _: () = {
    assert!(TABLE_AT + MAX_DRIVES as u64 * DRIVE_BYTES == BLOCK_BYTES);
    assert!(ANCESTORS_AT + 16 * MAX_ANCESTORS == TABLE_AT as usize);
    assert!(TABLE_COPIES <= MAX_TABLE_COPIES as usize);
};

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
    /// 1 in a new pool; raised by one whenever the drive table changes ([`Label::follow`]).
    pub epoch: u64,
    /// [`Label::id`] of the labels before, newest first, at most [`MAX_ANCESTORS`]. None in a new
    /// pool.
    pub ancestors: Vec<[u8; 16]>,
    /// When the pool was formatted, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Features that this program does not know; default for a new pool.
    pub features: Features,
    /// Copies of each chunk that a checkpoint gets while enough drives take part: 1 or 2.
    pub copies: u8,
    /// Drives on which each segment table lies, while enough drives take part.
    pub table_copies: u8,
    /// Which of `drives` this drive is.
    pub index: DriveIndex,
    /// All drives of the pool.
    pub drives: Vec<DriveEntry>,
    /// Where everything lies.
    pub layout: Layout,
}

/// Copies of each segment table in a new pool of that many drives: three, or one on each drive.
pub fn table_copies_of(drives: usize) -> u8 {
    drives.min(TABLE_COPIES) as u8
}

impl Label {
    /// Identifies the label, the same on every drive: it covers the membership and its history, and
    /// not which drive carries the label.
    pub fn id(&self) -> [u8; 16] {
        let fields = self.encode_fields();
        let body = fields.body();
        let (before, after) = (&body[..INDEX_IN_BODY], &body[INDEX_IN_BODY + 2..]);
        hash128(&[self.pool.as_bytes(), before, after].concat())
    }

    /// Makes it the label that follows `before`: of the next epoch, with `before` as the newest of
    /// its ancestors.
    pub fn follow(&mut self, before: &Label) {
        self.epoch = before.epoch + 1;
        let earlier = before.ancestors.iter().take(MAX_ANCESTORS - 1);
        self.ancestors = std::iter::once(before.id()).chain(earlier.copied()).collect();
    }

    /// Whether `earlier` is this label, or one that it was made from by at most
    /// [`MAX_ANCESTORS`] changes. Otherwise the two are different histories, as far as is known.
    pub fn descends_from(&self, earlier: &Label) -> bool {
        let id = earlier.id();
        self.id() == id || self.ancestors.contains(&id)
    }

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
        if !(1..=MAX_NUMBER).contains(&self.epoch) {
            return Err(format!("epoch {}", self.epoch));
        }
        if self.ancestors.len() > MAX_ANCESTORS || self.ancestors.len() as u64 >= self.epoch {
            return Err(format!("{} labels before epoch {}", self.ancestors.len(), self.epoch));
        }
        if self.ancestors.contains(&[0; 16]) {
            return Err("a label before has no id".into());
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
        let most = MAX_TABLE_COPIES.min(self.drives.len() as u8);
        if !(1..=most).contains(&self.table_copies) {
            return Err(format!("{} copies of each segment table", self.table_copies));
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
        self.encode_fields().seal(offset_bytes).bytes
    }

    fn encode_fields(&self) -> Writer {
        let mut writer = Writer::new(MAGIC, self.pool, BLOCK_BYTES);
        writer.u64(self.epoch);
        writer.u64(self.created_unix_ns);
        writer.u64(self.features.compat);
        writer.u64(self.features.ro_compat);
        writer.u64(self.incompat());
        writer.u16(self.index.0);
        writer.u16(self.drives.len() as u16);
        writer.u8(self.copies);
        writer.u8(self.table_copies);
        writer.zeros(2);
        self.layout.encode(&mut writer);
        debug_assert_eq!(writer.body().len() + PROLOGUE_BYTES as usize, LAYOUT_END);
        writer.zeros(ANCESTORS_AT - LAYOUT_END);
        self.ancestors.iter().for_each(|id| writer.put(id));
        writer.zeros(16 * (MAX_ANCESTORS - self.ancestors.len()));
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
        writer
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
        let (copies, table_copies) = (reader.u8()?, reader.u8()?);
        reader.zeros(2)?;
        let layout = Layout::decode(&mut reader)?;
        reader.zeros(FOR_HOSTS_BYTES)?;
        reader.zeros(ANCESTORS_AT - LAYOUT_END - FOR_HOSTS_BYTES)?;
        let ancestors = decode_ancestors(&mut reader)?;
        let mut drives = Vec::with_capacity(reader.count(count.into(), DRIVE_BYTES)?);
        for _ in 0..count {
            drives.push(decode_drive(&mut reader)?);
        }
        let pool = reader.pool;
        reader.finish()?;
        let label = Label {
            pool,
            epoch,
            ancestors,
            created_unix_ns,
            features,
            copies,
            table_copies,
            index,
            drives,
            layout,
        };
        label.check().map_err(FormatError::Corrupt)?;
        if incompat != label.incompat() {
            return Err(corrupt(format!("features {incompat:#x} that its content does not have")));
        }
        Ok(label)
    }
}

/// The ids before the first zeros; only zeros may follow.
fn decode_ancestors(reader: &mut Reader<'_>) -> Result<Vec<[u8; 16]>, FormatError> {
    let mut ancestors = Vec::new();
    for number in 0..MAX_ANCESTORS {
        let id = reader.hash()?;
        if id == [0; 16] {
            reader.zeros(16 * (MAX_ANCESTORS - 1 - number))?;
            break;
        }
        ancestors.push(id);
    }
    Ok(ancestors)
}

fn decode_drive(reader: &mut Reader<'_>) -> Result<DriveEntry, FormatError> {
    let (uuid, capacity_bytes) = (reader.uuid()?, reader.u64()?);
    let serial_bytes = usize::from(reader.u8()?);
    let state = DriveState::decode(reader.u8()?)?;
    reader.zeros(6)?;
    let serial = reader.padded_text(serial_bytes, MAX_SERIAL_BYTES)?;
    Ok(DriveEntry { uuid, serial, capacity_bytes, state })
}

#[cfg(test)]
mod tests;
