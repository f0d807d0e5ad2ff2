// SPDX-License-Identifier: Apache-2.0
//! What the kernel says of memory that a caller registers: whether all of it is mapped for reading,
//! and in pages of which size.
//!
//! One question for each mapping of the range (`PROCMAP_QUERY`, Linux 6.11); earlier kernels list
//! all mappings of the process.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;

use crate::error::Error;

/// One mapping, of which only this matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    is_readable: bool,
    /// A file can end before its mapping does.
    is_of_file: bool,
    page_bytes: u64,
}

/// The smallest page size of the range, all of which can be read.
///
/// # Errors
/// [`Error::Os`] with EFAULT when a byte of it is not mapped, not readable, or beyond the end of
/// the file that is mapped there.
pub(super) fn examine(address: u64, len_bytes: u64) -> Result<u64, Error> {
    let end = address.saturating_add(len_bytes);
    let mut questions = match File::open("/proc/self/maps") {
        Ok(maps) => Questions::Asked(maps),
        Err(error) => return Err(Error::os("opening /proc/self/maps", error)),
    };
    let (mut at, mut page_bytes) = (address, u64::MAX);
    while at < end {
        let found = questions.covering(at, end).map_err(|e| Error::os("asking for mappings", e))?;
        let sound = found.filter(|mapping| {
            mapping.is_readable
                && mapping.end > at
                && (!mapping.is_of_file || is_populated(at, mapping.end.min(end)))
        });
        let Some(mapping) = sound else {
            return Err(Error::os(
                format!(
                    "memory of {len_bytes} bytes at {address:#x} cannot be registered: at {at:#x} it \
                     is not mapped for reading, or the file that is mapped there has ended"
                ),
                io::Error::from_raw_os_error(libc::EFAULT),
            ));
        };
        page_bytes = page_bytes.min(mapping.page_bytes);
        at = mapping.end;
    }
    Ok(page_bytes)
}

/// Whether every page of a mapped file is there, now also in the page table.
fn is_populated(start: u64, end: u64) -> bool {
    let len_bytes = (end - start) as usize;
    // SAFETY: takes pages in for reading, as an access would; it changes no byte, and reports where
    // an access would end in SIGBUS.
    let rc =
        unsafe { libc::madvise(start as *mut libc::c_void, len_bytes, libc::MADV_POPULATE_READ) };
    // EINVAL: Linux before 5.14 cannot say.
    rc == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// How the kernel is asked.
enum Questions {
    Asked(File),
    /// By start; of the range only.
    Listed(Vec<Mapping>),
}

impl Questions {
    /// The mapping that has the byte at `at`.
    fn covering(&mut self, at: u64, end: u64) -> io::Result<Option<Mapping>> {
        if let Questions::Asked(maps) = self {
            match query(maps, at) {
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
                found => return found,
            }
            let smaps = BufReader::new(File::open("/proc/self/smaps")?);
            *self = Questions::Listed(list(smaps, at, end)?);
        }
        let Questions::Listed(mappings) = self else { return Ok(None) };
        Ok(mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&at)).copied())
    }
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

const QUERY_BYTES: u64 = size_of::<ProcmapQuery>() as u64;
const _: () = assert!(QUERY_BYTES == 104);
/// _IOWR('f', 17, struct procmap_query)
const PROCMAP_QUERY: u64 = 3 << 30 | QUERY_BYTES << 16 | (b'f' as u64) << 8 | 17;
const READABLE: u64 = 1;

fn query(maps: &File, at: u64) -> io::Result<Option<Mapping>> {
    let mut query =
        ProcmapQuery { size: QUERY_BYTES, query_address: at, ..ProcmapQuery::default() };
    // SAFETY: the structure has the size that it names, and asks for no text.
    let rc = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if rc < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    Ok(Some(Mapping {
        start: query.start,
        end: query.end,
        is_readable: query.flags & READABLE != 0,
        is_of_file: query.inode != 0,
        page_bytes: query.page_bytes,
    }))
}

