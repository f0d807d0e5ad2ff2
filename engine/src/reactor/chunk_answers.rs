// SPDX-License-Identifier: Apache-2.0
//! What a reactor does with the answers for its chunks: a chunk is done, goes on to the next step,
//! is read from its other copy, gets another place, or fails its task.
//!
//! - Each answer either frees its credit or passes it to the next step, together with the task's
//!   outstanding answer: never both, never neither.
//! - The task keeps a failure and reports it once, when all answers of the task are in.

use crate::checksum::chunk_is_sound;
use crate::device::Operation;
use crate::device::status::{self, Action};
use crate::error::IoError;
use crate::planted::{Victim, may_panic};
use crate::reactor::answer::{Answer, Outcome, Reply};
use crate::reactor::port::Port;
use crate::reactor::queues::{KeeperRequest, Verdict};
use crate::reactor::segment::Purpose;
use crate::reactor::task::Kind;
use crate::reactor::token::ChunkToken;
use crate::reactor::{BATCH, Reactor};
use crate::ring::codes;
use crate::units::Location;

/// Copies that one task may have moved to other places. A drive that fails every write is not a
/// bad-block problem.
const MAX_MOVES: u32 = 8;

impl Reactor {
    /// Handles the answers of drives, checksum helpers and the keeper.
    pub(super) fn handle_answers(&mut self) -> bool {
        let mut progress = false;
        for _ in 0..4 * BATCH {
            let Some(answer) = self.queues.answers[usize::from(self.index)].pop() else { break };
            progress = true;
            may_panic(Victim::Reactor);
            match answer {
                Answer::Io { token, status } => self.handle_io(token, status),
                Answer::Checksum { token, crc64, padding_is_zero } => {
                    self.handle_checksum(token, crc64, padding_is_zero);
                }
                Answer::Moved { token, to } => self.handle_moved(token, to),
                Answer::NoChecksum { token } => {
                    let token = ChunkToken::decode(token);
                    self.fail_chunk(token, IoError::Os(libc::ENOTRECOVERABLE));
                    self.answered(token.slot);
                }
                Answer::Unfenced { token } => {
                    let token = ChunkToken::decode(token);
                    self.return_credit(token);
                    let slot = token.slot;
                    self.tasks.get(slot).unfenced = true;
                    self.tasks.get(slot).fail(Outcome::REMOVED);
                    self.answered(slot);
                }
            }
        }
        progress
    }

    /// A drive's answer: a chunk that was read is now compared; a copy that was written is done.
    fn handle_io(&mut self, token: u64, status: Result<(), IoError>) {
        let token = ChunkToken::decode(token);
        self.return_credit(token);
        let kind = self.tasks.get(token.slot).kind;
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let at = chunk * transfer.segment.chunk_bytes;
        match (kind, status) {
            // The credit and the outstanding answer pass from the drive to the helper.
            (Kind::Read, Ok(())) => return self.send_to_helpers(token),
            (_, Ok(())) => transfer.segment.copy_written(chunk),
            (Kind::Read, Err(error)) => {
                let outcome = Outcome::of_io_error(error, at);
                if self.read_second_copy(token, codes::describe(outcome.result)) {
                    return;
                }
                self.tasks.get(token.slot).fail(outcome);
            }
            (_, Err(error)) => {
                if self.request_another_place(token, error) {
                    return;
                }
                self.fail_chunk(token, error);
            }
        }
        self.answered(token.slot);
    }

    /// The drive's credit of a command that was answered.
    fn return_credit(&mut self, token: ChunkToken) {
        let location = self.transfer(token.slot).location(token.relative, token.second);
        self.schedule.return_credit(location.drive.as_usize());
    }

    fn fail_chunk(&mut self, token: ChunkToken, error: IoError) {
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let outcome = Outcome::of_io_error(error, chunk * transfer.segment.chunk_bytes);
        self.tasks.get(token.slot).fail(outcome);
    }

