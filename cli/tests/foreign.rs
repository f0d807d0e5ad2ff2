// SPDX-License-Identifier: Apache-2.0
//! What another program made over a drive of a pool is not written to by any command, unless it is
//! asked to destroy it: file systems, swap, encryption, volumes, RAIDs and partition tables, each
//! made by its own tool where there is one.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{MIB, Place};

const DRIVE_BYTES: u64 = 64 * MIB;
/// The drive that another program uses now. The other one, a.img, stays as it was.
const TAKEN: &str = "b.img";

/// Made by a shell script; `$1` is the drive, `$2` a folder with files, `$3` an unused path. The
/// first word of a line of it is a tool; without it the content is left out.
struct Made(&'static str, &'static str);

const ON_LOOP: &str =
    "d=$(losetup --find --show --nooverlap $1) || exit 9; trap 'losetup -d $d' EXIT;";

const FILE_SYSTEMS: &[Made] = &[
    Made("mkfs.ext2", "mkfs.ext2 -q -F $1"),
    Made("mkfs.ext4", "mkfs.ext4 -q -F $1"),
    Made("mkfs.xfs", "mkfs.xfs -q -f --unsupported $1 || mkfs.xfs -q -f $1"),
    Made("mkfs.btrfs", "mkfs.btrfs -q -f -M $1"),
    Made("mkfs.f2fs", "mkfs.f2fs -q -f $1"),
    Made("mkntfs", "mkntfs -F -Q -q $1"),
    Made("mkfs.exfat", "mkfs.exfat $1"),
    Made("mkfs.vfat", "mkfs.vfat -F 12 -s 64 -I $1"),
    Made("mkfs.vfat", "mkfs.vfat -F 32 -I $1"),
    Made("mkfs.jfs", "mkfs.jfs -q $1"),
    Made("mkfs.nilfs2", "mkfs.nilfs2 -f -B 16 $1"),
    Made("mkudffs", "mkudffs $1"),
    Made("mkfs.reiserfs", "mkfs.reiserfs -ff -q $1"),
    Made("mkfs.reiser4", "mkfs.reiser4 -f -y $1"),
    Made("mkfs.ocfs2", "yes | mkfs.ocfs2 -q -F -M local $1"),
    Made("mkfs.gfs2", "mkfs.gfs2 -O -p lock_nolock -J 8 $1"),
    Made("mkfs.minix", "mkfs.minix $1"),
    Made("mkfs.minix", "mkfs.minix -3 $1"),
    Made("mkfs.bfs", "mkfs.bfs $1"),
];

const VOLUMES_AND_IMAGES: &[Made] = &[
    Made("mkswap", "mkswap -f $1"),
    Made(
        "cryptsetup",
        "echo x | cryptsetup luksFormat --type luks1 --pbkdf-force-iterations 1000 -q $1 -",
    ),
    Made(
        "cryptsetup",
        "echo x | cryptsetup luksFormat --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 -q $1 -",
    ),
    Made("veritysetup", "head -c 1M /dev/zero > $3; veritysetup format $3 $1"),
    Made("pvcreate", "LOOP pvcreate -ff -y -qq $d"),
    Made("make-bcache", "LOOP make-bcache -B $d"),
    Made("make-bcache", "LOOP make-bcache -C $d"),
    Made("mksquashfs", "mksquashfs $2 $3 -noappend -quiet; dd if=$3 of=$1 conv=notrunc"),
    Made("mkfs.erofs", "mkfs.erofs $3 $2; dd if=$3 of=$1 conv=notrunc"),
    Made("genisoimage", "genisoimage -quiet -o $3 $2; dd if=$3 of=$1 conv=notrunc"),
    Made("mkfs.cramfs", "mkfs.cramfs $2 $3; dd if=$3 of=$1 conv=notrunc"),
    Made("genromfs", "genromfs -d $2 -f $3; dd if=$3 of=$1 conv=notrunc"),
    Made("tar", "tar cf $3 -C $2 .; dd if=$3 of=$1 conv=notrunc"),
];

