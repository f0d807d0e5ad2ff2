// SPDX-License-Identifier: Apache-2.0
//! Names what another program left on a drive, by the bytes at both of its ends.
//!
//! Only magic numbers at known places are compared (`table`); nothing is parsed. They are sought
//! from the start of the drive, and from 1 MiB: there the first partition starts, whose contents
//! outlive a wiped partition table. In the first and the last MiB, bytes that are neither zero nor
//! known count as data, too.
//!
//! Pure, and independent of the kernel: it serves every back end.

use std::ops::Range;

mod table;

use table::Place;

/// How much of each end counts as data where it is not zero.
pub const PROBE_BYTES: u64 = 1 << 20;
/// How much of each end is read to find signatures.
pub const READ_BYTES: u64 = 4 << 20;
/// Where partitioning tools place the first partition.
const FIRST_PARTITION_BYTES: u64 = 1 << 20;

/// The bytes of both ends of a drive. What was not read, or belongs to Stanchion, counts as zero.
#[derive(Debug)]
pub struct Ends {
    capacity_bytes: u64,
    /// Ascending by offset.
    parts: Vec<(u64, Vec<u8>)>,
}

impl Ends {
    /// The ranges of a drive that are to be read for this.
    pub fn ranges(capacity_bytes: u64) -> Vec<Range<u64>> {
        let back = match capacity_bytes <= 2 * READ_BYTES {
            true => None,
            false => Some(capacity_bytes - READ_BYTES..capacity_bytes),
        };
        let front = 0..if back.is_some() { READ_BYTES } else { capacity_bytes };
        [front].into_iter().chain(back).collect()
    }

    /// With the bytes of [`Ends::ranges`].
    pub fn new(capacity_bytes: u64, parts: Vec<Vec<u8>>) -> Ends {
        let starts = Ends::ranges(capacity_bytes).into_iter().map(|range| range.start);
        Ends { capacity_bytes, parts: starts.zip(parts).collect() }
    }

    /// Bytes of the drive, where they were read.
    pub fn at(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.parts.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(len)?)
        })
    }

    /// Takes out what is known and no concern of this.
    pub fn clear(&mut self, range: Range<u64>) {
        for (start, bytes) in &mut self.parts {
            let end = *start + bytes.len() as u64;
            let (from, to) = (range.start.max(*start), range.end.min(end));
            if from < to {
                bytes[(from - *start) as usize..(to - *start) as usize].fill(0);
            }
        }
    }

    /// The first byte of a range that is not zero.
    pub fn first_set(&self, range: Range<u64>) -> Option<u64> {
        self.parts.iter().find_map(|(start, bytes)| {
            let end = *start + bytes.len() as u64;
            let (from, to) = (range.start.max(*start), range.end.min(end));
            let part = bytes.get((from.checked_sub(*start)?) as usize..)?;
            let part = &part[..to.checked_sub(from)? as usize];
            // Whole blocks first: a comparison of slices is fast also where nothing is optimized.
            let zeros = [0; 4096];
            let block =
                part.chunks(zeros.len()).position(|block| block != &zeros[..block.len()])?;
            let start = block * zeros.len();
            let byte = part[start..].iter().position(|byte| *byte != 0)?;
            Some(from + (start + byte) as u64)
        })
    }

    /// A known signature, or unknown data in the first or the last MiB; `None` when there is
    /// neither. The caller takes out Stanchion's own structures before.
    pub fn content(&self) -> Option<String> {
        if let Some(name) = self.signature() {
            return Some(name);
        }
        if let Some(at) = self.first_set(0..PROBE_BYTES) {
            return Some(format!("unknown non-zero data at byte {at}"));
        }
        let last = self.capacity_bytes.saturating_sub(PROBE_BYTES);
        let at = self.first_set(last..self.capacity_bytes)?;
        Some(format!("unknown non-zero data {} bytes before the end", self.capacity_bytes - at))
    }

    /// A known signature.
    pub fn signature(&self) -> Option<String> {
        let name = self.signature_from(0).or_else(|| boot_sector(self));
        if let Some(name) = name.or_else(|| safetensors(self)) {
            return Some(name.to_owned());
        }
        let name = self.signature_from(FIRST_PARTITION_BYTES)?;
        Some(format!("{name} from 1 MiB on, where a first partition starts"))
    }

    /// A signature of what starts at this offset.
    fn signature_from(&self, base: u64) -> Option<&'static str> {
        let found = table::SIGNATURES.iter().find(|signature| {
            let at = match signature.place {
                Place::Start(at) => base.checked_add(at),
                // A partition's end is not known.
                Place::End { .. } if base != 0 => None,
                Place::End { unit, before } => {
                    (self.capacity_bytes / unit * unit).checked_sub(before)
                }
            };
            at.is_some_and(|at| self.has(at, signature.bytes))
        });
        found.map(|signature| signature.name).or_else(|| ext(self, base)).or_else(|| {
            let elsewhere = || nilfs(self, base).or_else(|| zfs(self, base));
            elsewhere()
        })
    }

    fn has(&self, at: u64, magic: &[u8]) -> bool {
        self.at(at, magic.len()) == Some(magic)
    }

    fn u32_at(&self, at: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.at(at, 4)?.try_into().ok()?))
    }
}

