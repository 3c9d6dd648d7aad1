//! Where a mini-batch is in the plan.

/// Mini-batches in one chunk of the plan; the last chunk holds the rest. A constant of the format: the position of any
/// mini-batch follows from its number.
///
/// Small enough that work can start early, and that a chunk of mini-batches of a thousand files each is no burden.
pub const PLAN_CHUNK_MINI_BATCHES: u64 = 512;

/// The position of one mini-batch in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanPosition {
    /// Chunk, from 0.
    pub chunk: u64,
    /// Line in the chunk, from 0.
    pub line: u64,
}

impl PlanPosition {
    /// Returns the position of a mini-batch.
    pub const fn of(mini_batch: u64) -> Self {
        Self { chunk: mini_batch / PLAN_CHUNK_MINI_BATCHES, line: mini_batch % PLAN_CHUNK_MINI_BATCHES }
    }

    /// Returns the first mini-batch of a chunk.
    pub const fn first_of(chunk: u64) -> u64 {
        chunk.saturating_mul(PLAN_CHUNK_MINI_BATCHES)
    }

    /// Returns the number of chunks that hold this many mini-batches.
    pub const fn chunks_for(mini_batches: u64) -> u64 {
        mini_batches.div_ceil(PLAN_CHUNK_MINI_BATCHES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mini_batch_has_one_position() {
        for mini_batch in [0, 1, 511, 512, 513, 1 << 40, u64::MAX] {
            let PlanPosition { chunk, line } = PlanPosition::of(mini_batch);
            assert_eq!(PlanPosition::first_of(chunk) + line, mini_batch);
            assert!(line < PLAN_CHUNK_MINI_BATCHES && chunk <= PlanPosition::chunks_for(mini_batch));
        }
        assert_eq!((PlanPosition::chunks_for(0), PlanPosition::chunks_for(512)), (0, 1));
        assert_eq!(PlanPosition::chunks_for(513), 2);
    }
}
