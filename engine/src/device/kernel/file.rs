// SPDX-License-Identifier: Apache-2.0
//! The open file or block device: found, classified, locked, measured, and held until dropped.
//!
//! Invariants:
//! - The inode opened for I/O is the one that was classified: it is first opened as a location only
//!   (which runs no driver and blocks on no FIFO), then again through that descriptor.
//! - Every descriptor is O_DIRECT, and transfers of whole blocks suit its alignment.
//! - A writer's lock lives exactly as long as its descriptor. Readers take none: they keep no
//!   writer out, and notice by the roots and checksums what a writer does meanwhile.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::reservation::{self, BlockReservations};
use crate::device::{DriveInfo, OpenMode};
use crate::drive_info::Origin;
use crate::error::Error;
use crate::host::location::{open_location, reopen};
use crate::host::origin;
use crate::host::safety::place;
use crate::host::sysfs::{self, DeviceNumber, Holders, LINGER, LINGER_LOOK, System, UNSEEN_LINGER};
use crate::limits::{BLOCK_BYTES, MAX_CHUNK_BYTES};
use crate::units::{is_block_aligned, round_down};

/// How long to retry against holders that are alive or unknown: udev locks and reads a block device
/// briefly after a writer closes it, and a lock may be released just before its holder is looked
/// up.
const BRIEFLY: Duration = Duration::from_millis(500);

/// An open, locked file or block device.
#[derive(Debug)]
pub(super) struct DriveFile {
    pub(super) file: File,
    pub(super) mode: OpenMode,
    /// The unit in which the kernel moves direct I/O: a transfer that ends elsewhere reached the
    /// end of the file.
    pub(super) unit_bytes: u32,
    pub(super) address: String,
    serial: String,
    model: String,
    capacity_bytes: u64,
    volatile_cache: Option<bool>,
    origin: Origin,
    /// Whether it has reservations, as far as that is known.
    has_reservations: Option<bool>,
    /// Where it may have them and is open for writing.
    pub(super) reservations: Option<BlockReservations>,
}

impl DriveFile {
    /// Opens and locks `path`, and reads the drive's properties.
    pub(super) fn open(path: &Path, mode: OpenMode) -> Result<DriveFile, Error> {
        let name = path.display().to_string();
        let location = open_location(path)?;
        let metadata = location.metadata().map_err(|e| Error::os(format!("stat of {name}"), e))?;
        let is_block_device = metadata.file_type().is_block_device();
        let mut file = persist(&metadata, || open_direct(&location, mode, is_block_device))
            .map_err(|error| explain_open(&name, &metadata, error))?;
        if mode == OpenMode::ReadWrite {
            persist(&metadata, || lock(&file)).map_err(|error| busy(&name, &metadata, error))?;
        }
        let unit_bytes = direct_unit_bytes(&file, &name)?;
        // For a block device, too, the end is the position after its last byte.
        let end = file
            .seek(SeekFrom::End(0))
            .map_err(|error| Error::os(format!("finding the size of {name}"), error))?;
        let capacity_bytes = round_down(end, BLOCK_BYTES);
        if capacity_bytes == 0 {
            return Err(Error::Usage(format!(
                "{name} holds {end} bytes, less than one block of {BLOCK_BYTES}; \
                 make it larger, or name another drive"
            )));
        }
        if !is_block_device && mode == OpenMode::ReadWrite && metadata.blocks() * 512 < end {
            tracing::warn!(
                drive = name,
                "the file has holes: a write can fail when its file system fills up"
            );
        }
        let system = System::live();
        let number = if is_block_device { metadata.rdev() } else { metadata.dev() };
        let number = DeviceNumber::from_raw(number);
        let block_dir = system.block_dir(number);
        if is_block_device && block_dir.as_deref().is_some_and(sysfs::needs_zone_order) {
            return Err(Error::Environment(format!(
                "{name} is a zoned drive (ZNS, or SMR), which takes writes only in order; a drive \
                 without zones is needed"
            )));
        }
        let (serial, model) = if is_block_device {
            let dir = block_dir.as_deref();
            (
                dir.and_then(sysfs::serial)
                    .unwrap_or_else(|| format!("dev-{:x}-{:x}", number.major, number.minor)),
                dir.and_then(sysfs::model).unwrap_or_else(|| "block device".into()),
            )
        } else {
            (format!("file-{:x}-{:x}", metadata.dev(), metadata.ino()), "file".into())
        };
        let origin = match is_block_device {
            true => origin::of_block_device(&system, number),
            false => origin::of_file(&metadata),
        };
        let has_reservations = match block_dir.as_deref() {
            // The kernel has these calls for whole drives.
            Some(dir) if is_block_device && !dir.join("partition").exists() => {
                let name = dir.file_name().unwrap_or_default().to_string_lossy();
                reservation::probe(&file, &name)
            }
            _ => Some(false),
        };
        let may = mode == OpenMode::ReadWrite && has_reservations != Some(false);
        let reservations = may.then(|| BlockReservations::of(&file)).transpose();
        let reservations = reservations
            .map_err(|e| Error::os(format!("duplicating the descriptor of {name}"), e))?;
        let volatile_cache = block_dir.as_deref().and_then(sysfs::volatile_cache);
        Ok(DriveFile {
            file,
            mode,
            unit_bytes,
            address: name,
            serial,
            model,
            capacity_bytes,
            volatile_cache,
            origin,
            has_reservations,
            reservations,
        })
    }

