// SPDX-License-Identifier: Apache-2.0
//! The root: names the catalogue of a generation. Writing it is the commit.
//!
//! | offset | size | field                                     |
//! |--------|------|-------------------------------------------|
//! | 64     | 16   | the drive that this copy was written for  |
//! | 80     | 8    | generation                                |
//! | 88     | 8    | open epoch                                |
//! | 96     | 16   | id of the root before                     |
//! | 112    | 32   | extent of the catalogue                   |
//! | 144    | 8    | committed, nanoseconds since 1970         |
//! | 152    | 184  | the owner record (`owner`)                |
//!
//! Bytes 80 to 336 are the same on every drive; the id is the hash of the pool's uuid and bytes 80
//! to 168: up to the open id, which is the first field of the owner record. Two roots of one
//! generation and epoch with different ids are a fork: two owners wrote one pool.

use uuid::Uuid;

use super::codec::{Magic, Reader, Writer, corrupt};
use super::layout::{ROOT_ZONE_BYTES, root_offset_in_ring};
use super::{FormatError, Layout, MetaExtent, Owner, hash128};
use crate::limits::{BLOCK_BYTES, MAX_NUMBER};
use crate::units::Generation;

const MAGIC: Magic = *b"STN ROOT";

/// The root of one generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// The pool.
    pub pool: Uuid,
    /// The generation that it commits.
    pub generation: Generation,
    /// Raised by every read-write open of the pool.
    pub epoch: u64,
    /// [`Root::id`] of the root before; zeros in the first.
    pub parent: [u8; 16],
    /// The catalogue of this generation.
    pub catalogue: MetaExtent,
    /// When, nanoseconds since 1970, by the clock of the owner.
    pub committed_unix_ns: u64,
    /// Who wrote it; the same in every root of one opening for writing.
    pub owner: Owner,
}

impl Root {
    /// Identifies the root, the same on every drive.
    pub fn id(&self) -> [u8; 16] {
        let mut writer = Writer::new(MAGIC, self.pool, BLOCK_BYTES);
        writer.uuid(self.pool);
        self.encode_identity(&mut writer);
        hash128(writer.body())
    }

    /// Why a reader would refuse this root.
    pub fn check(&self) -> Result<(), String> {
        for (what, number) in [("generation", self.generation.0), ("open epoch", self.epoch)] {
            if !(1..=MAX_NUMBER).contains(&number) {
                return Err(format!("{what} {number}; 1 to {MAX_NUMBER} are allowed"));
            }
        }
        self.owner.check()
    }

    /// What the id covers.
    fn encode_identity(&self, writer: &mut Writer) {
        writer.u64(self.generation.0);
        writer.u64(self.epoch);
        writer.put(&self.parent);
        writer.extent(&self.catalogue);
        writer.u64(self.committed_unix_ns);
        writer.uuid(self.owner.open_id);
    }

    /// One block for one drive, to be written at `offset_bytes`: [`Layout::root_offset`] of this
    /// generation.
    ///
    /// # Panics
    /// When [`Root::check`] fails: a root that no reader accepts must not be written.
    pub fn encode(&self, drive: Uuid, offset_bytes: u64) -> Vec<u8> {
        assert_eq!(self.check(), Ok(()), "an impossible root");
        assert_eq!(root_offset_in_ring(self.generation), offset_bytes % ROOT_ZONE_BYTES);
        let mut writer = Writer::new(MAGIC, self.pool, BLOCK_BYTES);
        writer.uuid(drive);
        self.encode_identity(&mut writer);
        self.owner.encode_rest(&mut writer);
        writer.seal(offset_bytes).bytes
    }

    /// Reads one block that was read from `drive` at `offset_bytes`.
    pub fn decode(
        bytes: &[u8],
        pool: Uuid,
        drive: Uuid,
        offset_bytes: u64,
    ) -> Result<Root, FormatError> {
        let mut reader = Reader::open(MAGIC, bytes, offset_bytes)?;
        reader.expect_pool(pool)?;
        if bytes.len() as u64 != BLOCK_BYTES {
            return Err(corrupt(format!("a root of {} bytes", bytes.len())));
        }
        let meant_for = reader.uuid()?;
        if meant_for != drive {
            return Err(corrupt(format!("meant for drive {meant_for}, found on drive {drive}")));
        }
        let root = Root {
            pool,
            generation: Generation(reader.u64()?),
            epoch: reader.u64()?,
            parent: reader.hash()?,
            catalogue: reader.extent()?,
            committed_unix_ns: reader.u64()?,
            owner: Owner::decode(&mut reader)?,
        };
        reader.finish()?;
        root.check().map_err(FormatError::Corrupt)?;
        if root_offset_in_ring(root.generation) != offset_bytes % ROOT_ZONE_BYTES {
            return Err(corrupt(format!(
                "generation {} in the slot of another one",
                root.generation
            )));
        }
        Ok(root)
    }

