// SPDX-License-Identifier: Apache-2.0
//! `scripts/read-pool`, a second reader written from docs/on-disk-format.md alone, finds the same
//! checkpoints and bytes on the drives as the command. A difference is a fault of one of the three.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use common::participants::{self, Participant};
use common::places::Places;
use common::{MIB, Numbers, Outcome, Place, run};
use stanchion_testing::Shard;

const SIZE: &str = "48MiB";
const FILES: [&str; 4] = ["model.bin", "empty.bin", "optim.bin", "small.bin"];

/// The second reader with these arguments on these drives.
fn read_pool(place: &Place, drives: &[&str], arguments: &[&str]) -> Outcome {
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/read-pool"));
    command.args(arguments).args(drives).current_dir(place.directory());
    run(command)
}

/// A new pool of these drives.
fn formatted(drives: &[&str], options: &[&str]) -> Place {
    let place = Place::empty();
    let format = ["format", "--size", SIZE, "--yes"];
    place.run_on(drives, &[&format[..], options].concat()).ok();
    let mut numbers = Numbers(17);
    for (name, len_bytes) in FILES.iter().zip([(1 << 20) + 777, 0, 700_001, 4096]) {
        place.file(name, &numbers.bytes(len_bytes));
    }
    place
}

fn save(place: &Place, drives: &[&str], name: &str, options: &[&str]) {
    place.run_on(drives, &[&["save", name][..], &FILES, options].concat()).ok();
}

/// Every file below the folder, by its path in it.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(&inner).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read(path).unwrap());
        }
    }
    files
}

/// Both list the same checkpoints, whose number is this, and restore the same bytes of each. The
/// second reader goes first, since the command may mend what it reads.
#[track_caller]
fn agree(place: &Place, drives: &[&str], count: usize) {
    let read = read_pool(place, drives, &["--no-hashes"]).ok().json();
    let checkpoints = read["checkpoints"].as_array().unwrap();
    assert_eq!(checkpoints.len(), count, "{read}");
    let mut rows = Vec::new();
    for one in checkpoints {
        let participants = one["participants"].as_array().unwrap().len();
        let name = format!("{}@{}", one["name"].as_str().unwrap(), one["step"]);
        rows.push(format!("{name} {} {} {participants}", one["bytes"], one["generation"]));
        for out in ["ours", "theirs"] {
            let _ = fs::remove_dir_all(place.path(out));
        }
        read_pool(place, drives, &["--restore", &name, "--output", "ours"]).ok();
        place.run_on(drives, &["restore", &name, "-o", "theirs"]).ok();
        let (ours, theirs) = (tree(&place.path("ours")), tree(&place.path("theirs")));
        assert!(ours.keys().eq(theirs.keys()), "{name}: {:?} {:?}", ours.keys(), theirs.keys());
        assert!(!ours.is_empty() && ours == theirs, "{name} has other bytes");
    }
    let listed = place.run_on(drives, &["list", "--json"]).ok().json();
    let row = |one: &serde_json::Value| {
        let name = format!("{}@{}", one["name"].as_str().unwrap(), one["step"]);
        let counts = (&one["data_bytes"], &one["generation"], &one["participant_count"]);
        format!("{name} {} {} {}", counts.0, counts.1, counts.2)
    };
    let mut expected: Vec<String> =
        listed["checkpoints"].as_array().unwrap().iter().map(row).collect();
    expected.sort();
    rows.sort();
    assert_eq!(rows, expected);
}

/// Flips a bit in each place of the file where these bytes are, `behind` bytes after their start.
fn damage(place: &Place, drive: &str, bytes: &[u8], behind: usize) -> usize {
    let mut content = place.read(drive);
    // Structures and chunks start with a block.
    let starts = (0..content.len()).step_by(4096);
    let found: Vec<usize> = starts.filter(|&at| content[at..].starts_with(bytes)).collect();
    for at in &found {
        content[at + behind] ^= 0x40;
    }
    fs::write(place.path(drive), content).unwrap();
    found.len()
}

