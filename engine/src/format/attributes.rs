// SPDX-License-Identifier: Apache-2.0
//! Attributes of a checkpoint or a shard: typed records that a reader may skip.
//!
//! A record: type 2, length n 2, n bytes. Records follow each other without gaps.
//!
//! | type | bytes | meaning                                               |
//! |------|-------|-------------------------------------------------------|
//! | 1    | 4     | permission bits of a file                             |
//! | 2    | 8     | time of its last change: signed, nanoseconds since 1970 |
//! | 3    | 1     | its kind: 0 file, 1 directory, 2 symbolic link        |
//! | 4    | 1 up  | target of a symbolic link                             |
//! | 5    | 0     | the file may have changed while it was saved          |
//!
//! A type in this table occurs once at most and has the length that the table says. Type 0 is not
//! used. Any other type may occur, in any number and of any length.

use super::FormatError;
use super::codec::{Reader, corrupt};

/// The most bytes of the attributes of one checkpoint or shard.
pub const MAX_ATTRIBUTES_BYTES: usize = 4096;

const _: () = assert!(MAX_ATTRIBUTES_BYTES <= u16::MAX as usize);

/// The type of an attribute.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AttributeType(pub u16);

impl AttributeType {
    /// Permission bits of a file: a `u32`.
    pub const FILE_MODE: AttributeType = AttributeType(1);
    /// When a file was last changed: an `i64` of nanoseconds since 1970.
    pub const FILE_MODIFIED: AttributeType = AttributeType(2);
    /// What a file is: one byte, 0 for a file, 1 for a directory, 2 for a symbolic link.
    pub const FILE_KIND: AttributeType = AttributeType(3);
    /// The target of a symbolic link.
    pub const LINK_TARGET: AttributeType = AttributeType(4);
    /// That a file may have changed while it was saved; without content.
    pub const MAY_HAVE_CHANGED: AttributeType = AttributeType(5);

    fn is_known(self) -> bool {
        (Self::FILE_MODE..=Self::MAY_HAVE_CHANGED).contains(&self)
    }

    /// Why a record of this type cannot have this content, if so.
    fn check(self, content: &[u8]) -> Result<(), String> {
        let is_right = match self {
            AttributeType(0) => false,
            Self::FILE_MODE => content.len() == 4,
            Self::FILE_MODIFIED => content.len() == 8,
            Self::FILE_KIND => matches!(content, [0..=2]),
            Self::LINK_TARGET => !content.is_empty(),
            Self::MAY_HAVE_CHANGED => content.is_empty(),
            _ => true,
        };
        if is_right {
            return Ok(());
        }
        Err(format!("an attribute of type {} with {} bytes", self.0, content.len()))
    }
}

/// The attributes of a checkpoint or a shard, in the order of their records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// Records that were checked.
    records: Box<[u8]>,
}

impl Attributes {
    /// Appends a record.
    ///
    /// # Errors
    /// The reason why a reader would refuse it.
    pub fn push(&mut self, kind: AttributeType, content: &[u8]) -> Result<(), String> {
        let length = u16::try_from(content.len())
            .map_err(|_| format!("an attribute of {} bytes", content.len()))?;
        let mut records = self.records.to_vec();
        records.extend(kind.0.to_le_bytes());
        records.extend(length.to_le_bytes());
        records.extend(content);
        *self = Attributes::checked(&records)?;
        Ok(())
    }

    /// Each record's type and content.
    pub fn iter(&self) -> impl Iterator<Item = (AttributeType, &[u8])> {
        Records { left: &self.records }.filter_map(Result::ok)
    }

    /// The content of the first record of a type.
    pub fn get(&self, kind: AttributeType) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == kind).map(|(_, content)| content)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The records as they are stored, at most [`MAX_ATTRIBUTES_BYTES`].
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.records
    }

    pub(super) fn decode(
        reader: &mut Reader<'_>,
        len_bytes: usize,
    ) -> Result<Attributes, FormatError> {
        if len_bytes == 0 {
            return Ok(Attributes::default());
        }
        Attributes::checked(reader.take(len_bytes)?).map_err(corrupt)
    }

    fn checked(records: &[u8]) -> Result<Attributes, String> {
        if records.len() > MAX_ATTRIBUTES_BYTES {
            return Err(format!(
                "attributes of {} bytes; at most {MAX_ATTRIBUTES_BYTES} are allowed",
                records.len()
            ));
        }
        let mut known = Vec::new();
        for record in (Records { left: records }) {
            let (kind, content) = record?;
            kind.check(content)?;
            if kind.is_known() {
                if known.contains(&kind) {
                    return Err(format!("two attributes of type {}", kind.0));
                }
                known.push(kind);
            }
        }
        Ok(Attributes { records: records.into() })
    }
}

