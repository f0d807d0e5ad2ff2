// SPDX-License-Identifier: Apache-2.0
//! What a file system knows of a shard that was a file, a directory or a link, as attributes.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

use stanchion_engine::{AttributeType, Attributes};

/// Permission bits, with those that change who runs a program.
const MODE_BITS: u32 = 0o7777;
const NS_PER_S: i64 = 1_000_000_000;

/// What a shard was in the file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory; what is in it is other shards.
    Directory,
    /// A symbolic link, with its target.
    Link(Vec<u8>),
}

/// What a file system knows of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What it was.
    pub kind: Kind,
    /// Its permission bits, if they were saved.
    pub mode: Option<u32>,
    /// When it was last changed, in nanoseconds since 1970, if that was saved.
    pub modified_ns: Option<i64>,
    /// It may have changed while it was saved.
    pub may_have_changed: bool,
}

impl Entry {
    /// A file without attributes.
    #[cfg(test)]
    pub const FILE: Entry =
        Entry { kind: Kind::File, mode: None, modified_ns: None, may_have_changed: false };

    /// Of a file, directory or link that is to be saved.
    pub fn new(kind: Kind, metadata: &Metadata) -> Entry {
        // A link has no permissions of its own.
        let mode = match kind {
            Kind::Link(_) => None,
            _ => Some(metadata.mode() & MODE_BITS),
        };
        let whole_ns = metadata.mtime().checked_mul(NS_PER_S);
        let modified_ns = whole_ns.and_then(|ns| ns.checked_add(metadata.mtime_nsec()));
        Entry { kind, mode, modified_ns, may_have_changed: false }
    }

    /// The attributes of the shard.
    ///
    /// # Errors
    /// Why it cannot be saved: a target that is too long.
    pub fn to_attributes(&self) -> Result<Attributes, String> {
        let mut attributes = Attributes::default();
        if let Some(mode) = self.mode {
            attributes.push(AttributeType::FILE_MODE, &mode.to_le_bytes())?;
        }
        if let Some(modified_ns) = self.modified_ns {
            attributes.push(AttributeType::FILE_MODIFIED, &modified_ns.to_le_bytes())?;
        }
        match &self.kind {
            Kind::File => {}
            Kind::Directory => attributes.push(AttributeType::FILE_KIND, &[1])?,
            Kind::Link(target) => {
                attributes.push(AttributeType::FILE_KIND, &[2])?;
                attributes.push(AttributeType::LINK_TARGET, target)?;
            }
        }
        if self.may_have_changed {
            attributes.push(AttributeType::MAY_HAVE_CHANGED, &[])?;
        }
        Ok(attributes)
    }

    /// From attributes, which come from a drive.
    ///
    /// # Errors
    /// Why no file can be made of it: a link without a target.
    pub fn of(attributes: &Attributes) -> Result<Entry, String> {
        let number = |kind| attributes.get(kind).and_then(|content| content.first_chunk());
        let mode = number(AttributeType::FILE_MODE);
        let modified = attributes.get(AttributeType::FILE_MODIFIED);
        let modified = modified.and_then(|content| content.first_chunk());
        let kind = match attributes.get(AttributeType::FILE_KIND) {
            None | Some([0]) => Kind::File,
            Some([1]) => Kind::Directory,
            _ => {
                let target = attributes.get(AttributeType::LINK_TARGET);
                Kind::Link(target.ok_or("it is a link without a target")?.to_vec())
            }
        };
        Ok(Entry {
            kind,
            mode: mode.map(|bytes| u32::from_le_bytes(*bytes) & MODE_BITS),
            modified_ns: modified.map(|bytes| i64::from_le_bytes(*bytes)),
            may_have_changed: attributes.get(AttributeType::MAY_HAVE_CHANGED).is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_back() {
        for kind in [Kind::File, Kind::Directory, Kind::Link(b"../x\xff".to_vec())] {
            for (mode, modified_ns) in [(Some(0o4751), Some(-5)), (None, None)] {
                for may_have_changed in [false, true] {
                    let kind = kind.clone();
                    let entry = Entry { kind, mode, modified_ns, may_have_changed };
                    assert_eq!(Entry::of(&entry.to_attributes().unwrap()), Ok(entry));
                }
            }
        }
        assert!(Entry::FILE.to_attributes().unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_made_has_a_reason() {
        let long = Entry { kind: Kind::Link(vec![b'x'; 4096]), ..Entry::FILE };
        assert!(long.to_attributes().unwrap_err().contains("at most 4096"));
        let mut attributes = Attributes::default();
        attributes.push(AttributeType::FILE_KIND, &[2]).unwrap();
        assert!(Entry::of(&attributes).unwrap_err().contains("without a target"));
    }
}
