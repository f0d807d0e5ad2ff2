// SPDX-License-Identifier: Apache-2.0
//! A pool that remembers every acknowledged checkpoint; each must be restored, whatever was done to
//! the drives since.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use stanchion_testing::DriveAddress;
use stanchion_testing::{CheckpointName, Error, FormatOptions, Pool, PoolOptions, format_pool};

use super::{Pattern, restore, save};

const MIB: u64 = 1 << 20;

/// The drives, and what was acknowledged.
pub struct Kept {
    drives: Vec<DriveAddress>,
    acknowledged: Vec<(CheckpointName, Pattern)>,
}

impl Kept {
    /// Makes a pool of these drives; files that do not exist get this size.
    pub fn format(drives: Vec<DriveAddress>, create_bytes: Option<u64>) -> Kept {
        let options = FormatOptions { create_bytes, ..FormatOptions::new(drives.clone()) };
        format_pool(&options).unwrap();
        Kept { drives, acknowledged: Vec::new() }
    }

    /// Opens the pool.
    pub fn open(&self) -> Pool {
        self.try_open().unwrap()
    }

    /// Opens the pool, if possible.
    pub fn try_open(&self) -> Result<Pool, Error> {
        Pool::open(&PoolOptions::new(self.drives.clone()))
    }

    /// Saves another checkpoint, which must succeed.
    pub fn save(&mut self, pool: &Pool, len_bytes: u64) {
        let step = self.acknowledged.len() as u64;
        let name = CheckpointName::new("kept", step).unwrap();
        let pattern = Pattern::new(step + 1000, len_bytes);
        save(pool, &name, &pattern).unwrap();
        self.acknowledged.push((name, pattern));
    }

    /// How many checkpoints were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// The newest acknowledged checkpoint.
    pub fn newest(&self) -> (CheckpointName, Pattern) {
        self.acknowledged.last().unwrap().clone()
    }

    /// Everything that was acknowledged is there, and nothing else.
    pub fn restore_all(&self, pool: &Pool) {
        let listed: Vec<String> = pool.list().iter().map(|found| found.name.to_string()).collect();
        let known: Vec<_> = self.acknowledged.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(listed, known);
        for (name, pattern) in &self.acknowledged {
            assert_eq!(restore(pool, name, pattern), Ok(()), "{name}");
        }
    }

    /// With the pool closed: another opening finds everything that was acknowledged, sound, and can
    /// add to it.
    pub fn check(&self) {
        let pool = self.open();
        self.restore_all(&pool);
        let report = pool.verify(None, false, &mut |_, _| ()).unwrap();
        assert!(report.is_clean(), "{report:?}");
        let (name, pattern) = ("after@1".parse().unwrap(), Pattern::new(77, 6 * MIB));
        save(&pool, &name, &pattern).unwrap();
        assert_eq!(restore(&pool, &name, &pattern), Ok(()));
        pool.remove(&name).unwrap();
    }
}

/// Fills the file system of a directory.
pub fn fill(directory: &Path) {
    let block = vec![1; MIB as usize];
    let mut file = fs::File::create(directory.join("ballast")).unwrap();
    while file.write_all(&block).is_ok() {}
    while file.write_all(&block[..4096]).is_ok() {}
    // Only now does a file system that allocates late know how little space there is.
    let _ = file.sync_all();
}

/// Frees the space again.
pub fn make_room(directory: &Path) {
    fs::remove_file(directory.join("ballast")).unwrap();
}
