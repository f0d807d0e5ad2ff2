// SPDX-License-Identifier: Apache-2.0
//! Making a pool of drives, after checking what each drive holds. The order of the writes is in
//! [`crate::commit::make_pool`].

use uuid::Uuid;

use crate::address::DriveAddress;
use crate::commit::make_pool;
use crate::device::retrying::Retrying;
use crate::device::{Device, DriveInfo, OpenMode, kernel};
use crate::direct::DirectDrives;
use crate::drives::{DriveCommand, Drives, run_all};
use crate::error::Error;
use crate::format::{
    DriveEntry, DriveState, Features, Label, Layout, MAX_SERIAL_BYTES, Redundancy, table_copies_of,
};
use crate::host::lock::{PoolLock, Sharing};
use crate::host::safety::{self, Findings, PROBE_BYTES, content_signature};
use crate::limits::{DEFAULT_CHUNK_BYTES, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES};
use crate::placement;
use crate::pool::context::{new_id, unix_ns};
use crate::pool::open::{metadata_pages, open_devices};
use crate::recover::labels::read_labels;
use crate::recover::newest::choose_generation;
use crate::recover::roots::read_roots;
use crate::units::DriveIndex;

/// What a drive holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file that does not exist yet.
    Absent,
    /// Nothing: it can be formatted.
    Blank,
    /// A Stanchion pool.
    Pool {
        /// Its identity.
        pool: Uuid,
        /// Drives in it.
        drives: usize,
        /// Checkpoints in it; `None` when that cannot be read.
        checkpoints: Option<usize>,
    },
    /// Other data; what it looks like.
    Foreign(String),
}

/// A drive before it is formatted.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Its address.
    pub address: String,
    /// The drive; `None` when it was not opened: a file that does not exist, or a drive in use.
    pub info: Option<DriveInfo>,
    /// What it holds.
    pub content: Content,
    /// What uses it.
    pub in_use: Findings,
}

impl Survey {
    /// The drive's serial number; empty when it was not opened.
    pub fn serial(&self) -> &str {
        self.info.as_ref().map_or("", |info| &info.serial)
    }

    pub(super) fn of(info: &DriveInfo, content: Content, in_use: Findings) -> Survey {
        Survey { address: info.address.clone(), info: Some(info.clone()), content, in_use }
    }

    /// Whether it can be formatted. [`format()`] checks again, because the drive may change until
    /// then.
    ///
    /// # Errors
    /// [`Error::Busy`] for a drive that a running process has open; [`Error::Refused`] with the
    /// reason, and with the option that overrides it, if there is one.
    pub fn check(&self, force: bool) -> Result<(), Error> {
        let (address, serial) = (self.address.clone(), self.serial().to_owned());
        if let Some(locked) = self.in_use.0.iter().find(|finding| finding.what == "locked") {
            let (what, owner) = (format!("drive {address}"), locked.evidence.clone());
            return Err(Error::Busy { what, owner });
        }
        match self.refusal(force) {
            None => Ok(()),
            Some(reason) => Err(Error::Refused { address, serial, reason }),
        }
    }

    fn refusal(&self, force: bool) -> Option<String> {
        if let Some(finding) = self.in_use.never_overridable().next() {
            return Some(format!(
                "{} ({}); nothing overrides this",
                finding.what, finding.evidence
            ));
        }
        if force {
            return None;
        }
        if let Some(finding) = self.in_use.0.first() {
            return Some(format!(
                "{} ({}); --force overrides this",
                finding.what, finding.evidence
            ));
        }
        match &self.content {
            Content::Absent | Content::Blank | Content::Pool { checkpoints: Some(0), .. } => None,
            Content::Pool { pool, checkpoints: Some(count), .. } => Some(format!(
                "it belongs to pool {pool}, which holds checkpoints ({count}); --force destroys them"
            )),
            Content::Pool { pool, checkpoints: None, .. } => Some(format!(
                "it belongs to pool {pool}, whose checkpoints cannot be read; --force destroys them"
            )),
            Content::Foreign(what) => Some(format!("it holds {what}; --force destroys it")),
        }
    }
}

/// What to format.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The drives of the new pool.
    pub drives: Vec<DriveAddress>,
    /// The unit of striping, a power of two; by default 1 MiB, or less where a drive takes less.
    pub chunk_bytes: Option<u64>,
    /// Copies of each chunk, each on another drive.
    pub redundancy: Redundancy,
    /// The size of files that do not exist; without it a file must exist.
    pub create_bytes: Option<u64>,
    /// Destroy a pool with checkpoints, or other data. A drive in use is refused all the same.
    pub force: bool,
}

impl FormatOptions {
    /// Defaults for these drives.
    pub fn new(drives: Vec<DriveAddress>) -> FormatOptions {
        FormatOptions {
            drives,
            chunk_bytes: None,
            redundancy: Redundancy::None,
            create_bytes: None,
            force: false,
        }
    }
}

