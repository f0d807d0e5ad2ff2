// SPDX-License-Identifier: Apache-2.0
//! The catalogue: all checkpoints of one generation. Every commit writes a new one, the same bytes
//! to the same offset of every drive.
//!
//! | offset | size        | field      |
//! |--------|-------------|------------|
//! | 64     | 8           | generation |
//! | 72     | 4           | entries    |
//! | 76     | 4           | zero       |
//! | 80     | 104 + n + a each | entries |
//!
//! An entry: id 16, step 8, bytes 8, participants 4, length n of the name 2, flags 2, committed 8,
//! generation 8, extent of the manifest 32, uid 4, gid 4, mode 2, length a of the attributes 2,
//! zero 4, name n, attributes a. Flags: bit 0, pinned.
//!
//! Entries ascend by name, then step; no two have the same name and step, nor the same id.

use std::borrow::Borrow;

use uuid::Uuid;

use super::codec::{Magic, PROLOGUE_BYTES, Reader, Writer, corrupt};
use super::layout::{CATALOGUE_ENTRY_BYTES as ENTRY_BYTES, CATALOGUE_HEADER_BYTES as HEADER_BYTES};
use super::{Attributes, Encoded, FormatError, Layout, MetaExtent, Root};
use crate::limits::{MAX_CHECKPOINTS, MAX_NAME_BYTES, MAX_PARTICIPANTS};
use crate::units::Generation;

const MAGIC: Magic = *b"STN CATA";

/// A checkpoint with this flag is kept.
const PINNED: u16 = 1 << 0;

/// The permission bits that a mode may have: of the owner, the group and others.
const MODE_BITS: u16 = 0o777;

/// Whose a checkpoint is, and who else may use it: as for a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The user who saved it.
    pub uid: u32,
    /// The group of that user.
    pub gid: u32,
    /// Permission bits, `rwxrwxrwx`.
    pub mode: u16,
}

impl Access {
    /// The permission bits of a new checkpoint: its owner reads and writes, its group reads.
    pub const DEFAULT_MODE: u16 = 0o640;

    /// Of a new checkpoint of this user.
    pub fn of(uid: u32, gid: u32) -> Access {
        Access { uid, gid, mode: Access::DEFAULT_MODE }
    }
}

/// One committed checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CatalogueEntry {
    /// Given at `begin`; the same if the client tries again.
    pub id: Uuid,
    /// The NAME of NAME@STEP.
    pub name: String,
    /// The STEP of NAME@STEP.
    pub step: u64,
    /// Sum of the lengths of its segments.
    pub bytes: u64,
    /// Segments.
    pub participants: u32,
    /// When, nanoseconds since 1970.
    pub committed_unix_ns: u64,
    /// The generation that committed it.
    pub generation: Generation,
    /// Its manifest.
    pub manifest: MetaExtent,
    /// Whose it is.
    pub access: Access,
    /// It is not removed without being asked for by name.
    pub pinned: bool,
    /// What else is known of it.
    pub attributes: Attributes,
}

impl CatalogueEntry {
    /// What entries are ordered by.
    pub fn key(&self) -> (&str, u64) {
        (&self.name, self.step)
    }
}

/// All checkpoints of one generation. A writer may lend the entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Catalogue<E = CatalogueEntry> {
    /// The pool.
    pub pool: Uuid,
    /// The generation that wrote it.
    pub generation: Generation,
    /// Ascending by name, then step.
    pub entries: Vec<E>,
}

impl<E: Borrow<CatalogueEntry>> Catalogue<E> {
    fn entries(&self) -> impl Iterator<Item = &CatalogueEntry> {
        self.entries.iter().map(Borrow::borrow)
    }

    /// Why a reader would refuse this catalogue.
    pub fn check(&self) -> Result<(), String> {
        self.check_entries()?;
        self.check_ids()
    }

    fn check_entries(&self) -> Result<(), String> {
        if self.entries.len() > MAX_CHECKPOINTS {
            return Err(format!("{} checkpoints", self.entries.len()));
        }
        for entry in self.entries() {
            check_name(&entry.name)?;
            check_participants(entry.participants.into())?;
            if entry.access.mode & !MODE_BITS != 0 {
                return Err(format!("permission bits {:o}", entry.access.mode));
            }
            if entry.generation > self.generation {
                return Err(format!("a checkpoint of the later generation {}", entry.generation));
            }
        }
        for (entry, next) in self.entries().zip(self.entries().skip(1)) {
            if entry.key().cmp(&next.key()).is_ge() {
                return Err(format!("{}@{} is out of order", next.name, next.step));
            }
        }
        Ok(())
    }

