// SPDX-License-Identifier: Apache-2.0
//! From a ring's entry to a task: everything from a client is checked here.

use std::sync::Arc;

use crate::limits::BLOCK_BYTES;
use crate::planted::{Victim, may_panic};
use crate::reactor::answer::{Finished, Reply};
use crate::reactor::port::{Finish, Port};
use crate::reactor::queues::{KeeperRequest, Verdict};
use crate::reactor::segment::Purpose;
use crate::reactor::task::{Kind, Task, Transfer};
use crate::reactor::token::{FinishToken, MAX_CHUNKS_PER_TASK};
use crate::reactor::{BATCH, Reactor};
use crate::ring::{self, CompleteEntry, Request, codes};
use crate::units::{is_block_aligned, round_up};

impl Reactor {
    /// Takes entries from one session's ring while there is room for their tasks.
    pub(super) fn take_entries(&mut self, index: usize) -> bool {
        let mut progress = false;
        for _ in 0..BATCH {
            let Some(port) = self.ports[index].as_mut() else { break };
            if !port.is_open() || !self.tasks.has_room(port.tasks) {
                break;
            }
            let entry = match port.ring.take() {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(poisoned) => {
                    tracing::warn!("a session's ring: {poisoned}; its entries are no longer read");
                    port.poisoned = true;
                    port.client.wake();
                    break;
                }
            };
            progress = true;
            let number = port.number;
            port.entries += 1;
            let user_data = entry.user_data;
            self.in_hand = Some((number, user_data));
            may_panic(Victim::Reactor);
            let outcome = match entry.decode() {
                Ok(request) => self.accept(number, user_data, request),
                Err(reject) => Err((reject.code(), 0)),
            };
            if let Err((code, aux)) = outcome {
                self.complete(number, CompleteEntry::failure(user_data, code, aux));
            }
        }
        progress
    }

    /// Starts a task, or returns the code (and aux) with which its entry completes at once.
    fn accept(&mut self, number: u32, user_data: u64, request: Request) -> Result<(), (i64, u64)> {
        let refuse = |code| (code, 0);
        match request {
            Request::Nop => {
                self.complete(number, CompleteEntry::success(user_data, 0, 0));
                Ok(())
            }
            Request::Write(transfer) => {
                self.accept_transfer(number, user_data, transfer, Kind::Write).map_err(refuse)
            }
            Request::Read(transfer) => {
                self.accept_transfer(number, user_data, transfer, Kind::Read).map_err(refuse)
            }
            Request::Commit { checkpoint } => {
                self.accept_finish(number, user_data, checkpoint, Finish::Commit)
            }
            Request::Abort { checkpoint } => {
                self.accept_finish(number, user_data, checkpoint, Finish::Abort)
            }
        }
    }

    fn accept_transfer(
        &mut self,
        number: u32,
        user_data: u64,
        request: ring::Transfer,
        kind: Kind,
    ) -> Result<(), i64> {
        let Some(port) = self.port(number) else {
            return Err(codes::BAD_HANDLE);
        };
        let transfer = check_transfer(port, &request, kind)?;
        if let Some(slot) = port.segment(request.checkpoint) {
            slot.transfers += 1;
        }
        port.tasks += 1;
        let slot = self.tasks.insert(Task {
            port: number,
            handle: request.checkpoint,
            user_data,
            len_bytes: request.len_bytes,
            ..Task::new(kind, transfer)
        });
        self.in_hand = None;
        self.await_turn(slot);
        Ok(())
    }

    /// A commit or an abort waits for the transfers that were submitted before it.
    fn accept_finish(
        &mut self,
        number: u32,
        user_data: u64,
        handle: u64,
        finish: Finish,
    ) -> Result<(), (i64, u64)> {
        // Not `self.port`: the entry leaves the hand at the same time.
        let port = self.ports.get_mut(Port::index(number)).and_then(Option::as_mut);
        let slot = port.and_then(|port| port.segment(handle));
        let Some(slot) = slot else { return Err((codes::BAD_HANDLE, 0)) };
        if slot.finished || slot.finish.is_some() || !slot.segment.purpose.saves() {
            return Err((codes::BAD_HANDLE, 0));
        }
        slot.finish = Some((finish, user_data));
        self.in_hand = None;
        self.ask_keeper_if_due(number, handle);
        Ok(())
    }

    /// Called when a transfer of a segment ended: a commit, abort or removal may now be possible.
    pub(super) fn transfer_ended(&mut self, number: u32, handle: u64) {
        let Some(port) = self.port(number) else { return };
        let Some(slot) = port.segment(handle) else { return };
        slot.transfers -= 1;
        self.ask_keeper_if_due(number, handle);
        if let Some(port) = self.port(number) {
            port.finish_removal(handle);
        }
    }

