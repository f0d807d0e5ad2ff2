// SPDX-License-Identifier: Apache-2.0
//! A region: one mapping of huge pages in a memfd, shared with other processes by its descriptor.
//!
//! - Every page is taken when the region is made, so that no page fault, and no lack of pages, can
//!   occur later: by a call that reports what it cannot have, never by a touch, which would end in
//!   SIGBUS or the out-of-memory killer.
//! - A forked child has neither the mapping nor the descriptor: huge pages are free again when the
//!   process that made them has given them back, whatever its children do.
//! - The size is sealed: a holder of the descriptor cannot truncate it during a transfer.
//! - The mapping lives as long as the last `Arc<Region>`; devices and sessions each hold one.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{available, forked, mappings};
use crate::error::Error;
use crate::limits::BLOCK_BYTES;
use crate::units::{is_block_aligned, round_up};

/// The huge page size that the engine uses.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The pages that a region is made of. [`Region::is_huge`] returns what was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    /// Huge pages or an error.
    Required,
    /// Huge pages, or ordinary ones when there are none; the caller reports that to its user.
    Preferred,
    /// Ordinary pages.
    Off,
}

/// One mapped region, or memory that the caller mapped.
pub struct Region {
    id: u64,
    /// None for memory of the caller's.
    memfd: Option<OwnedFd>,
    /// The process that alone has it, if a forked child lacks it.
    depth: Option<u64>,
    base: NonNull<u8>,
    len_bytes: u64,
    huge: bool,
}

// SAFETY: the mapping is plain shared memory that lives until drop; every access to its bytes is an
// unsafe operation elsewhere, with its own argument.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` only gives out addresses and immutable facts.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("id", &self.id)
            .field("len_bytes", &self.len_bytes)
            .field("huge", &self.huge)
            .finish_non_exhaustive()
    }
}

impl Region {
    /// Maps at least `len_bytes` of zeroed memory, rounded up to whole huge pages (also for
    /// ordinary pages, so that both kinds behave alike).
    ///
    /// # Errors
    /// [`Error::Environment`] when huge pages are required and the kernel has too few, or a control
    /// group admits fewer; the text says what to change. [`Error::Os`] with ENOMEM when there is
    /// not that much memory, by what the machine or a control group has left.
    pub fn new(len_bytes: u64, pages: HugePages) -> Result<Region, Error> {
        let Some(len_bytes) = round_up(len_bytes.max(1), HUGE_PAGE_BYTES) else {
            return Err(Error::Usage(format!("a region of {len_bytes} bytes is too large")));
        };
        match pages {
            HugePages::Off => Region::new_ordinary(len_bytes),
            HugePages::Required => {
                Region::map(len_bytes, Kind::Huge).map_err(|error| no_huge_pages(len_bytes, &error))
            }
            HugePages::Preferred => {
                Region::map(len_bytes, Kind::Huge).or_else(|_| Region::new_ordinary(len_bytes))
            }
        }
    }

    fn new_ordinary(len_bytes: u64) -> Result<Region, Error> {
        // One at a time: what the next one may take is known when this one has its pages.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        available::require(len_bytes)?;
        Region::map(len_bytes, Kind::Buffers)
    }

    /// Maps at least `len_bytes` of zeroed memory in ordinary pages, rounded up to whole blocks:
    /// for small things that no device touches, such as rings.
    ///
    /// # Errors
    /// [`Error::Os`] when the memory is not available.
    pub fn ordinary(len_bytes: u64) -> Result<Region, Error> {
        let Some(len_bytes) = round_up(len_bytes.max(1), BLOCK_BYTES) else {
            return Err(Error::Usage(format!("a region of {len_bytes} bytes is too large")));
        };
        Region::map(len_bytes, Kind::Small)
    }

