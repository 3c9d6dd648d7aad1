//! The mini-batches that run the rejected items of one mini-batch again, each with its place in the output of the first job.

use anyhow::Context;
use protocol::{Descriptor, Replayed, Work};

use super::RejectedMiniBatch;

/// What runs the rejects of one mini-batch again.
#[derive(Debug, PartialEq)]
pub struct Replay {
    /// The mini-batches, with the job and the numbers of those that failed.
    pub plan: Vec<Descriptor>,
    /// Number of their items.
    pub items: u64,
}

impl RejectedMiniBatch {
    /// Plans the mini-batches that run its rejects again, neighbours together. `is_replay`: its job is a replay itself,
    /// whose rows are in the output of an earlier job. Errors: its plan has been removed, or is that of another job.
    pub fn replay(&self, is_replay: bool) -> anyhow::Result<Replay> {
        let number = self.attempt.mini_batch;
        let planned = self.descriptor.as_ref().context("its plan has been removed")?;
        // Those of a replay belong to the mini-batches of the first job.
        let base =
            planned.replays.filter(|_| is_replay).unwrap_or(Replayed { mini_batch: number, item: 0, rows: None });
        let mut replay = Replay { plan: Vec::new(), items: 0 };
        let ranges = self.ranges_to_replay();
        for range in ranges.map_or_else(|| vec![None], |ranges| ranges.into_iter().map(Some).collect()) {
            let mut descriptor = planned.clone();
            let mut place = Replayed { rows: planned.replays.and_then(|replays| replays.rows), ..base };
            replay.items += match (&mut descriptor.work, range) {
                (Work::Files { paths, versions, stamps, .. }, range) => {
                    if let Some((first, end)) = range {
                        let (first, end) = (usize::try_from(first)?, usize::try_from(end)?.min(paths.len()));
                        *paths = paths.get(first..end).context("the plan and the ledger differ")?.to_vec();
                        place.item += first as u64;
                    }
                    // Files are read as they are now: a bad one may have been corrected.
                    versions.clear();
                    stamps.clear();
                    paths.len() as u64
                }
                (_, Some((first, end))) => {
                    place.rows = Some((first, end));
                    end.saturating_sub(first)
                }
                (_, None) => self.attempt.total.max(1),
            };
            descriptor.replays = Some(place);
            (descriptor.tries_spent, descriptor.deliveries_lost, descriptor.traceparent) = (0, 0, None);
            replay.plan.push(descriptor);
        }
        Ok(replay)
    }

    /// Returns the ranges of items to replay, in order, as the first item and the end: neighbours together. `None`: the
    /// whole mini-batch.
    fn ranges_to_replay(&self) -> Option<Vec<(u64, u64)>> {
        if self.is_rejected_whole() {
            return None;
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for range in self.ranges() {
            let end = range.item.saturating_add(range.items);
            match ranges.last_mut().filter(|(_, last)| *last == range.item) {
                Some((_, last)) => *last = end,
                None => ranges.push((range.item, end)),
            }
        }
        Some(ranges)
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Attempt, AttemptStatus, Block, BlockRange, ErrorReport, ItemPath, Rejected};

    use super::*;
    use crate::fixtures::{failed, succeeded};

    fn rejected(work: Work, replays: Option<Replayed>, ranges: &[(u64, u64)]) -> RejectedMiniBatch {
        let reject = |(item, items): &(u64, u64)| Rejected {
            item: *item,
            items: *items,
            detail: String::new(),
            values: String::new(),
            status: AttemptStatus::RunRaised,
            error: ErrorReport::default(),
            run: None,
        };
        let attempt = match ranges {
            [] => failed(7, 3, true, 5),
            _ => Attempt { rejected: ranges.iter().map(reject).collect(), ..succeeded(7, 3, 5, 0) },
        };
        let descriptor = Descriptor { replays, ..Descriptor::new("first", 7, work) };
        RejectedMiniBatch { attempt, descriptor: Some(descriptor), list_lost: None }
    }

    fn files() -> Work {
        let paths = ["/a", "/b", "/c", "/d", "/e"].map(ItemPath::from).to_vec();
        Work::Files { input: 0, paths, versions: vec![], stamps: vec![1, 2, 3, 4, 5], key: vec![] }
    }

    fn rows() -> Work {
        let range = BlockRange::Lines { first: 0, last: 50 };
        let block = Block { path: "/t".into(), version: None, range, path_columns: vec![] };
        Work::Rows { input: 0, blocks: vec![block], rows_before: None, key: vec![] }
    }

    /// Returns for each mini-batch of the plan its place, and its files.
    fn planned(rejected: &RejectedMiniBatch, is_replay: bool) -> (Vec<(Replayed, String)>, u64) {
        let Replay { plan, items } = rejected.replay(is_replay).expect("it can be replayed");
        let short = |descriptor: &Descriptor| match &descriptor.work {
            Work::Files { paths, stamps, .. } => {
                assert!(stamps.is_empty(), "files are read as they are now");
                paths.iter().map(ItemPath::display).collect()
            }
            _ => String::new(),
        };
        (plan.iter().map(|one| (one.replays.expect("a replay"), short(one))).collect(), items)
    }

    fn at(mini_batch: u64, item: u64, rows: Option<(u64, u64)>) -> Replayed {
        Replayed { mini_batch, item, rows }
    }

    #[test]
    fn neighbours_run_together() {
        let (plan, items) = planned(&rejected(files(), None, &[(0, 1), (2, 1), (3, 2)]), false);
        assert_eq!(plan, [(at(7, 0, None), "/a".into()), (at(7, 2, None), "/c/d/e".into())]);
        assert_eq!(items, 4);
        let (plan, items) = planned(&rejected(rows(), None, &[(1, 1), (3, 1)]), false);
        assert_eq!(
            plan.iter().map(|(place, _)| *place).collect::<Vec<_>>(),
            [at(7, 0, Some((1, 2))), at(7, 0, Some((3, 4)))]
        );
        assert_eq!(items, 2);
    }

    #[test]
    fn mini_batch_that_failed_runs_as_a_whole() {
        assert_eq!(planned(&rejected(files(), None, &[]), false), (vec![(at(7, 0, None), "/a/b/c/d/e".into())], 5));
        assert_eq!(planned(&rejected(rows(), None, &[]), false), (vec![(at(7, 0, None), String::new())], 5));
    }

    #[test]
    fn replay_of_a_replay_belongs_to_the_first_job() {
        let (plan, _) = planned(&rejected(files(), Some(at(2, 10, None)), &[(1, 1)]), true);
        assert_eq!(plan, [(at(2, 11, None), "/b".into())]);
        let (plan, _) = planned(&rejected(rows(), Some(at(2, 0, Some((10, 20)))), &[(13, 1)]), true);
        assert_eq!(plan[0].0, at(2, 0, Some((13, 14))));
        let (plan, _) = planned(&rejected(rows(), Some(at(2, 0, Some((10, 20)))), &[]), true);
        assert_eq!(plan[0].0, at(2, 0, Some((10, 20))));
        let (plan, _) = planned(&rejected(files(), Some(at(2, 10, None)), &[(1, 1)]), false);
        assert_eq!(plan, [(at(7, 1, None), "/b".into())], "the output of the replay was its own");
    }
}
