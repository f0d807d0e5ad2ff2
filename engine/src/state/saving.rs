// SPDX-License-Identifier: Apache-2.0
//! Checkpoints that are being written: who joins, the space reserved for them, and when it is free.
//!
//! - A participant gets the space of its whole segment or nothing.
//! - The space of an aborted checkpoint stays reserved until every segment of it has ended: until
//!   then a drive may still write there.

use std::sync::Arc;

use crate::error::{CHECKPOINTS_OF_A_POOL, Error};
use crate::format::{Manifest, SegmentTable, ShardList, blocks_of, shard};
use crate::limits::{MAX_PARTICIPANTS, MAX_SEGMENT_BYTES, MAX_SHARD_LIST_BYTES};
use crate::name::check_base_name;
use crate::placement;
use crate::state::holding::{Committed, Holding, Run};
use crate::state::open_checkpoint::{
    CheckpointSpec, ChunkPlace, Identity, OpenCheckpoint, OpenSegment, Readiness,
};
use crate::state::pool_state::State;
use crate::state::tables::TablePlaces;
use crate::units::{Copies, DriveIndex, Location};

/// Why a participant could not join.
#[derive(Debug)]
pub(crate) enum BeginError {
    /// There may be room after an empty commit; the error if there is not.
    Reclaim {
        no_space: Error,
    },
    Failed(Error),
}

impl State {
    /// Lets a participant join a checkpoint, making the checkpoint if it is the first. Reserves the
    /// space of its segment, or reserves nothing. The result is the number of the open checkpoint.
    pub(crate) fn begin(
        &mut self,
        spec: &CheckpointSpec,
        identity: impl Into<Identity>,
    ) -> Result<u64, BeginError> {
        let identity = identity.into();
        self.check_poison().map_err(BeginError::Failed)?;
        check_spec(spec).map_err(BeginError::Failed)?;
        self.check_known()?;
        if self.current.contains_key(&spec.name) {
            return Err(BeginError::Failed(Error::CheckpointExists(spec.name.to_string())));
        }
        let joined = self.open.iter().find(|(_, open)| open.name == spec.name).map(|(n, _)| *n);
        if let Some(number) = joined {
            let open = &self.open[&number];
            check_join(open, spec).map_err(BeginError::Failed)?;
        } else if self.current.len() + self.open.len() >= self.label.layout.max_checkpoints() {
            return Err(BeginError::Failed(Error::TooMany {
                what: CHECKPOINTS_OF_A_POOL,
                limit: self.label.layout.max_checkpoints() as u64,
            }));
        }
        let Some(reserved) = self.reserve(spec, joined) else {
            let no_space = self.no_space(spec.len_bytes);
            // Retired space becomes free when one more generation is committed.
            return Err(if self.retired.is_empty() {
                BeginError::Failed(no_space)
            } else {
                BeginError::Reclaim { no_space }
            });
        };
        let number = joined.unwrap_or_else(|| {
            let number = self.next_open;
            self.next_open += 1;
            let segments = (0..spec.participants).map(|_| None).collect();
            let holding = Holding::new(self.label.drives.len());
            let name = spec.name.clone();
            let open = OpenCheckpoint {
                identity,
                name,
                segments,
                manifest: None,
                holding,
                aborted: false,
            };
            self.open.insert(number, open);
            number
        });
        if let Some(open) = self.open.get_mut(&number) {
            reserved.copies.iter().for_each(|copies| open.holding.add_chunk(*copies));
            let TablePlaces { table, list } = reserved.places;
            open.holding.add_tables(&self.label.layout, table.iter().chain(&list));
            if let Some(run) = reserved.manifest {
                open.manifest = Some(run);
                open.holding.add_common(run);
            }
            open.segments[spec.participant as usize] = Some(OpenSegment {
                len_bytes: spec.len_bytes,
                shards: spec.shards.clone(),
                copies: reserved.copies,
                table,
                list,
                whole: false,
                ended: false,
            });
        }
        Ok(number)
    }

    /// While the metadata of a checkpoint cannot be read on any drive, its space is unknown: its
    /// chunks look like free space, and may be the only copies.
    /// Once it is removed, one more generation is enough: then neither of the two newest has it.
    fn check_known(&self) -> Result<(), BeginError> {
        let Some(mut damage) = self.damaged.iter().find_map(|c| c.damage.clone()) else {
            return Ok(());
        };
        damage.detail.push_str(
            "; nothing is saved while its data cannot be distinguished from free space: remove it first",
        );
        let is_kept = |damaged: &Arc<Committed>| self.current.contains_key(&damaged.name());
        Err(match self.damaged.iter().any(is_kept) {
            true => BeginError::Failed(damage.into()),
            false => BeginError::Reclaim { no_space: damage.into() },
        })
    }