    /// Memory that the caller mapped, as a region: whole blocks of it.
    ///
    /// # Errors
    /// [`Error::Usage`] when it does not start and end on a block, or is empty. [`Error::Os`] with
    /// EFAULT when some of it is not mapped for reading, or lies beyond the end of a file.
    ///
    /// # Safety
    /// As long as the region lives, all of the memory stays mapped for reading, and for writing
    /// where an entry reads into it, and the only Rust references to it are those that the region's
    /// buffers lend.
    pub unsafe fn foreign(base: NonNull<u8>, len_bytes: u64) -> Result<Region, Error> {
        let address = base.as_ptr() as u64;
        let whole = is_block_aligned(address) && is_block_aligned(len_bytes);
        if !whole || len_bytes == 0 || address.checked_add(len_bytes).is_none() {
            return Err(Error::Usage(format!(
                "memory of {len_bytes} bytes at {address:#x} cannot be registered: it must start and \
                 end at multiples of {BLOCK_BYTES} bytes"
            )));
        }
        let page_bytes = mappings::examine(address, len_bytes)?;
        let huge = address.is_multiple_of(HUGE_PAGE_BYTES)
            && len_bytes.is_multiple_of(HUGE_PAGE_BYTES)
            && page_bytes >= HUGE_PAGE_BYTES;
        Ok(Region { id: next_id(), memfd: None, depth: None, base, len_bytes, huge })
    }

    /// Maps the whole region that another process made, from the descriptor that it sent.
    ///
    /// # Errors
    /// [`Error::Environment`] when the descriptor is not a memfd with a sealed size: its owner
    /// could truncate it, and the next access here would end in SIGBUS. [`Error::Os`] when it
    /// cannot be mapped.
    pub fn from_memfd(memfd: OwnedFd) -> Result<Region, Error> {
        // SAFETY: plain call on a descriptor that we own.
        let seals = unsafe { libc::fcntl(memfd.as_raw_fd(), libc::F_GET_SEALS) };
        let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if seals < 0 || seals & needed != needed {
            return Err(Error::Environment(
                "the descriptor is not shared memory of a sealed size; use the one that the engine sent"
                    .into(),
            ));
        }
        let file = File::from(memfd);
        let info = file.metadata().map_err(|error| Error::os("fstat of a memfd", error))?;
        let is_huge = info.blksize() == HUGE_PAGE_BYTES;
        Region::map_memfd(file.into(), info.len(), if is_huge { Kind::Huge } else { Kind::Small })
    }

    fn map(len_bytes: u64, kind: Kind) -> Result<Region, Error> {
        const NAME: &CStr = c"stanchion";
        let mut flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        if kind == Kind::Huge {
            flags |= libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        }
        // SAFETY: the name is a valid C string; the call makes a new descriptor or fails.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), flags) };
        if fd < 0 {
            return Err(Error::last_os("memfd_create"));
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let memfd = unsafe { OwnedFd::from_raw_fd(fd) };
        let length = libc::off_t::try_from(len_bytes)
            .map_err(|_| Error::Usage(format!("a region of {len_bytes} bytes is too large")))?;
        // SAFETY: plain call on a descriptor that we own.
        if unsafe { libc::ftruncate(memfd.as_raw_fd(), length) } != 0 {
            return Err(Error::last_os("ftruncate of a memfd"));
        }
        let region = Region::map_memfd(memfd, len_bytes, kind)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain call on a descriptor that we own.
        let sealed = unsafe { libc::fcntl(region.raw_memfd(), libc::F_ADD_SEALS, seals) } == 0;
        if !sealed {
            return Err(Error::last_os("sealing a memfd"));
        }
        Ok(region)
    }

    /// Maps all of a memfd that has `len_bytes`.
    fn map_memfd(memfd: OwnedFd, len_bytes: u64, kind: Kind) -> Result<Region, Error> {
        let size = usize::try_from(len_bytes)
            .map_err(|_| Error::Usage(format!("a region of {len_bytes} bytes is too large")))?;
        // SAFETY: a new shared mapping of our own descriptor at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                memfd.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os("mmap of a memfd"));
        }
        let Some(base) = NonNull::new(address.cast::<u8>()) else {
            return Err(Error::Environment("mmap gave the null address".into()));
        };
        let mut region = Region {
            id: next_id(),
            memfd: Some(memfd),
            depth: None,
            base,
            len_bytes,
            huge: kind == Kind::Huge,
        };
        region.populate()?;
        if kind != Kind::Small {
            region.keep_from_children()?;
        }
        Ok(region)
    }

