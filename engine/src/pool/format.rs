// SPDX-License-Identifier: Apache-2.0
//! Making a pool of drives, after checking what each drive holds. The order of the writes is in
//! [`crate::commit::make_pool`].

use uuid::Uuid;

use crate::address::DriveAddress;
use crate::commit::make_pool;
use crate::device::retrying::Retrying;
use crate::device::{Device, DriveInfo, OpenMode, kernel};
use crate::direct::DirectDrives;
use crate::drives::Drives as _;
use crate::error::Error;
use crate::format::{
    DriveEntry, DriveState, Features, Label, Layout, MAX_SERIAL_BYTES, Redundancy, table_copies_of,
};
use crate::host::lock::PoolLock;
use crate::host::safety::{self, Findings, place};
use crate::limits::{MAX_CHUNK_BYTES, MIN_CHUNK_BYTES};
use crate::pool::content::{Content, Survey, read_content};
use crate::pool::context::{new_id, unix_ns};
use crate::pool::open::{lock_pool, metadata_pages, open_devices};
use crate::pool::ownership::Ownership;
use crate::pool::same_drive;
use crate::pool::sizing::PoolSizing;
use crate::units::DriveIndex;

/// What to format.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The drives of the new pool.
    pub drives: Vec<DriveAddress>,
    /// The unit of striping, a power of two; by default 1 MiB, in large pools more, and less where
    /// a drive takes less.
    pub chunk_bytes: Option<u64>,
    /// Bytes of each drive for metadata; by default a part of the smallest drive. The most
    /// checkpoints that the pool can hold follow from it.
    pub metadata_bytes: Option<u64>,
    /// Copies of each chunk, each on another drive.
    pub redundancy: Redundancy,
    /// The size of files that do not exist; without it a file must exist.
    pub create_bytes: Option<u64>,
    /// Take drives from another owner: see [`crate::PoolOptions::take_over`].
    pub take_over: bool,
    /// Destroy a pool with checkpoints, or other data. A drive in use is refused all the same.
    pub force: bool,
}

impl FormatOptions {
    /// Defaults for these drives.
    pub fn new(drives: Vec<DriveAddress>) -> FormatOptions {
        FormatOptions {
            drives,
            chunk_bytes: None,
            metadata_bytes: None,
            redundancy: Redundancy::None,
            create_bytes: None,
            take_over: false,
            force: false,
        }
    }
}

/// The new pool.
#[derive(Clone, Debug)]
pub struct FormatReport {
    /// The pool.
    pub pool: Uuid,
    /// How much it holds.
    pub sizing: PoolSizing,
    /// Copies of each chunk, each on another drive.
    pub redundancy: Redundancy,
    /// Its drives.
    pub drives: Vec<DriveEntry>,
    /// Serials of drives that have no reservations: see [`crate::WITHOUT_RESERVATIONS`].
    pub without_reservations: Vec<String>,
}

/// Checks drives and changes nothing.
///
/// # Errors
/// When a drive cannot be opened or read; an absent file is not an error.
pub fn survey(drives: &[DriveAddress]) -> Result<Vec<Survey>, Error> {
    drives.iter().map(survey_one).collect()
}

fn survey_one(address: &DriveAddress) -> Result<Survey, Error> {
    let mut in_use = Findings::default();
    if let DriveAddress::Path(path) = address {
        let unopened =
            |content, in_use| Survey { address: address.to_string(), info: None, content, in_use };
        if !path.exists() {
            place::refuse_new_file_among_devices(path)?;
            return Ok(unopened(Content::Absent, in_use));
        }
        in_use = safety::inspect(path)?;
        if in_use.never_overridable().next().is_some() {
            return Ok(unopened(Content::Foreign("a drive in use".into()), in_use));
        }
    }
    let devices = open_devices(std::slice::from_ref(address), OpenMode::ReadOnly, Some(8))?;
    let pages = metadata_pages(&devices);
    let mut drives = DirectDrives::new(devices, pages)?;
    let content = read_content(&mut drives, 0)?;
    Ok(Survey::of(&drives.info()[0], content, in_use))
}

/// Makes a pool. Checks every drive before it writes to any.
///
/// # Errors
/// [`Error::Refused`] for a drive that is in use or may hold data, [`Error::Busy`] for one that a
/// running process has open, [`Error::Usage`] for drives that are too small.
pub fn format(options: &FormatOptions) -> Result<FormatReport, Error> {
    let mut created = Created(Vec::new());
    for address in &options.drives {
        let DriveAddress::Path(path) = address else { continue };
        if path.exists() {
            let in_use = safety::inspect(path)?;
            let address = address.to_string();
            Survey { address, info: None, content: Content::Absent, in_use }
                .check(options.force)?;
        } else if let Some(size_bytes) = options.create_bytes {
            kernel::create_file(path, size_bytes)?;
            created.0.push(path.clone());
        }
    }

    let report = format_on(open_devices(&options.drives, OpenMode::ReadWrite, None)?, options)?;
    created.0.clear();
    Ok(report)
}

