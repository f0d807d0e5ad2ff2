// SPDX-License-Identifier: Apache-2.0
//! What a pool is opened with.

use crate::address::DriveAddress;
use crate::memory::HugePages;

/// What the pool is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PoolMode {
    /// List, restore, verify. Writes nothing; several processes may do it at once. Drives may be
    /// missing: data that needs them cannot be restored.
    ///
    /// The pool shows the generation that was the newest when it was opened. To see a later one
    /// open the pool again, also beside this one: a reader takes no lock.
    ReadOnly,
    /// Everything. One process at a time.
    #[default]
    ReadWrite,
}

/// Options of [`crate::Pool::open`].
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Every drive of the pool, in any order, under any address that reaches it.
    pub drives: Vec<DriveAddress>,
    /// Reading only, or everything.
    pub mode: PoolMode,
    /// Opens for writing although drives are missing. The labels of the other drives then record
    /// that: a drive that comes back later is refused until it is admitted again.
    pub degraded: bool,
    /// Opens the generation before the newest one where the newest one cannot be read. Opened for
    /// writing, the pool continues from there: what was committed or removed later is lost.
    pub fall_back: bool,
    /// Opens for writing although another program made something over a drive (a file system, a
    /// partition table), and erases that first.
    pub erase_foreign: bool,
    /// Opens for writing although another host or process owns the drives: takes them from it, and
    /// its later writes fail. For an owner that has ended but whose end nothing proves.
    pub take_over: bool,
    /// Pages of session memory. SPDK drives always need huge ones.
    pub huge_pages: HugePages,
    /// Reactor threads; by default one for each drive, but one core stays free.
    pub reactors: Option<usize>,
    /// The cores to pin reactors to, in order; by default the last cores that the process may use.
    pub cores: Option<Vec<usize>>,
    /// Commands in flight on each drive; by default what suits its back end.
    pub queue_depth: Option<u32>,
    /// Threads that compute checksums.
    pub checksum_threads: Option<usize>,
}

impl PoolOptions {
    /// Defaults for these drives.
    pub fn new(drives: Vec<DriveAddress>) -> PoolOptions {
        PoolOptions {
            drives,
            mode: PoolMode::ReadWrite,
            degraded: false,
            fall_back: false,
            erase_foreign: false,
            take_over: false,
            huge_pages: HugePages::Required,
            reactors: None,
            cores: None,
            queue_depth: None,
            checksum_threads: None,
        }
    }

    /// Whether the pool may be opened without some of its drives.
    pub(crate) fn tolerates_missing(&self) -> bool {
        self.degraded || self.mode == PoolMode::ReadOnly
    }

    /// How many checksum threads there will be.
    pub(crate) fn checksum_thread_count(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.checksum_threads.unwrap_or((cores / 4).clamp(1, 8)).clamp(1, 64)
    }
}
