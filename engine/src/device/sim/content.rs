// SPDX-License-Identifier: Apache-2.0
//! What a simulated drive stores, and what a power cut leaves of it. No commands, no memory, no
//! I/O.
//!
//! Two layers of blocks: `newest`, what a read sees, and `durable`, what survives. A completed
//! write is in `newest` at once, and in `volatile` until a flush moves it to `durable`. Blocks are
//! shared by reference between layers, pending writes and forks, so copies of a drive are cheap.
//!
//! Completed writes are numbered in the order of completion. A block of `durable` keeps the number
//! of the write that it came from, so that an older write never covers a newer one, whichever way
//! each of them became durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::write::{WriteId, WriteState};
use crate::limits::BLOCK_BYTES;

pub(super) const BLOCK: usize = BLOCK_BYTES as usize;
/// The unit in which a write can be torn, whatever the drive's block size: bad drives tear even
/// blocks.
pub(super) const SECTOR: usize = 512;
const SECTORS_PER_BLOCK: usize = BLOCK / SECTOR;

pub(super) type Block = [u8; BLOCK];
static ZEROES: Block = [0; BLOCK];

/// One write's bytes, copied when it was submitted.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) id: WriteId,
    pub(super) first_block: u64,
    pub(super) blocks: Vec<Arc<Block>>,
    /// Durable when it completes.
    pub(super) durable: bool,
}

impl Write {
    pub(super) fn sectors(&self) -> usize {
        self.blocks.len() * SECTORS_PER_BLOCK
    }

    fn numbered(&self) -> impl Iterator<Item = (u64, &Arc<Block>)> {
        (self.first_block..).zip(&self.blocks)
    }
}

/// What a power cut does to a write that was not durable.
pub(super) enum Fate {
    Keep,
    Drop,
    /// One flag per sector: whether it arrived.
    Torn(Vec<bool>),
}

#[derive(Clone)]
struct Version {
    write_number: u64,
    data: Arc<Block>,
    /// What the block held before, for stale reads.
    before: Option<Arc<Block>>,
}

#[derive(Clone, Default)]
struct Layer(BTreeMap<u64, Version>);

impl Layer {
    fn data(&self, block: u64) -> &Block {
        self.0.get(&block).map_or(&ZEROES, |version| &version.data)
    }

    fn before(&self, block: u64) -> &Block {
        self.0.get(&block).and_then(|version| version.before.as_deref()).unwrap_or(&ZEROES)
    }

    fn is_newer(&self, block: u64, write_number: u64) -> bool {
        self.0.get(&block).is_some_and(|version| version.write_number > write_number)
    }

    fn put(&mut self, block: u64, write_number: u64, data: Arc<Block>) {
        let before = self.0.get(&block).map(|version| version.data.clone());
        self.0.insert(block, Version { write_number, data, before });
    }
}

#[derive(Clone)]
enum Store {
    Sparse { newest: Layer, durable: Layer },
    Dense(Box<[u8]>),
}

/// A write without a submitter, which gave up or was lost: it may land later, or never.
#[derive(Clone)]
struct Stray {
    write: Write,
    lands_after_polls: Option<u32>,
}

#[derive(Clone)]
pub(super) struct Content {
    store: Store,
    has_cache: bool,
    next_write_number: u64,
    /// Completed and not durable, in the order of completion.
    volatile: Vec<(u64, Write)>,
    strays: Vec<Stray>,
}

impl Content {
    /// An empty drive. A dense one takes all its memory now.
    pub(super) fn new(capacity_bytes: usize, dense: bool, has_cache: bool) -> Content {
        let store = if dense {
            Store::Dense(vec![0; capacity_bytes].into_boxed_slice())
        } else {
            Store::Sparse { newest: Layer::default(), durable: Layer::default() }
        };
        Content { store, has_cache, next_write_number: 1, volatile: Vec::new(), strays: Vec::new() }
    }

    /// Stores into a dense drive at once; false when the drive is sparse.
    pub(super) fn store_dense(&mut self, offset_bytes: usize, data: &[u8]) -> bool {
        let Store::Dense(bytes) = &mut self.store else { return false };
        bytes[offset_bytes..offset_bytes + data.len()].copy_from_slice(data);
        true
    }

