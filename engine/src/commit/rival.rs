// SPDX-License-Identifier: Apache-2.0
//! Whether another owner writes the pool, too: looked for before every root.
//!
//! Reservations and locks keep other owners out. Where a drive has neither, as a target that two
//! hosts reach, two owners can have the pool open at once, and each would make the next generation
//! from what it knows. Both write the same slots, so one drive's ring shows it: the slot of the
//! newest generation still holds our root, and the slot of the next one none of that generation.
//!
//! A root of a lower open epoch is of an owner that this one has replaced: a write that it had in
//! flight when it was killed, landed late. It takes nothing from us, and shows nothing. If that
//! owner lives after all, it finds our root, of a higher epoch, when it looks.
//!
//! We look when space is reserved for a checkpoint, before its metadata is written, and before the
//! roots. Between a look and what follows it remains a moment in which two owners can pass. Then
//! one of two acknowledged commits is lost, or what the other one writes lands in it, which its
//! checksums show. Its owner notices at its next look, before it acknowledges anything more, and
//! the next opening finds a root whose parent is not the root before it.

use super::failure::{CommitFailure, Stage};
use crate::drives::{DriveCommand, Drives, read_error};
use crate::error::Error;
use crate::format::{Label, Root, Zone};
use crate::limits::BLOCK_BYTES;
use crate::units::{DriveIndex, Generation};

/// What an owner knows, and expects to find.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) label: &'a Label,
    /// The newest generation and the id of its root; `None` where the drives need not all have it.
    pub(super) newest: Option<(Generation, [u8; 16])>,
    /// The generation that this owner makes next.
    pub(super) next: Generation,
    /// The open epoch in which it makes it.
    pub(super) epoch: u64,
}