    fn ask_keeper_if_due(&mut self, number: u32, handle: u64) {
        let slot = self.port(number).and_then(|port| port.segment(handle));
        let Some(slot) = slot else { return };
        let Some((finish, user_data)) = slot.finish else { return };
        if slot.transfers > 0 {
            return;
        }
        let Purpose::Save { checkpoint } = slot.segment.purpose else { return };
        let missing = slot.segment.missing_chunks();
        if finish == Finish::Commit && missing > 0 {
            // The segment stays open: the missing chunks may still be written.
            slot.finish = None;
            self.in_hand = Some((number, user_data));
            let entry = CompleteEntry::failure(user_data, codes::INCOMPLETE, missing);
            self.complete(number, entry);
            return;
        }
        slot.finished = true;
        let token =
            FinishToken { port: Port::index(number) as u32, segment: Port::segment_place(handle) };
        let request = KeeperRequest {
            checkpoint,
            participant: slot.segment.participant,
            verdict: if finish == Finish::Commit { Verdict::Whole } else { Verdict::Abort },
            reply: Reply { to: self.index, token: token.encode() },
        };
        self.to_keeper.push_back(request);
    }

    /// Completes the commits and aborts that the keeper has finished.
    pub(super) fn handle_finished(&mut self) -> bool {
        let mut progress = false;
        for _ in 0..4 * BATCH {
            let queue = &self.queues.reactors[usize::from(self.index)].finished;
            // Cheaper than a `pop` that finds nothing.
            if queue.is_empty() {
                break;
            }
            let Some(Finished { token, outcome }) = queue.pop() else { break };
            progress = true;
            let FinishToken { port: place, segment } = FinishToken::decode(token);
            let Some(Some(port)) = self.ports.get_mut(place as usize) else { continue };
            let number = port.number;
            let Some((handle, slot)) = port.segment_at(segment) else { continue };
            let Some((_, user_data)) = slot.finish else { continue };
            self.in_hand = Some((number, user_data));
            slot.finish = None;
            port.finish_removal(handle);
            self.complete(number, outcome.completion(user_data));
        }
        progress
    }
}

/// Checks a transfer against the segment and the buffer that it names. A write claims its chunks.
fn check_transfer(port: &mut Port, request: &ring::Transfer, kind: Kind) -> Result<Transfer, i64> {
    let slot = port.segment(request.checkpoint).ok_or(codes::BAD_HANDLE)?;
    let purpose = slot.segment.purpose;
    let allowed = if kind == Kind::Write { purpose.writes() } else { purpose.reads() };
    if !allowed || slot.finished || slot.finish.is_some() {
        return Err(codes::BAD_HANDLE);
    }
    let segment = Arc::clone(&slot.segment);
    let end = request.segment_offset_bytes.checked_add(request.len_bytes);
    let end = end.filter(|end| *end <= segment.len_bytes).ok_or(codes::RANGE)?;
    let starts_on_chunk = request.segment_offset_bytes.is_multiple_of(segment.chunk_bytes);
    let ends_on_chunk = end.is_multiple_of(segment.chunk_bytes) || end == segment.len_bytes;
    if request.len_bytes == 0 || !starts_on_chunk || !ends_on_chunk {
        return Err(codes::INVALID);
    }
    let buffer = port.buffers.lookup(request.buffer).ok_or(codes::BAD_HANDLE)?;
    if !is_block_aligned(request.buffer_offset_bytes) {
        return Err(codes::INVALID);
    }
    // Drives move whole blocks, so the padding after the last byte must lie in the buffer too.
    let padded = round_up(request.len_bytes, BLOCK_BYTES).ok_or(codes::RANGE)?;
    let buffer_end = request.buffer_offset_bytes.checked_add(padded);
    buffer_end.filter(|end| *end <= buffer.len_bytes()).ok_or(codes::RANGE)?;

    let first_chunk = request.segment_offset_bytes / segment.chunk_bytes;
    let chunk_count = request.len_bytes.div_ceil(segment.chunk_bytes);
    let chunk_count_u32 = u32::try_from(chunk_count).map_err(|_| codes::RANGE)?;
    if chunk_count_u32 >= MAX_CHUNKS_PER_TASK {
        return Err(codes::RANGE);
    }
    let is_new = kind == Kind::Write && purpose.saves();
    if is_new && !segment.claim(first_chunk, chunk_count) {
        return Err(codes::EXISTS);
    }
    Ok(Transfer {
        segment,
        region: Arc::clone(buffer.region()),
        region_offset_bytes: buffer.offset_bytes() + request.buffer_offset_bytes,
        first_chunk,
        chunk_count: chunk_count_u32,
        usage: Arc::clone(buffer.usage()),
    })
}
