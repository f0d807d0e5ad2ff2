// SPDX-License-Identifier: Apache-2.0
//! What fuzzers and everyday tests do with bytes from a drive or a client: one body for each
//! decoder.
//!
//! Each body decodes the bytes as they are, and then as a hostile drive would present them: with a
//! right magic, place, length and hash, so that the fields are reached. A decoded structure must be
//! valid or be refused by `validate`, and must encode to the bytes that were read. A panic is a
//! finding; so is too much memory or time, which the fuzzer's limits detect.

use uuid::Uuid;
use zerocopy::FromBytes;

use crate::format::{
    Access, Attributes, Catalogue, CatalogueEntry, DriveEntry, DriveState, Encoded, Label, Layout,
    MAJOR, MINOR, Manifest, MetaExtent, Owner, Root, SegmentTable, ShardList, TableRef, TableRun,
    Zone, blocks_of, hash128,
};
use crate::limits::BLOCK_BYTES;
use crate::ring::{Request, SubmitEntry};
use crate::units::{DriveIndex, Generation};

const MIB: u64 = 1 << 20;
const CAPACITY_BYTES: u64 = 64 * MIB;
/// Bytes of a structure before its fields.
const PROLOGUE_BYTES: usize = 64;
const POOL: Uuid = Uuid::from_u128(0x706f_6f6c);
const DRIVE: Uuid = Uuid::from_u128(0x0064_7269_7665);

/// A decoder's name, as in the fuzz targets and the folders of their corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every decoder.
pub const TARGETS: [Target; 7] = [
    ("label", label),
    ("root", root),
    ("catalogue", catalogue),
    ("manifest", manifest),
    ("segment_table", segment_table),
    ("shard_list", shard_list),
    ("ring_entry", ring_entry),
];

/// A label.
pub fn label(data: &[u8]) {
    let at = MIB;
    for bytes in variants(data, *b"STNLABEL", at) {
        let Ok(label) = Label::decode(&bytes, at) else { continue };
        same_bytes(&bytes, &label.encode(at));
        let _ = (label.live().count(), label.members().count(), label.features.writable());
    }
}

/// A root, of the generation in its bytes.
pub fn root(data: &[u8]) {
    let layout = layout();
    let generation = Generation(u64_at(data, 80));
    let at = layout.root_offset(Zone::Front, generation, CAPACITY_BYTES);
    for mut bytes in variants(data, *b"STN ROOT", at) {
        if is_sealed(&bytes) {
            bytes[64..80].copy_from_slice(DRIVE.as_bytes());
            seal(&mut bytes);
        }
        let Ok(root) = Root::decode(&bytes, POOL, DRIVE, at) else { continue };
        same_bytes(&bytes, &root.encode(DRIVE, at));
        let _ = root.validate(&layout);
    }
}

/// A catalogue.
pub fn catalogue(data: &[u8]) {
    let layout = layout();
    let at = layout.catalogue_offset(Generation(u64_at(data, 64)));
    for bytes in variants(data, *b"STN CATA", at) {
        let extent = extent_of(&bytes, at);
        let Ok(catalogue) = Catalogue::decode(&bytes, &extent, POOL) else { continue };
        same_encoding(&bytes, &catalogue.encode(at));
        let root = Root {
            pool: POOL,
            generation: catalogue.generation,
            epoch: 1,
            parent: [0; 16],
            catalogue: extent,
            committed_unix_ns: 0,
            owner: Owner::default(),
        };
        let _ = catalogue.validate(&root, &layout);
    }
}

/// A manifest, of the checkpoint in its bytes.
pub fn manifest(data: &[u8]) {
    let layout = layout();
    let at = layout.meta_unit_offset(0);
    let id = uuid_at(data, 64);
    for bytes in variants(data, *b"STN MANI", at) {
        let extent = extent_of(&bytes, at);
        let Ok(manifest) = Manifest::decode(&bytes, &extent, POOL, id) else { continue };
        same_encoding(&bytes, &manifest.encode(at));
        let entry = CatalogueEntry {
            id,
            name: manifest.name.clone(),
            step: manifest.step,
            bytes: 0,
            participants: manifest.segments.len() as u32,
            committed_unix_ns: 0,
            generation: Generation(1),
            manifest: extent,
            access: Access::of(0, 0),
            pinned: false,
            attributes: Attributes::default(),
        };
        let _ = manifest.validate(&entry, &layout, 2);
    }
}

