// SPDX-License-Identifier: Apache-2.0
//! A shard: a named range of a segment.
//!
//! | offset       | size | field                    |
//! |--------------|------|--------------------------|
//! | 0            | 8    | offset in the segment    |
//! | 8            | 8    | length                   |
//! | 16           | 2    | length n of the name     |
//! | 18           | 1    | length d of the dtype    |
//! | 19           | 1    | dimensions k             |
//! | 20           | 2    | length a of the attributes |
//! | 22           | 2    | zero                     |
//! | 24           | 8 k  | shape                    |
//! | 24 + 8 k     | n    | name                     |
//! |              | d    | dtype                    |
//! |              | a    | attributes (`attributes`) |

use super::attributes::MAX_ATTRIBUTES_BYTES;
use super::codec::{Reader, Writer};
use super::{Attributes, FormatError};
use crate::limits::{MAX_DTYPE_BYTES, MAX_SHARD_DIMENSIONS, MAX_SHARD_NAME_BYTES, MAX_SHARDS};

/// Bytes of a shard without what varies.
pub(super) const SHARD_BYTES: u64 = 24;

/// Bytes of the longest shard.
pub(super) const MAX_SHARD_BYTES: u64 = SHARD_BYTES
    + (8 * MAX_SHARD_DIMENSIONS + MAX_SHARD_NAME_BYTES + MAX_DTYPE_BYTES + MAX_ATTRIBUTES_BYTES)
        as u64;

const _: () = {
    assert!(MAX_DTYPE_BYTES <= u8::MAX as usize && MAX_SHARD_DIMENSIONS <= u8::MAX as usize);
    assert!(MAX_SHARD_NAME_BYTES <= u16::MAX as usize);
};

/// A named range of a segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shard {
    /// Its name, unique in the segment.
    pub name: String,
    /// Where it starts in the segment.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Type of its elements, ASCII; empty when it is not a tensor.
    pub dtype: String,
    /// Its dimensions; empty for a scalar, or when it is not a tensor.
    pub shape: Vec<u64>,
    /// What else is known of it.
    pub attributes: Attributes,
}

impl Shard {
    fn encoded_bytes(&self) -> u64 {
        let texts = self.name.len() + self.dtype.len() + self.attributes.as_bytes().len();
        SHARD_BYTES + (8 * self.shape.len() + texts) as u64
    }

    fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.len() > MAX_SHARD_NAME_BYTES {
            return Err(format!(
                "a shard's name of {} bytes; 1 to {MAX_SHARD_NAME_BYTES} are allowed",
                self.name.len()
            ));
        }
        if self.dtype.len() > MAX_DTYPE_BYTES || !self.dtype.is_ascii() {
            return Err(format!(
                "shard {}: dtype {:?} is not ASCII of at most {MAX_DTYPE_BYTES} bytes",
                self.name, self.dtype
            ));
        }
        if self.shape.len() > MAX_SHARD_DIMENSIONS {
            return Err(format!(
                "shard {}: {} dimensions; at most {MAX_SHARD_DIMENSIONS} are allowed",
                self.name,
                self.shape.len()
            ));
        }
        Ok(())
    }
}

/// Sorts shards into the order of a table.
#[cfg(any(test, feature = "internals"))]
pub fn sort_shards(shards: &mut [Shard]) {
    shards.sort_by_key(|s| (s.offset_bytes, s.len_bytes));
}

/// Whether these are the shards of a segment of this length: inside it, ascending, without overlap,
/// each name once. Gaps are allowed, and so are empty shards between others.
pub fn check_shards(shards: &[Shard], len_bytes: u64) -> Result<(), String> {
    if shards.len() > MAX_SHARDS {
        return Err(format!("{} shards; at most {MAX_SHARDS} are allowed", shards.len()));
    }
    let mut free_from = 0;
    for shard in shards {
        shard.check()?;
        let end = shard.offset_bytes.checked_add(shard.len_bytes);
        let end = end.filter(|end| *end <= len_bytes).ok_or_else(|| {
            format!("shard {} reaches beyond the segment's {len_bytes} bytes", shard.name)
        })?;
        if shard.offset_bytes < free_from {
            return Err(format!("shard {} overlaps the one before it", shard.name));
        }
        free_from = end;
    }
    let mut names: Vec<&str> = shards.iter().map(|s| s.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two shards have the name {}", pair[0])),
        None => Ok(()),
    }
}