/// Splits bytes into records. After an error there are no more.
struct Records<'a> {
    left: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(AttributeType, &'a [u8]), String>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = std::mem::take(&mut self.left);
        if left.is_empty() {
            return None;
        }
        let [kind_low, kind_high, length_low, length_high, rest @ ..] = left else {
            return Some(Err(format!("{} bytes are no attribute", left.len())));
        };
        let length = usize::from(u16::from_le_bytes([*length_low, *length_high]));
        let Some((content, rest)) = rest.split_at_checked(length) else {
            return Some(Err(format!("an attribute of {length} bytes where {} are", rest.len())));
        };
        self.left = rest;
        Some(Ok((AttributeType(u16::from_le_bytes([*kind_low, *kind_high])), content)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(records: &[(u16, &[u8])]) -> Result<Attributes, String> {
        let mut attributes = Attributes::default();
        for (kind, content) in records {
            attributes.push(AttributeType(*kind), content)?;
        }
        Ok(attributes)
    }

    #[test]
    fn records_lie_as_specified() {
        let attributes = with(&[(1, &[0o40, 1, 0, 0]), (4, b"../x"), (0x1234, b"")]).unwrap();
        let expected = b"\x01\0\x04\0\x20\x01\0\0\x04\0\x04\0../x\x34\x12\0\0";
        assert_eq!(attributes.as_bytes(), expected);
        assert_eq!(attributes.get(AttributeType::LINK_TARGET), Some(&b"../x"[..]));
        assert_eq!(attributes.get(AttributeType(0x1234)), Some(&b""[..]));
        assert_eq!(attributes.get(AttributeType::FILE_KIND), None);
        assert_eq!(Attributes::checked(expected), Ok(attributes));
    }

    #[test]
    fn a_type_that_is_not_known_is_kept() {
        let attributes = with(&[(9, b"a"), (9, b"b"), (3, &[2]), (u16::MAX, b"")]).unwrap();
        let types: Vec<u16> = attributes.iter().map(|(kind, _)| kind.0).collect();
        assert_eq!(types, [9, 9, 3, u16::MAX]);
        assert_eq!(Attributes::checked(attributes.as_bytes()), Ok(attributes));
    }

    #[test]
    fn impossible_attributes_have_a_reason() {
        let reason = |kind, content: &[u8]| with(&[(kind, content)]).unwrap_err();
        assert_eq!(reason(0, b"x"), "an attribute of type 0 with 1 bytes");
        let wrong: [(u16, &[u8]); 6] =
            [(1, &[0; 3]), (2, &[0; 4]), (3, &[]), (3, &[3]), (4, &[]), (5, &[0])];
        for (kind, content) in wrong {
            assert!(reason(kind, content).starts_with("an attribute of type"), "{kind}");
        }
        assert_eq!(with(&[(3, &[0]), (3, &[1])]).unwrap_err(), "two attributes of type 3");
        let most = vec![0; MAX_ATTRIBUTES_BYTES - 4];
        assert!(with(&[(9, &most)]).is_ok());
        assert!(with(&[(9, &most), (9, &[])]).unwrap_err().contains("at most 4096"));
        assert!(with(&[(9, &vec![0; 70_000])]).unwrap_err().contains("70000 bytes"));
    }

    #[test]
    fn lengths_are_checked_against_the_bytes() {
        let reason = |bytes: &[u8]| Attributes::checked(bytes).unwrap_err();
        assert_eq!(reason(&[9, 0, 0]), "3 bytes are no attribute");
        assert_eq!(reason(&[9, 0, 2, 0, 7]), "an attribute of 2 bytes where 1 are");
        assert_eq!(reason(&[9, 0, 0, 0, 1]), "1 bytes are no attribute");
        assert!(reason(&[9, 0, 0xFF, 0xFF]).contains("65535"));
    }
}
