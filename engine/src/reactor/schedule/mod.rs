// SPDX-License-Identifier: Apache-2.0
//! Whose turn it is: the order in which sessions send chunks to the drives.
//!
//! - Each drive has credits of its own, so that a slow one holds no more than its share of what a
//!   reactor may have in flight: tasks that need it wait, others do not.
//! - At each drive the sessions that have a chunk for it take turns, by deficit round robin over
//!   bytes: each gets the same share of the drive, whatever the size and number of its entries.
//! - Within a session its tasks take turns, chunk by chunk.
//! - A task waits at one drive at a time: that of its next chunk, or of that chunk's second copy.
//!
//! Nothing here allocates, except when a session is added.

use std::collections::VecDeque;

use crate::reactor::queues::CREDITS;
use crate::reactor::task::{NO_TASK, TaskTable};

/// The fewest commands that a reactor may have at one drive, waiting or in flight.
const LEAST_CREDITS: usize = 32;
/// Chunks that a session may send in one turn.
const CHUNKS_PER_TURN: i64 = 4;

/// The tasks of one session that wait for one drive.
#[derive(Clone, Copy)]
struct Lane {
    first: u32,
    last: u32,
    /// Bytes that it may still send in this turn. A chunk may exceed it; the next turn makes up.
    deficit_bytes: i64,
    /// It is among those that take turns.
    takes_turns: bool,
}

const EMPTY: Lane = Lane { first: NO_TASK, last: NO_TASK, deficit_bytes: 0, takes_turns: false };

/// One drive.
struct Turns {
    credits: i64,
    /// Places of the ports that take turns; the first one's turn it is.
    ports: VecDeque<u32>,
}

/// The order.
pub(super) struct Schedule {
    drives: Vec<Turns>,
    /// By port and drive.
    lanes: Vec<Lane>,
    turn_bytes: i64,
    /// Tasks that wait.
    waiting: usize,
}

impl Schedule {
    /// For drives that take so many commands at once.
    pub(super) fn new(depths: &[u32], chunk_bytes: u64) -> Schedule {
        let share = (CREDITS / depths.len().max(1)).max(LEAST_CREDITS);
        let turns = |depth: &u32| Turns {
            // As many as the drive carries out, and as many that wait there to follow.
            credits: (2 * *depth as usize).clamp(LEAST_CREDITS, share) as i64,
            ports: VecDeque::new(),
        };
        Schedule {
            drives: depths.iter().map(turns).collect(),
            lanes: Vec::new(),
            turn_bytes: CHUNKS_PER_TURN * chunk_bytes as i64,
            waiting: 0,
        }
    }

    /// Makes room for so many ports.
    pub(super) fn reserve(&mut self, ports: usize) {
        let lanes = ports * self.drives.len();
        if lanes > self.lanes.len() {
            self.lanes.resize(lanes, EMPTY);
        }
        for drive in &mut self.drives {
            drive.ports.reserve(ports.saturating_sub(drive.ports.len()));
        }
    }

    pub(super) fn drive_count(&self) -> usize {
        self.drives.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// A command goes to the drive.
    pub(super) fn take_credit(&mut self, drive: usize) {
        self.drives[drive].credits -= 1;
    }

    /// A command of the drive was answered.
    pub(super) fn return_credit(&mut self, drive: usize) {
        self.drives[drive].credits += 1;
    }

    /// Lets a task wait at a drive.
    pub(super) fn add(&mut self, tasks: &mut TaskTable, port: usize, drive: usize, slot: u32) {
        let lane = &mut self.lanes[port * self.drives.len() + drive];
        let task = tasks.get(slot);
        task.waits_at = Some(drive as u16);
        task.before = lane.last;
        task.after = NO_TASK;
        match lane.last {
            NO_TASK => lane.first = slot,
            last => tasks.get(last).after = slot,
        }
        lane.last = slot;
        if !lane.takes_turns {
            lane.takes_turns = true;
            lane.deficit_bytes = self.turn_bytes;
            self.drives[drive].ports.push_back(port as u32);
        }
        self.waiting += 1;
    }

    /// Takes a task out: it sends its chunk, or it has failed.
    pub(super) fn remove(&mut self, tasks: &mut TaskTable, port: usize, slot: u32) {
        let task = tasks.get(slot);
        let Some(drive) = task.waits_at.take() else { return };
        let (before, after) = (task.before, task.after);
        let lane = &mut self.lanes[port * self.drives.len() + usize::from(drive)];
        match before {
            NO_TASK => lane.first = after,
            before => tasks.get(before).after = after,
        }
        match after {
            NO_TASK => lane.last = before,
            after => tasks.get(after).before = before,
        }
        self.waiting -= 1;
    }

    /// The task whose turn it is at a drive that has a credit; `bytes` are charged to its session.
    /// It is taken out.
    pub(super) fn next(&mut self, tasks: &mut TaskTable, drive: usize, bytes: u64) -> Option<u32> {
        let width = self.drives.len();
        let turns = &mut self.drives[drive];
        if turns.credits <= 0 {
            return None;
        }
        loop {
            let port = *turns.ports.front()? as usize;
            let lane = &mut self.lanes[port * width + drive];
            if lane.first == NO_TASK {
                lane.takes_turns = false;
                turns.ports.pop_front();
            } else if lane.deficit_bytes <= 0 {
                lane.deficit_bytes += self.turn_bytes;
                turns.ports.rotate_left(1);
            } else {
                lane.deficit_bytes -= bytes as i64;
                let slot = lane.first;
                self.remove(tasks, port, slot);
                return Some(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests;
