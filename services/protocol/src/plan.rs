//! The position of a mini-batch in the plan.

use std::ops::Range;

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
        Self {
            chunk: mini_batch / PLAN_CHUNK_MINI_BATCHES,
            line: mini_batch % PLAN_CHUNK_MINI_BATCHES,
        }
    }

    /// Returns the first mini-batch of a chunk.
    pub const fn first_of(chunk: u64) -> u64 {
        chunk.saturating_mul(PLAN_CHUNK_MINI_BATCHES)
    }

    /// Returns the mini-batches of a chunk of a plan of this many.
    pub const fn numbers_of(chunk: u64, mini_batches: u64) -> Range<u64> {
        let end = Self::first_of(chunk.saturating_add(1));
        Self::first_of(chunk)..if end < mini_batches { end } else { mini_batches }
    }

    /// Divides a whole plan into its chunks, with their numbers.
    pub fn divide<T>(plan: &[T]) -> impl Iterator<Item = (u64, &[T])> {
        (0..).zip(plan.chunks(PLAN_CHUNK_MINI_BATCHES as usize))
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
            assert!(
                line < PLAN_CHUNK_MINI_BATCHES && chunk <= PlanPosition::chunks_for(mini_batch)
            );
        }
        assert_eq!((PlanPosition::chunks_for(0), PlanPosition::chunks_for(512)), (0, 1));
        assert_eq!(PlanPosition::chunks_for(513), 2);
    }

    #[test]
    fn chunks_hold_every_mini_batch_once() {
        for mini_batches in [0, 1, 511, 512, 513, 1024, 1500] {
            let chunks = 0..PlanPosition::chunks_for(mini_batches);
            let numbers =
                chunks.clone().flat_map(|chunk| PlanPosition::numbers_of(chunk, mini_batches));
            assert!(numbers.eq(0..mini_batches), "{mini_batches}");
            let plan: Vec<u64> = (0..mini_batches).collect();
            let divided =
                PlanPosition::divide(&plan).map(|(chunk, numbers)| (chunk, numbers.to_vec()));
            assert!(
                divided.eq(chunks
                    .map(|chunk| (chunk, PlanPosition::numbers_of(chunk, mini_batches).collect())))
            );
        }
    }
}
