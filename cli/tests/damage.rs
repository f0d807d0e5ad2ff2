// SPDX-License-Identifier: Apache-2.0
//! A flipped byte is named precisely with exit code 3, or repaired with a line that says so: never
//! wrong bytes, never a panic.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::places::{At, Places};
use common::{DRIVE_BYTES, MIB, Numbers, Place};

const FILES: [(&str, usize); 3] =
    [("model.bin", (2 << 20) + 777), ("empty.bin", 0), ("optim.bin", 3 << 20)];

/// A pool of two drives with one checkpoint.
fn saved() -> (Place, Places) {
    let place = Place::with_pool(2);
    let mut numbers = Numbers(3);
    let mut arguments = vec!["save", "llama@100"];
    for (name, size) in FILES {
        place.file(name, &numbers.bytes(size));
        arguments.push(name);
    }
    place.run(&arguments).ok();
    let places = Places::find(&place);
    (place, places)
}

/// The restored files are those that were saved.
#[track_caller]
fn restores(place: &Place) -> common::Outcome {
    let _ = fs::remove_dir_all(place.path("out"));
    let outcome = place.run(&["restore", "llama@100", "-o", "out"]).ok();
    for (name, _) in FILES {
        assert!(place.read(name) == place.read(&format!("out/{name}")), "{name}: {outcome:?}");
    }
    outcome
}

/// Nothing is restored, and the error says why.
#[track_caller]
fn does_not_restore(place: &Place, texts: &[&str]) {
    let _ = fs::remove_dir_all(place.path("out"));
    place.run(&["restore", "llama@100", "-o", "out"]).fails(3, texts);
    assert!(place.names("out").is_empty(), "{:?}", place.names("out"));
}

/// `verify` names the damage, `verify --repair` repairs it and says so; then all is sound.
#[track_caller]
fn is_repaired(place: &Place, texts: &[&str]) {
    let verified = place.run(&["verify"]).fails(3, &["damaged"]);
    let repaired = place.run(&["verify", "--repair"]).ok();
    let line = repaired.stdout.lines().find(|line| line.starts_with("repaired from its copy"));
    let line = line.unwrap_or_else(|| panic!("{repaired:?}"));
    for text in texts {
        assert!(verified.stdout.contains(text), "{text:?} is not in {verified:?}");
        assert!(line.contains(text), "{text:?} is not in {line:?}");
    }
    place.run(&["verify"]).ok();
    restores(place);
}

#[test]
fn data_has_no_copy_and_is_named() {
    let (place, places) = saved();
    for number in [0, places.table.chunks.len() - 1] {
        let ((drive, offset), len_bytes) = places.chunk(number);
        let shard = if number == 0 { "shard model.bin" } else { "shard optim.bin" };
        let start = format!("at byte {offset}");
        let texts = ["damaged data of llama@100", shard, places.serial(drive), &start];
        for at in [offset, offset + len_bytes / 2, offset + len_bytes - 1] {
            places.flip((drive, at));
            does_not_restore(&place, &texts);
            let verified = place.run(&["verify"]).fails(3, &["1 damaged"]);
            for text in texts {
                assert!(verified.stdout.contains(text), "{text:?} is not in {verified:?}");
            }
            let found = place.run(&["verify", "llama@100", "--json"]);
            assert_eq!(found.code, 3, "{found:?}");
            let found = found.json();
            assert_eq!(found["clean"], false);
            assert_eq!(found["damages"][0]["serial"], places.serial(drive));
            assert_eq!(found["damages"][0]["offset_bytes"], offset);
            assert_eq!(found["damages"][0]["checkpoint"]["step"], 100);
            assert_eq!(place.run(&["verify", "--repair"]).code, 3);
            places.flip((drive, at));
        }
    }
    restores(&place);
    place.run(&["verify"]).ok();
}

#[test]
fn a_damaged_shard_does_not_hurt_the_others() {
    let (place, places) = saved();
    let ((drive, offset), _) = places.chunk(0);
    places.flip((drive, offset + 5));
    place.run(&["restore", "llama", "-o", "part", "--shard", "optim*"]).ok();
    assert!(place.read("part/optim.bin") == place.read("optim.bin"));
    place.run(&["restore", "llama", "-o", "part", "--shard", "model*"]).fails(3, &["model.bin"]);
    assert_eq!(place.names("part"), ["optim.bin"]);
}

