// SPDX-License-Identifier: Apache-2.0
//! A drive that holds roots of a pool, but no label. Either the pool has lost its labels, or a
//! format was interrupted, which erases old labels first and writes new ones last. A tombstone says
//! that nothing on the drive counts. Without one the newest catalogue decides: a pool without
//! checkpoints has nothing to lose.

use uuid::Uuid;

use crate::drives::{DriveCommand, Drives, read_error};
use crate::error::Error;
use crate::format::layout::MIN_DRIVE_BYTES;
use crate::format::{Catalogue, Layout, Root, is_tombstone};
use crate::limits::BLOCK_BYTES;
use crate::units::DriveIndex;

/// A pool that may hold checkpoints.
pub(crate) struct Leftover {
    pub(crate) pool: Uuid,
    /// `None` where the newest catalogue cannot be read.
    pub(crate) checkpoints: Option<usize>,
}

/// The pool whose roots are on the drive at `index`, unless it is known to hold no checkpoint.
///
/// # Errors
/// [`Error::Io`] for a failed read that says nothing about the bytes. What the drive has lost is
/// passed over.
pub(crate) fn leftover(drives: &mut dyn Drives, index: usize) -> Result<Option<Leftover>, Error> {
    if has_tombstone(drives, index)? {
        return Ok(None);
    }
    let Some(root) = newest_root(drives, index)? else { return Ok(None) };
    let checkpoints = count_checkpoints(drives, index, &root)?;
    let pool = root.pool;
    Ok((checkpoints != Some(0)).then_some(Leftover { pool, checkpoints }))
}

/// Whether a format or an admission of the drive was interrupted: nothing on it counts.
pub(crate) fn has_tombstone(drives: &mut dyn Drives, index: usize) -> Result<bool, Error> {
    if drives.info()[index].capacity_bytes < MIN_DRIVE_BYTES {
        return Ok(false);
    }
    for offset_bytes in Layout::front_label_offsets() {
        let block = read(drives, index, offset_bytes, BLOCK_BYTES)?;
        if block.is_some_and(|block| is_tombstone(&block, offset_bytes)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The newest sound root on a drive, of whichever pool.
fn newest_root(drives: &mut dyn Drives, index: usize) -> Result<Option<Root>, Error> {
    /// In every structure: the pool. In a root: the drive.
    const POOL_AND_DRIVE: std::ops::Range<usize> = 48..80;
    let capacity_bytes = drives.info()[index].capacity_bytes;
    let mut newest: Option<Root> = None;
    for offset_bytes in Layout::root_offsets_by_size(capacity_bytes) {
        let Some(block) = read(drives, index, offset_bytes, BLOCK_BYTES)? else { continue };
        let (pool, drive) = block[POOL_AND_DRIVE].split_at(16);
        let uuid = |bytes: &[u8]| Uuid::from_slice(bytes).unwrap_or_default();
        let Ok(root) = Root::decode(&block, uuid(pool), uuid(drive), offset_bytes) else {
            continue;
        };
        if newest.as_ref().is_none_or(|newest| newest.generation < root.generation) {
            newest = Some(root);
        }
    }
    Ok(newest)
}

/// `None` where the catalogue is damaged. No label says where it may lie.
fn count_checkpoints(
    drives: &mut dyn Drives,
    index: usize,
    root: &Root,
) -> Result<Option<usize>, Error> {
    /// More than the largest has.
    const MAX_BYTES: u64 = 64 << 20;
    let extent = &root.catalogue;
    let end = extent.offset_bytes.checked_add(extent.stored_bytes());
    let is_on_drive = end.is_some_and(|end| end <= drives.info()[index].capacity_bytes);
    if extent.len_bytes > MAX_BYTES || !is_on_drive {
        return Ok(None);
    }
    let bytes = read(drives, index, extent.offset_bytes, extent.stored_bytes())?;
    let catalogue = bytes.and_then(|bytes| Catalogue::decode(&bytes, extent, root.pool).ok());
    Ok(catalogue.map(|catalogue| catalogue.entries.len()))
}

/// `None` where the drive has lost the bytes.
fn read(
    drives: &mut dyn Drives,
    index: usize,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<Option<Vec<u8>>, Error> {
    let mut bytes = vec![0; len_bytes as usize];
    let drive = DriveIndex(index as u16);
    let command = DriveCommand::Read { drive, offset_bytes, into: &mut bytes };
    match drives.run(&mut [command]).remove(0) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(read_error(drives, drive, offset_bytes, error)),
    }
}
