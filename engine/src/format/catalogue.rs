//! The catalogue: all checkpoints of one generation. Every commit writes a new one, the same bytes
//! to the same offset of every drive.
//!
//! | offset | size   | field                                                       |
//! |--------|--------|-------------------------------------------------------------|
//! | 64     | 8      | generation                                                  |
//! | 72     | 4      | entries                                                     |
//! | 76     | 4      | zero                                                        |
//! | 80     | 88 + n | entries: id 16, step 8, bytes 8, participants 4, length n of the name 2, zero 2, committed 8, generation 8, extent of the manifest 32, name n |
//!
//! Entries ascend by name, then step; no two have the same name and step, nor the same id.

use uuid::Uuid;

use super::codec::{Magic, PROLOGUE_BYTES, Reader, Writer, corrupt};
use super::{Encoded, FormatError, Layout, MetaExtent, Root};
use crate::limits::{MAX_CHECKPOINTS, MAX_NAME_BYTES, MAX_PARTICIPANTS};
use crate::units::Generation;

const MAGIC: Magic = *b"STN CATA";

/// Bytes between the prologue and the first entry.
pub(super) const HEADER_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 88;
/// Bytes of an entry with the longest name.
pub(super) const MAX_ENTRY_BYTES: u64 = ENTRY_BYTES + MAX_NAME_BYTES as u64;

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
}

/// All checkpoints of one generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Catalogue {
    /// The pool.
    pub pool: Uuid,
    /// The generation that wrote it.
    pub generation: Generation,
    /// Ascending by name, then step.
    pub entries: Vec<CatalogueEntry>,
}

impl Catalogue {
    /// What a reader would hold against this catalogue.
    pub fn check(&self) -> Result<(), String> {
        if self.entries.len() > MAX_CHECKPOINTS {
            return Err(format!("{} checkpoints", self.entries.len()));
        }
        for entry in &self.entries {
            check_name(&entry.name)?;
            check_participants(entry.participants.into())?;
            if entry.generation > self.generation {
                return Err(format!("a checkpoint of the later generation {}", entry.generation));
            }
        }
        for pair in self.entries.windows(2) {
            if (&pair[0].name, pair[0].step) >= (&pair[1].name, pair[1].step) {
                return Err(format!("{}@{} is out of order", pair[1].name, pair[1].step));
            }
        }
        let mut ids: Vec<Uuid> = self.entries.iter().map(|e| e.id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("two checkpoints have the id {}", pair[0])),
            None => Ok(()),
        }
    }

    /// Bytes of the encoding, without the padding to whole blocks.
    pub fn encoded_bytes(&self) -> u64 {
        let entries = self.entries.iter().map(|e| ENTRY_BYTES + e.name.len() as u64);
        PROLOGUE_BYTES + HEADER_BYTES + entries.sum::<u64>()
    }

    /// The bytes for every drive, to be written at `offset_bytes`: [`Layout::catalogue_offset`] of
    /// this generation.
    ///
    /// # Panics
    /// When [`Catalogue::check`] fails: what no reader accepts must not be committed.
    pub fn encode(&self, offset_bytes: u64) -> Encoded {
        assert_eq!(self.check(), Ok(()), "an impossible catalogue");
        let mut writer = Writer::new(MAGIC, self.pool, self.encoded_bytes());
        writer.u64(self.generation.0);
        writer.u32(self.entries.len() as u32);
        writer.zeros(4);
        for entry in &self.entries {
            writer.uuid(entry.id);
            writer.u64(entry.step);
            writer.u64(entry.bytes);
            writer.u32(entry.participants);
            writer.u16(entry.name.len() as u16);
            writer.zeros(2);
            writer.u64(entry.committed_unix_ns);
            writer.u64(entry.generation.0);
            writer.extent(&entry.manifest);
            writer.put(entry.name.as_bytes());
        }
        writer.seal(offset_bytes)
    }

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

    /// Whether it is the catalogue of `root` and its manifests lie in the metadata area. Until then
    /// their extents must not be read.
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
        match self.entries.iter().find(|e| layout.meta_blocks_of(&e.manifest).is_none()) {
            Some(entry) => Err(corrupt(format!(
                "the manifest of {}@{} lies outside the metadata area",
                entry.name, entry.step
            ))),
            None => Ok(()),
        }
    }
}

fn decode_entry(reader: &mut Reader<'_>) -> Result<CatalogueEntry, FormatError> {
    let (id, step, bytes) = (reader.uuid()?, reader.u64()?, reader.u64()?);
    let participants = reader.u32()?;
    let name_bytes = usize::from(reader.u16()?);
    reader.zeros(2)?;
    let committed_unix_ns = reader.u64()?;
    let generation = Generation(reader.u64()?);
    let manifest = reader.extent()?;
    let name = reader.text(name_bytes, MAX_NAME_BYTES)?;
    Ok(CatalogueEntry {
        id,
        name,
        step,
        bytes,
        participants,
        committed_unix_ns,
        generation,
        manifest,
    })
}

/// The length of a checkpoint's name; which characters it may have is for those who take names.
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