#[test]
fn one_copy_of_a_metadata_object_is_repaired_from_the_other() {
    for object in ["manifest", "segment table", "shard list"] {
        for copy in [0, 1] {
            let (place, places) = saved();
            let (drive, offset) = places.copies(object)[copy];
            places.flip((drive, offset + 70));
            restores(&place);
            let of = format!("damaged {object} of llama@100");
            let at = format!("at byte {offset}");
            is_repaired(&place, &[&of, places.serial(drive), &at]);
        }
    }
}

#[test]
fn all_copies_of_a_metadata_object_gone_is_damage() {
    for object in ["manifest", "segment table", "shard list"] {
        let (place, places) = saved();
        for (drive, offset) in places.copies(object) {
            places.flip((drive, offset + 70));
        }
        let of = format!("damaged {object} of llama@100");
        does_not_restore(&place, &[&of]);
        let verified = place.run(&["verify"]).fails(3, &["2 damaged"]);
        assert!(verified.stdout.contains(&of), "{verified:?}");
        place.run(&["verify", "--repair"]).fails(3, &["not repairable"]);
        let listed = place.run(&["list", "--json"]).ok().json();
        // A list of checkpoints reads no shard list.
        let health = if object == "shard list" { "whole" } else { "unknown" };
        assert_eq!(listed["checkpoints"][0]["availability"], health);
        let listed = place.run(&["list"]).ok();
        assert_eq!(listed.stdout.contains("damaged"), object != "shard list", "{listed:?}");
        // It is listed, and can be removed: then the pool is whole again.
        assert_eq!(place.checkpoints(), 1);
        place.run(&["show"]).ok();
        place.run(&["rm", "--yes", "llama@100"]).ok();
        place.run(&["verify"]).ok();
        let (free, capacity) = place.free_and_capacity();
        assert_eq!(free, capacity);
    }
}

#[test]
fn one_copy_of_the_catalogue_is_repaired_from_the_other() {
    for drive in [0, 1] {
        let (place, places) = saved();
        let offset = places.root.catalogue.offset_bytes;
        places.flip((drive, offset + 100));
        restores(&place);
        let verified = place.run(&["verify"]).fails(3, &["1 damaged"]);
        for text in ["damaged catalogue", places.serial(drive), &format!("at byte {offset}")] {
            assert!(verified.stdout.contains(text), "{text:?} is not in {verified:?}");
        }
        // Opening for writing makes a new catalogue; the damaged one's place is reused later.
        place.run(&["verify", "--repair"]).ok();
        place.run(&["verify"]).ok();
        restores(&place);
    }
}

#[test]
fn a_lost_catalogue_falls_back_and_says_what_is_lost() {
    let (place, places) = saved();
    let offset = places.root.catalogue.offset_bytes;
    (0..2).for_each(|drive| places.flip((drive, offset + 100)));
    let lost = format!("generation {} cannot be read", places.root.generation);
    for arguments in [&["list"][..], &["verify"], &["restore", "llama", "-o", "out"]] {
        place.run(arguments).fails(3, &[&lost, "--fall-back"]);
    }
    place.run(&["save", "llama@101", "model.bin"]).fails(3, &[&lost, "--fall-back"]);
    let listed = place.run(&["list", "--json", "--fall-back"]).ok();
    assert!(listed.stderr.contains(&lost), "{listed:?}");
    assert_eq!(listed.json()["checkpoints"].as_array().unwrap().len(), 0);
    let restored = place.run(&["restore", "llama@100", "-o", "out", "--fall-back"]);
    assert!(restored.stderr.contains(&lost), "{restored:?}");
    restored.fails(10, &["no checkpoint llama@100"]);
    let verified = place.run(&["verify", "--fall-back"]).fails(3, &["damaged"]);
    assert!(verified.stdout.contains(&lost), "{verified:?}");
    assert!(verified.stdout.contains("damaged catalogue"), "{verified:?}");
    let json = place.run(&["verify", "--json", "--fall-back"]);
    assert_eq!((json.code, &json.json()["lost_generation"]), (3, &places.root.generation.0.into()));
}