    /// What is known of the drive, once the back end is chosen.
    pub(super) fn info(&self, back_end: &'static str, queue_depth: u32) -> DriveInfo {
        DriveInfo {
            address: self.address.clone(),
            serial: self.serial.clone(),
            model: self.model.clone(),
            back_end,
            capacity_bytes: self.capacity_bytes,
            max_transfer_bytes: MAX_CHUNK_BYTES,
            queue_depth,
            volatile_cache: self.volatile_cache,
            reservations: self.has_reservations,
            interrupt_driven: true,
            needs_huge_pages: false,
            origin: self.origin.clone(),
        }
    }
}

/// Makes a drive of `size_bytes`, a whole number of blocks, from a new file. When this returns, the
/// space is reserved, and the file and its name are durable. A crash during it leaves nothing
/// behind where the file system supports files without a name, as ext4, XFS and Btrfs do.
///
/// # Errors
/// [`Error::Usage`] when the file exists or the size is not a whole number of blocks;
/// [`Error::Environment`] when the file system has no room or cannot reserve it. A half-made file
/// is removed.
pub fn create_file(path: &Path, size_bytes: u64) -> Result<(), Error> {
    let name = path.display().to_string();
    if size_bytes == 0 || !is_block_aligned(size_bytes) || i64::try_from(size_bytes).is_err() {
        return Err(Error::Usage(format!(
            "{name}: {size_bytes} bytes are not a multiple of {BLOCK_BYTES}; pass a size that is"
        )));
    }
    let creating = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Usage(format!(
            "{name} exists and was not changed; remove it, or name another file"
        )),
        _ => Error::os(format!("creating {name}"), error),
    };
    place::refuse_new_file_among_devices(path)?;
    if fs::symlink_metadata(path).is_ok() {
        return Err(creating(io::ErrorKind::AlreadyExists.into()));
    }
    let parent = place::folder_of(path);
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    let (file, has_name) = match options.clone().custom_flags(libc::O_TMPFILE).open(parent) {
        Ok(file) => (file, false),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            (options.create_new(true).open(path).map_err(creating)?, true)
        }
        Err(error) => return Err(creating(error)),
    };
    let filled = reserve(&file, size_bytes).and_then(|()| file.sync_all());
    filled.map_err(|error| {
        let removed = match if has_name { fs::remove_file(path) } else { Ok(()) } {
            Ok(()) => "the half-made file was removed".to_owned(),
            Err(error) => format!("the half-made file could not be removed ({error})"),
        };
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Error::Environment(format!(
                "{name}: no room for {size_bytes} bytes ({error}); {removed}; \
                 free some space, or ask for less"
            )),
            Some(libc::EOPNOTSUPP) => Error::Environment(format!(
                "{name}: this file system cannot reserve space (fallocate); {removed}; \
                 use ext4, XFS or Btrfs"
            )),
            _ => Error::os(format!("making {name} of {size_bytes} bytes ({removed})"), error),
        }
    })?;
    if !has_name {
        give_name(&file, path).map_err(creating)?;
    }
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(|error| Error::os(format!("making the name {name} durable"), error))
}

/// Gives a file without a name its first name, unless that name is taken.
#[allow(unsafe_code)]
fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: two NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[allow(unsafe_code)]
fn reserve(file: &File, size_bytes: u64) -> io::Result<()> {
    loop {
        // SAFETY: plain call on a descriptor that `file` owns.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size_bytes as libc::off_t) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Retries while the obstacle may go away by itself.
fn persist<T>(
    metadata: &fs::Metadata,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let started = Instant::now();
    let mut seen = (None, started);
    loop {
        let error = match attempt() {
            Err(error) if is_in_the_way(&error) => error,
            result => return result,
        };
        let device = DeviceNumber::from_raw(metadata.dev());
        let holders = System::live().lock_holders(device, metadata.ino());
        // A lock that is released just now, after a long wait, justifies another attempt.
        if seen.0 != Some(holders) {
            seen = (Some(holders), Instant::now());
        }
        let patience = match holders {
            Holders::Ended => LINGER,
            Holders::Alive if metadata.file_type().is_file() => Duration::ZERO,
            // EBUSY is the kernel's own claim, such as a mount, which no ended process leaves.
            Holders::Unknown if error.raw_os_error() == Some(libc::EWOULDBLOCK) => UNSEEN_LINGER,
            Holders::Alive | Holders::Unknown => BRIEFLY,
        };
        if seen.1.elapsed() >= patience || started.elapsed() >= 2 * LINGER {
            return Err(error);
        }
        std::thread::sleep(LINGER_LOOK);
    }
}

fn is_in_the_way(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EWOULDBLOCK))
}