    fn check_ids(&self) -> Result<(), String> {
        let mut ids: Vec<Uuid> = self.entries().map(|e| e.id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("two checkpoints have the id {}", pair[0])),
            None => Ok(()),
        }
    }

    /// Bytes of the encoding, without the padding to whole blocks.
    pub fn encoded_bytes(&self) -> u64 {
        let variable = |e: &CatalogueEntry| (e.name.len() + e.attributes.as_bytes().len()) as u64;
        let entries = self.entries().map(|entry| ENTRY_BYTES + variable(entry));
        PROLOGUE_BYTES + HEADER_BYTES + entries.sum::<u64>()
    }

    /// The bytes for every drive, to be written at `offset_bytes`: [`Layout::catalogue_offset`] of
    /// this generation.
    ///
    /// # Panics
    /// When [`Catalogue::check`] fails: a catalogue that no reader accepts must not be committed.
    /// Ids, which are random, are compared in debug builds only: sorting them would take as long as
    /// the rest.
    pub fn encode(&self, offset_bytes: u64) -> Encoded {
        assert_eq!(self.check_entries(), Ok(()), "an impossible catalogue");
        debug_assert_eq!(self.check_ids(), Ok(()), "an impossible catalogue");
        let mut writer = Writer::new(MAGIC, self.pool, self.encoded_bytes());
        writer.u64(self.generation.0);
        writer.u32(self.entries.len() as u32);
        writer.zeros(4);
        for entry in self.entries() {
            encode_entry(&mut writer, entry);
        }
        writer.seal(offset_bytes)
    }
}

impl Catalogue {
    /// Reads the blocks of `extent`.
    pub fn decode(bytes: &[u8], extent: &MetaExtent, pool: Uuid) -> Result<Catalogue, FormatError> {
        let mut reader = Reader::open_named(MAGIC, bytes, extent, pool)?;
        let generation = Generation(reader.u64()?);
        let count = reader.u32()?;
        reader.zeros(4)?;
        let mut entries = Vec::with_capacity(reader.count(count.into(), ENTRY_BYTES)?);
        for _ in 0..count {
            entries.push(decode_entry(&mut reader)?);
        }
        reader.finish()?;
        let catalogue = Catalogue { pool, generation, entries };
        catalogue.check().map_err(FormatError::Corrupt)?;
        Ok(catalogue)
    }

    /// Whether it is the catalogue of `root` and its manifests lie in the metadata area. Do not
    /// read their extents before this check.
    pub fn validate(&self, root: &Root, layout: &Layout) -> Result<(), FormatError> {
        if self.generation != root.generation {
            return Err(corrupt(format!(
                "of generation {}, where the root is of generation {}",
                self.generation, root.generation
            )));
        }
        if self.entries.len() > layout.max_checkpoints() {
            return Err(corrupt(format!("{} checkpoints", self.entries.len())));
        }
        match self.entries.iter().find(|e| layout.meta_units_of(&e.manifest).is_none()) {
            Some(entry) => Err(corrupt(format!(
                "the manifest of {}@{} lies outside the metadata area",
                entry.name, entry.step
            ))),
            None => Ok(()),
        }
    }
}

fn encode_entry(writer: &mut Writer, entry: &CatalogueEntry) {
    writer.uuid(entry.id);
    writer.u64(entry.step);
    writer.u64(entry.bytes);
    writer.u32(entry.participants);
    writer.u16(entry.name.len() as u16);
    writer.u16(if entry.pinned { PINNED } else { 0 });
    writer.u64(entry.committed_unix_ns);
    writer.u64(entry.generation.0);
    writer.extent(&entry.manifest);
    let Access { uid, gid, mode } = entry.access;
    writer.u32(uid);
    writer.u32(gid);
    writer.u16(mode);
    writer.u16(entry.attributes.as_bytes().len() as u16);
    writer.zeros(4);
    writer.put(entry.name.as_bytes());
    writer.put(entry.attributes.as_bytes());
}

