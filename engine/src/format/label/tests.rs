// SPDX-License-Identifier: Apache-2.0
//! The label: its bytes, its history, and what is refused.

use proptest::prelude::*;

use super::*;
use crate::format::testing::{
    MIB, any_label, edited, edits, edits_give_an_error_or_another_value, every_cut_is_noticed,
    every_flip_is_noticed,
};

fn label() -> Label {
    let drive = |n: u128, capacity_bytes| DriveEntry {
        uuid: Uuid::from_u128(n),
        serial: format!("SERIAL-{n}"),
        capacity_bytes,
        state: DriveState::Member,
    };
    let drives = vec![drive(1, 64 * MIB), drive(2, 100 * MIB)];
    Label {
        pool: Uuid::from_u128(0xABCD),
        epoch: 1,
        ancestors: Vec::new(),
        created_unix_ns: 1_700_000_000_000_000_000,
        features: Features::default(),
        copies: 1,
        table_copies: table_copies_of(2),
        index: DriveIndex(1),
        layout: Layout::plan(&[64 * MIB, 100 * MIB], MIB).unwrap(),
        drives,
    }
}

proptest! {
    #[test]
    fn round_trip(label in any_label()) {
        prop_assert_eq!(Label::decode(&label.encode(MIB), MIB), Ok(label));
    }

    #[test]
    fn edits_under_a_right_hash(label in any_label(), edits in edits()) {
        edits_give_an_error_or_another_value(
            &label.encode(MIB),
            &edits,
            |bytes, _| Label::decode(bytes, MIB),
            |label, at| label.encode(at),
        )?;
    }
}

#[test]
fn damage_is_detected() {
    let bytes = label().encode(MIB);
    every_flip_is_noticed(&bytes, |bytes| Label::decode(bytes, MIB));
    every_cut_is_noticed(&bytes, |bytes, _| Label::decode(bytes, MIB));
    assert!(Label::decode(&bytes, 2 * MIB).is_err(), "a copy in the place of another one");
}

#[test]
fn fields_lie_as_specified() {
    let label = label();
    let bytes = label.encode(MIB);
    assert_eq!(bytes[..8], *b"STNLABEL");
    assert_eq!(bytes[64..72], 1_u64.to_le_bytes());
    assert_eq!(bytes[72..80], label.created_unix_ns.to_le_bytes());
    assert_eq!(bytes[104..112], [1, 0, 2, 0, 1, 2, 0, 0]);
    assert_eq!(bytes[112..120], MIB.to_le_bytes());
    assert_eq!(bytes[184..192], label.layout.slot_offset(0).to_le_bytes());
    assert_eq!(bytes[1120..1136], *Uuid::from_u128(2).as_bytes());
    assert_eq!(bytes[1136..1144], (100 * MIB).to_le_bytes());
    assert_eq!(bytes[1144..1161], *b"\x08\0\0\0\0\0\0\0SERIAL-2\0");
    assert_eq!(label.drive().serial, "SERIAL-2");
}

#[test]
fn features_decide_which_programs_may_read_and_write() {
    let good = label().encode(MIB);
    let decode = |at: usize| Label::decode(&edited(&good, |b| b[at] = 4).0, MIB);
    assert_eq!(decode(80).unwrap().features.writable(), Ok(()));
    let read_only = decode(88).unwrap();
    assert!(matches!(read_only.features.writable(), Err(FormatError::Newer { .. })));
    assert!(matches!(decode(96), Err(FormatError::Newer { found, .. }) if found.contains("0x4")));
    let mut unsealed = good.clone();
    unsealed[96] = 4;
    assert!(matches!(Label::decode(&unsealed, MIB), Err(FormatError::Corrupt(_))));
    assert!(matches!(decode(108), Err(FormatError::Corrupt(t)) if t.contains("copies")));
}

#[test]
fn features_say_what_an_older_program_would_get_wrong() {
    let incompat = |label: &Label| label.encode(MIB)[96];
    let mut label = label();
    assert_eq!(incompat(&label), 0);
    label.copies = 2;
    assert_eq!(incompat(&label), 1);
    label.drives[0].state = DriveState::Absent;
    assert_eq!(incompat(&label), 3);
    let (lying, _) = edited(&label.encode(MIB), |bytes| bytes[96] = 1);
    assert!(matches!(Label::decode(&lying, MIB), Err(FormatError::Corrupt(_))));
    assert_eq!(label.live().collect::<Vec<_>>(), [DriveIndex(1)]);
    label.drives[1].state = DriveState::Rebuilding;
    assert!(label.check().unwrap_err().contains("member"));
}