    /// Reads whole blocks as the newest completed writes left them, or as they were before those.
    pub(super) fn read(&self, offset_bytes: u64, into: &mut [u8], stale: bool) {
        match &self.store {
            Store::Dense(bytes) => {
                let start = offset_bytes as usize;
                into.copy_from_slice(&bytes[start..start + into.len()]);
            }
            Store::Sparse { newest, .. } => {
                // Most of a sparse drive is absent; it is looked up once.
                into.fill(0);
                let first = offset_bytes / BLOCK_BYTES;
                let blocks = first..first + (into.len() / BLOCK) as u64;
                for (block, version) in newest.0.range(blocks) {
                    let data = if stale { newest.before(*block) } else { &*version.data };
                    into[(block - first) as usize * BLOCK..][..BLOCK].copy_from_slice(data);
                }
            }
        }
    }

    /// Reads whole blocks as a power cut that drops everything volatile would leave them.
    pub(super) fn read_durable(&self, offset_bytes: u64, into: &mut [u8]) {
        let Store::Sparse { durable, .. } = &self.store else {
            return self.read(offset_bytes, into, false);
        };
        let blocks = offset_bytes / BLOCK_BYTES..;
        for (block, into) in blocks.zip(into.chunks_exact_mut(BLOCK)) {
            into.copy_from_slice(durable.data(block));
        }
    }

    /// A write completes.
    pub(super) fn complete(&mut self, write: Write) {
        let Store::Sparse { newest, durable } = &mut self.store else { return };
        let number = self.next_write_number;
        self.next_write_number += 1;
        let is_durable = write.durable || !self.has_cache;
        for (block, data) in write.numbered() {
            newest.put(block, number, data.clone());
            if is_durable {
                durable.put(block, number, data.clone());
            }
        }
        if !is_durable {
            self.volatile.push((number, write));
        }
    }

    /// What a flush that is submitted now will cover.
    pub(super) fn flush_covers(&self) -> u64 {
        self.next_write_number
    }

    /// A flush completes.
    pub(super) fn flush(&mut self, covers: u64) {
        let Store::Sparse { durable, .. } = &mut self.store else { return };
        self.volatile.retain(|(number, write)| {
            if *number >= covers {
                return true;
            }
            for (block, data) in write.numbered() {
                if !durable.is_newer(block, *number) {
                    durable.put(block, *number, data.clone());
                }
            }
            false
        });
    }

    /// A write loses its submitter. If a number of polls is given, it lands after them for certain.
    pub(super) fn stray(&mut self, write: Write, lands_after_polls: Option<u32>) {
        self.strays.push(Stray { write, lands_after_polls });
    }

    /// Counts one poll for the strays.
    pub(super) fn pass_poll(&mut self) {
        let mut i = 0;
        while i < self.strays.len() {
            match &mut self.strays[i].lands_after_polls {
                Some(0) => {
                    let stray = self.strays.remove(i);
                    self.complete(stray.write);
                    continue;
                }
                Some(polls) => *polls -= 1,
                None => {}
            }
            i += 1;
        }
    }

    /// Decides, when the drive is opened again without a power cut, which strays landed. Those that
    /// are certain to land keep their time: a late write can outlive its process.
    pub(super) fn settle_strays(&mut self, mut lands: impl FnMut() -> bool) {
        for stray in std::mem::take(&mut self.strays) {
            if stray.lands_after_polls.is_some() {
                self.strays.push(stray);
            } else if lands() {
                self.complete(stray.write);
            }
        }
    }

    /// Every write that a power cut may drop: volatile ones, then strays.
    pub(super) fn at_risk(&self) -> impl Iterator<Item = (&Write, WriteState)> {
        let volatile = self.volatile.iter().map(|(_, write)| (write, WriteState::Volatile));
        volatile.chain(self.strays.iter().map(|stray| (&stray.write, WriteState::Stray)))
    }