fn decode_entry(reader: &mut Reader<'_>) -> Result<CatalogueEntry, FormatError> {
    let (id, step, bytes) = (reader.uuid()?, reader.u64()?, reader.u64()?);
    let participants = reader.u32()?;
    let name_bytes = usize::from(reader.u16()?);
    let pinned = reader.flags(PINNED)? == PINNED;
    let committed_unix_ns = reader.u64()?;
    let generation = Generation(reader.u64()?);
    let manifest = reader.extent()?;
    let access = Access { uid: reader.u32()?, gid: reader.u32()?, mode: reader.u16()? };
    let attributes_bytes = usize::from(reader.u16()?);
    reader.zeros(4)?;
    let name = reader.text(name_bytes, MAX_NAME_BYTES)?;
    let attributes = Attributes::decode(reader, attributes_bytes)?;
    Ok(CatalogueEntry {
        id,
        name,
        step,
        bytes,
        participants,
        committed_unix_ns,
        generation,
        manifest,
        access,
        pinned,
        attributes,
    })
}

/// Checks the length of a checkpoint's name. Callers that accept names check its characters.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    Err(format!("a name of {} bytes; 1 to {MAX_NAME_BYTES} are allowed", name.len()))
}

pub(super) fn check_participants(participants: u64) -> Result<(), String> {
    if (1..=u64::from(MAX_PARTICIPANTS)).contains(&participants) {
        return Ok(());
    }
    Err(format!("{participants} participants; 1 to {MAX_PARTICIPANTS} are allowed"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{
        META_AT, MIB, any_catalogue, edited, edits, edits_give_an_error_or_another_value,
        every_cut_is_noticed, every_flip_is_noticed,
    };
    use super::*;
    use crate::format::{AttributeType, Owner};

    const POOL: Uuid = Uuid::from_u128(0xABCD);

    fn layout() -> Layout {
        Layout::plan(&[64 * MIB], MIB).unwrap()
    }

    fn entry(id: u128, name: &str, step: u64) -> CatalogueEntry {
        let offset_bytes = layout().meta_unit_offset(id as u64);
        CatalogueEntry {
            id: Uuid::from_u128(id),
            name: name.into(),
            step,
            bytes: 1 << 33,
            participants: 8,
            committed_unix_ns: 1_700_000_000_000_000_000,
            generation: Generation(4),
            manifest: MetaExtent { offset_bytes, len_bytes: 500, hash: [6; 16] },
            access: Access::of(1000, 100),
            pinned: false,
            attributes: Attributes::default(),
        }
    }

    fn catalogue() -> Catalogue {
        let mut entries = vec![entry(1, "a", 9), entry(2, "a", 10), entry(3, "aa", 0)];
        entries[1].pinned = true;
        entries[1].attributes.push(AttributeType(77), b"xyz").unwrap();
        Catalogue { pool: POOL, generation: Generation(5), entries }
    }

    proptest! {
        #[test]
        fn round_trip(catalogue in any_catalogue()) {
            let Encoded { bytes, extent } = catalogue.encode(META_AT);
            prop_assert_eq!(extent.len_bytes, catalogue.encoded_bytes());
            prop_assert_eq!(extent.stored_bytes(), bytes.len() as u64);
            prop_assert_eq!(Catalogue::decode(&bytes, &extent, catalogue.pool), Ok(catalogue));
        }

        #[test]
        fn edits_under_a_right_hash(catalogue in any_catalogue(), edits in edits()) {
            edits_give_an_error_or_another_value(
                &catalogue.encode(META_AT).bytes,
                &edits,
                |bytes, extent| Catalogue::decode(bytes, extent, catalogue.pool),
                |catalogue, at| catalogue.encode(at).bytes,
            )?;
        }
    }

    #[test]
    fn damage_is_detected() {
        let Encoded { bytes, extent } = catalogue().encode(META_AT);
        every_flip_is_noticed(&bytes, |bytes| Catalogue::decode(bytes, &extent, POOL));
        every_cut_is_noticed(&bytes, |bytes, hash| {
            Catalogue::decode(bytes, &MetaExtent { hash, ..extent }, POOL)
        });
    }

    #[test]
    fn fields_lie_as_specified() {
        let bytes = catalogue().encode(META_AT).bytes;
        assert_eq!(bytes[..8], *b"STN CATA");
        assert_eq!(bytes[64..72], 5_u64.to_le_bytes());
        assert_eq!(bytes[72..80], [3, 0, 0, 0, 0, 0, 0, 0]);
        // The second entry, behind a name of one byte.
        let entry = &bytes[80 + 105..];
        assert_eq!(entry[..16], *Uuid::from_u128(2).as_bytes());
        assert_eq!(entry[16..24], 10_u64.to_le_bytes());
        assert_eq!(entry[24..32], (1_u64 << 33).to_le_bytes());
        assert_eq!(entry[32..40], [8, 0, 0, 0, 1, 0, 1, 0]);
        assert_eq!(entry[40..48], 1_700_000_000_000_000_000_u64.to_le_bytes());
        assert_eq!(entry[48..56], 4_u64.to_le_bytes());
        assert_eq!(entry[64..72], 500_u64.to_le_bytes());
        assert_eq!(entry[72..88], [6; 16]);
        assert_eq!(entry[88..96], [0xE8, 3, 0, 0, 100, 0, 0, 0]);
        assert_eq!(entry[96..104], [0xA0, 1, 7, 0, 0, 0, 0, 0], "0640");
        assert_eq!(entry[104..112], *b"a\x4D\0\x03\0xyz");
        assert_eq!(entry[112..128], *Uuid::from_u128(3).as_bytes());
    }

    #[test]
    fn a_full_catalogue_fits_its_slot() {
        let layout = Layout::plan(&[1 << 40], MIB).unwrap();
        let name = "n".repeat(MAX_NAME_BYTES);
        let entries =
            (0..layout.max_checkpoints()).map(|i| entry(i as u128, &name, i as u64)).collect();
        let full = Catalogue { pool: POOL, generation: Generation(5), entries };
        let Encoded { bytes, extent } = full.encode(META_AT);
        assert!(bytes.len() as u64 <= layout.catalogue_slot_bytes());
        assert_eq!(Catalogue::decode(&bytes, &extent, POOL), Ok(full));
    }

    #[test]
    fn impossible_catalogues_have_a_reason() {
        let reason = |change: fn(&mut Catalogue)| {
            let mut catalogue = catalogue();
            change(&mut catalogue);
            catalogue.check().unwrap_err()
        };
        assert!(reason(|c| c.entries.swap(0, 1)).contains("order"));
        assert!(reason(|c| c.entries[1].step = 9).contains("order"));
        assert!(reason(|c| c.entries[2].id = c.entries[0].id).contains("two checkpoints"));
        assert!(reason(|c| c.entries[0].generation = Generation(6)).contains("later"));
        assert!(reason(|c| c.entries[0].participants = 0).contains("participants"));
        assert!(reason(|c| c.entries[0].access.mode = 0o1000).contains("permission"));
        assert!(reason(|c| c.entries[0].name.clear()).contains("name"));
        assert!(reason(|c| c.entries[0].name = "n".repeat(129)).contains("name"));
    }

    #[test]
    fn hostile_counts_and_lengths_are_checked_against_the_bytes() {
        let Encoded { bytes, extent } = catalogue().encode(META_AT);
        let refusal = |at: usize, value: &[u8]| {
            let (bytes, hash) = edited(&bytes, |b| b[at..at + value.len()].copy_from_slice(value));
            Catalogue::decode(&bytes, &MetaExtent { hash, ..extent }, POOL).unwrap_err()
        };
        let many = "4294967295 records where 3 fit".to_owned();
        assert_eq!(refusal(72, &[0xFF; 4]), FormatError::Corrupt(many));
        let long = "a text of 65535 bytes, at most 128 are allowed".to_owned();
        assert_eq!(refusal(80 + 36, &[0xFF; 2]), FormatError::Corrupt(long));
        let few = refusal(72, &[2]);
        assert!(matches!(few, FormatError::Corrupt(t) if t.contains("after the last field")));
        assert!(refusal(80 + 38, &[2]).to_string().contains("flags 0x2"));
        assert!(refusal(80 + 97, &[2]).to_string().contains("permission"));
        let attributes = refusal(80 + 98, &[0xFF; 2]).to_string();
        assert!(attributes.contains("a field of 65535 bytes"), "{attributes}");
        assert!(refusal(80 + 105 + 98, &[6]).to_string().contains("attribute of 3 bytes"));
        let not_text = refusal(80 + 104, &[0xFF]);
        assert!(matches!(not_text, FormatError::Corrupt(t) if t.contains("UTF-8")));
    }

    #[test]
    fn validate_compares_it_with_root_and_layout() {
        let (catalogue, layout) = (catalogue(), layout());
        let slot = layout.catalogue_offset(catalogue.generation);
        let mut root = Root {
            pool: POOL,
            generation: catalogue.generation,
            epoch: 1,
            parent: [0; 16],
            catalogue: catalogue.encode(slot).extent,
            committed_unix_ns: 0,
            owner: Owner::default(),
        };
        assert_eq!(catalogue.validate(&root, &layout), Ok(()));
        let mut outside = catalogue.clone();
        outside.entries[1].manifest.offset_bytes = layout.slot_offset(0);
        assert!(outside.validate(&root, &layout).is_err());
        root.generation = Generation(6);
        assert!(catalogue.validate(&root, &layout).is_err());
    }
}