/// Bytes of the encoding of all of them.
pub(super) fn encoded_shards_bytes(shards: &[Shard]) -> u64 {
    shards.iter().map(Shard::encoded_bytes).sum()
}

pub(super) fn encode_shard(shard: &Shard, writer: &mut Writer) {
    writer.u64(shard.offset_bytes);
    writer.u64(shard.len_bytes);
    writer.u16(shard.name.len() as u16);
    writer.u8(shard.dtype.len() as u8);
    writer.u8(shard.shape.len() as u8);
    writer.u16(shard.attributes.as_bytes().len() as u16);
    writer.zeros(2);
    for dimension in &shard.shape {
        writer.u64(*dimension);
    }
    writer.put(shard.name.as_bytes());
    writer.put(shard.dtype.as_bytes());
    writer.put(shard.attributes.as_bytes());
}

pub(super) fn decode_shard(reader: &mut Reader<'_>) -> Result<Shard, FormatError> {
    let (offset_bytes, len_bytes) = (reader.u64()?, reader.u64()?);
    let name_bytes = usize::from(reader.u16()?);
    let dtype_bytes = usize::from(reader.u8()?);
    let dimensions = reader.u8()?;
    let attributes_bytes = usize::from(reader.u16()?);
    reader.zeros(2)?;
    let mut shape = Vec::with_capacity(reader.count(dimensions.into(), 8)?);
    for _ in 0..dimensions {
        shape.push(reader.u64()?);
    }
    let name = reader.text(name_bytes, MAX_SHARD_NAME_BYTES)?;
    let dtype = reader.text(dtype_bytes, MAX_DTYPE_BYTES)?;
    let attributes = Attributes::decode(reader, attributes_bytes)?;
    Ok(Shard { name, offset_bytes, len_bytes, dtype, shape, attributes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(name: &str, offset_bytes: u64, len_bytes: u64) -> Shard {
        let (name, dtype, shape) = (name.into(), "f32".into(), vec![2]);
        Shard { name, offset_bytes, len_bytes, dtype, shape, ..Shard::default() }
    }

    #[test]
    fn impossible_shards_have_a_reason() {
        let reason = |shards: &[Shard]| check_shards(shards, 1000).unwrap_err();
        assert!(reason(&[shard("a", 0, 1001)]).contains("beyond"));
        assert!(reason(&[shard("a", u64::MAX, 2)]).contains("beyond"));
        assert!(reason(&[shard("a", 0, 10), shard("b", 9, 10)]).contains("overlaps"));
        assert!(reason(&[shard("a", 10, 10), shard("b", 0, 10)]).contains("overlaps"));
        assert!(reason(&[shard("a", 0, 10), shard("a", 10, 10)]).contains("two shards"));
        assert!(reason(&[shard("", 0, 10)]).contains("name"));
        assert!(reason(&[shard(&"n".repeat(1025), 0, 10)]).contains("name"));
        let with = |dtype: &str, dimensions| Shard {
            dtype: dtype.into(),
            shape: vec![1; dimensions],
            ..shard("a", 0, 1)
        };
        assert!(reason(&[with("f\u{fc}nf", 1)]).contains("dtype"));
        assert!(reason(&[with("seventeen-letters", 1)]).contains("dtype"));
        assert!(reason(&[with("f32", 17)]).contains("dimensions"));
    }

    #[test]
    fn sorted_shards_are_accepted_in_any_order() {
        let mut shards = vec![shard("c", 10, 5), shard("empty", 10, 0), shard("a", 0, 10)];
        sort_shards(&mut shards);
        assert_eq!(check_shards(&shards, 15), Ok(()));
    }
}
