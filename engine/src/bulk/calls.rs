// SPDX-License-Identifier: Apache-2.0
//! Whole segments in one call of the pool.

use std::slice;

use crate::bulk::save::Saved;
use crate::bulk::session::{BulkOptions, BulkSession};
use crate::error::Error;
use crate::name::CheckpointName;
use crate::pool::Pool;
use crate::state::CheckpointSpec;

impl Pool {
    /// Saves one participant's segment from memory, and waits until the whole checkpoint is durable
    /// and visible.
    ///
    /// The bytes are copied once, into huge pages that the drives read. [`BulkSession`] also takes
    /// bytes from a callback, reports progress and can be interrupted; a [`crate::Session`] copies
    /// nothing.
    ///
    /// # Errors
    /// As [`BulkSession::save`]; [`Error::Usage`] when `bytes` does not have `spec.len_bytes`
    /// bytes.
    ///
    /// # Examples
    /// ```no_run
    /// use stanchion_engine::{CheckpointSpec, Error, Pool, PoolOptions};
    ///
    /// fn main() -> Result<(), Error> {
    ///     let pool = Pool::open(&PoolOptions::new(vec!["/dev/nvme0n1".parse()?]))?;
    ///     let weights = vec![7; 10_000_000];
    ///     let spec = CheckpointSpec::single("llama@100".parse()?, weights.len() as u64);
    ///     let saved = pool.save(&spec, &weights)?;
    ///     println!("{} is durable, in generation {}", spec.name, saved.generation);
    ///
    ///     let mut restored = vec![0; weights.len()];
    ///     pool.restore(&spec.name, 0, 0, &mut restored)?;
    ///     assert!(restored == weights);
    ///     Ok(())
    /// }
    /// ```
    pub fn save(&self, spec: &CheckpointSpec, bytes: &[u8]) -> Result<Saved, Error> {
        if bytes.len() as u64 != spec.len_bytes {
            return Err(Error::Usage(format!(
                "{} bytes for a segment of {}",
                bytes.len(),
                spec.len_bytes
            )));
        }
        let mut fill = |into: &mut [u8], offset: u64| {
            let offset = offset as usize;
            into.copy_from_slice(&bytes[offset..offset + into.len()]);
            Ok(())
        };
        self.bulk_session(&BulkOptions::for_bytes(spec.len_bytes))?.save(
            spec,
            &[],
            &mut fill,
            &mut |_| Ok(()),
        )
    }

    /// Restores bytes of one participant's segment, from `offset_bytes` on, until `into` is full.
    /// All of them are verified; after an error the contents of `into` are undefined.
    ///
    /// # Errors
    /// As [`BulkSession::restore`].
    pub fn restore(
        &self,
        name: &CheckpointName,
        participant: u32,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), Error> {
        let end = offset_bytes.saturating_add(into.len() as u64);
        let mut consume = |bytes: &[u8], at: u64| {
            let start = (at - offset_bytes) as usize;
            into[start..start + bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        self.bulk_session(&BulkOptions::for_bytes(end - offset_bytes))?.restore(
            name,
            participant,
            slice::from_ref(&(offset_bytes..end)),
            &[],
            &mut consume,
            &mut |_| Ok(()),
        )
    }

    /// A session for whole segments.
    ///
    /// # Errors
    /// When its memory cannot be allocated.
    pub fn bulk_session(&self, options: &BulkOptions) -> Result<BulkSession<'_>, Error> {
        BulkSession::new(self, options.memory_bytes)
    }
}