    /// Takes every page, or fails. What mmap reserved is no promise: a control group may admit
    /// fewer huge pages, and ordinary ones are not reserved at all.
    fn populate(&self) -> Result<(), Error> {
        let size = self.len_bytes as usize;
        // SAFETY: our own mapping, all of it.
        let rc =
            unsafe { libc::madvise(self.base.as_ptr().cast(), size, libc::MADV_POPULATE_WRITE) };
        if rc == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(Error::os("taking the pages of a memfd", error));
        }
        // Linux before 5.14. This call takes the pages of the file, or fails, too.
        // SAFETY: plain call on a descriptor that we own.
        if unsafe { libc::fallocate(self.raw_memfd(), 0, 0, self.len_bytes as libc::off_t) } != 0 {
            return Err(Error::last_os("taking the pages of a memfd"));
        }
        Ok(())
    }

    fn keep_from_children(&mut self) -> Result<(), Error> {
        let size = self.len_bytes as usize;
        // SAFETY: our own mapping, all of it.
        if unsafe { libc::madvise(self.base.as_ptr().cast(), size, libc::MADV_DONTFORK) } != 0 {
            return Err(Error::last_os("keeping a memfd from forked processes"));
        }
        forked::close_in_children(self.raw_memfd());
        self.depth = Some(forked::depth());
        Ok(())
    }

    /// A number that no other region of this process has or had.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The first byte, aligned to 2 MiB for huge pages and to 4 KiB otherwise.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length; a multiple of [`HUGE_PAGE_BYTES`], or of a block for ordinary regions.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether it consists of huge pages.
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    /// The descriptor, to share the region with another process; `None` for foreign memory.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(AsFd::as_fd)
    }

    fn raw_memfd(&self) -> i32 {
        self.memfd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// The address of `offset_bytes`, if `len_bytes` from there lie within the region.
    pub fn at(&self, offset_bytes: u64, len_bytes: u64) -> Option<NonNull<u8>> {
        let end = offset_bytes.checked_add(len_bytes)?;
        if end > self.len_bytes {
            return None;
        }
        let offset = usize::try_from(offset_bytes).ok()?;
        // SAFETY: offset <= len_bytes, so the result is inside the mapping or one past its end.
        Some(unsafe { self.base.add(offset) })
    }

    /// Whether `len_bytes` from `address` lie within the region.
    pub fn contains(&self, address: NonNull<u8>, len_bytes: u64) -> bool {
        let Some(offset) = (address.as_ptr() as u64).checked_sub(self.base.as_ptr() as u64) else {
            return false;
        };
        offset.checked_add(len_bytes).is_some_and(|end| end <= self.len_bytes)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(memfd) = self.memfd.take() else { return };
        if let Some(depth) = self.depth {
            if depth != forked::depth() {
                // In a forked child: neither the mapping nor the descriptor is there, and what has
                // their numbers now is not ours.
                std::mem::forget(memfd);
                return;
            }
            forked::forget(memfd.as_raw_fd());
        }
        // SAFETY: `map_memfd` made this mapping with this length, and there is no other holder any
        // more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes as usize) };
    }
}

/// What a region of our own is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Huge pages, for buffers.
    Huge,
    /// Ordinary pages, for buffers.
    Buffers,
    /// Ordinary pages, for small things, which forked children keep.
    Small,
}

