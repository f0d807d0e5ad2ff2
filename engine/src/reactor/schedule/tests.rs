// SPDX-License-Identifier: Apache-2.0
//! Whose turn it is, with tasks that name no real drive.

use std::sync::Arc;

use super::*;
use crate::memory::{BufferUsage, HugePages, Region};
use crate::reactor::segment::Segment;
use crate::reactor::task::{Kind, Task, Transfer};
use crate::units::{Copies, DriveIndex, Location};

const CHUNK_BYTES: u64 = 4096;

/// A schedule of two drives and three ports.
struct Rig {
    schedule: Schedule,
    tasks: TaskTable,
    segment: Arc<Segment>,
    region: Arc<Region>,
}

impl Rig {
    fn new() -> Rig {
        let mut schedule = Schedule::new(&[64, 1], CHUNK_BYTES);
        schedule.reserve(3);
        let copies = [Copies::one(Location { drive: DriveIndex(0), slot: 0 })];
        let segment = Arc::new(Segment::for_save(1, 0, CHUNK_BYTES, CHUNK_BYTES, &copies));
        let region = Arc::new(Region::new(1, HugePages::Off).unwrap());
        Rig { schedule, tasks: TaskTable::new(4096), segment, region }
    }

    /// A task of a port, which waits at a drive.
    fn add(&mut self, port: u32, drive: usize) -> u32 {
        let transfer = Transfer {
            segment: Arc::clone(&self.segment),
            region: Arc::clone(&self.region),
            region_offset_bytes: 0,
            first_chunk: 0,
            chunk_count: 1,
            usage: Arc::new(BufferUsage::default()),
        };
        let slot = self.tasks.insert(Task { port, ..Task::new(Kind::Write, transfer) });
        self.schedule.add(&mut self.tasks, port as usize, drive, slot);
        slot
    }

    /// The port whose turn it is at a drive, if one has a turn and the drive a credit.
    fn turn(&mut self, drive: usize) -> Option<u32> {
        let slot = self.schedule.next(&mut self.tasks, drive, CHUNK_BYTES)?;
        self.schedule.take_credit(drive);
        Some(self.tasks.remove(slot).port)
    }
}

#[test]
fn ports_have_the_same_share_however_many_tasks_they_have() {
    let mut rig = Rig::new();
    for _ in 0..1000 {
        rig.add(0, 0);
    }
    for _ in 0..20 {
        rig.add(1, 0);
    }
    let turns: Vec<u32> = (0..40).filter_map(|_| rig.turn(0)).collect();
    assert_eq!(turns.iter().filter(|port| **port == 1).count(), 20, "{turns:?}");
    assert!(turns.chunks(8).all(|turns| turns.iter().filter(|p| **p == 1).count() == 4));
}

#[test]
fn a_drive_without_credits_holds_up_only_those_that_wait_for_it() {
    let mut rig = Rig::new();
    for _ in 0..100 {
        rig.add(0, 1);
    }
    let sent = (0..100).filter_map(|_| rig.turn(1)).count();
    assert_eq!(sent, LEAST_CREDITS);
    rig.add(2, 0);
    assert_eq!((rig.turn(0), rig.turn(0), rig.turn(1)), (Some(2), None, None));
    rig.schedule.return_credit(1);
    assert_eq!((rig.turn(1), rig.turn(1)), (Some(0), None));
}

#[test]
fn a_task_is_taken_out_wherever_it_waits() {
    for out in 0..3 {
        let mut rig = Rig::new();
        let slots = [0, 0, 0].map(|port| rig.add(port, 0));
        rig.schedule.remove(&mut rig.tasks, 0, slots[out]);
        // Once only.
        rig.schedule.remove(&mut rig.tasks, 0, slots[out]);
        assert!(!rig.schedule.is_empty());
        let next = |rig: &mut Rig| rig.schedule.next(&mut rig.tasks, 0, CHUNK_BYTES);
        let left: Vec<u32> = (0..3).filter_map(|_| next(&mut rig)).collect();
        let expected: Vec<u32> = slots.into_iter().filter(|slot| *slot != slots[out]).collect();
        assert_eq!(left, expected);
        assert!(rig.schedule.is_empty());
        // And the port is served again when it has another.
        rig.add(0, 0);
        assert_eq!(rig.turn(0), Some(0));
    }
}

#[test]
fn a_session_finds_room_beside_greedy_ones() {
    let mut rig = Rig::new();
    let mut held = [0_u32; 12];
    for port in &mut held {
        while rig.tasks.has_room(*port) {
            rig.add(0, 0);
            *port += 1;
        }
    }
    assert!(held.iter().all(|count| *count > 0), "{held:?}");
}
