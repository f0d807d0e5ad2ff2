// SPDX-License-Identifier: Apache-2.0
//! A pool that is filled with checkpoints until no further one fits. Opening it is measured.

use std::cell::RefCell;

use uuid::Uuid;

use crate::commit::{self, Committer};
use crate::device::retrying::Retrying;
use crate::device::{self, OpenMode};
use crate::direct::DirectDrives;
use crate::drive_info::DriveInfo;
use crate::drives::{DriveCommand, Drives};
use crate::error::{Error, IoError};
use crate::format::{AttributeType, Attributes, Shard, ShardList};
use crate::memory::HugePages;
use crate::name::CheckpointName;
use crate::pool::FormatOptions;
use crate::pool::format_on;
use crate::recover::opening::{Identified, Opening, identify, recover_state};
use crate::state::CheckpointSpec;

/// Bytes of metadata that one commit holds in memory at most, unless one checkpoint has more.
const BYTES_PER_COMMIT: u64 = 1 << 30;
/// Fewer and longer records make a list of the same size in less time.
const ATTRIBUTE_BYTES: usize = 4000;

/// A checkpoint of equal participants.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// All of it.
    pub bytes: u64,
    /// Participants.
    pub participants: u32,
    /// Shards of each participant, with names of 62 bytes.
    pub shards_each: u64,
}

/// What was filled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filled {
    /// Checkpoints.
    pub checkpoints: u64,
    /// Generations that hold them.
    pub commits: u64,
}

/// Formats these drives and commits checkpoints until no further one fits. Space is reserved and
/// committed as in a pool that is open, and manifests, segment tables and catalogues are written.
/// Two things are not written: data, and shard lists, which are placed with their full size.
/// Opening a pool reads neither.
///
/// # Errors
/// Those of formatting and of commits.
pub fn fill_pool(options: &FormatOptions, job: &Job) -> Result<Filled, Error> {
    let create = options.create_bytes.unwrap_or_default();
    for drive in &options.drives {
        if let crate::address::DriveAddress::Path(path) = drive {
            let file = std::fs::File::create_new(path);
            let made = file.and_then(|file| file.set_len(create));
            made.map_err(|error| Error::Usage(format!("{}: {error}", path.display())))?;
        }
    }
    let open = || {
        let devices = options.drives.iter();
        let devices = devices.map(|drive| device::open(drive, OpenMode::ReadWrite, None));
        devices.collect::<Result<Vec<_>, Error>>()
    };
    format_on(open()?, options)?;
    let devices = open()?.into_iter().map(Retrying::over).collect();
    let mut drives = WithoutLists(DirectDrives::new(devices, HugePages::Off)?);
    let mut notices = Vec::new();
    let Identified { labels, membership } = identify(&mut drives.0, false, &mut notices)?;
    let opening = Opening { writable: true, ..Opening::default() };
    let state = recover_state(&mut drives, labels, &membership, opening, &mut notices)?;
    let chunk_bytes = state.label().layout.chunk_bytes();
    let state = RefCell::new(state);
    let mut committer = Committer::new(&state);

    let segment_bytes = job.bytes / u64::from(job.participants);
    let chunks = segment_bytes.div_ceil(chunk_bytes);
    let shards = list_of(job.shards_each, segment_bytes);
    let each_bytes = ShardList::encoded_bytes(&shards) + 16 * chunks;
    let per_commit = BYTES_PER_COMMIT / (each_bytes * u64::from(job.participants)).max(1);
    let mut filled = Filled::default();
    let mut is_full = false;
    while !is_full {
        let mut begun = 0;
        while begun < per_commit.max(1) && !is_full {
            let step = filled.checkpoints + begun;
            let open = begin_all(&state, job, step, segment_bytes, &shards)?;
            is_full = open.is_none();
            let Some(open) = open else { break };
            for participant in 0..job.participants {
                committer.set_whole(open, participant);
            }
            begun += 1;
        }
        if begun > 0 {
            let sums = |_, _| (0..chunks).collect();
            committer.commit_ready(&mut drives, &sums, 0).result?;
            filled =
                Filled { checkpoints: filled.checkpoints + begun, commits: filled.commits + 1 };
        }
    }
    Ok(filled)
}