    /// A chunk could not be written. If the place is bad and the drive is not, the keeper is asked
    /// for another place; the credit and the outstanding answer pass to it. The drive's queue has
    /// already retried what may be retried.
    fn request_another_place(&mut self, token: ChunkToken, error: IoError) -> bool {
        let action = status::action(Operation::Write, error).when_retries_end(Operation::Write);
        let task = self.tasks.get(token.slot);
        let failed = task.failure.is_some() || task.moves == MAX_MOVES;
        if action != Action::Move || failed {
            return false;
        }
        task.moves += 1;
        let transfer = self.transfer(token.slot);
        let Purpose::Save { checkpoint } = transfer.segment.purpose else { return false };
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let request = KeeperRequest {
            checkpoint,
            participant: transfer.segment.participant,
            verdict: Verdict::Move { chunk, second: token.second, error },
            reply: Reply { to: self.index, token: token.encode() },
        };
        self.to_keeper.push_back(request);
        true
    }

    /// The keeper's answer: the chunk is written again, to its new place.
    fn handle_moved(&mut self, token: u64, to: Result<Location, IoError>) {
        let token = ChunkToken::decode(token);
        match to {
            Ok(to) => {
                let transfer = self.transfer(token.slot);
                let from = transfer.location(token.relative, token.second);
                let chunk = transfer.first_chunk + u64::from(token.relative);
                tracing::warn!(
                    drive = from.drive.0,
                    slot = from.slot,
                    "a place on a drive cannot be written and is not used again; its chunk goes to drive \
                     {}, slot {}",
                    to.drive,
                    to.slot
                );
                transfer.segment.move_copy(chunk, token.second, to);
                self.send_to_drive(token, Operation::Write);
            }
            Err(error) => {
                self.fail_chunk(token, error);
                self.answered(token.slot);
            }
        }
    }

    /// A helper's answer: the checksum of a chunk to save is recorded, that of a chunk which was
    /// read, or is repaired, is compared.
    fn handle_checksum(&mut self, token: u64, crc64: u64, padding_is_zero: bool) {
        let token = ChunkToken::decode(token);
        let kind = self.tasks.get(token.slot).kind;
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let aux = chunk * transfer.segment.chunk_bytes;
        if kind == Kind::Write && transfer.segment.purpose.saves() {
            transfer.segment.set_crc64(chunk, crc64);
        } else if !chunk_is_sound(transfer.segment.crc64(chunk), crc64, padding_is_zero) {
            if self.read_second_copy(token, codes::describe(codes::CHECKSUM)) {
                return;
            }
            let outcome = Outcome { result: codes::CHECKSUM, detail: 0, aux };
            self.tasks.get(token.slot).fail(outcome);
        }
        self.answered(token.slot);
    }

    /// The first copy of a chunk cannot be read or is damaged: reads the second one, if there is
    /// one, with the same credit and outstanding answer.
    fn read_second_copy(&mut self, token: ChunkToken, why: &str) -> bool {
        let transfer = self.transfer(token.slot);
        let chunk = transfer.first_chunk + u64::from(token.relative);
        let copies = transfer.segment.copies(chunk);
        if token.second || copies.second.is_none() {
            return false;
        }
        tracing::warn!(
            drive = copies.first.drive.0,
            slot = copies.first.slot,
            "the first copy of a chunk cannot be read ({why}), so its second copy is; `stanchion \
             verify --repair` repairs the first"
        );
        self.send_to_drive(ChunkToken { second: true, ..token }, Operation::Read);
        true
    }

    /// One answer came: the credit is free again, and the task may be done.
    fn answered(&mut self, slot: u32) {
        self.credits += 1;
        self.tasks.get(slot).outstanding -= 1;
        let task = self.tasks.get(slot);
        if task.remaining() == 0 {
            // A failed task sends no more, and does not wait for its turn to say so.
            let port = Port::index(task.port);
            self.schedule.remove(&mut self.tasks, port, slot);
            self.finish_if_done(slot);
        }
    }
}
