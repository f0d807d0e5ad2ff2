// SPDX-License-Identifier: Apache-2.0
//! Where the structures of a pool lie, found through the engine's format, and changes to their
//! bytes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use stanchion_testing::internals::format::{
    Catalogue, Label, Layout, Manifest, MetaExtent, Root, SegmentTable, TableRun, Zone,
};
use stanchion_testing::internals::units::Generation;
use stanchion_testing::limits::{BLOCK_BYTES, ROOT_SLOTS};

use super::Place;

/// A byte: the drive's place on the command line, and the offset.
pub type At = (usize, u64);

/// The newest generation of a pool, and its first checkpoint.
pub struct Places {
    files: Vec<PathBuf>,
    pub labels: Vec<Label>,
    pub root: Root,
    pub catalogue: Catalogue,
    pub manifest: Manifest,
    pub table: SegmentTable,
}

fn read(file: &File, offset_bytes: u64, len_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes as usize];
    file.read_exact_at(&mut bytes, offset_bytes).unwrap();
    bytes
}

fn read_extent(file: &File, extent: &MetaExtent) -> Vec<u8> {
    read(file, extent.offset_bytes, extent.stored_bytes())
}

impl Places {
    pub fn find(place: &Place) -> Places {
        let files: Vec<PathBuf> = place.drives.iter().map(|drive| place.path(drive)).collect();
        let open: Vec<File> = files.iter().map(|path| File::open(path).unwrap()).collect();
        let at = Layout::front_label_offsets()[0];
        let label = |file: &File| Label::decode(&read(file, at, BLOCK_BYTES), at).unwrap();
        let labels: Vec<Label> = open.iter().map(label).collect();
        let label = &labels[0];
        let (zone, zone_bytes) =
            label.layout.root_zone_range(Zone::Front, label.drive().capacity_bytes);
        let root = (0..ROOT_SLOTS)
            .filter_map(|slot| {
                let at = zone + slot * (zone_bytes / ROOT_SLOTS);
                let block = read(&open[0], at, BLOCK_BYTES);
                Root::decode(&block, label.pool, label.drive().uuid, at).ok()
            })
            .max_by_key(|root| root.generation)
            .unwrap();
        let bytes = read_extent(&open[0], &root.catalogue);
        let catalogue = Catalogue::decode(&bytes, &root.catalogue, label.pool).unwrap();
        let entry = &catalogue.entries[0];
        let bytes = read_extent(&open[0], &entry.manifest);
        let manifest = Manifest::decode(&bytes, &entry.manifest, label.pool, entry.id).unwrap();
        let named = &manifest.segments[0].table;
        let first = named.copies().next().unwrap();
        let holder = labels.iter().position(|label| label.index == first[0].drive).unwrap();
        let pieces =
            first.iter().map(|run| read(&open[holder], run.offset_bytes(), run.len_bytes()));
        let bytes = pieces.collect::<Vec<_>>().concat();
        let table = SegmentTable::decode(&bytes, named, label.pool, entry.id, 0).unwrap();
        Places { files, root, catalogue, manifest, table, labels }
    }

    pub fn serial(&self, drive: usize) -> &str {
        &self.labels[drive].drive().serial
    }

    pub fn capacity_bytes(&self, drive: usize) -> u64 {
        self.labels[drive].drive().capacity_bytes
    }

    /// The drive on the command line that has this place in the pool's table.
    fn given(&self, index: u16) -> usize {
        self.labels.iter().position(|label| label.index.0 == index).unwrap()
    }

    /// Where each copy of the first checkpoint's manifest, segment table or shard list starts.
    pub fn copies(&self, object: &str) -> Vec<At> {
        let segment = &self.manifest.segments[0];
        let reference = match object {
            "manifest" => {
                let offset = self.catalogue.entries[0].manifest.offset_bytes;
                return (0..self.files.len()).map(|drive| (drive, offset)).collect();
            }
            "segment table" => &segment.table,
            "shard list" => &segment.list,
            other => panic!("no object {other}"),
        };
        let start = |runs: &[TableRun]| (self.given(runs[0].drive.0), runs[0].offset_bytes());
        reference.copies().map(start).collect()
    }

    /// Every copy of each label.
    pub fn label_offsets(&self, drive: usize) -> [u64; 4] {
        Layout::label_offsets(self.capacity_bytes(drive))
    }

    /// Both copies on a drive of the root of a generation.
    pub fn root_offsets(&self, drive: usize, generation: Generation) -> [u64; 2] {
        let layout = &self.labels[0].layout;
        let capacity = self.capacity_bytes(drive);
        [Zone::Front, Zone::Back].map(|zone| layout.root_offset(zone, generation, capacity))
    }

    /// Where a chunk of the first segment lies, and how many bytes of it are data.
    pub fn chunk(&self, number: usize) -> (At, u64) {
        let location = self.table.chunks[number].copies.first;
        let start = number as u64 * self.table.chunk_bytes;
        let len_bytes = (self.table.len_bytes - start).min(self.table.chunk_bytes);
        let offset = self.labels[0].layout.slot_offset(location.slot);
        ((self.given(location.drive.0), offset), len_bytes)
    }

    /// Flips a bit of the byte. Doing it again undoes it.
    pub fn flip(&self, (drive, offset_bytes): At) {
        let file = OpenOptions::new().read(true).write(true).open(&self.files[drive]).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset_bytes).unwrap();
        file.write_all_at(&[byte[0] ^ 0x40], offset_bytes).unwrap();
    }

    /// Changes a block and its hash, as a program of another version would have written it.
    pub fn rewrite(&self, (drive, offset_bytes): At, change: impl FnOnce(&mut [u8])) {
        let file = OpenOptions::new().read(true).write(true).open(&self.files[drive]).unwrap();
        let mut block = read(&file, offset_bytes, BLOCK_BYTES);
        change(&mut block);
        let hash = stanchion_testing::internals::format::hash128(&block[24..]);
        block[8..24].copy_from_slice(&hash);
        file.write_all_at(&block, offset_bytes).unwrap();
    }
}
