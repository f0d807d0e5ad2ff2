// SPDX-License-Identifier: Apache-2.0
//! The engine's end-to-end tests in one binary: each binary links the whole engine, and with a
//! dozen of them a changed line took longer to link than to compile.
//!
//! Tests that need a global allocator of their own are binaries of their own; see `Cargo.toml`.

mod common;

mod bulk;
mod drive_conditions;
mod fair_turns;
mod in_use;
mod kernel_faults;
mod membership;
mod memory_bounds;
mod mirror;
mod moved_chunks;
mod readers;
mod rebuild;
mod repository;
mod resource_limits;
mod save_restore;
mod session;
mod tables;
mod thread_failures;
mod waiting_commits;

#[cfg(feature = "spdk")]
mod spdk_faults;
#[cfg(feature = "spdk")]
mod spdk_loss;
#[cfg(feature = "spdk")]
mod spdk_nvmf;
#[cfg(feature = "spdk")]
mod spdk_pool;
