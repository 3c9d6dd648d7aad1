//! The places of the records that name rejected items.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use protocol::{AttemptStatus, ResultEvent};

use crate::batch::Event;
use crate::tally::Effect;
use crate::{MiniBatchState, Tally};

/// The places of the records that name rejected items, in the order of the ledger. Successes with a
/// result for each item do not touch it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RejectIndex {
    records: Vec<RecordAt>,
    /// The round of the last success of each mini-batch that has succeeded in more than one.
    last: HashMap<u64, u16>,
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
    /// Whether a retry can run them again: it names them.
    is_named: bool,
    /// The round in which it was committed.
    round: u16,
}

impl RejectIndex {
    /// Adds an event of the ledger, after the tally. `record`: range of its record in the segment.
    pub fn apply(
        &mut self,
        event: &Event,
        effect: Effect,
        tally: &Tally,
        segment: u32,
        record: Range<usize>,
    ) {
        let event = match event {
            Event::Success(success) if success.failed() > 0 && effect == Effect::Won => {
                return self.add(
                    success.mini_batch,
                    tally,
                    segment,
                    record,
                    success.succeeded == 0,
                );
            }
            Event::Success(_) => return,
            Event::Other(event) => &**event,
        };
        match event {
            ResultEvent::Attempt(attempt) => {
                if attempt.round > 0 && effect == Effect::Won {
                    self.last.insert(attempt.mini_batch, round_of(tally));
                }
                let (is_named, has_rejects) = match attempt.status {
                    AttemptStatus::Succeeded => {
                        let names_any = !(attempt.rejected.is_empty() && attempt.unread.is_empty());
                        let is_named = names_any || attempt.returned_nothing();
                        (is_named, effect == Effect::Won && (is_named || attempt.failed() > 0))
                    }
                    _ => {
                        let has_failed = tally.state(attempt.mini_batch) == MiniBatchState::Failed;
                        (true, attempt.is_final && effect == Effect::Counted && has_failed)
                    }
                };
                if has_rejects {
                    self.add(attempt.mini_batch, tally, segment, record, is_named);
                }
            }
            ResultEvent::Round(round) if round.failed => {
                self.records.retain(|record| record.state != MiniBatchState::Failed);
            }
            ResultEvent::RowsLost { mini_batches } if !self.records.is_empty() => {
                let lost: HashSet<u64> = mini_batches.iter().copied().collect();
                let is_lost = |record: &RecordAt| {
                    record.state == MiniBatchState::Succeeded && lost.contains(&record.mini_batch)
                };
                self.records.retain(|record| !is_lost(record));
            }
            _ => {}
        }
    }

    fn add(
        &mut self,
        mini_batch: u64,
        tally: &Tally,
        segment: u32,
        record: Range<usize>,
        is_named: bool,
    ) {
        let narrow = |at: usize| u32::try_from(at).expect("segments are shorter than 4 GiB");
        self.had_any = true;
        self.records.push(RecordAt {
            mini_batch,
            segment,
            offset: narrow(record.start),
            length: narrow(record.len()),
            state: tally.state(mini_batch),
            is_named,
            round: round_of(tally),
        });
    }

    /// Whether a retry may need the rows and the plan of the job.
    pub fn may_run_again(&self, tally: &Tally) -> bool {
        self.named(tally).next().is_some()
    }

    /// Returns the mini-batches with rejects that a retry can run again.
    pub fn named(&self, tally: &Tally) -> impl Iterator<Item = u64> {
        self.records(tally)
            .into_iter()
            .filter(|record| record.is_named)
            .map(|record| record.mini_batch)
    }

    /// Returns the records that count, one for each mini-batch with rejects, by mini-batch.
    pub fn records(&self, tally: &Tally) -> Vec<RecordAt> {
        // A success may have replaced a failure, or a success of an earlier round.
        let counts = |record: &&RecordAt| {
            tally.state(record.mini_batch) == record.state
                && self.last.get(&record.mini_batch).is_none_or(|last| *last <= record.round)
        };
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

fn round_of(tally: &Tally) -> u16 {
    u16::try_from(tally.rounds()).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use protocol::{Attempt, Round};

    use super::*;
    use crate::batch::Batch;
    use crate::fixtures::{event, failed, succeeded};

    #[test]
    fn index_holds_the_facts_that_a_retry_may_need() {
        let may_run_again = |attempt: Attempt| {
            let (mut index, mut tally) = (RejectIndex::default(), Tally::default());
            let mut batch = Batch::default();
            batch.add_event(&event(attempt));
            batch.retain_in_segment(|record, place| {
                let effect = tally.apply_record(record);
                index.apply(record.event, effect, &tally, 0, place.record());
                true
            });
            (index.records(&tally).len(), index.may_run_again(&tally))
        };
        assert_eq!(may_run_again(succeeded(0, 1, 3, 3)), (0, false));
        assert_eq!(may_run_again(succeeded(0, 1, 3, 2)), (1, false));
        let warned = Attempt { warnings_total: 1, ..succeeded(0, 1, 3, 2) };
        assert_eq!(may_run_again(warned), (1, false));
        assert_eq!(may_run_again(succeeded(0, 1, 3, 0)), (1, true), "all its items");
        let warned = Attempt { warnings_total: 1, ..succeeded(0, 1, 3, 0) };
        assert_eq!(may_run_again(warned), (1, true));
        assert_eq!(may_run_again(failed(0, 1, true, 3)), (1, true));
    }

    #[test]
    fn index_notices_that_a_table_may_exist() {
        let (mut index, mut tally) = (RejectIndex::default(), Tally::default());
        let mut batch = Batch::default();
        batch.add_event(&event(succeeded(0, 1, 1, 1)));
        batch.add_event(&event(failed(1, 3, true, 1)));
        batch.add_event(&ResultEvent::Round(Round { failed: true, ..Round::default() }));
        assert!(!index.had_any());
        batch.retain_in_segment(|record, place| {
            let effect = tally.apply_record(record);
            index.apply(record.event, effect, &tally, 0, place.record());
            true
        });
        assert!(index.had_any() && index.records(&tally).is_empty());
    }
}