fn open_direct(location: &File, mode: OpenMode, is_block_device: bool) -> io::Result<File> {
    let write = mode == OpenMode::ReadWrite;
    // Without O_CREAT, O_EXCL claims a block device: it fails while the device is mounted, used for
    // swap or stacked on, and prevents that for others.
    let exclusive = if is_block_device && write { libc::O_EXCL } else { 0 };
    reopen(location, write, libc::O_DIRECT | exclusive)
}

fn explain_open(name: &str, metadata: &fs::Metadata, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EINVAL) => Error::Environment(format!(
            "{name}: its file system does not support direct I/O (O_DIRECT); \
             put the file on ext4, XFS or Btrfs, or use a block device"
        )),
        Some(libc::EBUSY) => busy(name, metadata, error),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => Error::Environment(format!(
            "opening {name}: {error}; it is read-only, or this user may not write it: \
             run as root, or as a member of the group that owns it"
        )),
        _ => Error::os(format!("opening {name}"), error),
    }
}

#[allow(unsafe_code)]
fn lock(file: &File) -> io::Result<()> {
    loop {
        // SAFETY: plain call on a descriptor that `file` owns.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Names the holders that block us from a drive, as far as the kernel shows them.
fn busy(name: &str, metadata: &fs::Metadata, error: io::Error) -> Error {
    if !is_in_the_way(&error) {
        return Error::os(format!("locking {name}"), error);
    }
    let system = System::live();
    let inode_device = DeviceNumber::from_raw(metadata.dev());
    let mut owners: Vec<String> =
        system.lock_owners(inode_device, metadata.ino()).iter().map(ToString::to_string).collect();
    if owners.is_empty() && metadata.file_type().is_block_device() {
        let number = DeviceNumber::from_raw(metadata.rdev());
        let findings = crate::host::safety::inspect_block_device(&system, number);
        owners = findings
            .into_iter()
            .filter(|finding| !finding.overridable)
            .map(|finding| format!("{} ({})", finding.what, finding.evidence))
            .collect();
    }
    let owner = if owners.is_empty() { "another process".into() } else { owners.join(", ") };
    Error::Busy { what: format!("drive {name}"), owner }
}

/// The unit of direct I/O of an open file, which divides a block.
fn direct_unit_bytes(file: &File, name: &str) -> Result<u32, Error> {
    /// A drive's sector when the kernel does not report it.
    const SECTOR_BYTES: u32 = 512;
    let Some((memory, offset)) = direct_alignment(file) else { return Ok(SECTOR_BYTES) };
    let fits = |unit: u32| unit != 0 && BLOCK_BYTES.is_multiple_of(u64::from(unit));
    if fits(memory) && fits(offset) {
        return Ok(offset);
    }
    Err(Error::Environment(if offset == 0 {
        format!(
            "{name}: direct I/O (O_DIRECT) is not supported for this file; \
             encryption, compression or data journalling may be on: turn it off, or use another file system"
        )
    } else {
        format!(
            "{name}: direct I/O needs memory aligned to {memory} and offsets aligned to {offset} bytes, \
             which does not suit blocks of {BLOCK_BYTES}; use another drive"
        )
    }))
}

/// How a file or block device wants direct I/O to be aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectIo {
    /// Memory, in bytes; `None` where the kernel does not report it.
    pub memory_bytes: Option<u32>,
    /// Offsets and lengths, in bytes.
    pub offset_bytes: u32,
}

/// Opens a drive for direct reading, without a lock, and asks for its alignment.
///
/// # Errors
/// [`Error::Environment`] where direct I/O is not available or does not suit blocks;
/// [`Error::DriveNotFound`]; [`Error::Usage`] for what cannot be a drive.
pub fn direct_io(path: &Path) -> Result<DirectIo, Error> {
    let name = path.display().to_string();
    let location = open_location(path)?;
    let metadata = location.metadata().map_err(|e| Error::os(format!("stat of {name}"), e))?;
    let is_block_device = metadata.file_type().is_block_device();
    let file = open_direct(&location, OpenMode::ReadOnly, is_block_device)
        .map_err(|error| explain_open(&name, &metadata, error))?;
    let offset_bytes = direct_unit_bytes(&file, &name)?;
    Ok(DirectIo { memory_bytes: direct_alignment(&file).map(|(memory, _)| memory), offset_bytes })
}

/// Alignment of memory and of offsets for direct I/O; `None` where the kernel does not report it.
#[allow(unsafe_code)]
fn direct_alignment(file: &File) -> Option<(u32, u32)> {
    // SAFETY: `statx` is plain integers, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string, so that the descriptor itself is meant, and `found`
    // is a statx to write to.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut found,
        )
    };
    let reported = result == 0 && found.stx_mask & libc::STATX_DIOALIGN != 0;
    reported.then_some((found.stx_dio_mem_align, found.stx_dio_offset_align))
}

impl Drop for DriveFile {
    /// Unlocks now: a descriptor inherited by a child, or a ring that the kernel has not destroyed
    /// yet, would keep the lock longer than the device lives.
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: plain call on a descriptor that `self.file` owns.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}
