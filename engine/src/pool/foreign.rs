// SPDX-License-Identifier: Apache-2.0
//! What another program made over a drive of a pool: a file system, a partition table, a RAID.
//!
//! A label's copies at the end of the drive outlive it. So a pool is written only while its drives
//! hold nothing else, and while the kernel uses them for nothing else; it may always be read.
//!
//! Format makes the first 4 MiB and the last 3 MiB zero, apart from labels and roots. In the first
//! MiB, and behind the last label, any other byte is foreign; elsewhere a known signature
//! is.

use crate::address::DriveAddress;
use crate::drives::{DriveCommand, Drives, flush_all, read_error, run_all};
use crate::error::Error;
use crate::format::layout::{BACK_BYTES, FRONT_BYTES, MIN_DRIVE_BYTES};
use crate::format::{Label, Layout, TOMBSTONE_MAGIC};
use crate::host::safety::signature::{Ends, PROBE_BYTES};
use crate::host::safety::{self, Findings};
use crate::limits::BLOCK_BYTES;
use crate::notice::Notice;
use crate::pool::options::{PoolMode, PoolOptions};
use crate::recover::opening::Identified;
use crate::units::{DriveIndex, round_down};

/// Starts of the structures that lie at the ends of a drive.
const OWN_MAGICS: [&[u8]; 3] = [b"STNLABEL", b"STN ROOT", &TOMBSTONE_MAGIC];
const MIB: u64 = 1 << 20;

/// Refuses a drive that the kernel uses, or that has partitions, before it is opened for writing.
///
/// # Errors
/// [`Error::Refused`] with what uses it.
pub(super) fn refuse_in_use(address: &DriveAddress, options: &PoolOptions) -> Result<(), Error> {
    let DriveAddress::Path(path) = address else { return Ok(()) };
    if options.mode != PoolMode::ReadWrite || !path.exists() {
        return Ok(());
    }
    let Findings(found) = safety::users(path)?;
    // That it is read-only is what opening it reports.
    let counts = |finding: &&safety::Finding| {
        finding.what != "read-only" && !(finding.overridable && options.erase_foreign)
    };
    let Some(finding) = found.iter().find(counts) else { return Ok(()) };
    let rest = match finding.overridable {
        true => {
            "it is not written while it has partitions: remove them if they are not used, then run \
             `stanchion verify --repair --force`"
        }
        false => "it is not written while that lasts; nothing overrides this",
    };
    let reason = format!("{} ({}); {rest}", finding.what, finding.evidence);
    Err(Error::Refused { address: address.to_string(), serial: String::new(), reason })
}

/// Looks for what another program made over the drives of a pool. For writing it refuses, or erases
/// it if the options say so; for reading it gives a notice.
///
/// # Errors
/// [`Error::Refused`], and [`Error::Io`] where a pool that is to be written cannot be read.
pub(super) fn check(
    drives: &mut dyn Drives,
    found: &Identified,
    options: &PoolOptions,
    notices: &mut Vec<Notice>,
) -> Result<(), Error> {
    let writable = options.mode == PoolMode::ReadWrite;
    for (given, labels) in found.membership.order.iter().zip(&found.labels) {
        let (Some(given), Some(labels)) = (*given, labels) else { continue };
        let what = match beside_label(drives, given, &labels.label) {
            Ok(Some(what)) => what,
            Ok(None) => continue,
            Err(error) if writable => return Err(error),
            // Reading the pool shows what it means.
            Err(_) => continue,
        };
        let (address, serial) =
            (drives.info()[given].address.clone(), labels.label.drive().serial.clone());
        match (writable, options.erase_foreign) {
            (true, true) => {
                erase(drives, given, &labels.label)?;
                notices.push(Notice::ForeignErased { address, serial, what });
            }
            (true, false) => return Err(refused(address, serial, &what)),
            (false, _) => notices.push(Notice::Foreign { address, serial, what }),
        }
    }
    Ok(())
}

/// Takes out the notices that advise to repair what another program has overwritten.
pub(super) fn leave_out_its_damage(notices: &mut Vec<Notice>) {
    let serial = |notice: &Notice| match notice {
        Notice::Foreign { serial, .. } => Some(serial.clone()),
        _ => None,
    };
    let foreign: Vec<String> = notices.iter().filter_map(serial).collect();
    notices.retain(|notice| match notice {
        Notice::DamagedCopy(damage) => !foreign.contains(&damage.serial),
        _ => true,
    });
}

/// The error for a drive that holds something else.
fn refused(address: String, serial: String, what: &str) -> Error {
    let reason = format!(
        "it holds {what}, made over the pool after it was formatted, so nothing is written to it. \
         To keep that, let another drive take its place (`stanchion verify --repair --replacement \
         ADDRESS`); to keep the pool, erase that with `stanchion verify --repair --force`"
    );
    Error::Refused { address, serial, reason }
}

