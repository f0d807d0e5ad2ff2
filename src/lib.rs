//! Stanchion: a userspace storage engine for deep-learning checkpoints.

pub use stanchion_engine::*;
