// SPDX-License-Identifier: Apache-2.0
//! Names the format of the first and the last bytes of a drive.
//!
//! Only well-known magic numbers are compared; nothing is parsed. Bytes that are neither zero nor
//! known still count as data, and are reported with their position.

/// How much of each end of a drive is checked.
pub const PROBE_BYTES: u64 = 1 << 20;

/// A magic number at a fixed place from the start of the drive.
struct Magic(&'static str, usize, &'static [u8]);

/// In the order of preference: formats with their own partition table come before those that may
/// lie under a boot sector.
const MAGICS: &[Magic] = &[
    Magic("GPT partition table", 512, b"EFI PART"),
    Magic("GPT partition table", 4096, b"EFI PART"),
    Magic("LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    Magic("BitLocker encrypted volume", 3, b"-FVE-FS-"),
    Magic("XFS file system", 0, b"XFSB"),
    Magic("Btrfs file system", 65536 + 64, b"_BHRfS_M"),
    Magic("F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    Magic("SquashFS image", 0, b"hsqs"),
    Magic("ISO 9660 image", 32769, b"CD001"),
    Magic("LVM2 physical volume", 0, b"LABELONE"),
    Magic("LVM2 physical volume", 512, b"LABELONE"),
    Magic("LVM2 physical volume", 1024, b"LABELONE"),
    Magic("LVM2 physical volume", 1536, b"LABELONE"),
    Magic("md RAID member", 0, MD_MAGIC),
    Magic("md RAID member", 4096, MD_MAGIC),
    // The magic ends the first page, whose size is that of the machine that made it.
    Magic("swap space", 4096 - 10, b"SWAPSPACE2"),
    Magic("swap space", 8192 - 10, b"SWAPSPACE2"),
    Magic("swap space", 16384 - 10, b"SWAPSPACE2"),
    Magic("swap space", 65536 - 10, b"SWAPSPACE2"),
    Magic("swap space", 4096 - 10, b"SWAP-SPACE"),
    Magic("SPDK blobstore", 0, b"SPDKBLOB"),
    Magic("NTFS file system", 3, b"NTFS    "),
    Magic("exFAT file system", 3, b"EXFAT   "),
    Magic("FAT file system", 54, b"FAT12   "),
    Magic("FAT file system", 54, b"FAT16   "),
    Magic("FAT file system", 82, b"FAT32   "),
    Magic("zip archive (or a PyTorch checkpoint)", 0, b"PK\x03\x04"),
];

const MD_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
const GPT_MAGIC: &[u8] = b"EFI PART";

/// The format of the first and last [`PROBE_BYTES`] of a drive; `None` when all of it is zero. Both
/// may be shorter, and overlap, on a small drive. The caller recognises Stanchion's own drives
/// before this call.
pub fn content_signature(first: &[u8], last: &[u8]) -> Option<String> {
    let known = MAGICS.iter().find(|Magic(_, at, magic)| has(first, *at, magic)).map(|m| m.0);
    let name = known
        .or_else(|| ext(first))
        .or_else(|| zfs(first, last))
        .or_else(|| at_the_end(last))
        .or_else(|| boot_sector(first))
        .or_else(|| safetensors(first));
    if let Some(name) = name {
        return Some(name.to_owned());
    }
    if let Some(at) = first.iter().position(|byte| *byte != 0) {
        return Some(format!("unknown non-zero data at byte {at}"));
    }
    let at = last.iter().position(|byte| *byte != 0)?;
    Some(format!("unknown non-zero data {} bytes before the end", last.len() - at))
}

fn has(bytes: &[u8], at: usize, magic: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(magic))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The three generations of ext share a magic and differ in feature bits.
fn ext(first: &[u8]) -> Option<&'static str> {
    const HAS_JOURNAL: u32 = 0x4;
    /// Extents, 64 bits, flexible groups: what only ext4 has.
    const EXT4_ONLY: u32 = 0x40 | 0x80 | 0x200;
    if !has(first, 1024 + 56, b"\x53\xef") {
        return None;
    }
    let (compatible, incompatible) = (u32_at(first, 1024 + 92)?, u32_at(first, 1024 + 96)?);
    Some(if incompatible & EXT4_ONLY != 0 {
        "ext4 file system"
    } else if compatible & HAS_JOURNAL != 0 {
        "ext3 file system"
    } else {
        "ext2 file system"
    })
}

/// ZFS keeps two labels at each end; each ends in a ring of uberblocks of at least 1 KiB.
fn zfs(first: &[u8], last: &[u8]) -> Option<&'static str> {
    let is_uberblock = |block: &[u8]| {
        has(block, 0, &0x00ba_b10c_u64.to_le_bytes())
            || has(block, 0, &0x00ba_b10c_u64.to_be_bytes())
    };
    let found = first.chunks(1024).chain(last.rchunks(1024)).any(is_uberblock);
    found.then_some("ZFS pool member")
}

/// Structures that are found from the end of the drive.
fn at_the_end(last: &[u8]) -> Option<&'static str> {
    // The old md formats lie on a 4 KiB or 64 KiB boundary near the end. The older one uses the
    // byte order of the machine that made it.
    let is_md = |block: &[u8]| has(block, 0, MD_MAGIC) || has(block, 0, b"\xa9\x2b\x4e\xfc");
    if last.rchunks(4096).any(is_md) {
        return Some("md RAID member");
    }
    // The second GPT is the last sector, and survives when only the first one was wiped.
    let gpt = [512, 4096].into_iter().filter_map(|sector| last.len().checked_sub(sector));
    gpt.into_iter().any(|at| has(last, at, GPT_MAGIC)).then_some("GPT partition table (the second)")
}

fn boot_sector(first: &[u8]) -> Option<&'static str> {
    const SIGNATURE: usize = 510;
    if !has(first, SIGNATURE, b"\x55\xaa") {
        return None;
    }
    // Four entries of 16 bytes from 446; the fifth byte of each is its type, 0 for none.
    let used = (0..4).any(|entry| first[446 + entry * 16 + 4] != 0);
    Some(if used { "MBR partition table" } else { "boot sector or empty MBR partition table" })
}

/// The length of a JSON header, then the header.
fn safetensors(first: &[u8]) -> Option<&'static str> {
    /// What the safetensors library itself accepts.
    const MAX_HEADER_BYTES: u64 = 100_000_000;
    let length = u64::from_le_bytes(first.get(..8)?.try_into().ok()?);
    let plausible = (2..=MAX_HEADER_BYTES).contains(&length);
    (plausible && has(first, 8, b"{\"")).then_some("safetensors file")
}
