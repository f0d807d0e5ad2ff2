// SPDX-License-Identifier: Apache-2.0
//! What a simulated drive is like.

/// The order in which commands complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionOrder {
    /// As submitted; a poll gives all that fit.
    InOrder,
    /// Any, by the drive's seed; a poll gives some, and at least one when one is due.
    Shuffled,
}

/// What a simulated drive is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// Capacity; rounded down to whole blocks. Memory is taken only for blocks that were written,
    /// unless `dense`.
    pub capacity_bytes: u64,
    /// The serial; the address is `sim:` and the serial.
    pub serial: String,
    /// Commands in flight at once; at least 1.
    pub queue_depth: u32,
    /// Largest command; a whole number of blocks.
    pub max_transfer_bytes: u32,
    /// Whether completed writes may be lost at a power cut.
    pub volatile_cache: bool,
    /// Where all of the drive's choices come from.
    pub seed: u64,
    /// The order of completions.
    pub order: CompletionOrder,
    /// Take all memory at creation and never later. Not with `volatile_cache`.
    pub dense: bool,
    /// Whether it has reservations.
    pub reservations: bool,
    /// Whether it can abort the commands of a holder that is preempted.
    pub can_abort: bool,
    /// Whether it says who is registered.
    pub can_report: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            capacity_bytes: 64 << 20,
            serial: "SIM0".into(),
            queue_depth: 64,
            max_transfer_bytes: 1 << 20,
            volatile_cache: true,
            seed: 0,
            order: CompletionOrder::InOrder,
            dense: false,
            reservations: false,
            can_abort: true,
            can_report: true,
        }
    }
}
