// SPDX-License-Identifier: Apache-2.0
//! The shard list: the shards of one participant's segment. Opening a pool does not read it.
//!
//! | offset | size | field                 |
//! |--------|------|-----------------------|
//! | 64     | 16   | id of the checkpoint  |
//! | 80     | 8    | length of the segment |
//! | 88     | 4    | participant           |
//! | 92     | 4    | shards                |
//! | 96     |      | shards (`shard`)      |

use uuid::Uuid;

use super::codec::{Magic, PROLOGUE_BYTES, Reader, Writer};
use super::object::MAX_META_OBJECT_BYTES;
use super::shard::{
    MAX_SHARD_BYTES, SHARD_BYTES, check_shards, decode_shard, encode_shard, encoded_shards_bytes,
};
use super::table_ref::{NO_OFFSET, check_segment, same_segment};
use super::{Encoded, FormatError, Shard, TableRef};
use crate::limits::{MAX_SHARD_LIST_BYTES, MAX_SHARDS};

const MAGIC: Magic = *b"STN SHRD";

const HEADER_BYTES: u64 = 32;

const _: () = {
    assert!(MAX_SHARD_LIST_BYTES <= MAX_META_OBJECT_BYTES);
    assert!(MAX_SHARDS as u64 <= u32::MAX as u64 && MAX_SHARD_BYTES < MAX_SHARD_LIST_BYTES);
};

/// The shards of one participant's segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardList {
    /// The pool.
    pub pool: Uuid,
    /// The id of the checkpoint.
    pub checkpoint: Uuid,
    /// The participant, from 0.
    pub participant: u32,
    /// Length of the segment.
    pub len_bytes: u64,
    /// Ascending by offset.
    pub shards: Vec<Shard>,
}

impl ShardList {
    /// Why a reader would refuse this list.
    pub fn check(&self) -> Result<(), String> {
        check_segment(self.len_bytes, self.participant)?;
        let list_bytes = Self::encoded_bytes(&self.shards);
        if list_bytes > MAX_SHARD_LIST_BYTES {
            return Err(format!("{list_bytes} bytes of shards"));
        }
        check_shards(&self.shards, self.len_bytes)
    }

    /// Bytes of the encoding, without the padding to whole blocks.
    pub fn encoded_bytes(shards: &[Shard]) -> u64 {
        PROLOGUE_BYTES + HEADER_BYTES + encoded_shards_bytes(shards)
    }

    /// The bytes of every copy.
    ///
    /// # Panics
    /// When [`ShardList::check`] fails: a list that no reader accepts must not be committed.
    pub fn encode(&self) -> Encoded {
        assert_eq!(self.check(), Ok(()), "an impossible shard list");
        let len_bytes = Self::encoded_bytes(&self.shards);
        let mut writer = Writer::new(MAGIC, self.pool, len_bytes);
        writer.uuid(self.checkpoint);
        writer.u64(self.len_bytes);
        writer.u32(self.participant);
        writer.u32(self.shards.len() as u32);
        for shard in &self.shards {
            encode_shard(shard, &mut writer);
        }
        let encoded = writer.seal(NO_OFFSET);
        debug_assert_eq!(encoded.extent.len_bytes, len_bytes);
        encoded
    }

    /// Reads the blocks of a copy.
    pub fn decode(
        bytes: &[u8],
        reference: &TableRef,
        pool: Uuid,
        checkpoint: Uuid,
        participant: u32,
    ) -> Result<ShardList, FormatError> {
        let mut reader = Reader::open_named(MAGIC, bytes, &reference.named(), pool)?;
        let (found, len_bytes, found_participant) = (reader.uuid()?, reader.u64()?, reader.u32()?);
        same_segment((found, found_participant), (checkpoint, participant))?;
        let count = reader.u32()?;
        let mut shards = Vec::with_capacity(reader.count(count.into(), SHARD_BYTES)?);
        for _ in 0..count {
            shards.push(decode_shard(&mut reader)?);
        }
        reader.finish()?;
        let list = ShardList { pool, checkpoint, participant, len_bytes, shards };
        list.check().map_err(FormatError::Corrupt)?;
        Ok(list)
    }