    fn no_space(&self, needed_bytes: u64) -> Error {
        let free_bytes = self.free_bytes();
        if needed_bytes <= free_bytes {
            Error::NoMetadataSpace
        } else {
            Error::NoSpace { needed_bytes, free_bytes }
        }
    }

    /// Takes units from the maps, all or none.
    fn reserve(&mut self, spec: &CheckpointSpec, joined: Option<u64>) -> Option<Reserved> {
        let (copies, start) = (self.copies(), spec.participant as usize);
        let chunks = spec.len_bytes.div_ceil(self.label.layout.chunk_bytes());
        let share = placement::shares(chunks, copies, &self.free_slots(), start)?;
        let reserved = self.reserve_shares(spec, joined, &share);
        if reserved.is_none() {
            self.derive_free_space();
        }
        reserved
    }

    fn reserve_shares(
        &mut self,
        spec: &CheckpointSpec,
        joined: Option<u64>,
        share: &[u64],
    ) -> Option<Reserved> {
        let chunk_bytes = self.label.layout.chunk_bytes();
        let copies = self.copies();
        let table_bytes = SegmentTable::encoded_bytes(spec.len_bytes, chunk_bytes, copies);
        let list_bytes = ShardList::encoded_bytes(&spec.shards);
        let turn = joined.unwrap_or(self.next_open).wrapping_add(spec.participant.into());
        let places = self.place_tables(blocks_of(table_bytes), blocks_of(list_bytes), turn)?;
        let manifest = match self.manifest_bytes(spec, joined, &places) {
            Some(bytes) => Some(self.place_manifest(blocks_of(bytes))?),
            None => None,
        };
        let mut slots = vec![Vec::new(); share.len()];
        for ((map, count), out) in self.data.iter_mut().zip(share).zip(&mut slots) {
            // `shares` checked the free counts, so this cannot fail.
            map.allocate_many(*count, out).then_some(())?;
        }
        let copies = placement::place(&slots, copies, spec.participant as usize);
        Some(Reserved { copies, places, manifest })
    }

    /// The size of the manifest, if this participant is the last to join.
    fn manifest_bytes(
        &self,
        spec: &CheckpointSpec,
        joined: Option<u64>,
        places: &TablePlaces,
    ) -> Option<u64> {
        let segments = joined.and_then(|number| self.open.get(&number)).map(|o| &o.segments);
        let here = segments.into_iter().flatten().flatten();
        let (others, runs) = here.fold((0, 0), |(count, runs), segment| {
            (count + 1, runs + segment.table.len() + segment.list.len())
        });
        let runs = (runs + places.table.len() + places.list.len()) as u64;
        (others + 1 == spec.participants)
            .then(|| Manifest::encoded_bytes(&spec.name.name, spec.participants, runs))
    }

    /// Where the chunks of a participant's segment lie.
    pub(crate) fn copies_of(&self, open: u64, participant: u32) -> Option<&[Copies]> {
        let segment = self.open.get(&open)?.segments.get(participant as usize)?.as_ref()?;
        Some(&segment.copies)
    }

    /// The place of a chunk's copy cannot be written: gives it another one, on another drive if
    /// that has room, and does not use the bad one again. `None` when there is no other place, or
    /// the checkpoint will not be committed anyway.
    pub(crate) fn relocate(&mut self, place: ChunkPlace) -> Option<Location> {
        let open = self.open.get(&place.checkpoint).filter(|open| !open.aborted)?;
        let segment = open.segments.get(place.participant as usize)?.as_ref()?;
        let mut copies = *segment.copies.get(usize::try_from(place.chunk).ok()?)?;
        let (bad, other) = match copies.second {
            Some(second) if place.second => (second, Some(copies.first)),
            other => (copies.first, other),
        };
        let free = self.free_slots();
        let allowed = |drive: &usize| {
            free[*drive] > 0 && other.is_none_or(|other| other.drive.as_usize() != *drive)
        };
        let elsewhere = (0..free.len())
            .filter(|drive| *drive != bad.drive.as_usize())
            .filter(allowed)
            .max_by_key(|drive| free[*drive]);
        let drive = elsewhere.or(Some(bad.drive.as_usize()).filter(allowed))?;
        let slot = self.data[drive].allocate_run(1)?;
        let to = Location { drive: DriveIndex(drive as u16), slot };
        match place.second {
            true => copies.second = Some(to),
            false => copies.first = to,
        }
        self.bad.push(bad);
        let open = self.open.get_mut(&place.checkpoint)?;
        let segment = open.segments.get_mut(place.participant as usize)?.as_mut()?;
        segment.copies[place.chunk as usize] = copies;
        let mut holding =
            Holding { meta: std::mem::take(&mut open.holding.meta), ..Holding::new(free.len()) };
        for segment in open.segments.iter().flatten() {
            segment.copies.iter().for_each(|copies| holding.add_chunk(*copies));
        }
        open.holding = holding;
        Some(to)
    }