/// The new pool.
#[derive(Clone, Debug)]
pub struct FormatReport {
    /// The pool.
    pub pool: Uuid,
    /// Its unit of striping.
    pub chunk_bytes: u64,
    /// Bytes of checkpoint data that it can hold.
    pub capacity_bytes: u64,
    /// Copies of each chunk, each on another drive.
    pub redundancy: Redundancy,
    /// Its drives.
    pub drives: Vec<DriveEntry>,
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

/// What the drive at `index` holds, by its bytes.
pub(super) fn read_content(drives: &mut dyn Drives, index: usize) -> Result<Content, Error> {
    match read_labels(drives, index) {
        Ok(labels) => {
            let checkpoints = count_checkpoints(drives, index, &labels.label);
            let drives = labels.label.drives.len();
            Ok(Content::Pool { pool: labels.label.pool, drives, checkpoints })
        }
        Err(Error::NotFormatted { .. }) => {
            let capacity = drives.info()[index].capacity_bytes;
            let first = read_bytes(drives, index, 0, capacity.min(PROBE_BYTES))?;
            let last_start = capacity.saturating_sub(PROBE_BYTES);
            let last = read_bytes(drives, index, last_start, capacity - last_start)?;
            Ok(content_signature(&first, &last).map_or(Content::Blank, Content::Foreign))
        }
        Err(
            error @ (Error::NewerFormat { .. }
            | Error::OlderFormat { .. }
            | Error::Damaged(_)
            | Error::ShortDrive { .. }),
        ) => Ok(Content::Foreign(format!("a stanchion pool that cannot be opened ({error})"))),
        Err(error) => Err(error),
    }
}

/// Each drive has the whole catalogue, so one drive is enough to count the checkpoints.
fn count_checkpoints(drives: &mut dyn Drives, index: usize, label: &Label) -> Option<usize> {
    let entry = label.drive().clone();
    let entry = DriveEntry { state: DriveState::Member, ..entry };
    let alone = Label {
        copies: 1,
        table_copies: 1,
        drives: vec![entry],
        index: DriveIndex(0),
        ..label.clone()
    };
    let mut only = OneDrive { drives, index };
    let roots = read_roots(&mut only, &alone).ok()?;
    let newest = choose_generation(&mut only, &alone, &roots).ok()?;
    // The newest generation may hold more than this one.
    newest.given_up.is_none().then_some(newest.catalogue.entries.len())
}

/// One of several drives, as drive 0.
struct OneDrive<'a> {
    drives: &'a mut dyn Drives,
    index: usize,
}

impl Drives for OneDrive<'_> {
    fn info(&self) -> &[DriveInfo] {
        &self.drives.info()[self.index..=self.index]
    }

    fn run(&mut self, batch: &mut [DriveCommand<'_>]) -> Vec<Result<(), crate::IoError>> {
        for command in batch.iter_mut() {
            let (DriveCommand::Read { drive, .. }
            | DriveCommand::Write { drive, .. }
            | DriveCommand::Flush { drive }) = command;
            *drive = DriveIndex(self.index as u16);
        }
        self.drives.run(batch)
    }
}

fn read_bytes(
    drives: &mut dyn Drives,
    index: usize,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; len_bytes as usize];
    let drive = DriveIndex(index as u16);
    run_all(drives, &mut [DriveCommand::Read { drive, offset_bytes, into: &mut bytes }])?;
    Ok(bytes)
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
    let mut locks: Vec<(Uuid, PoolLock)> = Vec::new();
    for (index, info) in info.iter().enumerate() {
        if facts_repeat(&facts_before(&drives, index), info) {
            let (address, serial) = (info.address.clone(), info.serial.clone());
            return Err(Error::DuplicateDrive { address, serial });
        }
        let content = read_content(&mut drives, index)?;
        if let Content::Pool { pool, .. } = content
            && locks.iter().all(|(locked, _)| *locked != pool)
        {
            locks.push((pool, PoolLock::take(pool, Sharing::Exclusive)?));
        }
        Survey::of(info, content, Findings::default()).check(options.force)?;
    }
    let label = plan_label(&info, options)?;
    make_pool(&mut drives, &label)?;
    Ok(FormatReport {
        pool: label.pool,
        chunk_bytes: label.layout.chunk_bytes(),
        capacity_bytes: capacity_bytes(&label),
        redundancy: label.redundancy(),
        drives: label.drives,
    })
}

/// Bytes of checkpoint data that a pool can hold while all its drives take part.
pub(super) fn capacity_bytes(label: &Label) -> u64 {
    let slots = label.drives.iter().map(|drive| label.layout.data_slots(drive.capacity_bytes));
    placement::capacity(label.copies, &slots.collect::<Vec<_>>()) * label.layout.chunk_bytes()
}

fn facts_before(drives: &DirectDrives, index: usize) -> Vec<DriveInfo> {
    drives.info()[..index].to_vec()
}

fn facts_repeat(before: &[DriveInfo], info: &DriveInfo) -> bool {
    before.iter().any(|other| other.address == info.address)
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
            whole.clamp(MIN_CHUNK_BYTES, DEFAULT_CHUNK_BYTES)
        }
    };
    if !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk_bytes) {
        return Err(Error::Usage(format!(
            "a chunk of {chunk_bytes} bytes: pass {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}"
        )));
    }
    let layout = Layout::plan(&capacities, chunk_bytes)?;
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