/// All participants of one checkpoint; `None` when it does not fit.
fn begin_all(
    state: &RefCell<crate::state::State>,
    job: &Job,
    step: u64,
    len_bytes: u64,
    shards: &[Shard],
) -> Result<Option<u64>, Error> {
    let mut open = None;
    for participant in 0..job.participants {
        let spec = CheckpointSpec {
            name: CheckpointName::new("run", step)?,
            participants: job.participants,
            participant,
            len_bytes,
            shards: shards.to_vec(),
        };
        match commit::begin(state, &spec, Uuid::from_u128(1 + u128::from(step)), || Ok(())) {
            Ok(number) => open = Some(number),
            Err(Error::NoSpace { .. } | Error::NoMetadataSpace | Error::TooMany { .. }) => {
                let mut state = state.borrow_mut();
                if let Some(open) = open {
                    state.mark_aborted(open);
                    (0..participant).for_each(|ended| state.end_segment(open, ended));
                }
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(open)
}

/// Shards whose list is as long as one of so many usual ones.
fn list_of(shards: u64, segment_bytes: u64) -> Vec<Shard> {
    let usual = |number: u64| Shard {
        name: format!("{number:062}"),
        dtype: "F16".into(),
        shape: vec![4096, 4096],
        ..Shard::default()
    };
    let none = ShardList::encoded_bytes(&[]);
    let wanted = shards * (ShardList::encoded_bytes(&[usual(0)]) - none);
    let mut attributes = Attributes::default();
    attributes.push(AttributeType(999), &[7; ATTRIBUTE_BYTES]).expect("a type without rules");
    let long = |number| Shard { attributes: attributes.clone(), ..usual(number) };
    let count = wanted / (ShardList::encoded_bytes(&[long(0)]) - none);
    debug_assert!(count <= segment_bytes);
    (0..count).map(|number| Shard { offset_bytes: number, len_bytes: 1, ..long(number) }).collect()
}

/// Drives that take shard lists and write them nowhere: thousands of long lists are more than this
/// machine stores.
struct WithoutLists(DirectDrives);

impl Drives for WithoutLists {
    fn info(&self) -> &[DriveInfo] {
        self.0.info()
    }

    fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), IoError>> {
        let is_list = |command: &DriveCommand<'_>| matches!(command, DriveCommand::Write { data, .. } if data.starts_with(b"STN SHRD"));
        let dropped: Vec<bool> = batch.iter().map(is_list).collect();
        let mut kept: Vec<DriveCommand<'_>> = Vec::new();
        for (command, dropped) in batch.iter_mut().zip(&dropped) {
            let (drive, at) = (command.drive(), command.offset_bytes());
            match command {
                _ if *dropped => {}
                DriveCommand::Read { into, .. } => {
                    kept.push(DriveCommand::Read { drive, offset_bytes: at, into });
                }
                DriveCommand::Write { data, durable, .. } => {
                    let durable = *durable;
                    kept.push(DriveCommand::Write { drive, offset_bytes: at, data, durable });
                }
                DriveCommand::Flush { .. } => kept.push(DriveCommand::Flush { drive }),
            }
        }
        let mut statuses = self.0.run(&mut kept).into_iter();
        let status =
            |dropped: &bool| if *dropped { Ok(()) } else { statuses.next().unwrap_or(Ok(())) };
        dropped.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::DriveAddress;
    use crate::pool::{Pool, PoolMode, PoolOptions};

    #[test]
    fn a_full_pool_has_the_checkpoints_that_were_counted_and_room_for_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number| DriveAddress::Path(folder.path().join(format!("drive{number}")));
        let drives: Vec<_> = (0..3).map(path).collect();
        let options =
            FormatOptions { create_bytes: Some(2 << 30), ..FormatOptions::new(drives.clone()) };
        let job = Job { bytes: 400_000_000, participants: 4, shards_each: 1000 };
        let filled = fill_pool(&options, &job).unwrap();
        let mode = PoolMode::ReadOnly;
        let options = PoolOptions { mode, huge_pages: HugePages::Off, ..PoolOptions::new(drives) };
        let pool = Pool::open(&options).unwrap();
        assert_eq!(pool.list().len() as u64, filled.checkpoints);
        assert!(filled.checkpoints > 10, "{filled:?}");
    }
}