#[test]
fn copies_of_the_root_are_repaired() {
    for drive in [0, 1] {
        for copy in [0, 1] {
            let (place, places) = saved();
            let offset = places.root_offsets(drive, places.root.generation)[copy];
            places.flip((drive, offset + 90));
            restores(&place);
            is_repaired(
                &place,
                &["damaged root", places.serial(drive), &format!("at byte {offset}")],
            );
        }
    }
}

#[test]
fn all_copies_of_the_newest_root_gone_is_never_silent() {
    let (place, places) = saved();
    for drive in [0, 1] {
        for offset in places.root_offsets(drive, places.root.generation) {
            places.flip((drive, offset + 90));
        }
    }
    place.run(&["list"]).fails(3, &["damaged root", "--fall-back"]);
    place.run(&["save", "llama@101", "model.bin"]).fails(3, &["damaged root", "--fall-back"]);
    let listed = place.run(&["list", "--fall-back"]).ok();
    assert!(listed.stderr.contains("damaged root"), "{listed:?}");
    let verified = place.run(&["verify", "--fall-back"]).fails(3, &["damaged"]);
    assert!(verified.stdout.contains("damaged root"), "{verified:?}");
}

#[test]
fn copies_of_the_label_are_repaired() {
    for copy in 0..4 {
        let (place, places) = saved();
        let offset = places.label_offsets(1)[copy];
        places.flip((1, offset + 200));
        restores(&place);
        let listed = place.run(&["list"]).ok();
        assert!(listed.stderr.contains("stanchion: notice: damaged label"), "{listed:?}");
        is_repaired(&place, &["damaged label", places.serial(1), &format!("at byte {offset}")]);
    }
}

#[test]
fn a_drive_without_any_label_is_damage_not_blank() {
    let (place, places) = saved();
    places.label_offsets(1).iter().for_each(|offset| places.flip((1, offset + 200)));
    for arguments in [vec!["list"], vec!["restore", "llama", "-o", "out"], vec!["verify"]] {
        place.run(&arguments).fails(3, &["damaged label", places.serial(1)]);
    }
    place.run(&["format", "--yes"]).fails(12, &["refused"]);
}

/// The bytes of the checkpoint, which have no copy.
fn is_data(places: &Places, (drive, offset): At) -> bool {
    (0..places.table.chunks.len()).any(|number| {
        let ((on, start), len_bytes) = places.chunk(number);
        on == drive && (start..start + len_bytes).contains(&offset)
    })
}

#[test]
fn any_flipped_byte_is_named_or_harmless() {
    let seed = std::env::var("STANCHION_TEST_SEED").map_or_else(
        |_| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
        |text| text.parse().unwrap(),
    );
    eprintln!("STANCHION_TEST_SEED={seed}");
    let mut numbers = Numbers(seed);
    let (place, places) = saved();
    let front = places.labels[0].layout.slot_offset(0);
    let mut flips_in_data = 0;
    for round in 0..32 {
        let drive = numbers.below(2) as usize;
        // All over the drive, and more often where there is data.
        let offset = match round % 4 {
            0 => numbers.below(DRIVE_BYTES),
            1 => MIB + numbers.below(front - MIB),
            2 => front + numbers.below(4 * MIB),
            _ => {
                let blocks = [
                    places.label_offsets(drive)[numbers.below(4) as usize],
                    places.root_offsets(drive, places.root.generation)[numbers.below(2) as usize],
                    places.root.catalogue.offset_bytes,
                    places.catalogue.entries[0].manifest.offset_bytes,
                    places.copies("segment table")[0].1,
                    places.copies("shard list")[0].1,
                ];
                blocks[numbers.below(blocks.len() as u64) as usize] + numbers.below(4096)
            }
        };
        let at = (drive, offset);
        eprintln!("flipping byte {offset} of drive {drive}");
        places.flip(at);
        if is_data(&places, at) {
            flips_in_data += 1;
            does_not_restore(&place, &["damaged data of llama@100", places.serial(drive)]);
            assert_eq!(place.run(&["verify"]).code, 3);
        } else {
            restores(&place);
            let verified = place.run(&["verify"]);
            assert!([0, 3].contains(&verified.code), "{verified:?}");
            let is_reported = verified.stdout.contains(places.serial(drive));
            assert_eq!(is_reported, verified.code == 3, "{verified:?}");
        }
        places.flip(at);
    }
    assert!(flips_in_data > 0);
    restores(&place);
    place.run(&["verify"]).ok();
}