    /// The shard that contains this byte of the segment.
    #[cfg(any(test, feature = "internals"))]
    pub fn shard_at(&self, offset_bytes: u64) -> Option<&Shard> {
        let after = self.shards.partition_point(|s| s.offset_bytes <= offset_bytes);
        let shard = self.shards[..after].last()?;
        (offset_bytes - shard.offset_bytes < shard.len_bytes).then_some(shard)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{
        MIB, any_list, edited, edits, edits_give_an_error_or_another_value, every_cut_is_noticed,
        every_flip_is_noticed, reference_to,
    };
    use super::*;

    const POOL: Uuid = Uuid::from_u128(0xABCD);
    const CHECKPOINT: Uuid = Uuid::from_u128(77);

    fn shard(name: &str, offset_bytes: u64, len_bytes: u64) -> Shard {
        let (name, dtype, shape) = (name.into(), "f32".into(), vec![2]);
        Shard { name, offset_bytes, len_bytes, dtype, shape, ..Shard::default() }
    }

    fn list() -> ShardList {
        ShardList {
            pool: POOL,
            checkpoint: CHECKPOINT,
            participant: 3,
            len_bytes: MIB + 100,
            shards: vec![shard("w", 0, 1000), shard("empty", 1000, 0), shard("b", 2000, 500)],
        }
    }

    fn decode(bytes: &[u8], reference: &TableRef) -> Result<ShardList, FormatError> {
        ShardList::decode(bytes, reference, POOL, CHECKPOINT, 3)
    }

    proptest! {
        #[test]
        fn round_trip(list in any_list()) {
            let ShardList { pool, checkpoint, participant, .. } = list;
            let Encoded { bytes, extent } = list.encode();
            prop_assert_eq!(extent.len_bytes, ShardList::encoded_bytes(&list.shards));
            prop_assert_eq!(extent.stored_bytes(), bytes.len() as u64);
            let named = reference_to(&extent);
            let decoded = ShardList::decode(&bytes, &named, pool, checkpoint, participant);
            prop_assert_eq!(decoded, Ok(list));
        }

        #[test]
        fn edits_under_a_right_hash(list in any_list(), edits in edits()) {
            let ShardList { pool, checkpoint, participant, .. } = list;
            edits_give_an_error_or_another_value(
                &list.encode().bytes,
                &edits,
                |b, extent| {
                    ShardList::decode(b, &reference_to(extent), pool, checkpoint, participant)
                },
                |list, _| list.encode().bytes,
            )?;
        }

        #[test]
        fn shard_at_agrees_with_a_walk(list in any_list(), at in any::<prop::sample::Index>()) {
            let offset = at.index(list.len_bytes.clamp(1, 20_000) as usize) as u64;
            let walked = list.shards.iter().find(|s| {
                s.offset_bytes <= offset && offset < s.offset_bytes + s.len_bytes
            });
            prop_assert_eq!(list.shard_at(offset), walked);
        }
    }

    #[test]
    fn damage_is_detected() {
        let Encoded { bytes, extent } = list().encode();
        let named = reference_to(&extent);
        every_flip_is_noticed(&bytes, |bytes| decode(bytes, &named));
        every_cut_is_noticed(&bytes, |bytes, hash| {
            decode(bytes, &TableRef { hash, ..named.clone() })
        });
        let other = ShardList::decode(&bytes, &named, POOL, CHECKPOINT, 4);
        assert!(matches!(other, Err(FormatError::Corrupt(t)) if t.contains("participant 3")));
    }

    #[test]
    fn fields_lie_as_specified() {
        let bytes = list().encode().bytes;
        assert_eq!(bytes[..8], *b"STN SHRD");
        assert_eq!(bytes[32..40], 0_u64.to_le_bytes());
        assert_eq!(bytes[64..80], *CHECKPOINT.as_bytes());
        assert_eq!(bytes[80..88], (MIB + 100).to_le_bytes());
        assert_eq!(bytes[88..96], [3, 0, 0, 0, 3, 0, 0, 0]);
        let shard = &bytes[96..];
        assert_eq!(shard[8..16], 1000_u64.to_le_bytes());
        assert_eq!(shard[16..24], [1, 0, 3, 1, 0, 0, 0, 0]);
        assert_eq!(shard[24..32], 2_u64.to_le_bytes());
        assert_eq!(shard[32..36], *b"wf32");
    }

    #[test]
    fn hostile_counts_are_checked_against_the_bytes() {
        let Encoded { bytes, extent } = list().encode();
        let refusal = |at: usize, value: &[u8]| {
            let (bytes, hash) = edited(&bytes, |b| b[at..at + value.len()].copy_from_slice(value));
            let named = TableRef { hash, ..reference_to(&extent) };
            decode(&bytes, &named).unwrap_err().to_string()
        };
        assert!(refusal(92, &[0xFF; 4]).starts_with("4294967295 records where"));
        assert!(refusal(96 + 19, &[0xFF]).starts_with("255 records where"));
        assert!(refusal(96 + 16, &[0xFF; 2]).starts_with("a text of 65535"));
        assert!(refusal(80, &[0; 8]).contains("beyond the segment"));
    }

    #[test]
    fn a_list_has_a_limit() {
        let name = "n".repeat(1000);
        let shards = (0..MAX_SHARD_LIST_BYTES / 1000)
            .map(|number| shard(&format!("{number:07}{}", &name[7..]), 0, 0))
            .collect();
        let long = ShardList { shards, ..list() };
        assert!(long.check().unwrap_err().contains("bytes of shards"));
    }
}
