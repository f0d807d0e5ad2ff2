// SPDX-License-Identifier: Apache-2.0
//! Saves bytes as a checkpoint and restores them, each in one call.
//!
//! `cargo run --example save -- DRIVE...`, on drives that `stanchion format` made a pool of.

use stanchion::{CheckpointName, CheckpointSpec, Error, Pool, PoolOptions};

fn main() -> Result<(), Error> {
    let drives: Result<_, _> = std::env::args().skip(1).map(|drive| drive.parse()).collect();
    let pool = Pool::open(&PoolOptions::new(drives?))?;
    let weights: Vec<u8> = (0..10_000_000_u32).map(|i| (i ^ (i >> 8)) as u8).collect();

    // The step after the newest one that there is.
    let step = pool.latest("example").map_or(1, |newest| newest.name.step + 1);
    let name = CheckpointName::new("example", step)?;
    let spec = CheckpointSpec::single(name, weights.len() as u64);
    let saved = pool.save(&spec, &weights)?; // durable and visible, or an error
    println!("saved {} in generation {}", spec.name, saved.generation);

    let mut restored = vec![0; weights.len()];
    pool.restore(&spec.name, 0, 0, &mut restored)?; // verified, or an error
    assert!(restored == weights);
    println!("restored {} bytes", restored.len());
    Ok(())
}
