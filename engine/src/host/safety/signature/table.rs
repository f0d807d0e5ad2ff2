// SPDX-License-Identifier: Apache-2.0
//! Where systems leave their magic numbers: every place that util-linux knows (its development
//! version of 2.43, August 2026: libblkid's superblocks and partition tables), and a few more. Only
//! facts: a name, a place, the bytes.

use Place::{End, Start};

/// A magic number at a known place.
pub(super) struct Signature {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) bytes: &'static [u8],
}

/// Where a magic number lies.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// From the start of the drive or of the partition.
    Start(u64),
    /// From the end of the drive, rounded down to whole units.
    End { unit: u64, before: u64 },
}

/// `(name, place, bytes)`.
const fn of(name: &'static str, place: Place, bytes: &'static [u8]) -> Signature {
    Signature { name, place, bytes }
}

/// In the order of preference: what has a partition table or a volume of its own comes before what
/// may lie under a boot sector, and long magic numbers before those of two bytes.
pub(super) const SIGNATURES: &[Signature] = &[
    // Partition tables; the one of DOS is found by `boot_sector`, after the file systems that start
    // with a boot sector.
    of(GPT, Start(512), GPT_MAGIC),
    of(GPT, Start(4096), GPT_MAGIC),
    of("AIX physical volume", Start(0), b"\xc9\xc2\xd4\xc1"),
    of("BSD disk label", Start(512), BSD_MAGIC),
    of("BSD disk label", Start(64), BSD_MAGIC),
    of("BSD disk label", Start(128), BSD_MAGIC),
    of("SGI partition table", Start(0), b"\x0b\xe5\xa9\x41"),
    of("Solaris partition table", Start(512 + 12), b"\xee\xde\x0d\x60"),
    of("UnixWare partition table", Start((29 << 9) + 4), b"\x0d\x60\xe5\xca"),
    of("Ultrix partition table", Start(16384 - 72), b"\x57\x29\x03\x00"),
    of("DASD partition table", Start(8192), b"\xe5\xd6\xd3\xf1"),
    of("Apple partition table", Start(512), b"PM\0\0"),
    // Encryption, volumes, caches, RAID.
    of(LUKS, Start(0), b"LUKS\xba\xbe"),
    of(LUKS, Start(0x4000), b"SKUL\xba\xbe"),
    of(LUKS, Start(0x8000), b"SKUL\xba\xbe"),
    of(LUKS, Start(0x1_0000), b"SKUL\xba\xbe"),
    of(LUKS, Start(0x2_0000), b"SKUL\xba\xbe"),
    of(LUKS, Start(0x4_0000), b"SKUL\xba\xbe"),
    of(LUKS, Start(0x8_0000), b"SKUL\xba\xbe"),
    of(LUKS, Start(0x10_0000), b"SKUL\xba\xbe"),
    of(LUKS, Start(0x20_0000), b"SKUL\xba\xbe"),
    of("BitLocker encrypted volume", Start(3), b"-FVE-FS-"),
    of("BitLocker encrypted volume", Start(0), b"\xeb\x58\x90MSWIN4.1"),
    of("dm-verity hashes", Start(0), b"verity\0\0"),
    of("dm-integrity volume", Start(0), b"integrt\0"),
    of("VDO volume", Start(0), b"dmvdo001"),
    of("Stratis pool member", Start(512 + 4), STRATIS_MAGIC),
    of("Stratis pool member", Start(9 * 512 + 4), STRATIS_MAGIC),
    of(LVM, Start(0), b"LABELONE"),
    of(LVM, Start(512), b"LABELONE"),
    of(LVM, Start(1024), b"LABELONE"),
    of(LVM, Start(1536), b"LABELONE"),
    of(LVM, Start(0x18), b"LVM2 001"),
    of(LVM, Start(0x218), b"LVM2 001"),
    of(LVM, Start(1024 + 0x18), b"LVM2 001"),
    of(LVM, Start(1024 + 0x218), b"LVM2 001"),
    of("dm snapshot", Start(0), b"SnAp"),
    of("mpool device", Start(0), b"mpoolDev"),
    of("Ceph BlueStore device", Start(0), b"bluestore block device"),
    of("Oracle ASM disk", Start(32), b"ORCLDISK"),
    of("Oracle ASM disk", Start(0), b"\x01\x82\x01\x01"),
    of("SPDK blobstore", Start(0), b"SPDKBLOB"),
    of("bcache device", Start(4096 + 24), BCACHE_MAGIC),
    of(BCACHEFS, Start(4096 + 24), BCACHEFS_MAGIC),
    of(BCACHEFS, Start((2 << 20) + 24), BCACHEFS_MAGIC),
    of(BCACHEFS, End { unit: 512, before: (1 << 20) - 24 }, BCACHEFS_MAGIC),
    of("DRBD proxy log", Start(0), b"DRBDdlh*"),
    of("DRBD control volume", Start(0), b"$DRBDmgr=q"),
    of(DRBD, End { unit: 512, before: 4096 - 60 }, b"\x83\x74\x02\x6b"),
    of(DRBD, End { unit: 512, before: 4096 - 60 }, b"\x83\x74\x02\x6c"),
    of(DRBD, End { unit: 512, before: 4096 - 60 }, b"\x83\x74\x02\x6d"),
    // md: 1.1 at the start, 1.2 after 4 KiB, 1.0 in the last 8 to 12 KiB, 0.90 in the last 64 to
    // 128 KiB. The oldest has the byte order of the machine that made it.
    of(MD, Start(0), MD_MAGIC),
    of(MD, Start(4096), MD_MAGIC),
    of(MD, End { unit: 4096, before: 8192 }, MD_MAGIC),
    of(MD, End { unit: 65536, before: 65536 }, MD_MAGIC),
    of(MD, End { unit: 65536, before: 65536 }, b"\xa9\x2b\x4e\xfc"),
    of(DDF, End { unit: 512, before: 512 }, DDF_MAGIC),
    of(DDF, End { unit: 512, before: 257 * 512 }, DDF_MAGIC),
    of("Intel RAID member", End { unit: 512, before: 1024 }, ISW_MAGIC),
    of("Intel RAID member", End { unit: 4096, before: 8192 }, ISW_MAGIC),
    of("LSI RAID member", End { unit: 512, before: 512 }, b"$XIDE$"),
    of("NVIDIA RAID member", End { unit: 512, before: 1024 }, b"NVIDIA  "),
    of("JMicron RAID member", End { unit: 512, before: 512 }, b"JM"),
    of("Silicon Image RAID member", End { unit: 512, before: 512 - 0x60 }, b"\0\0\0\x2f"),
    of("Adaptec RAID member", End { unit: 512, before: 512 }, b"\x37\xfc\x4d\x1e"),
    of("VIA RAID member", End { unit: 512, before: 512 }, b"\x55\xaa"),
    of(HPT, End { unit: 512, before: 11 * 512 }, b"\xf3\x16\x78\x5a"),
    of(HPT, End { unit: 512, before: 11 * 512 }, b"\xfd\x16\x78\x5a"),
    of(HPT, Start(4608 + 32), b"\xf0\x16\x78\x5a"),
    of(HPT, Start(4608 + 32), b"\xfd\x16\x78\x5a"),
    of(PROMISE, End { unit: 512, before: 63 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 255 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 256 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 16 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 399 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 591 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 675 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 735 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 911 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 951 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 974 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 991 * 512 }, PROMISE_MAGIC),
    of(PROMISE, End { unit: 512, before: 3087 * 512 }, PROMISE_MAGIC),
    // File systems. ZFS, ext and NILFS are found by code.
    of("XFS file system", Start(0), b"XFSB"),
    of("XFS log", Start(0), b"\xfe\xed\xba\xbe\0\0"),
    of("Btrfs file system", Start(0x1_0000 + 0x40), b"_BHRfS_M"),
    of("F2FS file system", Start(1024), b"\x10\x20\xf5\xf2"),
    of("F2FS file system", Start(4096 + 1024), b"\x10\x20\xf5\xf2"),
    of("EROFS image", Start(1024), b"\xe2\xe1\xf5\xe0"),
    of("SquashFS image", Start(0), b"hsqs"),
    of("SquashFS image", Start(0), b"sqsh"),
    of("cramfs image", Start(0), b"\x45\x3d\xcd\x28"),
    of("cramfs image", Start(0), b"\x28\xcd\x3d\x45"),
    of("romfs image", Start(0), b"-rom1fs-"),
    of("ISO 9660 image", Start(32768 + 1), b"CD001"),
    of("High Sierra image", Start(32768 + 9), b"CDROM"),
    of(UDF, Start(32768 + 1), b"BEA01"),
    of(UDF, Start(32768 + 1), b"BOOT2"),
    of(UDF, Start(32768 + 1), b"CDW02"),
    of(UDF, Start(32768 + 1), b"NSR02"),
    of(UDF, Start(32768 + 1), b"NSR03"),
    of(UDF, Start(32768 + 1), b"TEA01"),
    of("JFS file system", Start(32768), b"JFS1"),
    of(REISERFS, Start(0x1_0000 + 0x34), b"ReIsEr2Fs"),
    of(REISERFS, Start(0x1_0000 + 0x34), b"ReIsEr3Fs"),
    of(REISERFS, Start(0x1_0000 + 0x34), b"ReIsErFs"),
    of(REISERFS, Start(8192 + 0x34), b"ReIsErFs"),
    of(REISERFS, Start(8192 + 20), b"ReIsErFs"),
    of("Reiser4 file system", Start(0x1_0000), b"ReIsEr4"),
    of("OCFS file system", Start(8192), b"OracleCFS"),
    of(OCFS2, Start(1024), b"OCFSV2"),
    of(OCFS2, Start(2048), b"OCFSV2"),
    of(OCFS2, Start(4096), b"OCFSV2"),
    of(OCFS2, Start(8192), b"OCFSV2"),
    of("GFS or GFS2 file system", Start(0x1_0000), b"\x01\x16\x19\x70"),
    of("scoutfs device", Start(0x1_0000 + 4), b"\x8b\x42\x3c\x10"),
    of("NetWare file system", Start(4096), b"SPB5"),
    of("HPFS file system", Start(8192), b"\x49\xe8\x95\xf9"),
    of("VxFS file system", Start(1024), b"\xf5\xfc\x01\xa5"),
    of("VxFS file system", Start(8192), b"\xa5\x01\xfc\xf5"),
    of("APFS container", Start(32), b"NXSB"),
    of("ReFS file system", Start(0), b"\0\0\0ReFS\0"),
    of("EXFS file system", Start(0), b"EXFS"),
    of("BeFS file system", Start(32), b"BFS1"),
    of("BeFS file system", Start(32), b"1SFB"),
    of("BeFS file system", Start(512 + 32), b"BFS1"),
    of("BeFS file system", Start(512 + 32), b"1SFB"),
    of("SCO BFS file system", Start(0), b"\xce\xfa\xad\x1b"),
    of("zonefs device", Start(0), b"SFOZ"),
    of("UBI volume", Start(0), b"UBI#"),
    of("UBIFS file system", Start(0), b"\x31\x18\x10\x06"),
    of("VMFS volume", Start(2 << 20), b"\x5e\xf1\xab\x2f"),
    of("VMFS volume", Start(1 << 20), b"\x0d\xd0\x01\xc0"),
    of(UFS, Start(UFS_MAGIC_AT), b"\x54\x19\x01\0"),
    of(UFS, Start(UFS_MAGIC_AT), b"\x19\x01\x54\x19"),
    of(UFS, Start(8192 + UFS_MAGIC_AT), b"\x54\x19\x01\0"),
    of(UFS, Start(8192 + UFS_MAGIC_AT), b"\0\x01\x19\x54"),
    of(UFS, Start(8192 + UFS_MAGIC_AT), b"\x19\x01\x54\x19"),
    of(UFS, Start(8192 + UFS_MAGIC_AT), b"\x12\x56\x19\0"),
    of(UFS, Start(8192 + UFS_MAGIC_AT), b"\x14\x50\x09\0"),
    of(UFS, Start(8192 + UFS_MAGIC_AT), b"\x95\x21\x61\0"),
    of(UFS, Start(8192 + UFS_MAGIC_AT), b"\x94\x19\x23\x05"),
    of(UFS, Start(0x1_0000 + UFS_MAGIC_AT), b"\x19\x01\x54\x19"),
    of(UFS, Start(0x1_0000 + UFS_MAGIC_AT), b"\x19\x54\x01\x19"),
    of(UFS, Start(0x4_0000 + UFS_MAGIC_AT), b"\x19\x01\x54\x19"),
    of("Xenix file system", Start(2048), b"\x2b\x55\x44"),
    of("Xenix file system", Start(2048), b"\x44\x55\x2b"),
    of("System V file system", Start(512 + 504), b"\x20\x7e\x18\xfd"),
    of("System V file system", Start(1024 + 504), b"\x20\x7e\x18\xfd"),
    of("NTFS file system", Start(3), b"NTFS    "),
    of("exFAT file system", Start(3), b"EXFAT   "),
    of(FAT, Start(0x36), b"FAT12   "),
    of(FAT, Start(0x36), b"FAT16   "),
    of(FAT, Start(0x36), b"FAT     "),
    of(FAT, Start(0x36), b"MSDOS"),
    of(FAT, Start(0x52), b"FAT32   "),
    of(FAT, Start(0x52), b"MSWIN"),
    // Swap: the magic ends the first page, whose size is that of the machine that made it.
    of(SWAP, Start(0x1000 - 10), b"SWAPSPACE2"),
    of(SWAP, Start(0x2000 - 10), b"SWAPSPACE2"),
    of(SWAP, Start(0x4000 - 10), b"SWAPSPACE2"),
    of(SWAP, Start(0x8000 - 10), b"SWAPSPACE2"),
    of(SWAP, Start(0x1_0000 - 10), b"SWAPSPACE2"),
    of(SWAP, Start(0x1000 - 10), b"SWAP-SPACE"),
    of(SWAP, Start(0x2000 - 10), b"SWAP-SPACE"),
    of(SWAP, Start(0x4000 - 10), b"SWAP-SPACE"),
    of(SWAP, Start(0x8000 - 10), b"SWAP-SPACE"),
    of(SWAP, Start(0x1_0000 - 10), b"SWAP-SPACE"),
    of(SUSPEND, Start(0), b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c"),
    of(SUSPEND, Start(0x1000 - 10), b"S1SUSPEND"),
    of(SUSPEND, Start(0x1000 - 10), b"S2SUSPEND"),
    of(SUSPEND, Start(0x1000 - 10), b"ULSUSPEND"),
    of(SUSPEND, Start(0x1000 - 10), b"LINHIB0001"),
    of(SUSPEND, Start(0x1_0000 - 10), b"S1SUSPEND"),
    of(SUSPEND, Start(0x1_0000 - 10), b"LINHIB0001"),
    // Files that were written to the device.
    of("zip archive (or a PyTorch checkpoint)", Start(0), b"PK\x03\x04"),
    of("tar archive", Start(257), b"ustar"),
    // Two bytes only.
    of("Apple encrypted volume", Start(88), b"CS"),
    of("LVM1 physical volume", Start(0), b"HM\x01\0"),
    of("LVM1 physical volume", Start(0), b"HM\x02\0"),
    of("HFS file system", Start(1024), b"BD"),
    of("HFS+ file system", Start(1024), b"H+\0"),
    of("HFS+ file system", Start(1024), b"HX\0"),
    of(MINIX, Start(1024 + 0x10), b"\x7f\x13"),
    of(MINIX, Start(1024 + 0x10), b"\x8f\x13"),
    of(MINIX, Start(1024 + 0x10), b"\x13\x7f"),
    of(MINIX, Start(1024 + 0x10), b"\x13\x8f"),
    of(MINIX, Start(1024 + 0x10), b"\x68\x24"),
    of(MINIX, Start(1024 + 0x10), b"\x78\x24"),
    of(MINIX, Start(1024 + 0x10), b"\x24\x68"),
    of(MINIX, Start(1024 + 0x10), b"\x24\x78"),
    of(MINIX, Start(1024 + 0x18), b"\x5a\x4d"),
    of(MINIX, Start(1024 + 0x18), b"\x4d\x5a"),
    of("Sun partition table", Start(508), b"\xda\xbe"),
    of("Apple partition table", Start(0), b"ER"),
    // The second GPT is the last sector, and survives where only the first one was wiped.
    of(GPT_AT_END, End { unit: 512, before: 512 }, GPT_MAGIC),
    of(GPT_AT_END, End { unit: 4096, before: 4096 }, GPT_MAGIC),
];

const GPT: &str = "GPT partition table";
const GPT_AT_END: &str = "GPT partition table (the second)";
const LUKS: &str = "LUKS encrypted volume";
const LVM: &str = "LVM2 physical volume";
const BCACHEFS: &str = "bcachefs file system";
const DRBD: &str = "DRBD member";
const MD: &str = "md RAID member";
const DDF: &str = "DDF RAID member";
const HPT: &str = "HighPoint RAID member";
const PROMISE: &str = "Promise RAID member";
const UDF: &str = "UDF file system";
const REISERFS: &str = "ReiserFS file system";
const OCFS2: &str = "OCFS2 file system";
const UFS: &str = "UFS file system";
const FAT: &str = "FAT file system";
const MINIX: &str = "Minix file system";
const SWAP: &str = "swap space";
const SUSPEND: &str = "suspended system in swap space";

const GPT_MAGIC: &[u8] = b"EFI PART";
const BSD_MAGIC: &[u8] = b"\x57\x45\x56\x82";
const MD_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
const DDF_MAGIC: &[u8] = b"\xde\x11\xde\x11";
const ISW_MAGIC: &[u8] = b"Intel Raid ISM Cfg Sig. ";
const PROMISE_MAGIC: &[u8] = b"Promise Technology, Inc.";
const STRATIS_MAGIC: &[u8] = b"!Stra0tis\x86\xff\x02^\x41rh";
const BCACHE_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
/// Of the superblock.
const UFS_MAGIC_AT: u64 = 1372;
