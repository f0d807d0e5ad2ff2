// SPDX-License-Identifier: Apache-2.0
//! Tokens: a token comes back with an answer and names the chunk, and the copy of it, of the
//! request.
//!
//! A token is the reactor's own number in its own requests. Clients cannot make one, so a token
//! that names nothing is a broken invariant and not an error to report.

/// The most chunks of one task that a token can count.
pub(crate) const MAX_CHUNKS_PER_TASK: u32 = 1 << 31;

/// Names a chunk of a task in flight, and one of its copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkToken {
    /// The task's slot.
    pub(crate) slot: u32,
    /// The chunk, counted from the task's first; below [`MAX_CHUNKS_PER_TASK`].
    pub(crate) relative: u32,
    /// The second copy, not the first.
    pub(crate) second: bool,
}

impl ChunkToken {
    pub(crate) fn encode(self) -> u64 {
        let low = self.relative | if self.second { MAX_CHUNKS_PER_TASK } else { 0 };
        u64::from(self.slot) << 32 | u64::from(low)
    }

    pub(crate) fn decode(token: u64) -> ChunkToken {
        let low = token as u32;
        ChunkToken {
            slot: (token >> 32) as u32,
            relative: low & (MAX_CHUNKS_PER_TASK - 1),
            second: low & MAX_CHUNKS_PER_TASK != 0,
        }
    }
}

/// Names a segment whose commit or abort the keeper was asked for: the places of its port and of
/// its handle. Neither is used again before the answer has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FinishToken {
    /// The port's place.
    pub(crate) port: u32,
    /// The segment's place in it.
    pub(crate) segment: u32,
}

impl FinishToken {
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.port) << 32 | u64::from(self.segment)
    }

    pub(crate) fn decode(token: u64) -> FinishToken {
        FinishToken { port: (token >> 32) as u32, segment: token as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_gives_back_its_parts() {
        for slot in [0, 1, u32::MAX] {
            for relative in [0, 1, MAX_CHUNKS_PER_TASK - 1] {
                for second in [false, true] {
                    let token = ChunkToken { slot, relative, second };
                    assert_eq!(ChunkToken::decode(token.encode()), token);
                }
            }
        }
    }
}