/// Why there are not so many huge pages, and what to change.
fn no_huge_pages(len_bytes: u64, error: &Error) -> Error {
    let count = len_bytes / HUGE_PAGE_BYTES;
    let Error::Os { source, .. } = error else {
        return Error::Environment(format!("{count} huge pages of 2 MiB are needed ({error})"));
    };
    Error::Environment(if source.raw_os_error() == Some(libc::EFAULT) {
        // What would have been SIGBUS at a touch: mmap had reserved the pages.
        format!(
            "{count} huge pages of 2 MiB are needed, and the control group of this process admits \
             fewer; raise its hugetlb.2MB.max (in Kubernetes: the container's limit hugepages-2Mi), \
             or pass --huge-pages off"
        )
    } else {
        format!(
            "{count} huge pages of 2 MiB are needed and are not free ({error}); \
             run `scripts/hugepages` or `sysctl vm.nr_hugepages=N`, or pass --huge-pages off"
        )
    })
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

const _: () = assert!(HUGE_PAGE_BYTES.is_multiple_of(BLOCK_BYTES));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_pages_are_zeroed_and_bounded() {
        let region = Region::new(1, HugePages::Off).unwrap();
        assert_eq!(region.len_bytes(), HUGE_PAGE_BYTES);
        assert!(!region.is_huge());
        let last = region.at(HUGE_PAGE_BYTES - 1, 1).unwrap();
        // SAFETY: inside the mapping, and no other code knows the region.
        assert_eq!(unsafe { last.read() }, 0);
        assert!(region.at(HUGE_PAGE_BYTES, 1).is_none());
        assert!(region.at(u64::MAX, 2).is_none());
        assert!(region.contains(region.base(), HUGE_PAGE_BYTES));
        assert!(!region.contains(last, 2));
    }

    #[test]
    fn the_size_is_sealed() {
        let region = Region::new(1, HugePages::Off).unwrap();
        // SAFETY: plain call; it must fail.
        let result = unsafe { libc::ftruncate(region.raw_memfd(), 0) };
        assert_eq!(result, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn a_region_is_shared_by_its_descriptor() {
        let ours = Region::ordinary(5000).unwrap();
        assert_eq!(ours.len_bytes(), 8192);
        let theirs =
            Region::from_memfd(ours.memfd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(theirs.len_bytes(), 8192);
        assert!(!theirs.is_huge());
        // SAFETY: both mappings are 8192 bytes long, and only this thread knows them.
        let seen = unsafe {
            ours.base().add(8191).write(7);
            theirs.base().add(8191).read()
        };
        assert_eq!(seen, 7);
    }

    #[test]
    fn a_descriptor_that_can_be_shortened_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert!(matches!(Region::from_memfd(file.into()), Err(Error::Environment(_))));
        // SAFETY: a valid C string; the call makes a new descriptor or fails.
        let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was just made and has no other owner.
        let memfd = unsafe { OwnedFd::from_raw_fd(fd) };
        assert!(matches!(Region::from_memfd(memfd), Err(Error::Environment(_))));
    }

    #[test]
    fn foreign_memory_is_whole_blocks_and_stays_its_owners() {
        let owner = Region::new(1, HugePages::Off).unwrap();
        let at = |offset| owner.at(offset, 0).unwrap();
        // SAFETY: the owner outlives every region made here, and there is no reference to its
        // memory.
        let make = |offset, len_bytes| unsafe { Region::foreign(at(offset), len_bytes) };
        for (offset, len_bytes) in [(1, 4096), (0, 1), (0, 0), (4096, u64::MAX - 4095)] {
            assert!(matches!(make(offset, len_bytes), Err(Error::Usage(_))));
        }
        let region = make(4096, 8192).unwrap();
        assert_eq!((region.base(), region.len_bytes()), (at(4096), 8192));
        assert!(region.memfd().is_none() && !region.is_huge());
        drop(region);
        // SAFETY: the owner's mapping is still there.
        assert_eq!(unsafe { at(4096).read() }, 0);
    }

    #[test]
    fn too_many_huge_pages_is_an_error_that_says_what_to_do() {
        let error = Region::new(1 << 46, HugePages::Required).unwrap_err();
        assert!(error.to_string().contains("hugepages"), "{error}");
    }
}
