// SPDX-License-Identifier: Apache-2.0
use super::table::Signature;
use super::*;
use crate::host::test_tools::tool;

const CAPACITY_BYTES: u64 = 16 << 20;

/// The ends of a drive that is zero but for these bytes.
fn ends_with(bytes: &[(u64, &[u8])]) -> Ends {
    let ranges = Ends::ranges(CAPACITY_BYTES).into_iter();
    let parts = ranges.map(|range| {
        let mut part = vec![0; (range.end - range.start) as usize];
        for (at, bytes) in bytes {
            if range.contains(at) {
                let from = (at - range.start) as usize;
                let len = bytes.len().min(part.len() - from);
                part[from..from + len].copy_from_slice(&bytes[..len]);
            }
        }
        part
    });
    Ends::new(CAPACITY_BYTES, parts.collect())
}

fn content(at: u64, bytes: &[u8]) -> String {
    ends_with(&[(at, bytes)]).content().unwrap()
}

fn from_end(before: u64, bytes: &[u8]) -> String {
    content(CAPACITY_BYTES - before, bytes)
}

#[test]
fn every_signature_is_found_at_its_place_and_one_mib_further() {
    for signature in table::SIGNATURES {
        let at = match signature.place {
            Place::Start(at) => at,
            Place::End { unit, before } => CAPACITY_BYTES / unit * unit - before,
        };
        let found = ends_with(&[(at, signature.bytes)]).signature();
        let found = found.unwrap_or_else(|| panic!("{}", signature.name));
        let same_bytes = |other: &&Signature| {
            found.starts_with(other.name) && signature.bytes.starts_with(other.bytes)
        };
        assert!(
            table::SIGNATURES.iter().any(|other| same_bytes(&other)),
            "{found}: {}",
            signature.name
        );
        if let Place::Start(at) = signature.place
            && FIRST_PARTITION_BYTES + at + 32 < READ_BYTES
        {
            let moved = ends_with(&[(FIRST_PARTITION_BYTES + at, signature.bytes)]).signature();
            let moved = moved.unwrap_or_else(|| panic!("{} at 1 MiB", signature.name));
            // 1 MiB further, LUKS has another of its places.
            assert!(moved.contains("1 MiB") || moved.contains("LUKS"), "{moved}");
        }
    }
}

#[test]
fn what_is_not_in_the_table() {
    assert_eq!(ends_with(&[]).content(), None);
    let uberblock = 0x00ba_b10c_u64;
    let ext = |compatible: u32, incompatible: u32| {
        let mut superblock = vec![0; 256];
        superblock[56..58].copy_from_slice(b"\x53\xef");
        superblock[92..96].copy_from_slice(&compatible.to_le_bytes());
        superblock[96..100].copy_from_slice(&incompatible.to_le_bytes());
        superblock
    };
    let nilfs = b"\x02\0\0\0\0\0\x34\x34\x18\x01";
    for (at, bytes, expected) in [
        (1024, &ext(0, 0)[..], "ext2 file system"),
        (1024, &ext(4, 2), "ext3 file system"),
        (1024, &ext(4, 0x42), "ext4 file system"),
        (1024, &ext(0, 8), "ext journal"),
        (1024, nilfs, "NILFS2 file system"),
        (CAPACITY_BYTES - 4096, nilfs, "NILFS2 file system"),
        ((128 << 10) + 5 * 1024, &uberblock.to_le_bytes(), "ZFS pool member"),
        ((256 + 128) << 10, &uberblock.to_be_bytes(), "ZFS pool member"),
        (CAPACITY_BYTES - (128 << 10), &uberblock.to_le_bytes(), "ZFS pool member"),
        (CAPACITY_BYTES - (384 << 10), &uberblock.to_be_bytes(), "ZFS pool member"),
        (510, b"\x55\xaa", "boot sector or empty MBR partition table"),
        (0, b"\x10\0\0\0\0\0\0\0{\"a\":", "safetensors file"),
        (12345, b"\x01", "unknown non-zero data at byte 12345"),
        (PROBE_BYTES - 1, b"\x01", "unknown non-zero data at byte 1048575"),
        (CAPACITY_BYTES - 1, b"\x01", "unknown non-zero data 1 bytes before the end"),
    ] {
        assert_eq!(content(at, bytes), expected);
    }
    assert_eq!(from_end(512, b"EFI PART"), "GPT partition table (the second)");
    assert_eq!(from_end(8192, b"\xfc\x4e\x2b\xa9"), "md RAID member");
    let partition = [(446 + 4, &b"\x83"[..]), (510, b"\x55\xaa")];
    assert_eq!(ends_with(&partition).content().as_deref(), Some("MBR partition table"));
    // In the middle, what no one knows is not data.
    assert_eq!(ends_with(&[(PROBE_BYTES, b"\x01")]).content(), None);
    assert!(content((1 << 20) + 1024, &ext(4, 0x42)).starts_with("ext4 file system from 1 MiB on"));
}

#[test]
fn what_is_taken_out_does_not_count() {
    let mut ends = ends_with(&[(0, b"XFSB"), (2 << 20, b"\x5e\xf1\xab\x2f")]);
    assert_eq!(ends.content().as_deref(), Some("XFS file system"));
    ends.clear(0..4);
    assert_eq!(ends.content().as_deref(), Some("VMFS volume"));
    assert_eq!(ends.first_set(0..u64::MAX), Some(2 << 20));
    ends.clear(4096..u64::MAX);
    assert_eq!(ends.content(), None);
    assert_eq!(ends.first_set(0..u64::MAX), None);
}

#[test]
fn images_made_by_real_tools_are_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let name = path.to_str().unwrap();
    for (command, arguments, expected) in [
        ("mkfs.ext2", vec!["-q", "-F", name], "ext2 file system"),
        ("mkfs.ext3", vec!["-q", "-F", name], "ext3 file system"),
        ("mkfs.ext4", vec!["-q", "-F", name], "ext4 file system"),
        ("mkswap", vec![name], "swap space"),
    ] {
        std::fs::write(&path, vec![0; CAPACITY_BYTES as usize]).unwrap();
        if tool(command, &arguments).is_some() {
            let bytes = std::fs::read(&path).unwrap();
            let ranges = Ends::ranges(CAPACITY_BYTES).into_iter();
            let part = |range: Range<u64>| bytes[range.start as usize..range.end as usize].to_vec();
            let ends = Ends::new(CAPACITY_BYTES, ranges.map(part).collect());
            assert_eq!(ends.content().as_deref(), Some(expected), "{command}");
        }
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_of_any_length_get_an_answer(
        bytes in proptest::collection::vec(0u8.., 0..9000),
    ) {
        let capacity_bytes = bytes.len() as u64;
        let blank = bytes.iter().all(|byte| *byte == 0);
        let ends = Ends::new(capacity_bytes, vec![bytes]);
        proptest::prop_assert_eq!(ends.content().is_none(), blank);
    }
}