#[test]
fn a_striped_pool() {
    let drives = ["a.img", "b.img", "c.img"];
    // So that each drive has chunks.
    let place = formatted(&drives, &["--chunk-size", "64KiB"]);
    agree(&place, &drives, 0);
    save(&place, &drives, "llama@1", &[]);
    save(&place, &drives, "run/llama.2@18446744073709551615", &[]);
    save(&place, &drives, "gone@3", &[]);
    place.run_on(&drives, &["rm", "--yes", "gone@3"]).ok();
    agree(&place, &["c.img", "a.img", "b.img"], 2);
    let read = read_pool(&place, &drives, &[]).ok().json();
    for (shard, name) in FILES.iter().enumerate() {
        let found = &read["checkpoints"][0]["participants"][0]["shards"][shard];
        let mut command = Command::new("sha256sum");
        command.arg(name).current_dir(place.directory());
        let sum = run(command).ok().stdout;
        assert_eq!(found["name"].as_str(), Some(*name));
        assert_eq!(found["sha256"].as_str(), Some(&sum[..64]));
    }
    // What is on a drive that is missing is damage, not wrong bytes.
    let part = read_pool(&place, &drives[..2], &["--restore", "llama@1", "--output", "part"]);
    assert_eq!(part.code, 3, "{part:?}");
    for (name, bytes) in tree(&place.path("part")) {
        assert!(bytes == place.read(&name), "{name} has other bytes");
    }
}

#[test]
fn a_tree() {
    let drives = ["a.img", "b.img"];
    let place = formatted(&drives, &[]);
    place.deep_file("run/deep/er/file", b"bytes");
    place.deep_file("run/.hidden", b"");
    place.chmod("run/deep/er/file", 0o751);
    place.touch("run/deep/er/file", "1969-07-20T20:17:40.5Z");
    place.link("run/deep/link", "../.hidden");
    place.touch("run/deep/link", "2020-02-02T02:02:02Z");
    fs::create_dir(place.path("run/empty")).unwrap();
    place.chmod("run/empty", 0o1700);
    place.touch("run/empty", "1999-12-31T23:59:59.123456789Z");
    place.run_on(&drives, &["save", "run@1", "run", "--allow-changing"]).ok();
    agree(&place, &drives, 1);
    place.same_trees("run", "ours/run");
    place.same_trees("run", "theirs/run");
}

#[test]
fn small_and_large_chunks_and_a_chosen_metadata_size() {
    for options in [
        &["--chunk-size", "4KiB"][..],
        &["--chunk-size", "16MiB"],
        &["--metadata-size", "20MiB", "--chunk-size", "64KiB"],
    ] {
        let drives = ["a.img", "b.img"];
        let place = formatted(&drives, options);
        save(&place, &drives, "llama@1", &[]);
        save(&place, &drives, "llama@2", &[]);
        agree(&place, &drives, 2);
    }
    // A capacity that is no multiple of 1 MiB, and one drive.
    let place = formatted(&["spare.img"], &[]);
    place.run_on(&["a.img"], &["format", "--size", "60002304", "--yes"]).ok();
    save(&place, &["a.img"], "llama@1", &[]);
    agree(&place, &["a.img"], 1);
}

#[test]
fn a_mirror_loses_a_drive_and_gets_another() {
    let drives = ["a.img", "b.img", "c.img"];
    let left = ["a.img", "c.img"];
    let place = formatted(&drives, &["--redundancy", "mirror"]);
    save(&place, &drives, "llama@1", &[]);
    agree(&place, &drives, 1);
    for pair in [["a.img", "b.img"], ["c.img", "b.img"], left] {
        agree(&place, &pair, 1);
    }
    fs::rename(place.path("b.img"), place.path("away.img")).unwrap();
    save(&place, &left, "llama@2", &["--degraded"]);
    agree(&place, &left, 2);
    // The drive that was left out is out of date, for both. Alone it shows the pool as it was.
    let stale = ["away.img", "a.img", "c.img"];
    for outcome in [read_pool(&place, &stale, &[]), place.run_on(&stale, &["list"])] {
        assert!(outcome.code == 12 && outcome.stderr.contains("out of date"), "{outcome:?}");
    }
    place.sparse_file("new.img", 48 << 20);
    let repair = ["verify", "--repair", "--replacement", "new.img"];
    place.run_on(&left, &repair).ok();
    save(&place, &["new.img", "a.img", "c.img"], "llama@3", &[]);
    agree(&place, &["new.img", "a.img", "c.img"], 3);
    for pair in [["new.img", "a.img"], ["c.img", "new.img"]] {
        agree(&place, &pair, 3);
    }
}