/// Fails when a slot holds what another owner wrote.
pub(super) fn look(known: Known<'_>, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
    let mut unread = None;
    for drive in known.label.live() {
        for zone in [Zone::Front, Zone::Back] {
            match look_at(known, drives, drive, zone) {
                Ok(Some(())) => return Ok(()),
                Ok(None) => {}
                Err(failure) if failure.stage == Stage::Look => {
                    unread.get_or_insert(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
    }
    // Another owner formatted the drives, or all copies are damaged: recovery can tell.
    match unread {
        Some(failure) => Err(failure),
        None => Err(foreign(known, "no drive has a sound copy of the newest root any more".into())),
    }
}

/// Looks at one ring. `None` when it cannot tell.
fn look_at(
    known: Known<'_>,
    drives: &mut dyn Drives,
    drive: DriveIndex,
    zone: Zone,
) -> Result<Option<()>, CommitFailure> {
    let Known { label, newest, next, epoch } = known;
    let mut places = vec![next];
    places.extend(newest.map(|(generation, _)| generation));
    let entry = &label.drives[drive.as_usize()];
    let offset = |generation| label.layout.root_offset(zone, generation, entry.capacity_bytes);
    let mut blocks = vec![vec![0; BLOCK_BYTES as usize]; places.len()];
    let mut batch: Vec<_> = places
        .iter()
        .zip(&mut blocks)
        .map(|(generation, into)| {
            let offset_bytes = offset(*generation);
            DriveCommand::Read { drive, offset_bytes, into }
        })
        .collect();
    let statuses = drives.run(&mut batch);
    drop(batch);
    let failed = statuses.iter().zip(&places).find_map(|(status, at)| Some((status.err()?, *at)));
    if let Some((source, at)) = failed {
        let error = read_error(drives, drive, offset(at), source);
        return Err(CommitFailure { stage: Stage::Look, error });
    }
    // Blank, of another pool, or damaged: nothing follows from one slot that is.
    let root = |generation: Generation, block: &[u8]| {
        Root::decode(block, label.pool, entry.uuid, offset(generation)).ok()
    };
    let serial = &entry.serial;
    let is_rival = |root: &Root| root.generation >= next && root.epoch >= epoch;
    if let Some(root) = root(next, &blocks[0]).filter(is_rival) {
        let detail = format!("drive {serial} has generation {}", root.generation);
        return Err(foreign(known, detail));
    }
    let Some((generation, id)) = newest else { return Ok(Some(())) };
    match root(generation, &blocks[1]) {
        Some(root) if root.id() == id => Ok(Some(())),
        // Late, or of an opening that began the same epoch: where it took ours everywhere, no ring
        // has ours any more.
        Some(root) if root.epoch <= epoch => Ok(None),
        Some(root) => {
            let detail = format!("drive {serial} has another generation {}", root.generation);
            Err(foreign(known, detail))
        }
        None => Ok(None),
    }
}

fn foreign(known: Known<'_>, detail: String) -> CommitFailure {
    let error = Error::LostOwnership { pool: known.label.pool, detail };
    CommitFailure { stage: Stage::Ownership, error }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use uuid::Uuid;

    use super::super::plan::Plan;
    use super::super::{Committer, make_pool};
    use super::*;
    use crate::device::Device;
    use crate::device::sim::{Effect, Fault, SimConfig, SimDrive, When};
    use crate::device::{Operation, sim::SimWorld};
    use crate::direct::DirectDrives;
    use crate::error::IoError;
    use crate::format::Owner;
    use crate::format::testing::striped_label;
    use crate::memory::HugePages;
    use crate::state::State;

    const CAPACITY_BYTES: u64 = 64 << 20;
    const FAILED: IoError = IoError::Nvme { sct: 2, sc: 0x81, dnr: true };

    struct Pool {
        sims: Vec<SimDrive>,
        drives: DirectDrives,
        label: Label,
    }

    fn pool() -> Pool {
        let label = striped_label(CAPACITY_BYTES, 1 << 20, 2);
        let world = SimWorld::new();
        let config = |number| SimConfig {
            capacity_bytes: CAPACITY_BYTES,
            serial: format!("SIM{number}"),
            ..SimConfig::default()
        };
        let sims: Vec<_> =
            (0..2).map(|number| SimDrive::new_in(&world, config(number)).unwrap()).collect();
        let open = |sim: &SimDrive| Box::new(sim.open().unwrap()) as Box<dyn Device>;
        let devices = sims.iter().map(open).collect();
        let mut drives = DirectDrives::new(devices, HugePages::Off).unwrap();
        make_pool(&mut drives, &label).unwrap();
        Pool { sims, drives, label }
    }

    impl Pool {
        /// An owner that has read the pool as it is.
        fn owner(&self) -> RefCell<State> {
            let root = Plan::first(&self.label).change.root;
            let label = self.label.clone();
            RefCell::new(State::new(label, root, None, Generation(1), Vec::new()))
        }
    }

    fn owner(number: u128) -> Owner {
        Owner { open_id: Uuid::from_u128(number), ..Owner::default() }
    }

    fn assert_lost(result: Result<Generation, Error>, state: &RefCell<State>) {
        assert!(matches!(result, Err(Error::LostOwnership { .. })), "{result:?}");
        assert!(state.borrow().check_poison().is_err());
    }

    #[test]
    fn the_second_of_two_owners_commits_nothing() {
        let mut pool = pool();
        let (first, second) = (pool.owner(), pool.owner());
        let (mut one, mut two) = (Committer::new(&first), Committer::new(&second));
        one.begin_epoch(&mut pool.drives, 2, &owner(1), 0).unwrap();
        // Both read the roots before the first one committed.
        assert_lost(two.begin_epoch(&mut pool.drives, 2, &owner(2), 0), &second);
        one.reclaim(&mut pool.drives, 0).unwrap();
        // Whatever it tries.
        assert!(two.reclaim(&mut pool.drives, 0).is_err());
        one.reclaim(&mut pool.drives, 0).unwrap();
    }

    #[test]
    fn an_owner_notices_every_number_of_foreign_generations() {
        for foreign in [1, 2, 3, 62, 63, 64, 65, 130] {
            let mut pool = pool();
            let (first, second) = (pool.owner(), pool.owner());
            let (mut one, mut two) = (Committer::new(&first), Committer::new(&second));
            one.begin_epoch(&mut pool.drives, 2, &owner(1), 0).unwrap();
            // Another host opens the pool as it is now, and goes on.
            let root = first.borrow().root().clone();
            let generation = root.generation;
            let taken = State::new(pool.label.clone(), root, None, generation, Vec::new());
            *second.borrow_mut() = taken;
            two.begin_epoch(&mut pool.drives, 3, &owner(2), 0).unwrap();
            for _ in 1..foreign {
                two.reclaim(&mut pool.drives, 0).unwrap();
            }
            assert_lost(one.reclaim(&mut pool.drives, 0), &first);
            two.reclaim(&mut pool.drives, 0).unwrap();
        }
    }

    #[test]
    fn a_format_is_noticed() {
        let mut pool = pool();
        let state = pool.owner();
        let mut committer = Committer::new(&state);
        committer.begin_epoch(&mut pool.drives, 2, &owner(1), 0).unwrap();
        let other = Label { pool: Uuid::from_u128(77), ..pool.label.clone() };
        make_pool(&mut pool.drives, &other).unwrap();
        assert_lost(committer.reclaim(&mut pool.drives, 0), &state);
    }

    #[test]
    fn damage_and_failed_reads_are_not_taken_for_an_owner() {
        let mut pool = pool();
        let state = pool.owner();
        let mut committer = Committer::new(&state);
        committer.begin_epoch(&mut pool.drives, 2, &owner(1), 0).unwrap();
        let at = |zone, generation| {
            pool.label.layout.root_offset(zone, Generation(generation), CAPACITY_BYTES)
        };
        // One copy after the other: another one shows it.
        for (sim, zone) in [(0, Zone::Front), (0, Zone::Back), (1, Zone::Front)] {
            let generation = state.borrow().root().generation.0;
            pool.sims[sim].corrupt(at(zone, generation), 4096, 1);
            committer.reclaim(&mut pool.drives, 0).unwrap();
        }
        pool.sims[0]
            .inject(Fault::new(Operation::Read, When::From(0), Effect::Fail(FAILED)))
            .unwrap();
        committer.reclaim(&mut pool.drives, 0).unwrap();
        pool.sims[1]
            .inject(Fault::new(Operation::Read, When::From(0), Effect::Fail(FAILED)))
            .unwrap();
        let failed = committer.reclaim(&mut pool.drives, 0);
        assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
        // Nothing is known of another owner: the next commit is tried.
        pool.sims.iter().for_each(SimDrive::clear_faults);
        committer.reclaim(&mut pool.drives, 0).unwrap();
    }
}