#[test]
fn impossible_labels_are_refused_under_a_right_hash() {
    let good = label().encode(MIB);
    let refused = |what: &str, at: usize, value: &[u8]| {
        let (bytes, _) = edited(&good, |b| b[at..at + value.len()].copy_from_slice(value));
        let result = Label::decode(&bytes, MIB);
        assert!(matches!(&result, Err(FormatError::Corrupt(_))), "{what}: {result:?}");
    };
    refused("index beyond the table", 104, &[2]);
    refused("more drives than fit", 106, &[0xFF, 0xFF]);
    refused("no drives", 106, &[0]);
    refused("a chunk that is not a power of two", 112, &[1]);
    refused("other root slots", 120, &[65]);
    refused("other root stride", 125, &[0x20]);
    refused("other catalogue slots", 144, &[5]);
    refused("no checkpoints", 148, &[0]);
    refused("another metadata area", 168, &[1]);
    refused("no metadata", 176, &[0; 8]);
    refused("metadata beyond any drive", 176, &[0xFF; 8]);
    refused("metadata beyond this drive", 176, &[0, 0, 1]);
    refused("another data area", 186, &[1]);
    refused("no epoch", 64, &[0; 8]);
    refused("an epoch that leaves no room", 64, &(MAX_NUMBER + 1).to_le_bytes());
    refused("no copies of tables", 109, &[0]);
    refused("more copies of tables than drives", 109, &[3]);
    refused("a reserved byte", 111, &[1]);
    refused("a byte for hosts", 192, &[1]);
    refused("a byte before the ancestors", 511, &[1]);
    refused("an ancestor of the first label", 512, &[1]);
    refused("an ancestor behind a gap", 528, &[1]);
    refused("a drive without uuid", 1024, &[0; 16]);
    refused("a tiny drive", 1040, &[0; 8]);
    refused("a drive state that does not exist", 1049, &[3]);
    refused("an absent drive without the feature", 1049, &[1]);
    refused("two drives with one uuid", 1120, Uuid::from_u128(1).as_bytes());
    refused("a serial that is too long", 1048, &[65]);
    refused("a serial that is not text", 1056, &[0xFF]);
}

/// The labels of one pool after each of that many changes.
fn history(changes: usize) -> Vec<Label> {
    let mut labels = vec![label()];
    for number in 0..changes {
        let mut next = labels[number].clone();
        next.drives[0].state =
            if number % 2 == 0 { DriveState::Absent } else { DriveState::Member };
        next.follow(&labels[number]);
        labels.push(next);
    }
    labels
}

#[test]
fn ancestors_lie_as_specified() {
    let labels = history(40);
    let last = &labels[40];
    assert_eq!((last.epoch, last.ancestors.len()), (41, MAX_ANCESTORS));
    let bytes = last.encode(MIB);
    assert_eq!(bytes[512..528], labels[39].id());
    assert_eq!(bytes[1008..1024], labels[8].id());
    assert_eq!(Label::decode(&bytes, MIB).as_ref(), Ok(last));
    let second = labels[1].encode(MIB);
    assert_eq!((&second[512..528], &second[528..544]), (&labels[0].id()[..], &[0; 16][..]));
}

#[test]
fn a_label_descends_from_those_that_it_was_made_from() {
    let labels = history(40);
    let last = &labels[40];
    assert!(labels[8..].iter().all(|earlier| last.descends_from(earlier)));
    assert!(!last.descends_from(&labels[7]), "too long ago to be known");
    assert!(!labels[39].descends_from(last));
    // Another history of the same pool, of as many changes, and with the same drive table.
    let mut other = labels[1].clone();
    other.drives[0].state = DriveState::Rebuilding;
    other.follow(&labels[0]);
    assert!(!last.descends_from(&other) && !labels[1].descends_from(&other));
    let mut joined = labels[2].clone();
    joined.follow(&other);
    assert_eq!((joined.epoch, &joined.drives), (3, &labels[2].drives));
    assert!(!joined.descends_from(&labels[2]) && !labels[2].descends_from(&joined));
    // Every drive of the pool has a label of the same id.
    let of_another_drive = Label { index: DriveIndex(0), ..last.clone() };
    assert!(last.descends_from(&of_another_drive) && of_another_drive.descends_from(last));
}

#[test]
fn id_is_of_the_membership_not_of_the_copy() {
    let label = history(1).remove(1);
    let id = label.id();
    let others = [
        Label { pool: Uuid::from_u128(1), ..label.clone() },
        Label { epoch: 3, ..label.clone() },
        Label { created_unix_ns: 0, ..label.clone() },
        Label { features: Features { compat: 1, ro_compat: 0 }, ..label.clone() },
        Label { copies: 2, ..label.clone() },
        Label { table_copies: 1, ..label.clone() },
        Label { ancestors: vec![[1; 16]], ..label.clone() },
        Label { layout: Layout::plan(&[64 * MIB], MIB / 2).unwrap(), ..label.clone() },
        Label { drives: vec![label.drives[1].clone()], ..label.clone() },
    ];
    assert!(others.iter().all(|other| other.id() != id));
    // As specified: the pool, then bytes 64 to 104 and 106 to the end of any copy.
    let (bytes, pool) = (label.encode(MIB), label.pool);
    let end = 1024 + 2 * 96;
    assert_eq!(id, hash128(&[pool.as_bytes(), &bytes[64..104], &bytes[106..end]].concat()));
}

#[test]
fn a_label_of_format_1_is_older() {
    // Written by the release before, on a file of 48 MiB.
    let mut bytes = include_bytes!("../golden/label-1.0.bin").to_vec();
    bytes.resize(BLOCK_BYTES as usize, 0);
    let (found, supported) = ("1.0".to_owned(), "2.0".to_owned());
    assert_eq!(Label::decode(&bytes, MIB), Err(FormatError::Older { found, supported }));
    bytes[64] ^= 1;
    assert!(matches!(Label::decode(&bytes, MIB), Err(FormatError::Corrupt(_))));
}

#[test]
#[should_panic(expected = "an impossible label")]
fn impossible_labels_are_not_written() {
    Label { drives: Vec::new(), ..label() }.encode(MIB);
}