#[test]
fn a_drive_that_is_being_rebuilt() {
    let mut place = formatted(&["a.img", "b.img"], &["--redundancy", "mirror"]);
    place.drives = vec!["a.img".to_owned(), "b.img".to_owned()];
    save(&place, &["a.img", "b.img"], "llama@1", &[]);
    let places = Places::find(&place);
    // The label as it is until all has been copied to the second drive.
    let entry = 1024 + 96 * usize::from(places.labels[1].index.0);
    for drive in [0, 1] {
        for offset in places.label_offsets(drive) {
            places.rewrite((drive, offset), |block| {
                block[96] |= 2;
                block[entry + 25] = 2;
            });
        }
    }
    for drives in [["a.img", "b.img"], ["b.img", "a.img"]] {
        agree(&place, &drives, 1);
    }
    // What was not copied yet.
    assert_eq!(damage(&place, "b.img", &place.read("model.bin")[..64], 5), 1);
    for magic in ["STN CATA", "STN MANI", "STN SEGM", "STN SHRD"] {
        assert!(damage(&place, "b.img", magic.as_bytes(), 70) > 0, "{magic}");
    }
    for drives in [["a.img", "b.img"], ["b.img", "a.img"]] {
        agree(&place, &drives, 1);
    }
}

#[test]
fn a_chunk_without_a_sound_copy_keeps_no_drive_out() {
    let place = formatted(&["a.img", "b.img"], &["--redundancy", "mirror"]);
    save(&place, &["a.img", "b.img"], "llama@1", &[]);
    let lost = Numbers(99).bytes(9000);
    place.file("lost.bin", &lost);
    place.run_on(&["a.img", "b.img"], &["save", "lost@1", "lost.bin"]).ok();
    fs::remove_file(place.path("b.img")).unwrap();
    assert_eq!(damage(&place, "a.img", &lost[..64], 100), 1);
    place.sparse_file("new.img", 48 << 20);
    let repair = ["verify", "--repair", "--replacement", "new.img"];
    assert_eq!(place.run_on(&["a.img"], &repair).code, 3);
    for drives in [["a.img", "new.img"], ["new.img", "a.img"]] {
        let refused = read_pool(&place, &drives, &["--restore", "lost@1", "--output", "out"]);
        assert!(refused.code == 3 && refused.stderr.contains("no sound copy"), "{refused:?}");
        assert!(place.names("out").is_empty(), "a part of a shard was left");
        place.run_on(&drives, &["restore", "lost@1", "-o", "out"]).fails(3, &["lost.bin"]);
        read_pool(&place, &drives, &["--restore", "llama@1", "--output", "out"]).ok();
        for name in FILES {
            assert!(place.read(name) == place.read(&format!("out/{name}")), "{name}");
        }
        fs::remove_dir_all(place.path("out")).unwrap();
    }
    place.run_on(&["a.img", "new.img"], &["rm", "--yes", "lost@1"]).ok();
    agree(&place, &["a.img", "new.img"], 1);
}

#[test]
fn damaged_copies() {
    let drives = ["a.img", "b.img", "c.img"];
    for redundancy in ["mirror", "none"] {
        let place = formatted(&drives, &["--redundancy", redundancy]);
        save(&place, &drives, "llama@1", &[]);
        for magic in ["STN MANI", "STN SEGM", "STN SHRD", "STN CATA", "STN ROOT"] {
            let sound = place.read("b.img");
            assert!(damage(&place, "b.img", magic.as_bytes(), 70) > 0, "{magic}");
            agree(&place, &drives, 1);
            fs::write(place.path("b.img"), sound).unwrap();
        }
        // Data: a copy is enough, and none is damage.
        let start = place.read("model.bin")[..64].to_vec();
        let holders: Vec<&str> =
            drives.into_iter().filter(|drive| damage(&place, drive, &start, 5) == 1).collect();
        assert_eq!(holders.len(), if redundancy == "mirror" { 2 } else { 1 });
        let out = ["--restore", "llama@1", "--output", "out"];
        let none = read_pool(&place, &drives, &out);
        assert!(none.code == 3 && none.stderr.contains("another checksum"), "{none:?}");
        assert!(!place.path("out/model.bin").exists());
        assert!(place.read("out/small.bin") == place.read("small.bin"));
        // The flip again: one copy is sound.
        let mut flipped = start;
        flipped[5] ^= 0x40;
        assert_eq!(damage(&place, holders[0], &flipped, 5), 1);
        agree(&place, &drives, 1);
    }
}

#[test]
fn one_label_copy_is_enough_also_on_a_drive_that_grew() {
    let drives = ["a.img", "b.img"];
    let place = formatted(&drives, &[]);
    save(&place, &drives, "llama@1", &[]);
    let mut content = place.read("b.img");
    for offset in [1 << 20, 2 << 20, 47 << 20] {
        content[offset + 64] ^= 1;
    }
    fs::write(place.path("b.img"), &content).unwrap();
    agree(&place, &drives, 1);
    content.resize(60 << 20, 0);
    fs::write(place.path("b.img"), content).unwrap();
    agree(&place, &drives, 1);
}

