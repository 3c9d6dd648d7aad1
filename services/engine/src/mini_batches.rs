//! Sets of mini-batches. A job may have ten million of them, so each takes a bit, not an entry of a map.

use std::collections::BTreeMap;

use protocol::{PLAN_CHUNK_MINI_BATCHES, PlanPosition};

const WORD_BITS: u64 = u64::BITS as u64;
const WORDS: usize = (PLAN_CHUNK_MINI_BATCHES / WORD_BITS) as usize;

/// A set of mini-batches. Chunks of the plan without any of them take no memory, so a number from a message of another
/// program does no harm, however large it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MiniBatches {
    /// One bit for each mini-batch of a chunk.
    chunks: BTreeMap<u64, [u64; WORDS]>,
    len: u64,
}

impl MiniBatches {
    /// Adds a mini-batch.
    pub fn insert(&mut self, mini_batch: u64) {
        let (chunk, word, bit) = place(mini_batch);
        let word = &mut self.chunks.entry(chunk).or_default()[word];
        self.len += u64::from(*word & bit == 0);
        *word |= bit;
    }

    /// Whether the set holds a mini-batch.
    pub fn contains(&self, mini_batch: u64) -> bool {
        let (chunk, word, bit) = place(mini_batch);
        self.chunks.get(&chunk).is_some_and(|words| words[word] & bit != 0)
    }

    /// Returns the number of mini-batches.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the number of mini-batches before this one.
    pub fn before(&self, end: u64) -> u64 {
        let (last, end_word, bit) = place(end);
        let whole: u64 = self.chunks.range(..last).flat_map(|(_, words)| words).map(ones).sum();
        let Some(words) = self.chunks.get(&last) else { return whole };
        whole
            + words[..end_word].iter().map(ones).sum::<u64>()
            + ones(&(words[end_word] & (bit - 1)))
    }
}

/// Returns chunk, word and bit of a mini-batch.
fn place(mini_batch: u64) -> (u64, usize, u64) {
    let PlanPosition { chunk, line } = PlanPosition::of(mini_batch);
    (chunk, (line / WORD_BITS) as usize, 1 << (line % WORD_BITS))
}

fn ones(word: &u64) -> u64 {
    word.count_ones().into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set_of(mini_batches: impl IntoIterator<Item = u64>) -> MiniBatches {
        let mut set = MiniBatches::default();
        mini_batches.into_iter().for_each(|mini_batch| set.insert(mini_batch));
        set
    }

    /// Numbers around the borders of words and chunks, and any others.
    fn numbers() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0u64..1200, 1 => any::<u64>(), 1 => Just(u64::MAX)]
    }

    proptest! {
        #[test]
        fn set_holds_what_was_added(added in proptest::collection::vec(numbers(), 0..200), asked in numbers()) {
            let set = set_of(added.iter().copied());
            let model: BTreeSet<u64> = added.iter().copied().collect();
            prop_assert_eq!(set.len(), model.len() as u64);
            for number in added.iter().copied().chain([asked]) {
                prop_assert_eq!(set.contains(number), model.contains(&number));
                prop_assert_eq!(set.before(number), model.range(..number).count() as u64);
            }
        }
    }

    #[test]
    fn ten_million_mini_batches_take_a_few_megabytes() {
        let set = set_of(0..100_000);
        let entry = size_of::<(u64, [u64; WORDS])>();
        assert!(
            set.chunks.len() * entry <= 100_000 / 6,
            "{} chunks of {entry} bytes",
            set.chunks.len()
        );
    }
}