/// A segment table, of the checkpoint and participant in its bytes.
pub fn segment_table(data: &[u8]) {
    let layout = layout();
    let (id, participant) = (uuid_at(data, 64), u64_at(data, 104) as u32);
    for bytes in variants(data, *b"STN SEGM", 0) {
        let named = reference_to(&bytes);
        let Ok(table) = SegmentTable::decode(&bytes, &named, POOL, id, participant) else {
            continue;
        };
        same_encoding(&bytes, &table.encode());
        let drive = DriveEntry {
            uuid: DRIVE,
            serial: String::new(),
            capacity_bytes: CAPACITY_BYTES,
            state: DriveState::Member,
        };
        let _ = table.validate(&layout, &[drive.clone(), drive]);
    }
}

/// A shard list, of the checkpoint and participant in its bytes.
pub fn shard_list(data: &[u8]) {
    let (id, participant) = (uuid_at(data, 64), u64_at(data, 88) as u32);
    for bytes in variants(data, *b"STN SHRD", 0) {
        let named = reference_to(&bytes);
        let Ok(list) = ShardList::decode(&bytes, &named, POOL, id, participant) else { continue };
        same_encoding(&bytes, &list.encode());
        let _ = list.shard_at(list.len_bytes / 2);
    }
}

/// An entry of a submit ring.
pub fn ring_entry(data: &[u8]) {
    let mut bytes = [0; size_of::<SubmitEntry>()];
    let len = data.len().min(bytes.len());
    bytes[..len].copy_from_slice(&data[..len]);
    let Ok(entry) = SubmitEntry::read_from_bytes(&bytes) else { unreachable!("of that size") };
    let Ok(request) = entry.decode() else { return };
    let user_data = entry.user_data;
    let again = match request {
        Request::Nop => SubmitEntry::nop(user_data),
        Request::Write(transfer) => SubmitEntry::write(transfer, user_data),
        Request::Read(transfer) => SubmitEntry::read(transfer, user_data),
        Request::Commit { checkpoint } => SubmitEntry::commit(checkpoint, user_data),
        Request::Abort { checkpoint } => SubmitEntry::abort(checkpoint, user_data),
    };
    assert_eq!(entry, again, "an entry with more in it than was read");
}

fn layout() -> Layout {
    Layout::plan(&[CAPACITY_BYTES; 2], MIB).expect("a layout of two small drives")
}

/// The bytes in whole blocks: as they are, and sealed.
fn variants(data: &[u8], magic: [u8; 8], at: u64) -> [Vec<u8>; 2] {
    let mut raw = data.to_vec();
    raw.resize(data.len().max(PROLOGUE_BYTES).next_multiple_of(BLOCK_BYTES as usize), 0);
    let mut sealed = raw.clone();
    sealed[..8].copy_from_slice(&magic);
    sealed[24..26].copy_from_slice(&MAJOR.to_le_bytes());
    sealed[26..28].copy_from_slice(&MINOR.to_le_bytes());
    sealed[28..32].fill(0);
    sealed[32..40].copy_from_slice(&at.to_le_bytes());
    // One block for a structure of one block; a longer one ends where the data ends.
    let len = data.len().max(PROLOGUE_BYTES) as u64;
    let one_block = magic == *b"STNLABEL" || magic == *b"STN ROOT";
    let len = if one_block { BLOCK_BYTES } else { len };
    sealed[40..48].copy_from_slice(&len.to_le_bytes());
    sealed[48..64].copy_from_slice(POOL.as_bytes());
    seal(&mut sealed);
    [raw, sealed]
}

fn seal(bytes: &mut [u8]) {
    let hash = hash128(&bytes[24..]);
    bytes[8..24].copy_from_slice(&hash);
}

fn is_sealed(bytes: &[u8]) -> bool {
    bytes[8..24] == hash128(&bytes[24..])
}

/// The extent that would name the structure.
fn extent_of(bytes: &[u8], offset_bytes: u64) -> MetaExtent {
    let mut hash = [0; 16];
    hash.copy_from_slice(&bytes[8..24]);
    MetaExtent { offset_bytes, len_bytes: u64_at(bytes, 40), hash }
}