/// Files that were created for a pool that is not made yet.
struct Created(Vec<std::path::PathBuf>);

impl Drop for Created {
    fn drop(&mut self) {
        for path in &self.0 {
            // A file that cannot be removed stays: there is nothing more to do.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Makes a pool of devices that are already open. The same rules apart from what only the kernel
/// knows. `options.drives` and `options.create_bytes` are ignored.
///
/// # Errors
/// As [`format()`].
pub fn format_on(
    devices: Vec<Box<dyn Device>>,
    options: &FormatOptions,
) -> Result<FormatReport, Error> {
    if devices.is_empty() {
        return Err(Error::Usage("no drive was named; name each drive".into()));
    }
    let devices: Vec<_> = devices.into_iter().map(Retrying::over).collect();
    let pages = metadata_pages(&devices);
    let mut drives = DirectDrives::new(devices, pages)?;
    let info = drives.info().to_vec();
    let mut locks: Vec<(Uuid, Option<PoolLock>)> = Vec::new();
    for (index, info) in info.iter().enumerate() {
        let before = &drives.info()[..index];
        same_drive::refuse_same(info, before)?;
        if options.redundancy == Redundancy::Mirror && !options.force {
            same_drive::refuse_one_medium(info, before)?;
        }
        let content = read_content(&mut drives, index)?;
        if let Content::Pool { pool, .. } = content
            && locks.iter().all(|(locked, _)| *locked != pool)
        {
            locks.push((pool, lock_pool(pool)?));
        }
        Survey::of(info, content, Findings::default()).check(options.force)?;
    }
    let label = plan_label(&info, options)?;
    let _ownership = Ownership::take(&mut drives, options.take_over, &mut Vec::new())?;
    make_pool(&mut drives, &label)?;
    same_drive::read_back(&mut drives, &label)?;
    Ok(FormatReport {
        pool: label.pool,
        sizing: PoolSizing::of(&label),
        redundancy: label.redundancy(),
        without_reservations: info
            .iter()
            .filter(|info| info.reservations == Some(false))
            .map(|info| info.serial.clone())
            .collect(),
        drives: label.drives,
    })
}

fn plan_label(info: &[DriveInfo], options: &FormatOptions) -> Result<Label, Error> {
    let capacities: Vec<u64> = info.iter().map(|drive| drive.capacity_bytes).collect();
    let chunk_bytes = match options.chunk_bytes {
        Some(bytes) if bytes.is_power_of_two() => bytes,
        Some(bytes) => {
            return Err(Error::Usage(format!("a chunk of {bytes} bytes: pass a power of two")));
        }
        None => {
            let transfer = info.iter().map(|drive| drive.max_transfer_bytes).min().unwrap_or(0);
            let whole = if transfer == 0 { 0 } else { 1 << transfer.ilog2() };
            whole.clamp(MIN_CHUNK_BYTES, Layout::default_chunk_bytes(&capacities))
        }
    };
    if !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk_bytes) {
        return Err(Error::Usage(format!(
            "a chunk of {chunk_bytes} bytes: pass {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}"
        )));
    }
    let layout = Layout::plan_sized(&capacities, chunk_bytes, options.metadata_bytes)?;
    let drives = info.iter().map(|info| DriveEntry {
        uuid: new_id(),
        serial: label_serial(info),
        capacity_bytes: info.capacity_bytes,
        state: DriveState::Member,
    });
    let copies = options.redundancy.copies();
    if usize::from(copies) > info.len() {
        return Err(Error::Usage("a mirror needs at least two drives; name another one".into()));
    }
    Ok(Label {
        pool: new_id(),
        epoch: 1,
        ancestors: Vec::new(),
        created_unix_ns: unix_ns(),
        features: Features::default(),
        copies,
        table_copies: table_copies_of(info.len()),
        index: DriveIndex(0),
        drives: drives.collect(),
        layout,
    })
}

/// A drive's serial as a label keeps it.
pub(super) fn label_serial(info: &DriveInfo) -> String {
    info.serial.chars().filter(char::is_ascii_graphic).take(MAX_SERIAL_BYTES).collect()
}
