// SPDX-License-Identifier: Apache-2.0
//! The explorer's workplace: arenas for simulated drives, and a freshly formatted pool.

use std::cell::RefCell;
use std::sync::Arc;

use uuid::Uuid;

use super::model::{Contents, Stored};
use crate::commit::{self, Committer};
use crate::device::sim::{SimConfig, SimDrive};
use crate::device::{Device, DriveInfo};
use crate::direct::DirectDrives;
use crate::drives::{DriveCommand, Drives, run_all};
use crate::error::{Error, IoError};
use crate::format::{DriveEntry, DriveState, Features, Label, Layout, Owner, table_copies_of};
use crate::limits::BLOCK_BYTES;
use crate::memory::{HugePages, Region};
use crate::pool::Notice;
use crate::recover::opening::{Identified, Opening, identify, recover_state};
use crate::state::{CheckpointSpec, State};
use crate::units::DriveIndex;

/// The smallest drive that a pool takes.
const CAPACITY_BYTES: u64 = crate::format::layout::MIN_DRIVE_BYTES;
/// Small, so that a checkpoint on all drives is quick to write and to compare.
pub(super) const CHUNK_BYTES: u64 = 64 << 10;
/// Slots of each drive that the ballast leaves free, so that space is soon reused.
const FREE_SLOTS: u64 = 4;
/// The time of the first commit; every later one is a nanosecond later.
const BIRTH_UNIX_NS: u64 = 1_700_000_000_000_000_000;

/// One worker's arenas. An arena serves one set of drives at a time: the one that holds it.
#[derive(Default)]
pub(super) struct Lab {
    arenas: RefCell<Vec<Arc<Region>>>,
}

impl Lab {
    /// Opens simulated drives, in the order of their drive index.
    pub(super) fn drive(&self, sims: &[SimDrive]) -> Result<DirectDrives, Error> {
        let open = |sim: &SimDrive| sim.open().map(|device| Box::new(device) as Box<dyn Device>);
        let devices = sims.iter().map(open).collect::<Result<_, _>>()?;
        let mut arenas = self.arenas.borrow_mut();
        let free = arenas.iter().find(|arena| Arc::strong_count(arena) == 1);
        let arena = match free {
            Some(arena) => Arc::clone(arena),
            None => {
                let arena = DirectDrives::arena(HugePages::Off)?;
                arenas.push(Arc::clone(&arena));
                arena
            }
        };
        DirectDrives::with_arena(devices, arena)
    }
}

/// Opens a pool as [`crate::Pool::open`] does, on this thread.
pub(super) fn open_pool(
    drives: &mut dyn Drives,
    writable: bool,
    now_unix_ns: u64,
    notices: &mut Vec<Notice>,
) -> Result<State, Error> {
    let owner = Owner::default();
    let opening = Opening { writable, degraded: false, fall_back: false, now_unix_ns, owner };
    open_as(drives, opening, notices)
}

/// The same on drives of which some may not answer.
pub(super) fn open_as(
    drives: &mut dyn Drives,
    opening: Opening,
    notices: &mut Vec<Notice>,
) -> Result<State, Error> {
    let tolerant = opening.degraded || !opening.writable;
    let Identified { labels, membership } = identify(drives, tolerant, notices)?;
    let in_order =
        |(place, given): (usize, &Option<usize>)| given.is_none_or(|given| given == place);
    assert!(membership.order.iter().enumerate().all(in_order), "drives are given in order");
    recover_state(drives, labels, &membership, opening, notices)
}

/// Drives of which one does not answer any more.
pub(super) struct Without<'a> {
    pub(super) drives: &'a mut dyn Drives,
    pub(super) gone: DriveIndex,
}

impl Drives for Without<'_> {
    fn info(&self) -> &[DriveInfo] {
        self.drives.info()
    }

    fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), IoError>> {
        let gone: Vec<bool> = batch.iter().map(|command| command.drive() == self.gone).collect();
        for (command, gone) in batch.iter().zip(&gone) {
            let is_read = matches!(command, DriveCommand::Read { .. });
            assert!(is_read || !*gone, "a missing drive is written");
        }
        // Reads of the missing drive run with the other reads, and their results are hidden.
        let statuses = self.drives.run(batch);
        for (command, gone) in batch.iter_mut().zip(&gone) {
            if let DriveCommand::Read { into, .. } = command
                && *gone
            {
                into.fill(0xEE);
            }
        }
        let hidden = |(status, gone)| if gone { Err(IoError::Removed) } else { status };
        statuses.into_iter().zip(gone).map(hidden).collect()
    }
}

/// Drives of a pool, and copies of each of its chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) drives: usize,
    pub(super) copies: u8,
}