/// The mappings of /proc/self/smaps that meet a range.
fn list(smaps: impl BufRead, from: u64, end: u64) -> io::Result<Vec<Mapping>> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut is_wanted = false;
    for line in smaps.lines() {
        let line = line?;
        let mut fields = line.split_ascii_whitespace();
        let range = fields.next().and_then(|range| range.split_once('-'));
        if let Some((Some(start), Some(stop))) = range.map(|(start, stop)| (hex(start), hex(stop)))
        {
            if start >= end {
                break;
            }
            is_wanted = stop > from;
            let permissions = fields.next().unwrap_or_default();
            let inode = fields.nth(2).unwrap_or_default();
            if is_wanted {
                mappings.push(Mapping {
                    start,
                    end: stop,
                    is_readable: permissions.starts_with('r'),
                    is_of_file: inode != "0",
                    page_bytes: 0,
                });
            }
        } else if is_wanted
            && let Some(size) = line.strip_prefix("KernelPageSize:")
            && let Some(kib) = size.trim().strip_suffix(" kB").and_then(|kib| kib.parse().ok())
            && let Some(mapping) = mappings.last_mut()
        {
            mapping.page_bytes = u64::saturating_mul(kib, 1024);
        }
    }
    Ok(mappings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// Pages of the caller's, unmapped when dropped.
    struct Pages(u64, usize);

    impl Pages {
        fn map(len_bytes: usize, protection: i32, file: Option<&File>) -> Pages {
            let (flags, descriptor) = match file {
                None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
                Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            };
            let nowhere = std::ptr::null_mut();
            // SAFETY: a new mapping at an address that the kernel chooses.
            let start = unsafe { libc::mmap(nowhere, len_bytes, protection, flags, descriptor, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            Pages(start as u64, len_bytes)
        }

        fn protect(&self, from: usize, len_bytes: usize, protection: i32) {
            let start = (self.0 as usize + from) as *mut libc::c_void;
            // SAFETY: within the mapping, which no reference reaches.
            assert_eq!(unsafe { libc::mprotect(start, len_bytes, protection) }, 0);
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: exactly what `map` mapped, or what is left of it.
            unsafe { libc::munmap(self.0 as *mut libc::c_void, self.1) };
        }
    }

    const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

    fn errno(result: Result<u64, Error>) -> Option<i32> {
        match result {
            Err(Error::Os { source, .. }) => source.raw_os_error(),
            _ => None,
        }
    }

    #[test]
    fn every_mapping_of_the_range_is_examined() {
        let pages = Pages::map(16 << 12, BOTH, None);
        assert_eq!(examine(pages.0, 16 << 12).unwrap(), 4096);
        // Three mappings, of which the last cannot be read.
        pages.protect(4 << 12, 4 << 12, libc::PROT_READ);
        assert_eq!(examine(pages.0, 16 << 12).unwrap(), 4096);
        pages.protect(12 << 12, 1 << 12, libc::PROT_NONE);
        assert_eq!(errno(examine(pages.0, 16 << 12)), Some(libc::EFAULT));
        assert_eq!(examine(pages.0, 12 << 12).unwrap(), 4096);
    }

    #[test]
    fn a_hole_is_found_wherever_it_is() {
        for hole in [0_u64, 7, 15] {
            let pages = Pages::map(16 << 12, BOTH, None);
            let start = (pages.0 + (hole << 12)) as *mut libc::c_void;
            // SAFETY: one page of the mapping, which no reference reaches.
            assert_eq!(unsafe { libc::munmap(start, 1 << 12) }, 0);
            assert_eq!(errno(examine(pages.0, 16 << 12)), Some(libc::EFAULT), "hole at {hole}");
        }
        assert_eq!(errno(examine(4096, 4096)), Some(libc::EFAULT));
        assert_eq!(errno(examine(u64::MAX - 4095, 4096)), Some(libc::EFAULT));
    }

    #[test]
    fn a_file_that_ends_before_its_mapping_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 << 12).unwrap();
        let pages = Pages::map(4 << 12, BOTH, Some(&file));
        assert_eq!(examine(pages.0, 2 << 12).unwrap(), 4096);
        assert_eq!(errno(examine(pages.0, 3 << 12)), Some(libc::EFAULT));
        file.set_len(4 << 12).unwrap();
        assert_eq!(examine(pages.0, 4 << 12).unwrap(), 4096);
    }

    #[test]
    fn both_ways_of_asking_agree() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 << 12).unwrap();
        let maps = File::open("/proc/self/maps").unwrap();
        let all =
            [Pages::map(8 << 12, BOTH, None), Pages::map(4 << 12, libc::PROT_NONE, Some(&file))];
        for pages in &all {
            let smaps = BufReader::new(File::open("/proc/self/smaps").unwrap());
            let end = pages.0 + pages.1 as u64;
            let listed = list(smaps, pages.0, end).unwrap();
            let [listed] = listed[..] else { panic!("{listed:?}") };
            match query(&maps, pages.0) {
                Ok(found) => assert_eq!(found.unwrap(), listed),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY)),
            }
            assert!((listed.start..listed.end).contains(&pages.0));
        }
    }

    #[test]
    fn a_listing_is_read_up_to_the_end_of_the_range() {
        let text = "1000-3000 rw-p 0 00:00 0\nKernelPageSize: 4 kB\n\
                    3000-9000 ---s 0 00:0f 7 /anon_hugepage (deleted)\nKernelPageSize: 2048 kB\n\
                    9000-a000 r--p x\nKernelPageSize: x kB\nz\n";
        let listed = list(Cursor::new(text), 0x2000, 0x9000).unwrap();
        let mapping = |start, end, is_readable, is_of_file, page_bytes| Mapping {
            start,
            end,
            is_readable,
            is_of_file,
            page_bytes,
        };
        let expected = [
            mapping(0x1000, 0x3000, true, false, 4096),
            mapping(0x3000, 0x9000, false, true, 2 << 20),
        ];
        assert_eq!(listed, expected);
    }
}
