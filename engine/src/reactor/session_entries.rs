// SPDX-License-Identifier: Apache-2.0
//! From a ring's entry to a task: everything from a client is checked here.

use std::sync::Arc;

use crate::limits::BLOCK_BYTES;
use crate::reactor::answer::{Outcome, Reply};
use crate::reactor::port::{Finish, Port};
use crate::reactor::queues::{KeeperRequest, Verdict};
use crate::reactor::segment::Purpose;
use crate::reactor::task::{Kind, Task, Transfer};
use crate::reactor::token::{ChunkToken, MAX_CHUNKS_PER_TASK};
use crate::reactor::{BATCH, Reactor};
use crate::ring::{self, CompleteEntry, Request, codes};
use crate::units::{is_block_aligned, round_up};

impl Reactor {
    /// Takes entries from one session's ring while there is room for their tasks.
    pub(super) fn take_entries(&mut self, index: usize) -> bool {
        let mut progress = false;
        for _ in 0..BATCH {
            if !self.tasks.has_room() {
                break;
            }
            let Some(port) = self.ports[index].as_mut() else { break };
            if !port.is_open() {
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
            port.tasks += 1;
            let user_data = entry.user_data;
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
        self.tasks.insert(Task {
            kind,
            port: number,
            handle: request.checkpoint,
            user_data,
            len_bytes: request.len_bytes,
            transfer: Some(transfer),
            next: 0,
            outstanding: 0,
            moves: 0,
            failure: None,
            queued: false,
        });
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
        let slot = self.port(number).and_then(|port| port.segment(handle));
        let Some(slot) = slot else { return Err((codes::BAD_HANDLE, 0)) };
        if slot.finished || slot.finish.is_some() || !slot.segment.purpose.saves() {
            return Err((codes::BAD_HANDLE, 0));
        }
        let task = self.tasks.insert(Task {
            kind: Kind::Finish,
            port: number,
            handle,
            user_data,
            len_bytes: 0,
            transfer: None,
            next: 0,
            outstanding: 1,
            moves: 0,
            failure: None,
            queued: false,
        });
        if let Some(slot) = self.port(number).and_then(|port| port.segment(handle)) {
            slot.finish = Some((finish, task));
        }
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
        let Some((finish, task)) = slot.finish else { return };
        if slot.transfers > 0 {
            return;
        }
        let Purpose::Save { checkpoint } = slot.segment.purpose else { return };
        let missing = slot.segment.missing_chunks();
        if finish == Finish::Commit && missing > 0 {
            // The segment stays open: the missing chunks may still be written.
            slot.finish = None;
            let ended = self.tasks.remove(task);
            let entry = CompleteEntry::failure(ended.user_data, codes::INCOMPLETE, missing);
            self.complete(number, entry);
            return;
        }
        slot.finished = true;
        let request = KeeperRequest {
            checkpoint,
            participant: slot.segment.participant,
            verdict: if finish == Finish::Commit { Verdict::Whole } else { Verdict::Abort },
            reply: Reply { to: self.index, token: ChunkToken::of_task(task).encode() },
        };
        self.queues.send_to_keeper(request);
    }

    /// The keeper finished a commit or an abort.
    pub(super) fn handle_finished(&mut self, token: u64, outcome: Outcome) {
        let task = self.tasks.remove(ChunkToken::decode(token).slot);
        let number = task.port;
        if let Some(port) = self.port(number) {
            if let Some(slot) = port.segment(task.handle) {
                slot.finish = None;
            }
            port.finish_removal(task.handle);
        }
        self.complete(number, outcome.completion(task.user_data));
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