/// What the drive holds besides the pool of this label, in words.
pub(super) fn beside_label(
    drives: &mut dyn Drives,
    index: usize,
    label: &Label,
) -> Result<Option<String>, Error> {
    let formatted_bytes = label.drive().capacity_bytes;
    let mut ends = others_bytes(drives, index, formatted_bytes)?;
    if let Some(name) = ends.signature() {
        return Ok(Some(name));
    }
    // What is wrong with a label itself is damage.
    for offset in Layout::label_offsets(formatted_bytes) {
        ends.clear(offset..offset + BLOCK_BYTES);
    }
    if drives.info()[index].capacity_bytes > formatted_bytes {
        // It grew: what lies behind its old end was not made by format.
        ends.clear(PROBE_BYTES..u64::MAX);
    }
    Ok(ends.content())
}

/// The bytes at both ends that are neither the pool's own structures nor its data.
fn others_bytes(
    drives: &mut dyn Drives,
    index: usize,
    formatted_bytes: u64,
) -> Result<Ends, Error> {
    let (mut ends, _) = read_ends(drives, index)?;
    let end = round_down(formatted_bytes, MIB);
    ends.clear(FRONT_BYTES..end - BACK_BYTES);
    for block in own_blocks(&ends, formatted_bytes) {
        ends.clear(block..block + BLOCK_BYTES);
    }
    Ok(ends)
}

/// Makes zero what another program wrote at the ends of a drive of the pool. Labels and roots that
/// it hurt are repaired by the next opening of the pool.
fn erase(drives: &mut dyn Drives, index: usize, label: &Label) -> Result<(), Error> {
    let ends = others_bytes(drives, index, label.drive().capacity_bytes)?;
    let zeros = vec![0; BLOCK_BYTES as usize];
    let drive = DriveIndex(index as u16);
    let capacity_bytes = drives.info()[index].capacity_bytes;
    let ranges = Ends::ranges(capacity_bytes);
    let blocks = ranges.into_iter().flat_map(|range| range.step_by(BLOCK_BYTES as usize));
    let foreign = blocks.filter(|block| ends.first_set(*block..*block + BLOCK_BYTES).is_some());
    let write =
        |offset_bytes| DriveCommand::Write { drive, offset_bytes, data: &zeros, durable: false };
    run_all(drives, &mut foreign.map(write).collect::<Vec<_>>())?;
    flush_all(drives, std::iter::once(drive))
}

/// Where labels and roots lie on a drive of this capacity.
pub(super) fn own_blocks(ends: &Ends, capacity_bytes: u64) -> Vec<u64> {
    let mut places = Layout::front_label_offsets().to_vec();
    if capacity_bytes >= MIN_DRIVE_BYTES {
        places = Layout::label_offsets(capacity_bytes).to_vec();
        places.extend(Layout::root_offsets_by_size(capacity_bytes));
    }
    places.retain(|place| {
        let start = ends.at(*place, OWN_MAGICS[0].len());
        start.is_some_and(|start| OWN_MAGICS.contains(&start))
    });
    places
}

/// Reads both ends of a drive, and counts the blocks that the drive has lost: those are taken for
/// zeros.
///
/// # Errors
/// [`Error::Io`] for a failure that says nothing about the bytes.
pub(super) fn read_ends(drives: &mut dyn Drives, index: usize) -> Result<(Ends, u64), Error> {
    const PIECE_BYTES: usize = 128 << 10;
    let drive = DriveIndex(index as u16);
    let capacity_bytes = drives.info()[index].capacity_bytes;
    let mut parts = Vec::new();
    let mut lost_count = 0;
    for range in Ends::ranges(capacity_bytes) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let failed = read_pieces(drives, drive, range.start, &mut bytes, PIECE_BYTES)?;
        for from in failed {
            let to = (from + PIECE_BYTES).min(bytes.len());
            let (piece, start) = (&mut bytes[from..to], range.start + from as u64);
            for lost in read_pieces(drives, drive, start, piece, BLOCK_BYTES as usize)? {
                piece[lost..lost + BLOCK_BYTES as usize].fill(0);
                lost_count += 1;
            }
        }
        parts.push(bytes);
    }
    Ok((Ends::new(capacity_bytes, parts), lost_count))
}

/// Reads in pieces, and gives the places in `bytes` of those that the drive has lost.
fn read_pieces(
    drives: &mut dyn Drives,
    drive: DriveIndex,
    start: u64,
    bytes: &mut [u8],
    piece_bytes: usize,
) -> Result<Vec<usize>, Error> {
    let mut batch: Vec<_> = bytes
        .chunks_mut(piece_bytes)
        .enumerate()
        .map(|(number, into)| DriveCommand::Read {
            drive,
            offset_bytes: start + (number * piece_bytes) as u64,
            into,
        })
        .collect();
    let statuses = drives.run(&mut batch);
    drop(batch);
    let mut lost = Vec::new();
    for (number, status) in statuses.into_iter().enumerate() {
        match status {
            Ok(()) => {}
            Err(error) if error.is_damage() => lost.push(number * piece_bytes),
            Err(error) => {
                let offset = start + (number * piece_bytes) as u64;
                return Err(read_error(drives, drive, offset, error));
            }
        }
    }
    Ok(lost)
}