    /// Power cut. `reorder` may change the order in which strays land.
    pub(super) fn crash(
        &mut self,
        reorder: impl FnOnce(&mut Vec<Write>),
        mut fate: impl FnMut(&Write) -> Fate,
    ) {
        let Store::Sparse { newest, durable } = &mut self.store else { return };
        let mut strays: Vec<Write> = self.strays.drain(..).map(|stray| stray.write).collect();
        reorder(&mut strays);
        let numbers = self.next_write_number..;
        self.next_write_number += strays.len() as u64;
        for (number, write) in self.volatile.drain(..).chain(numbers.zip(strays)) {
            let arrived = match fate(&write) {
                Fate::Keep => None,
                Fate::Drop => continue,
                Fate::Torn(arrived) => Some(arrived),
            };
            for (i, (block, data)) in write.numbered().enumerate() {
                if durable.is_newer(block, number) {
                    continue;
                }
                let data = match &arrived {
                    None => data.clone(),
                    Some(flags) => {
                        let flags = &flags[i * SECTORS_PER_BLOCK..][..SECTORS_PER_BLOCK];
                        if !flags.contains(&true) {
                            continue;
                        }
                        Arc::new(torn(durable.data(block), data, flags))
                    }
                };
                durable.put(block, number, data);
            }
        }
        *newest = durable.clone();
    }

    /// Changes stored bytes without a command, in both layers. `change` gets pieces that do not
    /// cross a block, each with its place on the drive; both layers are cut alike.
    pub(super) fn tamper(&mut self, offset_bytes: u64, len: u64, change: impl Fn(u64, &mut [u8])) {
        match &mut self.store {
            Store::Dense(bytes) => {
                let (mut at, end) = (offset_bytes, offset_bytes + len);
                while at < end {
                    let stop = end.min((at / BLOCK_BYTES + 1) * BLOCK_BYTES);
                    change(at, &mut bytes[at as usize..stop as usize]);
                    at = stop;
                }
            }
            Store::Sparse { newest, durable } => {
                for layer in [newest, durable] {
                    let (mut at, end) = (offset_bytes, offset_bytes + len);
                    while at < end {
                        let block = at / BLOCK_BYTES;
                        let stop = end.min((block + 1) * BLOCK_BYTES);
                        let within = at % BLOCK_BYTES..stop - block * BLOCK_BYTES;
                        let version = layer.0.entry(block).or_insert_with(|| Version {
                            write_number: 0,
                            data: Arc::new(ZEROES),
                            before: None,
                        });
                        let data = Arc::make_mut(&mut version.data);
                        change(at, &mut data[within.start as usize..within.end as usize]);
                        at = stop;
                    }
                }
            }
        }
    }

    /// Whether the durable blocks from one byte on are zeros.
    pub(super) fn is_blank(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let blocks = offset_bytes / BLOCK_BYTES..(offset_bytes + len_bytes).div_ceil(BLOCK_BYTES);
        match &self.store {
            Store::Dense(bytes) => {
                let (start, end) = (blocks.start as usize * BLOCK, blocks.end as usize * BLOCK);
                bytes[start..end.min(bytes.len())].iter().all(|byte| *byte == 0)
            }
            Store::Sparse { durable, .. } => {
                durable.0.range(blocks).all(|(_, version)| *version.data == ZEROES)
            }
        }
    }

    /// Calls `each` with every durable block that is not all zero, in order.
    pub(super) fn for_each_durable(&self, mut each: impl FnMut(u64, &[u8])) {
        match &self.store {
            Store::Dense(bytes) => (0..).zip(bytes.chunks_exact(BLOCK)).for_each(|(i, data)| {
                if *data != ZEROES {
                    each(i, data);
                }
            }),
            Store::Sparse { durable, .. } => durable.0.iter().for_each(|(block, version)| {
                if *version.data != ZEROES {
                    each(*block, &version.data[..]);
                }
            }),
        }
    }
}

fn torn(old: &Block, new: &Block, arrived: &[bool]) -> Block {
    let mut data = *old;
    for (i, _) in arrived.iter().enumerate().filter(|(_, arrived)| **arrived) {
        data[i * SECTOR..][..SECTOR].copy_from_slice(&new[i * SECTOR..][..SECTOR]);
    }
    data
}