#[test]
fn the_generation_before_on_request_only() {
    let place = formatted(&["a.img"], &[]);
    save(&place, &["a.img"], "llama@1", &[]);
    save(&place, &["a.img"], "llama@2", &[]);
    let newest = read_pool(&place, &["a.img"], &["--no-hashes"]).ok().json();
    let generation = newest["generation"].as_u64().unwrap();
    let mut content = place.read("a.img");
    let mut damaged = 0;
    for at in (4 * MIB as usize..8 * MIB as usize).step_by(4096) {
        let bytes = &mut content[at..at + 4096];
        if bytes.starts_with(b"STN CATA") && bytes[64..72] == generation.to_le_bytes() {
            bytes[90] ^= 1;
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    fs::write(place.path("a.img"), content).unwrap();
    let refused = read_pool(&place, &["a.img"], &[]);
    assert!(refused.code == 3 && refused.stderr.contains("--fall-back"), "{refused:?}");
    place.run_on(&["a.img"], &["list"]).fails(3, &["--fall-back"]);
    let before = read_pool(&place, &["a.img"], &["--fall-back"]).ok().json();
    let listed = place.run_on(&["a.img"], &["list", "--fall-back", "--json"]).ok().json();
    let names = |listed: &serde_json::Value| -> Vec<String> {
        let checkpoints = listed["checkpoints"].as_array().unwrap();
        checkpoints.iter().map(|one| format!("{}@{}", one["name"], one["step"])).collect()
    };
    assert_eq!(names(&before), names(&listed));
    assert_eq!(before["generation"], generation - 1);
}

/// Saves a checkpoint with the engine: each participant has shards of these names and 5000 bytes.
fn save_with_engine(place: &Place, drives: &[&str], name: &str, participants: &[Vec<String>]) {
    const SHARD_BYTES: u64 = 5000;
    let one = |(participant, names): (usize, &Vec<String>)| Participant {
        shards: names
            .iter()
            .enumerate()
            .map(|(index, name)| Shard {
                name: name.clone(),
                offset_bytes: SHARD_BYTES * index as u64,
                len_bytes: SHARD_BYTES,
                dtype: "f32".into(),
                shape: vec![25, 50],
                ..Shard::default()
            })
            .collect(),
        bytes: Numbers(participant as u64).bytes(SHARD_BYTES as usize * names.len()),
    };
    participants::save(place, drives, name, participants.iter().enumerate().map(one).collect());
}

#[test]
fn many_participants() {
    let drives = ["a.img", "b.img", "c.img", "d.img"];
    let place = formatted(&drives, &["--chunk-size", "8KiB"]);
    // The names of the second checkpoint occur with each participant.
    let names = |rank: usize| (0..rank).map(move |index| (rank, index));
    let unlike: Vec<Vec<String>> =
        (1..25).map(|rank| names(rank).map(|(r, i)| format!("w{r}.{i}")).collect()).collect();
    let alike: Vec<Vec<String>> =
        (1..9).map(|rank| names(rank).map(|(_, i)| format!("w{i}")).collect()).collect();
    save_with_engine(&place, &drives, "unlike@1", &unlike);
    save_with_engine(&place, &drives, "alike@1", &alike);
    agree(&place, &drives, 2);
}

#[test]
fn names_from_a_drive_lead_nowhere_and_nothing_is_overwritten() {
    let drives = ["a.img"];
    let place = formatted(&drives, &[]);
    for (number, evil) in ["../evil", "/tmp/stanchion-evil", "..", "a\0b", "x/../../evil", "link/x"]
        .into_iter()
        .enumerate()
    {
        let name = format!("evil@{number}");
        save_with_engine(&place, &drives, &name, &[vec!["good".to_owned(), evil.to_owned()]]);
        fs::create_dir(place.path("out")).unwrap();
        std::os::unix::fs::symlink(place.directory(), place.path("out/link")).unwrap();
        let before = place.names(".");
        let read = read_pool(&place, &drives, &["--restore", &name, "--output", "out"]);
        assert!(read.code != 0 && !read.stderr.contains(['\0', '\x1b']), "{read:?}");
        assert_eq!(place.names("out"), ["good", "link"], "{read:?}");
        assert_eq!(place.names("."), before);
        let again = read_pool(&place, &drives, &["--restore", &name, "--output", "out"]);
        assert!(again.code == 12 && again.stderr.contains("not overwritten"), "{again:?}");
        fs::remove_dir_all(place.path("out")).unwrap();
    }
    assert!(!Path::new("/tmp/stanchion-evil").exists());
}
