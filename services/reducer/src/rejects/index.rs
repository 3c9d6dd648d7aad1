//! Where the records are that say which items were rejected.

use std::collections::HashSet;
use std::ops::Range;

use protocol::{AttemptStatus, ResultEvent};

use crate::tally::Effect;
use crate::{MiniBatchState, Tally};

/// The places of the records that say which items were rejected, in the order of the ledger. Ordinary successes do not
/// touch it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RejectIndex {
    records: Vec<RecordAt>,
    /// Whether the ledger has ever named a reject, so that an earlier table may exist.
    had_any: bool,
}

/// The record of the attempt that decided about a mini-batch. 24 bytes, because all mini-batches may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordAt {
    pub mini_batch: u64,
    pub segment: u32,
    pub offset: u32,
    pub length: u32,
    /// Whether the mini-batch failed, or succeeded without some of its items.
    state: MiniBatchState,
}

impl RejectIndex {
    /// Adds an event of the ledger, after the tally. `record`: range of its record in the segment.
    pub fn apply(&mut self, event: &ResultEvent, effect: Effect, tally: &Tally, segment: u32, record: Range<usize>) {
        match event {
            ResultEvent::Attempt(attempt) => {
                let state = tally.state(attempt.mini_batch);
                let has_rejects = match attempt.status {
                    AttemptStatus::Succeeded => {
                        effect == Effect::Won && !(attempt.rejected.is_empty() && attempt.unread.is_empty())
                    }
                    _ => attempt.is_final && effect == Effect::Counted && state == MiniBatchState::Failed,
                };
                if has_rejects {
                    let narrow = |at: usize| u32::try_from(at).expect("segments are shorter than 4 GiB");
                    self.had_any = true;
                    self.records.push(RecordAt {
                        mini_batch: attempt.mini_batch,
                        segment,
                        offset: narrow(record.start),
                        length: narrow(record.len()),
                        state,
                    });
                }
            }
            ResultEvent::Reopened { .. } => self.records.retain(|record| record.state != MiniBatchState::Failed),
            ResultEvent::RowsLost { mini_batches } if !self.records.is_empty() => {
                let lost: HashSet<u64> = mini_batches.iter().copied().collect();
                let is_lost =
                    |record: &RecordAt| record.state == MiniBatchState::Succeeded && lost.contains(&record.mini_batch);
                self.records.retain(|record| !is_lost(record));
            }
            _ => {}
        }
    }

    /// Returns the records that count, one for each mini-batch with rejects, by mini-batch.
    pub fn records(&self, tally: &Tally) -> Vec<RecordAt> {
        // A success may have replaced a failure.
        let counts = |record: &&RecordAt| tally.state(record.mini_batch) == record.state;
        let mut records: Vec<_> = self.records.iter().filter(counts).copied().collect();
        // Stable: the last record of a mini-batch stays the last.
        records.sort_by_key(|record| record.mini_batch);
        records.reverse();
        records.dedup_by_key(|record| record.mini_batch);
        records.reverse();
        records
    }

    /// Whether the ledger has ever named a reject.
    pub fn had_any(&self) -> bool {
        self.had_any
    }
}