/// The generations of ext share a magic and differ in feature bits.
fn ext(ends: &Ends, base: u64) -> Option<&'static str> {
    const HAS_JOURNAL: u32 = 0x4;
    const IS_JOURNAL: u32 = 0x8;
    /// Extents, 64 bits, flexible groups: what only ext4 has.
    const EXT4_ONLY: u32 = 0x40 | 0x80 | 0x200;
    let superblock = base + 1024;
    if !ends.has(superblock + 56, b"\x53\xef") {
        return None;
    }
    let compatible = ends.u32_at(superblock + 92)?;
    let incompatible = ends.u32_at(superblock + 96)?;
    Some(if incompatible & IS_JOURNAL != 0 {
        "ext journal"
    } else if incompatible & EXT4_ONLY != 0 {
        "ext4 file system"
    } else if compatible & HAS_JOURNAL != 0 {
        "ext3 file system"
    } else {
        "ext2 file system"
    })
}

/// Two bytes at the start and in the last 4 KiB, so the length that precedes the second counts,
/// too.
fn nilfs(ends: &Ends, base: u64) -> Option<&'static str> {
    let at_end = (ends.capacity_bytes / 512 * 512).checked_sub(4096).filter(|_| base == 0);
    let places = [Some(base + 1024), at_end];
    let is_superblock = |at: u64| {
        // Revision 2, the magic, and the number of bytes that the checksum covers.
        ends.u32_at(at) == Some(2)
            && ends.has(at + 6, b"\x34\x34")
            && ends.at(at + 8, 2).is_some_and(|bytes| bytes != [0, 0])
    };
    places.into_iter().flatten().any(is_superblock).then_some("NILFS2 file system")
}

/// ZFS keeps two labels of 256 KiB at each end; each ends in a ring of uberblocks of at least 1
/// KiB.
fn zfs(ends: &Ends, base: u64) -> Option<&'static str> {
    const LABEL_BYTES: u64 = 256 << 10;
    const RING_BYTES: u64 = 128 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let end = ends.capacity_bytes / LABEL_BYTES * LABEL_BYTES;
    let mut labels = vec![Some(base), base.checked_add(LABEL_BYTES)];
    if base == 0 {
        labels.extend([end.checked_sub(2 * LABEL_BYTES), end.checked_sub(LABEL_BYTES)]);
    }
    let is_uberblock = |block: &[u8]| {
        block.starts_with(&MAGIC.to_le_bytes()) || block.starts_with(&MAGIC.to_be_bytes())
    };
    let has_ring = |label: u64| {
        ends.at(label + RING_BYTES, RING_BYTES as usize)
            .is_some_and(|ring| ring.chunks(1024).any(is_uberblock))
    };
    labels.into_iter().flatten().any(has_ring).then_some("ZFS pool member")
}

fn boot_sector(ends: &Ends) -> Option<&'static str> {
    const SIGNATURE: u64 = 510;
    if !ends.has(SIGNATURE, b"\x55\xaa") {
        return None;
    }
    // Four entries of 16 bytes from 446; the fifth byte of each is its type, 0 for none.
    let is_used = |entry: u64| ends.at(446 + entry * 16 + 4, 1).is_some_and(|kind| kind != [0]);
    Some(match (0..4).any(is_used) {
        true => "MBR partition table",
        false => "boot sector or empty MBR partition table",
    })
}

/// The length of a JSON header, then the header.
fn safetensors(ends: &Ends) -> Option<&'static str> {
    /// What the safetensors library itself accepts.
    const MAX_HEADER_BYTES: u64 = 100_000_000;
    let length = u64::from_le_bytes(ends.at(0, 8)?.try_into().ok()?);
    let plausible = (2..=MAX_HEADER_BYTES).contains(&length);
    (plausible && ends.has(8, b"{\"")).then_some("safetensors file")
}

#[cfg(test)]
mod tests;