    /// Whether it fits the pool: the catalogue lies in the slot of this generation. Do not read its
    /// extent before this check.
    pub fn validate(&self, layout: &Layout) -> Result<(), FormatError> {
        let MetaExtent { offset_bytes, len_bytes, .. } = self.catalogue;
        let slot = layout.catalogue_offset(self.generation);
        if offset_bytes != slot || len_bytes > layout.catalogue_slot_bytes() {
            return Err(corrupt(format!(
                "a catalogue of {len_bytes} bytes at byte {offset_bytes}, its slot is at {slot}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{
        MIB, any_root, any_uuid, edited, edits, edits_give_an_error_or_another_value,
        every_cut_is_noticed, every_flip_is_noticed,
    };
    use super::super::{OwnerProcess, Zone};
    use super::*;

    const POOL: Uuid = Uuid::from_u128(0xABCD);
    const DRIVE: Uuid = Uuid::from_u128(5);
    const CAPACITY: u64 = 64 * MIB;

    fn layout() -> Layout {
        Layout::plan(&[CAPACITY], MIB).unwrap()
    }

    fn root() -> Root {
        let generation = Generation(1000);
        Root {
            pool: POOL,
            generation,
            epoch: 3,
            parent: [7; 16],
            catalogue: MetaExtent {
                offset_bytes: layout().catalogue_offset(generation),
                len_bytes: 80,
                hash: [9; 16],
            },
            committed_unix_ns: 1_700_000_000_000_000_000,
            owner: Owner {
                host_id: [4; 16],
                reservation_key: 0x0102_0304_0506_0708,
                ..Owner::new(Uuid::from_u128(2), process(), "node-7", "trainer")
            },
        }
    }

    fn process() -> OwnerProcess {
        OwnerProcess {
            boot_id: Uuid::from_u128(3),
            pid_namespace: 4_026_531_836,
            pid: 4711,
            started_ticks: 12_345_678_901,
        }
    }

    fn offset_of(root: &Root) -> u64 {
        layout().root_offset(Zone::Back, root.generation, CAPACITY)
    }

    proptest! {
        #[test]
        fn round_trip(root in any_root(), drive in any_uuid()) {
            let at = offset_of(&root);
            let decoded = Root::decode(&root.encode(drive, at), root.pool, drive, at);
            prop_assert_eq!(decoded.as_ref(), Ok(&root));
            prop_assert_eq!(decoded.unwrap().id(), root.id());
        }

        #[test]
        fn edits_under_a_right_hash(root in any_root(), edits in edits()) {
            let at = offset_of(&root);
            edits_give_an_error_or_another_value(
                &root.encode(DRIVE, at),
                &edits,
                |bytes, _| Root::decode(bytes, root.pool, DRIVE, at),
                |root, at| root.encode(DRIVE, at),
            )?;
        }
    }

    #[test]
    fn damage_is_detected() {
        let (root, at) = (root(), offset_of(&root()));
        let bytes = root.encode(DRIVE, at);
        every_flip_is_noticed(&bytes, |bytes| Root::decode(bytes, POOL, DRIVE, at));
        every_cut_is_noticed(&bytes, |bytes, _| Root::decode(bytes, POOL, DRIVE, at));
    }

    #[test]
    fn roots_in_a_wrong_place_are_refused() {
        let (root, at) = (root(), offset_of(&root()));
        let bytes = root.encode(DRIVE, at);
        let decode = |pool, drive, at| Root::decode(&bytes, pool, drive, at);
        assert_eq!(decode(Uuid::from_u128(1), DRIVE, at), Err(FormatError::NotOurs));
        let other = Uuid::from_u128(6);
        assert!(
            matches!(decode(POOL, other, at), Err(FormatError::Corrupt(t)) if t.contains("drive"))
        );
        let front = layout().root_offset(Zone::Front, root.generation, CAPACITY);
        assert!(matches!(decode(POOL, DRIVE, front), Err(FormatError::Corrupt(_))));
        let (moved, _) = edited(&bytes, |b| b[80] ^= 1);
        let moved = Root::decode(&moved, POOL, DRIVE, at);
        assert!(matches!(moved, Err(FormatError::Corrupt(t)) if t.contains("slot")));
    }

    #[test]
    fn id_is_of_the_generation_not_of_the_copy() {
        let root = root();
        let id = root.id();
        let others = [
            Root { pool: DRIVE, ..root.clone() },
            Root { generation: Generation(1001), ..root.clone() },
            Root { epoch: 4, ..root.clone() },
            Root { parent: [8; 16], ..root.clone() },
            Root { catalogue: MetaExtent { hash: [8; 16], ..root.catalogue }, ..root.clone() },
            Root { committed_unix_ns: 0, ..root.clone() },
            Root { owner: Owner { open_id: DRIVE, ..root.owner.clone() }, ..root.clone() },
        ];
        assert!(others.iter().all(|other| other.id() != id));
        // What else is known of the owner does not distinguish roots.
        let same = Owner { reservation_key: 1, ..root.owner.clone() };
        assert_eq!(Root { owner: same, ..root.clone() }.id(), id);
        // As specified: the pool, then bytes 80 to 168 of any copy.
        let bytes = root.encode(DRIVE, offset_of(&root));
        assert_eq!(id, hash128(&[POOL.as_bytes(), &bytes[80..168]].concat()));
    }

    #[test]
    fn fields_lie_as_specified() {
        let bytes = root().encode(DRIVE, offset_of(&root()));
        assert_eq!(bytes[..8], *b"STN ROOT");
        assert_eq!(bytes[64..80], *DRIVE.as_bytes());
        assert_eq!(bytes[80..88], 1000_u64.to_le_bytes());
        assert_eq!(bytes[88..96], 3_u64.to_le_bytes());
        assert_eq!(bytes[96..112], [7; 16]);
        assert_eq!(bytes[112..120], (4 * MIB).to_le_bytes());
        assert_eq!(bytes[120..128], 80_u64.to_le_bytes());
        assert_eq!(bytes[128..144], [9; 16]);
        assert_eq!(bytes[144..152], 1_700_000_000_000_000_000_u64.to_le_bytes());
        assert_eq!(bytes[40..48], 336_u64.to_le_bytes(), "the length");
        assert_eq!(bytes[152..168], *Uuid::from_u128(2).as_bytes());
        assert_eq!(bytes[168..184], *Uuid::from_u128(3).as_bytes());
        assert_eq!(bytes[184..192], 4_026_531_836_u64.to_le_bytes());
        assert_eq!(bytes[192..200], 4711_u64.to_le_bytes());
        assert_eq!(bytes[200..208], 12_345_678_901_u64.to_le_bytes());
        assert_eq!(bytes[208..224], [4; 16]);
        assert_eq!(bytes[224..232], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[232..240], [6, 7, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[240..247], *b"node-7\0");
        assert_eq!(bytes[304..312], *b"trainer\0");
    }

    #[test]
    fn impossible_roots_are_refused_under_a_right_hash() {
        let (root, at) = (root(), offset_of(&root()));
        let bytes = root.encode(DRIVE, at);
        let refused = |what: &str, at_byte: usize, value: &[u8]| {
            let range = at_byte..at_byte + value.len();
            let (bytes, _) = edited(&bytes, |b| b[range].copy_from_slice(value));
            let result = Root::decode(&bytes, POOL, DRIVE, at);
            assert!(matches!(&result, Err(FormatError::Corrupt(_))), "{what}: {result:?}");
        };
        refused("the last generation there is", 80, &[0xFF; 8]);
        refused("a generation in whose slot it lies", 80, &((1 << 62) + 1000_u64).to_le_bytes());
        refused("no open epoch", 88, &[0; 8]);
        refused("an open epoch that leaves no room", 88, &((1_u64 << 62) + 1).to_le_bytes());
        refused("a host name that is too long", 232, &[65]);
        refused("a command that is too long", 233, &[33]);
        refused("bytes behind the host name", 250, b"x");
        refused("a host name that cannot be printed", 240, &[0x1B]);
        refused("a command that is not text", 304, &[0xFF]);
        refused("a reserved byte", 196, &[1]);
        let last = Root { epoch: MAX_NUMBER, ..root };
        assert_eq!(Root::decode(&last.encode(DRIVE, at), POOL, DRIVE, at), Ok(last));
    }

    #[test]
    fn the_catalogue_must_lie_in_its_slot() {
        let (root, layout) = (root(), layout());
        assert_eq!(root.validate(&layout), Ok(()));
        let with = |offset_bytes, len_bytes| Root {
            catalogue: MetaExtent { offset_bytes, len_bytes, hash: [9; 16] },
            ..root.clone()
        };
        let slot = root.catalogue.offset_bytes;
        assert!(with(slot + layout.catalogue_slot_bytes(), 80).validate(&layout).is_err());
        assert!(with(slot, layout.catalogue_slot_bytes() + 1).validate(&layout).is_err());
    }
}