const PARTITION_TABLES: &[Made] = &[
    Made("sgdisk", "sgdisk -n 1:0:0 $1"),
    Made("sfdisk", "echo , | sfdisk -q --label gpt $1"),
    Made("sfdisk", "echo , | sfdisk -q --label dos $1"),
    Made("sfdisk", "echo , | sfdisk -q --label sun $1"),
    Made("parted", "parted -s $1 mklabel mac"),
    Made("parted", "parted -s $1 mklabel bsd"),
    Made("parted", "parted -s $1 mklabel amiga"),
    Made("parted", "parted -s $1 mklabel dvh"),
    Made("parted", "parted -s $1 mklabel atari"),
    // The table is wiped again; what lies in the first partition is not.
    Made("mkfs.xfs", "AT1MIB mkfs.xfs -q -f --unsupported $d || mkfs.xfs -q -f $d"),
    Made("mkfs.ext4", "AT1MIB mkfs.ext4 -q -F $d"),
    Made("mkfs.vfat", "AT1MIB mkfs.vfat -F 32 -I $d"),
    Made("mkswap", "AT1MIB mkswap -f $d"),
];

/// What needs a kernel, or a tool that Debian does not have: the bytes that its documentation
/// names. `(name, [(place, bytes)])`; a negative place counts from the end.
type Written = (&'static str, &'static [(i64, &'static [u8])]);

const MD: &[u8] = b"\xfc\x4e\x2b\xa9\x01\0\0\0";
const UBERBLOCK: &[u8] = b"\x0c\xb1\xba\0\0\0\0\0\x88\x13\0\0\0\0\0\0";

const WRITTEN: &[Written] = &[
    ("md 0.90", &[(-(64 << 10), b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0")]),
    ("md 1.0", &[(-(8 << 10), MD)]),
    ("md 1.1", &[(0, MD)]),
    ("md 1.2", &[(4096, MD)]),
    (
        "ZFS, all four labels",
        &[
            (128 << 10, UBERBLOCK),
            (384 << 10, UBERBLOCK),
            (-(384 << 10), UBERBLOCK),
            (-(128 << 10), UBERBLOCK),
        ],
    ),
    ("ZFS, wiped at the front", &[(-(384 << 10), UBERBLOCK), (-(128 << 10), UBERBLOCK)]),
    ("DDF", &[(-512, b"\xde\x11\xde\x11")]),
    ("Intel RAID", &[(-1024, b"Intel Raid ISM Cfg Sig. 1.3.00")]),
    ("Promise RAID", &[(-63 * 512, b"Promise Technology, Inc.")]),
    ("NVIDIA RAID", &[(-1024, b"NVIDIA  \x1e\0\0\0")]),
    ("DRBD", &[(-4096 + 60, b"\x83\x74\x02\x6d")]),
    ("Ceph BlueStore", &[(0, b"bluestore block device\n")]),
    ("Stratis", &[(512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh")]),
    (
        "bcachefs",
        &[(4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef")],
    ),
    ("VMFS", &[(1 << 20, b"\x0d\xd0\x01\xc0"), (2 << 20, b"\x5e\xf1\xab\x2f")]),
    ("the second GPT only", &[(-512, b"EFI PART\0\0\x01\0")]),
    ("one byte at the front", &[(700_000, b"x")]),
    ("one byte behind the last label", &[(-1, b"x")]),
];

/// Makes the content, on a drive that may be a pool's.
fn make(place: &Place, made: &Made) -> Result<(), String> {
    let script = made
        .1
        .replace("LOOP", ON_LOOP)
        .replace("AT1MIB", &ON_LOOP.replace("losetup --find", "losetup --offset 1048576 --find"));
    let script = format!("command -v {} > /dev/null || exit 9; {script}", made.0);
    std::fs::create_dir_all(place.path("files")).unwrap();
    place.file("files/one", &[3; 70_000]);
    let paths = [place.path(TAKEN), place.path("files"), place.path("scratch")];
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).args(paths).env("PATH", path);
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.code() {
        Some(0) => Ok(()),
        Some(9) => Err("it is not installed, or there are no loop devices".into()),
        _ => panic!("{script}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn write(place: &Place, at: i64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(place.path(TAKEN)).unwrap();
    let at = if at < 0 { DRIVE_BYTES - at.unsigned_abs() } else { at.unsigned_abs() };
    file.write_all_at(bytes, at).unwrap();
}

/// A mirror, with a checkpoint or without.
fn pool(with_checkpoint: bool) -> Place {
    let mut place = Place::empty();
    place.drives = vec!["a.img".into(), TAKEN.into()];
    let size = DRIVE_BYTES.to_string();
    place.run(&["format", "--redundancy", "mirror", "--size", &size, "--yes"]).ok();
    place.file("model.bin", &[7; 300_000]);
    if with_checkpoint {
        place.run(&["save", "llama@1", "model.bin"]).ok();
    }
    place
}

/// Whether a file has exactly these bytes.
fn holds(path: &Path, bytes: &[u8]) -> bool {
    let file = File::open(path).unwrap();
    let mut buffer = vec![0; MIB as usize];
    let same = bytes.chunks(buffer.len()).enumerate().all(|(number, expected)| {
        let found = &mut buffer[..expected.len()];
        file.read_exact_at(found, number as u64 * MIB).unwrap();
        found == expected
    });
    same && file.metadata().unwrap().len() == bytes.len() as u64
}

/// No command that writes touches the drives; every command that reads works, with a notice.
fn is_left_alone(place: &Place, name: &str, with_checkpoint: bool) {
    let before = [place.read("a.img"), place.read(TAKEN)];
    let unchanged = |command: &[&str]| {
        let is_same = |drive, before| holds(&place.path(drive), before);
        assert!(is_same(TAKEN, &before[1]), "{name}: {command:?} wrote to the foreign drive");
        assert!(is_same("a.img", &before[0]), "{name}: {command:?} wrote to the other drive");
    };
    let refused = |drives: &[&str], command: &[&str]| {
        let outcome = place.run_on(drives, command);
        assert_eq!(outcome.code, 12, "{name}: {command:?}: {outcome:?}");
        assert!(outcome.stderr.contains("refused"), "{name}: {outcome:?}");
        unchanged(command);
    };
    refused(&[TAKEN], &["format", "--yes"]);
    refused(&["a.img", TAKEN], &["save", "llama@2", "model.bin"]);
    refused(&["a.img"], &["verify", "--repair", "--replacement", TAKEN]);
    if !with_checkpoint {
        return;
    }
    refused(&["a.img", TAKEN], &["rm", "llama@1", "--yes"]);
    refused(&["a.img", TAKEN], &["verify", "--repair"]);
    refused(&["a.img", TAKEN], &["save", "llama@2", "model.bin", "--degraded"]);
    for command in [&["list"][..], &["restore", "llama@1", "-o", "out", "--force"], &["verify"]] {
        let outcome = place.run(command);
        let may_find_damage = command[0] == "verify" && outcome.code == 3;
        assert!(outcome.code == 0 || may_find_damage, "{name}: {command:?}: {outcome:?}");
        assert!(!outcome.stderr.contains("sound: repair"), "{name}: {outcome:?}");
        let says_so = ["made over the pool", "cannot be used"];
        assert!(says_so.iter().any(|text| outcome.stderr.contains(text)), "{name}: {outcome:?}");
        unchanged(command);
    }
    assert!(place.read("out/model.bin") == [7; 300_000], "{name}");
}

/// Each of them, over a pool with a checkpoint and over one without.
fn all_are_left_alone<T: Sync>(
    what: &str,
    all: &[T],
    make: impl Fn(&Place, &T) -> Result<String, String> + Sync,
) {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::SeqCst)) {
            for with_checkpoint in [true, false] {
                let place = pool(with_checkpoint);
                match make(&place, one) {
                    Ok(name) => is_left_alone(&place, &name, with_checkpoint),
                    Err(why) => {
                        eprintln!("skipped: {why}");
                        break;
                    }
                }
                done.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    println!("{what}: {} of {} foreign contents ran", done.load(Ordering::SeqCst) / 2, all.len());
}

fn by_tool(what: &str, all: &[Made]) {
    all_are_left_alone(what, all, |place, made| {
        make(place, made).map(|()| made.1.to_owned()).map_err(|why| format!("{}: {why}", made.0))
    });
}

#[test]
fn file_systems_are_left_alone() {
    by_tool("file systems", FILE_SYSTEMS);
}

#[test]
fn volumes_and_images_are_left_alone() {
    by_tool("volumes and images", VOLUMES_AND_IMAGES);
}

#[test]
fn partition_tables_and_first_partitions_are_left_alone() {
    by_tool("partition tables", PARTITION_TABLES);
}

#[test]
fn what_needs_a_kernel_to_be_made_is_left_alone() {
    all_are_left_alone("written by hand", WRITTEN, |place, (name, bytes)| {
        bytes.iter().for_each(|(at, bytes)| write(place, *at, bytes));
        Ok((*name).to_owned())
    });
}

#[test]
fn force_erases_it_so_that_no_trace_is_left() {
    for (name, bytes) in WRITTEN {
        // Over a pool: verify keeps the pool.
        let place = pool(true);
        bytes.iter().for_each(|(at, bytes)| write(&place, *at, bytes));
        let outcome = place.run(&["verify", "--repair", "--force"]).ok();
        assert!(outcome.stderr.contains("it was erased"), "{name}: {outcome:?}");
        place.run(&["save", "llama@2", "model.bin"]).ok();
        let outcome = place.run(&["verify"]).ok();
        assert!(!outcome.stderr.contains("notice"), "{name}: {outcome:?}");
        assert_eq!(place.checkpoints(), 2, "{name}");
        // And format makes another one.
        bytes.iter().for_each(|(at, bytes)| write(&place, *at, bytes));
        place.run(&["format", "--yes", "--force"]).ok();
        place.run(&["save", "llama@2", "model.bin"]).ok();
    }
}

#[test]
fn a_drive_that_somebody_took_is_replaced_by_itself_only_with_force() {
    let place = pool(true);
    if let Err(why) = make(&place, &Made("mkfs.ext4", "mkfs.ext4 -q -F $1")) {
        eprintln!("skipped: {why}");
        return;
    }
    let replace = ["verify", "--repair", "--replacement", TAKEN];
    place.run_on(&["a.img"], &replace).fails(12, &["ext4 file system", "--force destroys it"]);
    place.run_on(&["a.img"], &[&replace[..], &["--force"]].concat()).ok();
    let outcome = place.run(&["verify"]).ok();
    assert!(!outcome.stderr.contains("notice"), "{outcome:?}");
}

#[test]
fn force_for_a_replacement_is_not_for_the_other_drives() {
    let mut place = pool(true);
    place.drives = vec!["c.img".into()];
    place.run(&["format", "--size", &DRIVE_BYTES.to_string(), "--yes"]).ok();
    place.run(&["save", "other@1", "model.bin"]).ok();
    write(&place, 0, b"precious");
    let before = place.read(TAKEN);
    let command = ["verify", "--repair", "--replacement", "c.img", "--force"];
    place.run_on(&[TAKEN], &command).fails(12, &["b.img", "made over the pool"]);
    assert!(place.read(TAKEN) == before);
    assert_eq!(place.checkpoints(), 1);
}

#[test]
fn a_pool_whose_labels_are_gone_is_not_blank() {
    let mut place = pool(true);
    place.drives = vec![TAKEN.into()];
    // The front was cut, then the drive grew: no one knows where the end labels are.
    let file = OpenOptions::new().write(true).open(place.path(TAKEN)).unwrap();
    for at in [MIB, 2 * MIB] {
        file.write_all_at(&[0; 4096], at).unwrap();
    }
    file.set_len(DRIVE_BYTES + 16 * MIB).unwrap();
    let before = place.read(TAKEN);
    let lost = "whose labels are gone (its checkpoints: 1)";
    place.run(&["format", "--yes"]).fails(12, &[lost]);
    place.run(&["save", "x@1", "model.bin"]).fails(3, &["do not format it"]);
    place.run(&["list"]).fails(3, &["do not format it"]);
    let shown = place.run(&["drives"]).ok();
    assert!(shown.stdout.contains(lost), "{shown:?}");
    assert!(place.read(TAKEN) == before);
    // A pool without checkpoints may go.
    let place = pool(false);
    let file = OpenOptions::new().write(true).open(place.path(TAKEN)).unwrap();
    [MIB, 2 * MIB, DRIVE_BYTES - 2 * MIB, DRIVE_BYTES - MIB]
        .iter()
        .for_each(|at| file.write_all_at(&[0; 4096], *at).unwrap());
    // So is one whose format was interrupted: its labels would have been written last.
    place.run_on(&[TAKEN], &["list"]).fails(10, &["not formatted"]);
    place.run_on(&[TAKEN], &["format", "--yes"]).ok();
}