/// The reference that would name the structure.
fn reference_to(bytes: &[u8]) -> TableRef {
    let extent = extent_of(bytes, 0);
    let blocks = blocks_of(extent.len_bytes) as u32;
    let run = TableRun { drive: DriveIndex(0), copy: 0, blocks, first_block: 1 };
    TableRef::of(&extent, vec![run])
}

/// The structure is exactly what was read, unless a newer minor version may add fields.
fn same_bytes(read: &[u8], encoded: &[u8]) {
    if read[26..28] == MINOR.to_le_bytes() {
        assert!(read == encoded, "read, and encoded to other bytes");
    }
}

fn same_encoding(read: &[u8], encoded: &Encoded) {
    same_bytes(read, &encoded.bytes);
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    if let Some(found) = bytes.get(at..at + 8) {
        value.copy_from_slice(found);
    }
    u64::from_le_bytes(value)
}

fn uuid_at(bytes: &[u8], at: usize) -> Uuid {
    let mut value = [0; 16];
    if let Some(found) = bytes.get(at..at + 16) {
        value.copy_from_slice(found);
    }
    Uuid::from_bytes(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The corpus that the fuzzer has found so far.
    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let files = std::fs::read_dir(folder).expect("a corpus for each target");
        files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn nothing_of_the_corpus_is_a_finding() {
        for (target, body) in TARGETS {
            let inputs = corpus(target);
            assert!(inputs.len() >= 10, "{target}: a corpus of {} inputs", inputs.len());
            inputs.iter().for_each(|input| body(input));
        }
    }

    proptest! {
        #[test]
        fn changed_inputs_are_no_findings(
            target in 0..TARGETS.len(),
            which in any::<prop::sample::Index>(),
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let (name, body) = TARGETS[target];
            let mut input = which.get(&corpus(name)).clone();
            for (at, value) in edits {
                let len = input.len();
                if len > 0 {
                    input[at.index(len)] = value;
                }
            }
            body(&input);
            input.truncate(cut.index(input.len() + 1));
            body(&input);
        }

        #[test]
        fn arbitrary_bytes_are_no_findings(input in prop::collection::vec(any::<u8>(), 0..600)) {
            TARGETS.iter().for_each(|(_, body)| body(&input));
        }
    }

    /// Sound structures for the fuzzer to start from: `scripts/fuzz` calls it for a new corpus.
    #[test]
    #[ignore = "writes seeds into fuzz/corpus"]
    fn write_seeds() {
        use crate::format::testing;
        use proptest::strategy::ValueTree;
        use proptest::test_runner::TestRunner;
        let mut runner = TestRunner::deterministic();
        let keep = |target: &str, number: usize, bytes: Vec<u8>| {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../fuzz/corpus")
                .join(target);
            std::fs::create_dir_all(&folder).unwrap();
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            std::fs::write(folder.join(format!("seed-{number}")), &bytes[..end]).unwrap();
        };
        for number in 0..12 {
            let mut draw = |target: &str| -> Vec<u8> {
                match target {
                    "label" => {
                        testing::any_label().new_tree(&mut runner).unwrap().current().encode(MIB)
                    }
                    "root" => {
                        let root = testing::any_root().new_tree(&mut runner).unwrap().current();
                        let at = layout().root_offset(Zone::Front, root.generation, CAPACITY_BYTES);
                        root.encode(DRIVE, at)
                    }
                    "catalogue" => {
                        testing::any_catalogue()
                            .new_tree(&mut runner)
                            .unwrap()
                            .current()
                            .encode(0)
                            .bytes
                    }
                    "manifest" => {
                        testing::any_manifest()
                            .new_tree(&mut runner)
                            .unwrap()
                            .current()
                            .encode(0)
                            .bytes
                    }
                    "segment_table" => {
                        testing::any_table().new_tree(&mut runner).unwrap().current().encode().bytes
                    }
                    "shard_list" => {
                        testing::any_list().new_tree(&mut runner).unwrap().current().encode().bytes
                    }
                    _ => {
                        let mut bytes = vec![0; 64];
                        bytes[0] = (number % 6) as u8;
                        bytes[8 + number] = 1;
                        bytes
                    }
                }
            };
            for (target, _) in TARGETS {
                let bytes = draw(target);
                keep(target, number, bytes);
            }
        }
    }
}
