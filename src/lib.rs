//! Stanchion: a userspace storage engine for deep-learning checkpoints.
//!
//! For Rust this crate is the engine under a short name. For everybody else it is `libstanchion`.

pub mod c;

pub use stanchion_engine::*;