/// The pools that are explored.
pub(super) const SHAPES: [Shape; 6] = [
    Shape { drives: 1, copies: 1 },
    Shape { drives: 2, copies: 1 },
    Shape { drives: 3, copies: 1 },
    Shape { drives: 4, copies: 1 },
    Shape { drives: 2, copies: 2 },
    Shape { drives: 3, copies: 2 },
];

/// A pool to start from: formatted, nearly full, nothing volatile.
pub(super) struct Base {
    pub(super) shape: Shape,
    pub(super) sims: Vec<SimDrive>,
    pub(super) contents: Contents,
    pub(super) generation: u64,
    pub(super) now_unix_ns: u64,
}

impl Base {
    pub(super) fn new(lab: &Lab, shape: Shape) -> Result<Base, Error> {
        let Shape { drives, copies } = shape;
        let sims = blank_drives(drives)?;
        let mut direct = lab.drive(&sims)?;
        let label = label(shape)?;
        commit::make_pool(&mut direct, &label)?;

        let now_unix_ns = BIRTH_UNIX_NS + 1;
        let state = open_pool(&mut direct, true, now_unix_ns, &mut Vec::new())?;
        // The ballast: nearly all slots, never written, so its bytes are zeros.
        let slots = state.free_slots().iter().map(|free| free - FREE_SLOTS).sum::<u64>()
            / u64::from(copies);
        let name = crate::CheckpointName::new("ballast", 0)?;
        let spec = CheckpointSpec {
            name: name.clone(),
            participants: 1,
            participant: 0,
            len_bytes: slots * CHUNK_BYTES,
            shards: Vec::new(),
        };
        let state = RefCell::new(state);
        let mut committer = Committer::new(&state);
        let open = commit::begin(&state, &spec, Uuid::from_u128(1), || Err(no_room()))?;
        committer.set_whole(open, 0);
        let zero = crate::format::crc64(&vec![0; CHUNK_BYTES as usize]);
        let sums = |_, _| vec![zero; slots as usize];
        committer.commit_ready(&mut direct, &sums, now_unix_ns + 1).result?;
        let generation = committer.reclaim(&mut direct, now_unix_ns + 2)?.0;
        let flushes =
            (0..drives as u16).map(|drive| DriveCommand::Flush { drive: DriveIndex(drive) });
        run_all(&mut direct, &mut flushes.collect::<Vec<_>>())?;
        drop(direct);
        let contents = Contents::from([(name, Stored::Ballast)]);
        let sims = (0..).zip(&sims).map(|(number, sim)| compact(sim, config(number)));
        Ok(Base {
            shape,
            sims: sims.collect::<Result<_, _>>()?,
            contents,
            generation,
            now_unix_ns: now_unix_ns + 2,
        })
    }
}

fn config(number: usize) -> SimConfig {
    SimConfig {
        capacity_bytes: CAPACITY_BYTES,
        serial: format!("SIM{number}"),
        seed: number as u64,
        ..SimConfig::default()
    }
}

/// Drives that were never written.
pub(super) fn blank_drives(count: usize) -> Result<Vec<SimDrive>, Error> {
    (0..count).map(|number| SimDrive::new(config(number))).collect()
}

/// A drive like those, of another serial.
pub(super) fn spare_drive() -> Result<SimDrive, Error> {
    SimDrive::new(SimConfig { serial: "SPARE".into(), ..config(90) })
}

fn no_room() -> Error {
    Error::Usage("the ballast does not fit".into())
}

/// A pool whose identities do not depend on the clock.
pub(super) fn label(Shape { drives, copies }: Shape) -> Result<Label, Error> {
    let layout = Layout::plan(&vec![CAPACITY_BYTES; drives], CHUNK_BYTES)?;
    let entry = |number: usize| DriveEntry {
        uuid: Uuid::from_u128(0xd0 + number as u128),
        serial: format!("SIM{number}"),
        capacity_bytes: CAPACITY_BYTES,
        state: DriveState::Member,
    };
    Ok(Label {
        pool: Uuid::from_u128(0xb00),
        epoch: 1,
        ancestors: Vec::new(),
        created_unix_ns: BIRTH_UNIX_NS,
        features: Features::default(),
        copies,
        table_copies: table_copies_of(drives),
        index: DriveIndex(0),
        drives: (0..drives).map(entry).collect(),
        layout,
    })
}

/// The same durable content without blocks of zeros: forks of it are cheap.
fn compact(sim: &SimDrive, config: SimConfig) -> Result<SimDrive, Error> {
    let copy = SimDrive::new(config)?;
    let zeros = vec![0; BLOCK_BYTES as usize];
    for offset in (0..CAPACITY_BYTES).step_by(BLOCK_BYTES as usize) {
        if let Some(block) = sim.peek_durable(offset, BLOCK_BYTES)
            && block != zeros
        {
            copy.overwrite(offset, &block);
        }
    }
    Ok(copy)
}