    /// A participant reports that its segment is complete, and that it writes no more.
    pub(crate) fn set_whole(&mut self, number: u64, participant: u32) -> Readiness {
        let Some(open) = self.open.get_mut(&number) else { return Readiness::Aborted };
        if let Some(Some(segment)) = open.segments.get_mut(participant as usize) {
            (segment.whole, segment.ended) = (true, true);
        }
        if open.aborted {
            self.free_if_ended(number);
            return Readiness::Aborted;
        }
        if open.segments.iter().all(|s| s.as_ref().is_some_and(|segment| segment.whole)) {
            return Readiness::Ready;
        }
        Readiness::Waiting
    }

    /// The checkpoint will not be committed. Its space stays reserved while a segment of it may
    /// still be written.
    pub(crate) fn mark_aborted(&mut self, number: u64) {
        if let Some(open) = self.open.get_mut(&number) {
            open.aborted = true;
        }
        self.free_if_ended(number);
    }

    /// No write of this segment is in flight or can begin.
    pub(crate) fn end_segment(&mut self, number: u64, participant: u32) {
        if let Some(open) = self.open.get_mut(&number)
            && let Some(Some(segment)) = open.segments.get_mut(participant as usize)
        {
            segment.ended = true;
        }
        self.free_if_ended(number);
    }

    fn free_if_ended(&mut self, number: u64) {
        let over = self.open.get(&number).is_some_and(|open| {
            open.aborted && open.segments.iter().flatten().all(|segment| segment.ended)
        });
        if over {
            self.open.remove(&number);
            self.derive_free_space();
        }
    }
}

struct Reserved {
    copies: Vec<Copies>,
    places: TablePlaces,
    manifest: Option<Run>,
}

/// Checks what a participant declares.
fn check_spec(spec: &CheckpointSpec) -> Result<(), Error> {
    let usage = |text: String| Err(Error::Usage(format!("{}: {text}", spec.name)));
    check_base_name(&spec.name.name)?;
    if spec.participants == 0 || spec.participants > MAX_PARTICIPANTS {
        return usage(format!("a checkpoint has 1 to {MAX_PARTICIPANTS} participants"));
    }
    if spec.participant >= spec.participants {
        return usage(format!(
            "participant {} of {}: they are numbered from 0",
            spec.participant, spec.participants
        ));
    }
    if spec.len_bytes > MAX_SEGMENT_BYTES {
        return usage(format!("a segment has at most {MAX_SEGMENT_BYTES} bytes"));
    }
    let list_bytes = ShardList::encoded_bytes(&spec.shards);
    if list_bytes > MAX_SHARD_LIST_BYTES {
        return usage(format!(
            "the names, shapes and attributes of {} shards take {list_bytes} bytes of metadata; at most {MAX_SHARD_LIST_BYTES} bytes are allowed for one participant: merge small shards",
            spec.shards.len()
        ));
    }
    shard::check_shards(&spec.shards, spec.len_bytes)
        .map_err(|why| Error::Usage(format!("{}: {why}", spec.name)))
}

fn check_join(open: &OpenCheckpoint, spec: &CheckpointSpec) -> Result<(), Error> {
    if open.aborted {
        return Err(Error::Busy {
            what: format!("checkpoint {}", spec.name),
            owner: "a save that is being aborted".into(),
        });
    }
    if open.segments.len() != spec.participants as usize {
        return Err(Error::Usage(format!(
            "{}: begun with {} participants, not {}",
            spec.name,
            open.segments.len(),
            spec.participants
        )));
    }
    if open.segments[spec.participant as usize].is_some() {
        return Err(Error::CheckpointExists(format!(
            "{} (participant {} is being written)",
            spec.name, spec.participant
        )));
    }
    Ok(())
}
