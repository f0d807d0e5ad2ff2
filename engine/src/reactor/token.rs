//! Tokens: what comes back with an answer and says which chunk, and which copy of it, was asked for.
//!
//! A token is the reactor's own number in its own requests. No client makes one, so a token that
//! names nothing is a broken invariant and not an error to report.

/// Chunks of one task: what a token has room for.
pub(crate) const MAX_CHUNKS_PER_TASK: u32 = 1 << 31;

/// Names a chunk of a task under way, and one of its copies.
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
    /// For a task that has no chunks.
    pub(crate) fn of_task(slot: u32) -> ChunkToken {
        ChunkToken { slot, relative: 0, second: false }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_what_it_was_made_of() {
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
