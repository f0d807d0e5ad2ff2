// SPDX-License-Identifier: Apache-2.0
//! A small seeded generator, so that a seed repeats a simulation on every machine.

/// SplitMix64: one word of state, every seed good. Not for secrets.
#[derive(Clone, Debug)]
pub struct SimRng(u64);

impl SimRng {
    /// A generator whose every output follows from `seed`.
    pub fn new(seed: u64) -> SimRng {
        SimRng(seed)
    }

    /// 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `n` times on average; never when `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    /// A place in a slice of `len` elements; `len` is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}
